"""`GET /docs`: a page that shows `openapi.json` and sends requests to its own address. It loads nothing from
elsewhere."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

_SCRIPTS = ("elements.js", "schema.js", "try.js", "page.js")


@cache
def page() -> bytes:
    """The page with its style and its script."""
    return _file("page.html").replace("/* style */", _style()).replace("/* script */", _script()).encode()


@cache
def policy() -> bytes:
    """The page may run its own script, by hash, show its own style, and ask its own address; nothing else."""
    script, style = (b64encode(sha256(text.encode()).digest()).decode() for text in (_script(), _style()))
    return (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ).encode()


def _style() -> str:
    return _file("page.css")


def _script() -> str:
    return "\n".join(_file(name) for name in _SCRIPTS)


@cache
def _file(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")
