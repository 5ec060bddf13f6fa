"""Reads the address of a connection, and its options.

`tuplegate://KEY@host:port/database` holds everything; `http://host:port` needs the key and the database beside it. The
key may also stand in place of a password, `tuplegate://:KEY@host`, which many programs know to hide.
"""

import os
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tuplegate.client.addresses import DEFAULT_URL, check_key, check_url
from tuplegate.dbapi.errors import InterfaceError

_SHAPE = "tuplegate://KEY@host:port/database"
_PORT = 8080
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TLS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_OPTIONS = ("tls", "ca_file", "timeout_s", "retries")
_NUMBERS = (("timeout_s", float), ("retries", int))


@dataclass(frozen=True)
class Address:
    """A service and a key, and how requests are sent there."""

    url: str
    api_key: str = ""
    database: str | None = None
    ca_file: str | None = None
    timeout_s: float = 60.0
    retries: int = 5


def choose_address(url: str | None, **given: str | float | None) -> Address:
    """Return the address with the given options; the rest comes from the address or the environment. Raises
    InterfaceError."""
    try:
        address = read_address(url or os.environ.get("TUPLEGATE_URL") or DEFAULT_URL)
        chosen: Any = {name: value for name, value in given.items() if value not in (None, "")}
        address = replace(address, **chosen)
        key = address.api_key or os.environ.get("TUPLEGATE_API_KEY") or ""
        if not key:
            raise ValueError("there is no API key: give it in the address, as api_key, or set TUPLEGATE_API_KEY")
        return replace(address, url=check_url(address.url), api_key=check_key(key))
    except ValueError as exc:
        raise InterfaceError(str(exc)) from exc


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
    numbers: Any = {name: kind(_read_number(name, options[name])) for name, kind in _NUMBERS if name in options}
    return Address(
        write_url(parts.hostname, parts.port, _read_tls(options.get("tls"))),
        unquote(parts.password or parts.username or ""),
        unquote(parts.path[1:]) or None,
        options.get("ca_file"),
        **numbers,
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


def _read_number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r} in the address: it is a number") from None
