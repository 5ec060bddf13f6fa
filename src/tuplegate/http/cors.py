"""The headers that tell a browser which pages of other origins may use the service.

Tokens travel in a header that a page must set itself, so no credentials are allowed. A request from another origin is
not refused here: the browser keeps the answer from the page.
"""

from collections.abc import Iterable
from typing import Final

import structlog

from tuplegate.http.exchange import Exchange
from tuplegate.http.origins import ANY, Origin, find_seen

_log: Final = structlog.get_logger()

_ALLOW_HEADERS = (
    "authorization, content-type, accept, idempotency-key, tuplegate-database, tuplegate-transaction-id,"
    " tuplegate-consistency, tuplegate-position"
)
_EXPOSE_HEADERS = (
    b"x-request-id, retry-after, ratelimit, ratelimit-policy, idempotency-replayed, tuplegate-position,"
    b" tuplegate-served-by, tuplegate-replayed, neon-batch-isolation-level, neon-batch-read-only, neon-batch-deferrable"
)
_MAX_AGE_S = 7200
_SHOWN_MAX = 200


class CorsPolicy:
    """The policy of one plane. `origins` are exact, as a browser sends them; one of them may be `*`. `refused` counts
    requests of pages that are neither among those nor the plane's own: their browsers keep the answers from them.
    `control` is the control plane's address, which the console's pages come from. If it is bound to all addresses,
    those pages have the name that the request itself is sent to."""

    def __init__(self, origins: frozenset[str], control: Origin | None = None) -> None:
        self.refused = 0
        self._unnamed = control if control is not None and control.is_everywhere else None
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def answer_headers(self, origin: bytes, host: bytes | None) -> bytes:
        """Return the header lines for answers to requests with this `Origin`, as bytes that go into the head
        unchanged."""
        if self._any:
            return b"access-control-allow-origin: *\r\naccess-control-expose-headers: %b\r\n" % _EXPOSE_HEADERS
        if origin not in self._origins and not self._is_unnamed(origin, host):
            if host is None or origin.partition(b"://")[2] != host:
                self.refused += 1
                shown = origin[:_SHOWN_MAX].decode("latin-1")
                _log.debug("an origin was refused", origin=shown, setting="cors_origins")
            return b"vary: origin\r\n"
        return b"vary: origin\r\naccess-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\n" % (
            origin,
            _EXPOSE_HEADERS,
        )

    def _is_unnamed(self, origin: bytes, host: bytes | None) -> bool:
        seen = None if self._unnamed is None else find_seen(self._unnamed, host)
        return seen is not None and str(seen).encode() == origin


def respond_options(exchange: Exchange, methods: list[str], more: Iterable[str] = ()) -> None:
    """Respond with the methods of a path. A preflight of an allowed origin is told that the request may be sent, with
    the headers that all routes take and `more` that this one does."""
    allowed = ", ".join(sorted({*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])}))
    headers = [("allow", allowed)]
    if (
        b"access-control-allow-origin" in exchange.extra_headers
        and b"access-control-request-method" in exchange.headers
    ):
        headers += [
            ("access-control-allow-methods", allowed),
            ("access-control-allow-headers", ", ".join([_ALLOW_HEADERS, *more])),
            ("access-control-max-age", str(_MAX_AGE_S)),
        ]
    exchange.respond(204, b"", headers)
