"""Origins: scheme, host and port of the planes, of pages that may call them, and of the alias's upstream."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound to it here
_LOCAL_NAME = "localhost"
ANY = "*"
"""Stands for all origins in the list of those that are allowed."""


@dataclass(frozen=True, slots=True)
class Origin:
    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port as in a `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        """As in an `Origin` header."""
        return f"{self.scheme}://{self.authority}"

    @property
    def is_everywhere(self) -> bool:
        """Return whether it is bound to all addresses of the machine, so that nobody can reach it by this one."""
        return self.host in _EVERYWHERE

    @property
    def needs_no_name(self) -> bool:
        """Return whether only the machine itself can answer for the host: it is an address, or localhost."""
        try:
            return self.host == _LOCAL_NAME or bool(ip_address(self.host))
        except ValueError:
            return False

    @property
    def local_alias(self) -> "Origin | None":
        """Return the same origin by the name that every machine has for itself; None unless its host is an address of
        loopback."""
        try:
            return replace(self, host=_LOCAL_NAME) if ip_address(self.host).is_loopback else None
        except ValueError:
            return None


def parse_origin(text: str) -> Origin:
    """Parse `http://host`, `https://host:port` and the like. Raises ValueError for anything that has more or fewer
    parts."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(text)
    parts = urlsplit(text)
    host = parts.hostname
    if parts.scheme not in _DEFAULT_PORTS or not host or not _HOST.fullmatch(host) or parts.path not in ("", "/"):
        raise ValueError(text)
    if parts.query or parts.fragment or "@" in parts.netloc or "?" in text or "#" in text:
        raise ValueError(text)
    return Origin(parts.scheme, host, parts.port or _DEFAULT_PORTS[parts.scheme])


def find_seen(origin: Origin, host: bytes | None) -> Origin | None:
    """Return the address of a plane for a browser that has sent this `Host`, to any plane of the same machine.

    A name is taken from the request only if the service knows none of its own, and `localhost` for loopback: the
    service does not control the addresses of a hostile name. None if there is no usable name.
    """
    try:
        name = parse_origin(f"{origin.scheme}://{(host or b'').decode('latin-1')}").host
    except ValueError:
        name = ""
    if origin.is_everywhere:
        return replace(origin, host=name) if name else None
    return (name == _LOCAL_NAME and origin.local_alias) or origin


class PageOrigins:
    """The origins whose pages may open a WebSocket: those of the service itself, and those that are `listed`.

    No name is taken from a request: the owner of a hostile name can let it resolve to this machine. Where the service
    is bound to all addresses of its machine, its own pages are those that a browser has from one of these addresses.
    """

    def __init__(self, own: Iterable[Origin], listed: frozenset[str] = frozenset()) -> None:
        aliases = {alias for origin in own if (alias := origin.local_alias) is not None}
        named = {str(origin) for origin in {*own} | aliases if not origin.is_everywhere}
        self._exact = frozenset(origin.encode() for origin in named | listed)
        self._any = ANY in listed
        self._everywhere = {(origin.scheme, origin.port) for origin in own if origin.is_everywhere}

    def allow(self, origin: bytes, host: bytes | None) -> bool:
        """Return whether a page of this `Origin` may open a WebSocket at this `Host`."""
        if self._any or origin in self._exact:
            return True
        try:
            page = parse_origin(origin.decode("latin-1"))
        except ValueError:
            return False
        is_own = (page.scheme, page.port) in self._everywhere and page.needs_no_name
        return is_own and page.authority.encode() == host
