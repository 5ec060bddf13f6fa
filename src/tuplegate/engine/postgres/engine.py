"""The port, filled by a PostgreSQL server. What its methods need lies beside it, one subject in a file."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any

import structlog

from tuplegate.engine import port
from tuplegate.engine.libpq.types import BUILT_IN_TYPES_SQL, TypeInfo, read_types
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminConnector, AdminSession
from tuplegate.engine.postgres.own.probes import Capabilities, probe
from tuplegate.engine.postgres.own.settings import EngineSettings
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.pools import SESSION_SETTINGS, Pools
from tuplegate.engine.postgres.query.attempts import Requests
from tuplegate.engine.postgres.query.measures import Measures, measured
from tuplegate.engine.postgres.query.session import Session
from tuplegate.engine.postgres.query.sessions import borrow_session, open_session
from tuplegate.engine.postgres.query.stream import Stream, open_stream
from tuplegate.engine.postgres.query.stream_run import StreamRun
from tuplegate.engine.postgres.replication.positions import UNKNOWN
from tuplegate.engine.postgres.replication.replicas import Progress, Replica, Replicas
from tuplegate.engine.postgres.replication.snapshots import SnapshotReads
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.safety.headroom import headroom
from tuplegate.engine.postgres.safety.lease import Lease
from tuplegate.engine.postgres.safety.locks import CAPACITY_SQL
from tuplegate.engine.postgres.safety.role_settings import undo_settings
from tuplegate.engine.postgres.safety.sizes import SizeWatch
from tuplegate.engine.postgres.safety.watch import Watch
from tuplegate.engine.postgres.tenancy.dump import Dumps
from tuplegate.engine.postgres.tenancy.inspect import find_tables, read_durability
from tuplegate.engine.postgres.tenancy.scratch import Scratch
from tuplegate.engine.postgres.transaction.ledger import Ledger
from tuplegate.engine.postgres.transaction.records import EXPIRE, LOOSE
from tuplegate.engine.postgres.transaction.recovery import Recovery
from tuplegate.engine.postgres.transaction.two_phase import Decider
from tuplegate.keeping import keep, within
from tuplegate.metrics.cells import observe

_log = structlog.get_logger()

_EXPIRE_EVERY_S = 3600.0
_HEALTH_TIMEOUT_S = 2.0
_BEGUN_PER_REQUEST = 3
"""What a request can begin beside its own transaction: its inspections, and the question for types."""
_OWN_TIMEOUT_MS = 10_000
_PAUSED_TICK_S = 0.1


class PostgresEngine:
    """See the module's text. `async with` opens and closes it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        connector = self._connector = AdminConnector(
            settings.conninfo, settings.connect_timeout_s, primary=settings.primary
        )
        self._primary = connector.primary
        self._session = AdminSession(connector, METADATA_DATABASE)
        self._recovery = Recovery(connector, settings.installation, settings.secret, alone=settings.alone)
        self._sizes = SizeWatch()
        self._pools = Pools(
            settings, connector, self._session, self._sizes, self._recovery.is_certain, self._recovery.is_confirmed
        )
        self._recovery.on_commit = self._pools.may_have_changed
        self._watch = Watch(settings, connector, self._pools, self._sizes)
        self._ledger = Ledger(self._pools.to_write, self._session, settings.secret, self._recovery.is_certain)
        self._scratch = Scratch(connector, self._ledger.hold, self._recovery, settings.secret)
        self._dumps = Dumps(connector, self._ledger.hold, settings.secret, settings.dump_tools, settings.dumps_max)
        self._lock_capacity = 0
        self._time = time.monotonic
        self._running = self._watch.running.runs
        self._streams = Measures("stream")
        self._tasks: list[asyncio.Task[None]] = []
        self._lease: Lease | None = None
        self._progress: Progress | None = None
        self._replicas: Replicas | None = None
        self.tells_positions = bool(settings.replicas)
        self.snapshots: SnapshotReads
        self.can: Capabilities
        self._guard: SerializableGuard
        self._requests: Requests

    @property
    def version(self) -> str:
        return self.can.version

    async def __aenter__(self) -> "PostgresEngine":
        if self._primary.follows:
            self._tasks = [keep("primary", self._primary.watch)]
        built_in = read_types(await self._session.fetch(BUILT_IN_TYPES_SQL))
        self.can = await probe(self._session)
        settings, tally = self._settings, self._settings.tally
        self._guard = SerializableGuard(self.can.slots, tally, settings.worker, exclusive=settings.exclusive)
        if tally.shared:
            allowance = _BEGUN_PER_REQUEST * settings.connections_max * tally.workers
            self._lease = await Lease(self._connector, tally, self.can.slots, allowance).__aenter__()
        await self._recovery.__aenter__()
        self._pools.begin(self.can, built_in, self._guard)
        self._lock_capacity = int(str((await self._session.fetch(CAPACITY_SQL))[0][0]))
        await self._watch.begin(self._guard, self._lock_capacity)
        decider = Decider(self._recovery, self._guard, self._ledger)
        self._requests = Requests(self._pools, self._watch.running, decider, settings.attempts_max)
        self.query = self._requests.query  # type: ignore[method-assign]  # every request would pass the method below
        self._time = asyncio.get_running_loop().time
        watches = {"records": self._expire, "scratch": self._scratch.watch}
        if settings.worker == 0:
            watches["role_settings"] = partial(undo_settings, self._connector)
        if settings.replicas:
            replicas = self._replicas = self._make_replicas(built_in, decider)
            await replicas.look()
            watches["replicas"] = replicas.watch
            watches["replica_deadlines"] = replicas.watch_deadlines
            watches["replica_connections"] = replicas.sweep
        self.snapshots = SnapshotReads(self, self._replicas)
        self._tasks += [keep(name, watch) for name, watch in watches.items()]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks[1:] if self._primary.follows else self._tasks:
            task.cancel()
        self._dumps.stop()
        if self._replicas is not None:
            await self._replicas.close()
        await self._watch.end()
        await self._recovery.__aexit__(None, None, None)
        await self._pools.close()
        if self._lease is not None:
            await self._lease.__aexit__(None, None, None)
        await self._session.close()
        for task in self._tasks:
            task.cancel()

    def _make_replicas(self, built_in: dict[int, TypeInfo], decider: Decider) -> Replicas:
        settings, stocks = self._settings, self._pools.stocks
        progress = self._progress = Progress(self._connector, flushes=settings.worker == 0)
        replicas = [
            Replica(number, conninfo, settings, stocks, self.can, built_in, decider)
            for number, conninfo in enumerate(settings.replicas, 1)
        ]
        return Replicas(progress, replicas, settings.idle_close_s)

    # -- the port -----------------------------------------------------------------------------------------------

    @property
    def weaknesses(self) -> tuple[port.Weakness, ...]:
        return self._settings.weaknesses

    async def position(self) -> bytes:
        if self._progress is None:
            return UNKNOWN
        try:
            return (await self._progress.position()).written()
        except port.EngineFailure:
            return UNKNOWN

    def query(
        self, target: port.Target, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> Coroutine[Any, Any, port.Result]:
        return self._requests.query(target, statement, shape, bounds)

    def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        shape: port.Shape,
        bounds: port.Bounds,
        *,
        read_only: bool,
        promise: port.Promise | None,
    ) -> Coroutine[Any, Any, port.TransactionResult]:
        return self._requests.transaction(target, statements, shape, bounds, read_only=read_only, promise=promise)

    async def begin_id(self, database: str, id: str) -> bool:
        return await self._ledger.begin_id(database, id)

    async def abort_id(self, database: str, id: str) -> port.Outcome:
        return await self._ledger.abort_id(database, id)

    async def find_id(self, database: str, id: str) -> port.Outcome | None:
        return await self._ledger.find_id(database, id)

    async def find_kept(self, database: str, route: str, key: str) -> port.KeptAnswers:
        return await self._ledger.find_kept(database, route, key)

    def pause(self, databases: frozenset[str]) -> None:
        self._pools.pause(databases)

    def let_go(self, database: str) -> None:
        """Turns away whoever waits for the database: it is on another engine now."""
        self._pools.let_go(database)

    def bound_size(self, database: str, bytes_max: int | None) -> None:
        self._sizes.bound(database, bytes_max)

    def hold(self, name: str, database: str | None = None) -> AbstractAsyncContextManager[bool]:
        return self._ledger.hold(name)

    async def outcome(self, target: port.Target, number: int, mark: str = "") -> port.Outcome | None:
        return port.Outcome.COMMITTED if mark else await self._recovery.outcome(number)

    async def outcome_of_lost(self, target: port.Target, ticket: port.Ticket, mark: str = "") -> port.Outcome:
        if mark:
            return await self._recovery.outcome_of_former(ticket)
        return await self._recovery.outcome_of_lost(target.database, ticket)

    def stream(
        self, target: port.Target, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> AbstractAsyncContextManager[port.RowStream]:
        return self._stream(target, statement, shape, bounds)

    @asynccontextmanager
    async def _stream(
        self, target: port.Target, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> AsyncIterator[Stream]:
        pool = self._pools.of(target)
        pool.check()
        run = StreamRun(pool, target, statement, shape, bounds)
        run.begin(await self._requests.take(pool, self._time() + bounds.timeout_ms / 1000))
        self._running[run] = self._time()
        measures = self._streams
        measures.attempts += 1
        try:
            async with open_stream(run, measures, self._settings.attempts_max) as stream:
                if self.tells_positions:
                    stream.reached = await self.position()
                yield stream
        finally:
            del self._running[run]
            observe(measures.seconds, run.elapsed_us * 1000)

    def stop_running(self) -> None:
        self._dumps.stop()
        self._watch.stop_running()
        if self._replicas is not None:
            self._replicas.stop_running()

    async def health(self) -> port.EngineHealth:
        primary, disk = self._primary, self._watch.disk
        warnings = {} if disk is None else {"disk": disk.said()}
        if primary.follows:
            warnings["commits"] = primary.refuses or "ok"
        warnings |= {} if self._replicas is None else self._replicas.states
        return port.EngineHealth(
            "postgresql",
            self.version,
            {"engine": primary.lost or await self._answers()},
            warnings,
            primary.replication.waits,
        )

    async def _answers(self) -> str:
        try:
            await within(_HEALTH_TIMEOUT_S, self._session.fetch("SELECT 1"))
        except TimeoutError:
            return f"no answer within {_HEALTH_TIMEOUT_S:g} s"
        except port.EngineFailure:
            return "it accepts no connection"
        return "ok"

    async def tables(self, target: port.Target, bounds: port.Bounds) -> port.Tables:
        async with self._watched(borrow_session, target, bounds) as session:
            return await find_tables(session, bounds.bytes_max)

    def session(self, target: port.Target, timeout_ms: int) -> AbstractAsyncContextManager[port.EngineSession]:
        return self._watched(open_session, target, port.Bounds(timeout_ms, None, 0))

    @asynccontextmanager
    async def _watched(
        self,
        open: Callable[[Pool, port.Target, port.Bounds, float], AbstractAsyncContextManager[Session]],
        target: port.Target,
        bounds: port.Bounds,
    ) -> AsyncIterator[Session]:
        """A session with its deadline over it."""
        deadline = self._time() + bounds.timeout_ms / 1000
        async with open(self._pools.of(target), target, bounds, deadline) as session:
            self._running[session] = self._time()
            try:
                yield session
            finally:
                del self._running[session]

    def scratch(self, database: str) -> AbstractAsyncContextManager[str]:
        return self._scratch.schema(database)

    @asynccontextmanager
    async def dump(
        self, database: str, timeout_s: float, organization: str | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        deadline = self._time() + _OWN_TIMEOUT_MS / 1000
        while self._pools.is_paused(database):
            if self._time() > deadline:
                raise port.EngineBusy("the database is being copied or reset; it can be dumped in a moment")
            await asyncio.sleep(_PAUSED_TICK_S)
        settings = {**SESSION_SETTINGS, "work_mem": self.can.work_mem}
        async with self._dumps.dump(
            database, organization, settings, self.can.major, self._lock_capacity, timeout_s
        ) as blocks:
            yield blocks

    async def durability(self, target: port.Target) -> port.Durability:
        async with self._watched(open_session, target, port.Bounds(_OWN_TIMEOUT_MS, None, 0)) as session:
            return await read_durability(session)

    def serializable_headroom(self) -> port.Headroom:
        return headroom(self._guard, self._watch.begin_rate, self._time())

    def measured(self) -> port.Measured:
        events = {**self._recovery.events, "guard_conflicts_total": self._guard.ended}
        events |= {f"snapshot_reads_total {where}": count for where, count in self.snapshots.counts.items()}
        kinds = (self._requests.queries, self._requests.transactions, self._streams)
        pools, most = self._pools, self._settings.connections_max
        found = measured(kinds, events, pools.all(), most, pools.stubborn.stuck, self.serializable_headroom())
        if (disk := self._watch.disk) is not None:
            found.gauges["disk_free_bytes"] = max(0, disk.free)
            found.gauges["disk_short"] = int(disk.shortage > 0)
        if self._replicas is not None:
            found.gauges.update(self._replicas.gauges)
        return found

    async def _expire(self) -> None:
        """Removes old records of the databases that are in use."""
        while True:
            await asyncio.sleep(_EXPIRE_EVERY_S)
            for database in list(self._pools.states):
                try:
                    async with AdminSession(self._connector, database) as session:
                        await session.atomically([(statement, ()) for statement in EXPIRE])
                        for (table,) in await session.fetch(LOOSE):
                            await session.fetch(f"VACUUM (FULL) tuplegate.{table}")
                except port.EngineFailure as failure:
                    _log.warning("old records were not removed", database=database, reason=str(failure))
