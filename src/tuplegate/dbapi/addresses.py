"""Reads what a connection is made to, and how.

`tuplegate://KEY@host:port/database` holds everything; `http://host:port` needs the key and the database beside it. The
key may also stand where a password would, `tuplegate://:KEY@host`, which many programs know to hide.
"""

import os
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from tuplegate.client.addresses import DEFAULT_URL, check_key, check_url
from tuplegate.dbapi.errors import InterfaceError

_SHAPE = "tuplegate://KEY@host:port/database"
_PORT = 8080
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TLS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_OPTIONS = ("tls", "ca_file", "timeout_s", "retries")


@dataclass(frozen=True)
class Address:
    url: str
    api_key: str | None = None
    database: str | None = None
    ca_file: str | None = None
    timeout_s: float | None = None
    retries: int | None = None


@dataclass(frozen=True)
class ConnectOptions:
    """How a connection is made. `life_ms` and `idle_ms` are the bounds of its transactions; None for the service's."""

    url: str
    api_key: str
    database: str | None
    timeout_s: float
    retries: int
    ca_file: str | None
    autocommit: bool
    read_only: bool
    life_ms: int | None
    idle_ms: int | None


def choose_options(
    url: str | None,
    api_key: str | None,
    database: str | None,
    timeout_s: float | None,
    retries: int | None,
    ca_file: str | None,
    autocommit: bool,
    read_only: bool,
    transaction_timeout_s: float | None,
    idle_timeout_s: float | None,
) -> ConnectOptions:
    """Return what is given, or else what is in the address or in the environment. Raises InterfaceError."""
    try:
        address = read_address(url or os.environ.get("TUPLEGATE_URL") or DEFAULT_URL)
        key = api_key or address.api_key or os.environ.get("TUPLEGATE_API_KEY") or ""
        if not key:
            raise ValueError("there is no API key: give it in the address, as api_key, or set TUPLEGATE_API_KEY")
        service, key = check_url(address.url), check_key(key)
    except ValueError as exc:
        raise InterfaceError(str(exc)) from exc
    return ConnectOptions(
        service,
        key,
        database or address.database,
        _first(timeout_s, address.timeout_s, 60.0),
        int(_first(retries, address.retries, 5)),
        ca_file or address.ca_file,
        autocommit,
        read_only,
        _milliseconds(transaction_timeout_s),
        _milliseconds(idle_timeout_s),
    )


def _first(given: float | None, addressed: float | None, default: float) -> float:
    if given is not None:
        return given
    return default if addressed is None else addressed


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(int(seconds * 1000), 1)


def read_address(url: str) -> Address:
    """Read the address of a connection. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return Address(url)
    if not parts.scheme.startswith("tuplegate") or not parts.hostname:
        raise ValueError(f"the address of a connection looks like {_SHAPE} or http://host:port")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise ValueError(f"the address has the option {unknown[0]!r}; the known ones are {', '.join(_OPTIONS)}")
    return Address(
        write_url(parts.hostname, parts.port, _read_tls(options.get("tls"))),
        unquote(parts.password or parts.username or "") or None,
        unquote(parts.path[1:]) or None,
        options.get("ca_file"),
        _read_number(options, "timeout_s"),
        None if (retries := _read_number(options, "retries")) is None else int(retries),
    )


def write_url(host: str, port: int | None, tls: bool | None) -> str:
    """Return the address of the service. Without a word about TLS, only a loopback address goes without."""
    tls = host not in _LOOPBACK if tls is None else tls
    named = f"[{host}]" if ":" in host else host
    port = port or (None if tls else _PORT)
    return f"{'https' if tls else 'http'}://{named}" + (f":{port}" if port else "")


def _read_tls(given: str | None) -> bool | None:
    if given is None:
        return None
    if given.lower() not in _TLS:
        raise ValueError(f"tls is {given!r} in the address: it is true or false")
    return _TLS[given.lower()]


def _read_number(options: dict[str, str], name: str) -> float | None:
    if name not in options:
        return None
    try:
        return float(options[name])
    except ValueError:
        raise ValueError(f"{name} is {options[name]!r} in the address: it is a number") from None
