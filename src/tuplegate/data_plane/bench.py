"""`GET /bench`: a bounded benchmark of the caller's database, through the port, as requests would go.

It measures the service and the engine without HTTP. It works in a scratch schema, one benchmark at a time in an
organization, and ends when its client leaves.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns

import msgspec

from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.data_plane.workloads import SETUP, TIDY, WORKLOADS, RunKind, Workload
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import one_of, read_query, whole_number
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.statements import first_keyword

_encode = msgspec.json.Encoder().encode

SECONDS_MAX = 10
CONCURRENCY_MAX = 32
_SECONDS = 2
_CONCURRENCY = 8
_SETUP_TIMEOUT_MS = 30_000
_BOUNDS = port.Bounds(30_000, None, 64 * 2**20)


@dataclass(slots=True)
class _Measured:
    """The time of each operation, and how many were retried and failed."""

    nanoseconds: list[int]
    retries: int = 0
    errors: int = 0


class BenchRoutes:
    def __init__(
        self,
        queries: port.Queries,
        transactions: port.Transactions,
        sessions: port.Sessions,
        locks: port.Locks,
        identities: IdentityCache,
    ) -> None:
        self._queries = queries
        self._transactions = transactions
        self._sessions = sessions
        self._locks = locks
        self._identities = identities

    async def run(self, exchange: Exchange, identity: Identity) -> None:
        values = read_query(exchange, ("workload", "seconds", "concurrency"))
        workload = WORKLOADS[one_of(values, "workload", "point_read", WORKLOADS)]
        seconds = whole_number(values, "seconds", _SECONDS, 1, SECONDS_MAX)
        concurrency = whole_number(values, "concurrency", _CONCURRENCY, 1, CONCURRENCY_MAX)
        target = await self._identities.find_target(identity, exchange)
        async with self._locks.hold(f"bench/{identity.principal.organization}") as free:
            if not free:
                raise ServiceError("already_running", "a benchmark of this organization is running already")
            try:
                body = await self._measure(target, workload, seconds, concurrency)
            except port.EngineFailure as failure:
                raise to_service_error(failure) from failure
        exchange.respond(200, _encode(body))

    async def _measure(
        self, target: port.Target, workload: Workload, seconds: int, concurrency: int
    ) -> dict[str, object]:
        async with self._sessions.scratch(target.database) as schema:
            async with self._sessions.session(target, _SETUP_TIMEOUT_MS) as session:
                for text in SETUP:
                    await session.run(text.format(schema=schema))
                with suppress(port.ParseFailed):
                    await session.run(TIDY.format(schema=schema))
            measured = _Measured([])
            loop = asyncio.get_running_loop()
            started = perf_counter_ns()
            until = started + seconds * 1_000_000_000  # the loop's clock stands still within a pass
            tasks = [
                loop.create_task(self._repeat(target, workload, schema, until, measured)) for _ in range(concurrency)
            ]
            await _wait_for_all(tasks)
            took_s = (perf_counter_ns() - started) / 1e9
        times = sorted(measured.nanoseconds)
        return {
            "success": True,
            "workload": workload.name,
            "concurrency": concurrency,
            "seconds": round(took_s, 3),
            "operations": len(times),
            "retries": measured.retries,
            "errors": measured.errors,
            "per_second": round(len(times) / took_s, 1),
            "latency_us": {name: percentile(times, share) for name, share in _PERCENTILES.items()},
        }

    async def _repeat(
        self, target: port.Target, workload: Workload, schema: str, until: int, measured: _Measured
    ) -> None:
        while perf_counter_ns() < until:
            statements = [port.Statement(sql, first_keyword(sql)[0]) for sql in workload.statements(schema)]
            started = perf_counter_ns()
            try:
                measured.retries += await self._operate(target, workload.kind, statements) - 1
            except port.Stopped:
                raise
            except port.StatementFailed:
                measured.errors += 1
            else:
                measured.nanoseconds.append(perf_counter_ns() - started)

    async def _operate(self, target: port.Target, kind: RunKind, statements: list[port.Statement]) -> int:
        """Run one operation; return the number of attempts."""
        match kind:
            case RunKind.QUERY:
                return (await self._queries.query(target, statements[0], _BOUNDS)).attempts
            case RunKind.TRANSACTION:
                return (await self._transactions.transaction(target, statements, _BOUNDS)).attempts
            case RunKind.STREAM:
                async with self._queries.stream(target, statements[0], _BOUNDS) as rows:
                    async for _ in rows.lines():
                        pass
                return 1


async def _wait_for_all(tasks: "Sequence[asyncio.Task[None]]") -> None:
    """Wait for all tasks; the first failure, or a client that leaves, ends the others."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


_PERCENTILES = {"p50": 50, "p95": 95, "p99": 99}


def percentile(nanoseconds: Sequence[int], share: int) -> int | None:
    """Return, in microseconds, the least time that `share` per cent of the sorted operations did not exceed."""
    if not nanoseconds:
        return None
    rank = -(-len(nanoseconds) * share // 100)
    return nanoseconds[rank - 1] // 1000
