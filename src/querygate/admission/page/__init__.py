"""`GET /docs`: a page that shows `openapi.json`. It is whole in itself: nothing of it comes from elsewhere."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files


@cache
def page() -> bytes:
    """The page with its style and its script."""
    frame = _file("page.html")
    return frame.replace("/* style */", _file("page.css")).replace("/* script */", _file("page.js")).encode()


@cache
def policy() -> bytes:
    """It runs its own script, by hash, shows its own style, and asks its own address; nothing else."""
    script, style = (b64encode(sha256(_file(name).encode()).digest()).decode() for name in ("page.js", "page.css"))
    return (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ).encode()


@cache
def _file(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")
