"""`GET /capabilities`, the feature matrix, and `GET /capabilities/{name}`, which runs one probe of it now."""

import asyncio

import msgspec

from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.capabilities.limits import list_limits
from tuplegate.data_plane.capabilities.matrix import PROBES, Matrix, find_near
from tuplegate.data_plane.capabilities.probes import Observation
from tuplegate.data_plane.capabilities.runner import run_probe
from tuplegate.data_plane.failures import to_service_error
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.protocol.errors import ServiceError
from tuplegate.settings import Settings

_encode = msgspec.json.Encoder().encode

_RUNNING_MAX = 2
_WAITING_MAX = 16
"""How many probes this worker runs at once, and how many may wait: they must not become a load of their own."""


class CapabilityRoutes:
    def __init__(self, engine: port.Engine, identities: IdentityCache, settings: Settings) -> None:
        self._engine = engine
        self._identities = identities
        self._settings = settings
        self._matrix = Matrix(engine)
        self._turns = asyncio.Semaphore(_RUNNING_MAX)
        self._asking = 0

    async def matrix(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        target = await self._identities.find_target(identity, exchange)
        try:
            health = await self._engine.health()
            verdicts = await self._matrix.find_verdicts(health.version, target.database)
        except port.EngineFailure as failure:
            raise to_service_error(failure) from failure
        probes = [
            {"name": name, "group": probe.group, "title": probe.title, "supported": verdicts[name]}
            for name, probe in PROBES.items()
        ]
        body = {
            "success": True,
            "engine": {"kind": health.kind, "version": health.version},
            "limits": list_limits(self._settings, self._engine),
            "weaknesses": self._engine.weaknesses,
            "probes": probes,
        }
        exchange.respond(200, _encode(body))

    async def one(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        name = exchange.path_values["name"]
        probe = PROBES.get(name)
        if probe is None:
            names = find_near(name)
            hint = f"Did you mean {', '.join(names)}?" if names else "GET /capabilities lists them."
            raise ServiceError("not_found", f"there is no probe {name!r}", hint=hint)
        target = await self._identities.find_target(identity, exchange)
        if self._asking >= _RUNNING_MAX + _WAITING_MAX:
            raise ServiceError("busy", "too many probes are running or waiting already")
        self._asking += 1
        try:
            async with self._turns:
                report = await run_probe(self._engine, target.database, probe)
        except port.EngineFailure as failure:
            raise to_service_error(failure) from failure
        finally:
            self._asking -= 1
        body = {
            "success": True,
            "name": probe.name,
            "group": probe.group,
            "title": probe.title,
            "supported": report.supported,
            "statements": [_show(one) for one in report.observations],
            "timings": {"exec_us": report.microseconds},
        }
        exchange.respond(200, _encode(body))


def _show(one: Observation) -> dict[str, object]:
    """Return an observation as it is shown. Moves of a race need not succeed: instead, they name their transaction."""
    error = None if one.error is None else {"message": one.error, "sqlstate": one.sqlstate}
    about: dict[str, object] = {"as_expected": one.expected} if one.actor is None else {"transaction": one.actor}
    return {"sql": one.sql, "rows": one.rows, "error": error, **about, "exec_us": one.microseconds}
