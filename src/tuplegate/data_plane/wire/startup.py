"""The start-up of a client: its wishes, and those that are allowed. Pure."""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tuplegate.data_plane.wire.messages import MINOR_MAX, PROTOCOL_MAJOR, WireError

PACKET_MAX: Final = 10_000
PASSWORD_MAX: Final = 1_000
"""Bytes of the start-up packet, as the engine has it, and of the message with the password."""

_CANCEL, _SSL, _GSS = 80877102, 80877103, 80877104
_CANCEL_KEY_MAX: Final = 256

_SETTINGS: Final = {
    name.lower(): name
    for name in (
        "application_name", "DateStyle", "TimeZone", "client_encoding", "IntervalStyle", "extra_float_digits",
        "search_path", "bytea_output", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
    )
}  # fmt: skip
"""The settings that a client may give at the start, by the name in lower case."""
_TAKEN: Final = ", ".join(sorted(_SETTINGS.values(), key=str.lower))
_OPTION: Final = re.compile(r"--?([^=\s]+)=(.*)", re.DOTALL)
_UNITS: Final = {"": 1, "ms": 1, "s": 1000, "min": 60_000}
_TIME: Final = re.compile(r"\s*([0-9]{1,9})\s*(ms|s|min|)\s*")
_VALUE_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class AskEncryption:
    """The client asks whether the connection can be encrypted, by TLS or by GSS."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    process: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class Startup:
    """A start-up packet. `unknown` are unknown options of the protocol; with any, or a minor version higher than ours,
    the client must be told."""

    minor: int
    parameters: dict[str, str]
    unknown: list[bytes]

    @property
    def must_negotiate(self) -> bool:
        return self.minor > MINOR_MAX or bool(self.unknown)


@dataclass(frozen=True, slots=True)
class Wishes:
    """The settings that the session starts with, and the time limit of a statement."""

    application: str
    settings: dict[str, str]
    timeout_ms: int | None


def check_length(length: int, least: int, most: int, what: str) -> int:
    """Return the length that a packet gives. Raises if there can be no such packet."""
    if not least <= length <= most:
        raise WireError("08P01", f"{what} says that it has {length} bytes; it can have {least} to {most}")
    return length


def read_packet(body: bytes) -> AskEncryption | CancelRequest | Startup:
    """Read the packet that a connection begins with, without its length."""
    code = struct.unpack_from(">i", body)[0]
    if code in (_SSL, _GSS):
        return AskEncryption()
    if code == _CANCEL:
        if not 12 <= len(body) <= 8 + _CANCEL_KEY_MAX:
            raise WireError("08P01", "the request to cancel has a key of a wrong length")
        return CancelRequest(struct.unpack_from(">i", body, 4)[0], body[8:])
    major, minor = code >> 16, code & 0xFFFF
    if major != PROTOCOL_MAJOR:
        raise WireError(
            "0A000", f"version {major}.{minor} of the protocol is not spoken; versions 3.0 and 3.{MINOR_MAX} are"
        )
    parameters = _read_parameters(body[4:])
    unknown = [name.encode() for name in parameters if name.startswith("_pq_.")]
    return Startup(minor, {name: value for name, value in parameters.items() if not name.startswith("_pq_.")}, unknown)


def _read_parameters(body: bytes) -> dict[str, str]:
    if not body.endswith(b"\0"):
        raise WireError("08P01", "the start-up packet does not end with a zero byte")
    parts = body[:-1].split(b"\0")
    if parts.pop() != b"" or len(parts) % 2 or b"" in parts[::2]:
        raise WireError("08P01", "the start-up packet is not a list of names and values")
    texts = [part.decode("utf-8", "replace") for part in parts]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def read_wishes(parameters: Mapping[str, str], timeout_ms: int) -> Wishes:
    """Read the client's wishes. Raises for a parameter that it may not set.

    `user` is ignored: the key decides. `timeout_ms` is the most that a statement may have.
    """
    settings: dict[str, str] = {}
    for name, value in parameters.items():
        match name:
            case "user" | "database":
                pass
            case "replication":
                if value.lower() not in ("false", "off", "no", "0"):
                    raise WireError("0A000", "replication cannot be asked for here", hint="Connect without it.")
            case "options":
                for option, given in _read_options(value):
                    _add_setting(settings, option, given)
            case _:
                _add_setting(settings, name, value)
    application = settings.pop("application_name", "")
    return Wishes(application, settings, _read_timeout(settings.get("statement_timeout"), timeout_ms))


def _read_options(text: str) -> list[tuple[str, str]]:
    """Read `-c name=value` and `--name=value`, where a backslash keeps a blank from separating."""
    words = [
        re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL) for word in re.findall(r"(?:\\.|[^\\\s])+", text, re.DOTALL)
    ]
    found: list[tuple[str, str]] = []
    while words:
        word = words.pop(0)
        if word == "-c" and words:
            word = f"--{words.pop(0)}"
        elif word.startswith("-c"):
            word = f"--{word[2:]}"
        option = _OPTION.fullmatch(word)
        if option is None or not word.startswith("--"):
            raise WireError("0A000", f"the option {word[:100]!r} is not taken; options are of the form -c name=value")
        found.append((option[1].replace("-", "_"), option[2]))
    return found


def _add_setting(settings: dict[str, str], name: str, value: str) -> None:
    known = _SETTINGS.get(name.lower())
    if known is None:
        raise WireError(
            "0A000",
            f"the start-up parameter {name[:100]!r} is not taken; those that are: {_TAKEN}",
            hint="Set others with SET, after the start.",
        )
    if len(value) > _VALUE_MAX:
        raise WireError("22023", f"the value of {known} is longer than {_VALUE_MAX} characters")
    settings[known] = value


def _read_timeout(value: str | None, timeout_ms: int) -> int | None:
    if value is None:
        return None
    found = _TIME.fullmatch(value)
    if found is None or not 0 < (asked := int(found[1]) * _UNITS[found[2]]) <= timeout_ms:
        raise WireError(
            "22023",
            f"statement_timeout cannot be {value[:100]!r} here: a statement has {timeout_ms} ms at most",
            hint=f"Leave it out, or give a number of milliseconds from 1 to {timeout_ms}.",
        )
    return asked
