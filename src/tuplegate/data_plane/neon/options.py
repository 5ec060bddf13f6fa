"""Reads the headers in which Neon's clients choose a form of rows and a kind of transaction."""

from collections.abc import Mapping
from typing import Final

from tuplegate.protocol.errors import ServiceError

_LEVELS: Final = (b"ReadUncommitted", b"ReadCommitted", b"RepeatableRead", b"Serializable")
_ON_REPLICA: Final = b"RepeatableRead"
_ON_PRIMARY: Final = b"Serializable"
_SHOWN_MAX: Final = 50
_STREAMED: Final = b"application/vnd.neon"
_UNUSUAL: Final = frozenset({b"idempotency-key", b"tuplegate-consistency", b"tuplegate-position"})


class SqlOptions:
    """The options of a request. Those of a batch are for `queries`.

    A conflict is met by running the batch again, so `is_deferrable` changes nothing. `is_plain`: no header asks for a
    snapshot, or for the request to be run once.
    """

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises malformed_request for a value that a header does not take, and not_acceptable."""
        _check_accept(headers)
        self.is_plain = headers.keys().isdisjoint(_UNUSUAL)
        self.as_text = _read_flag(headers, b"neon-raw-text-output")
        self.as_array = _read_flag(headers, b"neon-array-mode")
        self.has_level = _has_level(headers)
        self.is_read_only = _read_flag(headers, b"neon-batch-read-only")
        self.is_deferrable = _read_flag(headers, b"neon-batch-deferrable")

    def echo(self, *, on_replica: bool) -> bytes:
        """Return the header lines of the answer to a batch. The level is the one that it ran at."""
        lines = b""
        if self.has_level:
            lines += b"neon-batch-isolation-level: %b\r\n" % (_ON_REPLICA if on_replica else _ON_PRIMARY)
        if self.is_read_only:
            lines += b"neon-batch-read-only: true\r\n"
        if self.is_deferrable:
            lines += b"neon-batch-deferrable: true\r\n"
        return lines


def _check_accept(headers: Mapping[bytes, bytes]) -> None:
    accept = headers.get(b"accept")
    if accept is not None and accept.startswith(_STREAMED):
        raise ServiceError(
            "not_acceptable",
            f"the answer is application/json, not {_show(accept)}",
            hint="Leave the driver's option responseFormat out. POST /v1/query can stream rows.",
        )


def _read_flag(headers: Mapping[bytes, bytes], name: bytes) -> bool:
    value = headers.get(name)
    if value is None or value == b"false":
        return False
    if value != b"true":
        raise ServiceError("malformed_request", f"{_title(name)} cannot be {_show(value)}; it is true or false")
    return True


def _has_level(headers: Mapping[bytes, bytes]) -> bool:
    level = headers.get(b"neon-batch-isolation-level")
    if level is not None and level not in _LEVELS:
        raise ServiceError(
            "malformed_request",
            f"Neon-Batch-Isolation-Level cannot be {_show(level)}",
            hint=f"It takes: {', '.join(known.decode() for known in _LEVELS)}. Whatever it is, the last one holds.",
        )
    return level is not None


def _title(name: bytes) -> str:
    return "-".join(part.capitalize() for part in name.decode().split("-"))


def _show(value: bytes) -> str:
    return repr(value[:_SHOWN_MAX].decode("latin-1"))
