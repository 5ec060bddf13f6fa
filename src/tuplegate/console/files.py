"""The built files, read once and held in memory: a request finds them by name in a table, never by a path."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

BUILT = Path(__file__).parent / "built"
INDEX = "index.html"
HASHED = "assets/"
"""Where the build puts files whose names have the hash of their contents."""
REASON = "missing.txt"
"""The build writes the reason into this file if it could not make the others."""

_CODINGS = {".br": "br", ".gz": "gzip"}
"""Compressed beforehand by the build, the better one first."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
_REASON_MAX = 2000


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """A file in every coding that it was built in, by the coding's name; `identity` is the file itself."""

    content_type: bytes
    bodies: dict[str, bytes]
    tag: str

    def choose(self, accepted: bytes) -> str:
        """Return the best coding for an `Accept-Encoding` header."""
        weights = dict(_read_codings(accepted.decode("latin-1").lower()))
        any_other = weights.get("*", 0.0)
        return next((coding for coding in self.bodies if weights.get(coding, any_other) > 0), "identity")

    def etag(self, coding: str) -> str:
        return f'"{self.tag}"' if coding == "identity" else f'"{self.tag}-{coding}"'


def _read_codings(text: str) -> Iterable[tuple[str, float]]:
    for part in text.split(","):
        name, _, weight = part.partition(";")
        try:
            yield name.strip(), float(weight.strip().removeprefix("q=") or 1)
        except ValueError:  # a coding with a weight that is none is not asked for
            continue


def read_built(folder: Path) -> dict[str, BuiltFile]:
    """Return all files by their names below the folder; none if the console was not built."""
    if not (folder / INDEX).is_file():
        return {}
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {}
    for name, path in found.items():
        content_type = _TYPES.get(path.suffix)
        if content_type is None:
            continue
        body = path.read_bytes()
        bodies = {coding: found[name + end].read_bytes() for end, coding in _CODINGS.items() if name + end in found}
        files[name] = BuiltFile(content_type.encode(), {**bodies, "identity": body}, sha256(body).hexdigest()[:24])
    return files


def read_reason(folder: Path) -> str:
    """Return the reason why the build has made no console; an empty text if it was not tried."""
    try:
        return (folder / REASON).read_text("utf-8", "replace")[:_REASON_MAX].strip()
    except OSError:
        return ""
