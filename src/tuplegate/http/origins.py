"""Origins: scheme, host and port of the planes, of pages that may call them, and of where the alias leads."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")


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
