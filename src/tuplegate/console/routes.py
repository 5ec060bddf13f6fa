"""Routes of the console's files. They need no token: everybody gets the same files.

They are no part of the interface for programs, so neither the banner nor OpenAPI lists them.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path

import msgspec

from tuplegate import __version__
from tuplegate.admission.plane import Route, RouteTable
from tuplegate.console.files import BUILT, HASHED, INDEX, BuiltFile, read_built, read_reason
from tuplegate.http.exchange import Exchange
from tuplegate.http.origins import Origin, find_seen
from tuplegate.protocol.errors import ServiceError

PATH = "/console/"

_encode = msgspec.json.Encoder().encode

_KEPT = b"public, max-age=31536000, immutable"
_ASKED_AGAIN = b"private, no-cache"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src {}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALONE = (("cross-origin-resource-policy", "same-origin"), ("cross-origin-opener-policy", "same-origin"))
"""No other site's page embeds a file, or holds on to the window that shows it."""
_MISSING = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Tuplegate: the console is missing</title></head>
<body>
<h1>The console has not been built</h1>
<p>The service itself works: only the files of this page are missing.{reason}</p>
<p>In a clone of the repository, <code>make console</code> builds them. It needs packages from npm, and Node.js 20.19 or
newer, which it fetches where the machine has none. Then load this page again.</p>
<p><a href="/docs">The interface for programs</a> is there all the same.</p>
</body>
</html>
"""


class ConsoleRoutes:
    """The routes of the console. `addresses` are those of the planes, as others reach them. `folder` has the built
    files; an empty text for those of the package."""

    def __init__(self, folder: str, addresses: Mapping[str, Origin]) -> None:
        self._folder = Path(folder).expanduser() if folder else BUILT
        self._addresses = addresses
        self._files: dict[str, BuiltFile] = {}

    @property
    def table(self) -> RouteTable:
        return {
            ("GET", "/console"): Route("The console in the browser.", None, open=self.redirect),
            ("GET", PATH): Route("Its page.", None, open=self.page),
            ("GET", PATH + "config.json"): Route("Where its page finds the planes.", None, open=self.config),
            ("GET", PATH + "{file}"): Route("A file of it.", None, open=self.file),
            ("GET", f"{PATH}{HASHED}{{file}}"): Route("A file that never changes.", None, open=self.hashed),
        }

    async def redirect(self, exchange: Exchange) -> None:
        exchange.respond(308, b"", (("location", PATH),))

    async def config(self, exchange: Exchange) -> None:
        body = {"version": __version__, **{f"{name}_url": self._find(name, exchange) for name in _PLANES}}
        exchange.respond(200, _encode(body))

    async def page(self, exchange: Exchange) -> None:
        found = self._look_up(INDEX)
        if found is not None:
            await self._send(exchange, found, _ASKED_AGAIN)
            return
        reason = read_reason(self._folder)
        told = f" The build said: <q>{escape(reason)}</q>" if reason else ""
        body = _MISSING.format(reason=told).encode()
        await exchange.respond_page(body, self._policy(exchange), 503)

    async def file(self, exchange: Exchange) -> None:
        await self._send_named(exchange, exchange.path_values["file"], _ASKED_AGAIN)

    async def hashed(self, exchange: Exchange) -> None:
        await self._send_named(exchange, HASHED + exchange.path_values["file"], _KEPT)

    async def _send_named(self, exchange: Exchange, name: str, caching: bytes) -> None:
        found = self._look_up(name)
        if found is None:
            raise ServiceError("not_found", "the console has no such file")
        await self._send(exchange, found, caching)

    async def _send(self, exchange: Exchange, file: BuiltFile, caching: bytes) -> None:
        coding = file.choose(exchange.headers.get(b"accept-encoding", b""))
        tag = file.etag(coding)
        headers = [("etag", tag), ("vary", "accept-encoding"), *_ALONE]
        policy = self._policy(exchange)
        if _matches(exchange.headers.get(b"if-none-match"), tag):
            await exchange.respond_page(b"", policy, 304, headers, caching)
            return
        if coding != "identity":
            headers.append(("content-encoding", coding))
        await exchange.respond_page(file.bodies[coding], policy, 200, headers, caching, file.content_type)

    def _look_up(self, name: str) -> BuiltFile | None:
        """Return a file. Those that are missing are looked for again: they may have been built since."""
        if not self._files:
            self._files = read_built(self._folder)
        return self._files.get(name)

    def _policy(self, exchange: Exchange) -> bytes:
        return _POLICY.format(" ".join(["'self'", *filter(None, [self._find("data", exchange)])])).encode()

    def _find(self, plane: str, exchange: Exchange) -> str | None:
        """Return the address of a plane, as seen from the browser."""
        origin = self._addresses.get(plane)
        seen = None if origin is None else find_seen(origin, exchange.headers.get(b"host"))
        return None if seen is None else str(seen)


_PLANES = ("data", "alias", "control")


def _matches(header: bytes | None, tag: str) -> bool:
    """Return whether an `If-None-Match` names the tag; a weak one is as good."""
    if header is None:
        return False
    return tag in (part.strip().removeprefix("W/") for part in header.decode("latin-1").split(","))
