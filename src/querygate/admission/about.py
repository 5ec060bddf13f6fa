"""`GET /` and `GET /health` of every plane: what this is, and whether it works."""

import msgspec

from querygate import __version__
from querygate.engine.port import Engine
from querygate.http.exchange import Exchange

_encode = msgspec.json.Encoder().encode


class AboutRoutes:
    def __init__(self, engine: Engine, plane: str) -> None:
        self._plane = plane
        self._engine = engine
        self.endpoints: dict[str, str] = {}

    async def banner(self, exchange: Exchange) -> None:
        body = {
            "service": "querygate",
            "plane": self._plane,
            "version": __version__,
            "description": "PostgreSQL over HTTPS",
            "endpoints": self.endpoints,
            "authentication": "Authorization: Bearer svc_k_…",
            "documentation": "docs/ in the source distribution",
        }
        exchange.respond(200, _encode(body))

    async def health(self, exchange: Exchange) -> None:
        health = await self._engine.health()
        body = {
            "status": "ok" if health.ok else "failing",
            "version": __version__,
            "engine": {"kind": health.kind, "version": health.version},
            "checks": health.checks,
        }
        exchange.respond(200 if health.ok else 503, _encode(body), () if health.ok else (("retry-after", "1"),))
