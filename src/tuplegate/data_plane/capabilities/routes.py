"""`GET /capabilities`, the feature matrix, and `GET /capabilities/{name}`, which runs one probe of it now."""

import asyncio

import msgspec

from tuplegate.access.quotas import read_tiers
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.bench import CONCURRENCY_MAX, SECONDS_MAX
from tuplegate.data_plane.capabilities.matrix import PROBES, Matrix, find_near
from tuplegate.data_plane.capabilities.probes import Observation, Probed
from tuplegate.data_plane.capabilities.runner import run_probe
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.data_plane.storage_test import BYTES_MAX
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.protocol.errors import ServiceError
from tuplegate.settings import Settings, list_settings

_encode = msgspec.json.Encoder().encode

_RUNNING_MAX = 2
_WAITING_MAX = 16
"""How many probes this worker runs at once, and how many may wait: they must not become a load of their own."""

_NOT_LIMITS = frozenset({"data_port", "alias_port", "control_port", "engine_shared_buffers_mb"})
"""Whole numbers among the settings that are about the machine."""


class CapabilityRoutes:
    def __init__(self, probed: Probed, reports: port.Reports, identities: IdentityCache, settings: Settings) -> None:
        self._probed = probed
        self._reports = reports
        self._identities = identities
        self._settings = settings
        self._matrix = Matrix(probed)
        self._turns = asyncio.Semaphore(_RUNNING_MAX)
        self._asking = 0

    async def matrix(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        target = await self._identities.find_target(identity, exchange)
        try:
            health = await self._reports.health()
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
            "limits": _list_limits(self._settings, self._reports),
            "weaknesses": self._reports.weaknesses,
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
                report = await run_probe(self._probed, target.database, probe)
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
    """Return an observation for the answer. Moves of a race need not succeed: instead, they name their transaction."""
    error = None if one.error is None else {"message": one.error, "sqlstate": one.sqlstate}
    about: dict[str, object] = {"as_expected": one.expected} if one.actor is None else {"transaction": one.actor}
    return {"sql": one.sql, "rows": one.rows, "error": error, **about, "exec_us": one.microseconds}


def _list_limits(settings: Settings, reports: port.Reports) -> dict[str, object]:
    """Return the limits in force: every whole number among the settings, by its name, which includes its unit."""
    numbers = {
        setting.name: getattr(settings, setting.name)
        for setting in list_settings()
        if setting.kind is int and setting.name not in _NOT_LIMITS
    }
    return {
        **numbers,
        "tiers": {
            tier.name: {"requests_per_minute": tier.requests, "database_bytes": tier.bytes_max, **tier.limits}
            for tier in read_tiers(settings.tiers).values()
        },
        "bench_seconds_max": SECONDS_MAX,
        "bench_concurrency_max": CONCURRENCY_MAX,
        "storage_test_bytes_max": BYTES_MAX,
        "serializable": reports.serializable_headroom(),
    }
