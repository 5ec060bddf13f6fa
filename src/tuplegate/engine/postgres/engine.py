"""Fills the port with a PostgreSQL server. The modules and folders beside it each hold one part."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from math import inf

import structlog

from tuplegate.background import Work, keep, within
from tuplegate.engine import port
from tuplegate.engine.libpq.pools.measures import Measures, collect_counts
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.pools.pools import SESSION_SETTINGS, Pools
from tuplegate.engine.postgres.query.sessions import borrow_session
from tuplegate.engine.postgres.query.stream import Stream, open_stream
from tuplegate.engine.postgres.query.stream_run import StreamRun
from tuplegate.engine.postgres.query.wire import Wires
from tuplegate.engine.postgres.replication.positions import UNKNOWN
from tuplegate.engine.postgres.requests import Requests
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.safety.headroom import compute_headroom
from tuplegate.engine.postgres.safety.sizes import SizeWatch
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession
from tuplegate.engine.postgres.service.probes import Probed, probe_all
from tuplegate.engine.postgres.service.records import EXPIRE, LOOSE
from tuplegate.engine.postgres.service.settings import EngineSettings
from tuplegate.engine.postgres.standbys.progress import Progress
from tuplegate.engine.postgres.standbys.replica import Replica
from tuplegate.engine.postgres.standbys.replicas import Replicas
from tuplegate.engine.postgres.standbys.snapshots import SnapshotReads
from tuplegate.engine.postgres.tenancy.inspect import find_tables, read_durability
from tuplegate.engine.postgres.tenancy.scratch import LOOK_EVERY_S, Scratch
from tuplegate.engine.postgres.transaction.deciding import Decider
from tuplegate.engine.postgres.transaction.histories import judge_elsewhere
from tuplegate.engine.postgres.transaction.ledger import Ledger
from tuplegate.engine.postgres.transaction.recovery import EVERY_S, Recovery
from tuplegate.engine.postgres.transfer.dump import Dumps
from tuplegate.engine.postgres.upkeep.disk_watch import CHECKPOINT_EVERY_S
from tuplegate.engine.postgres.upkeep.held_vacuum import AUTOVACUUM_EVERY_S, end_held
from tuplegate.engine.postgres.upkeep.lease import Lease
from tuplegate.engine.postgres.upkeep.primary_server import Chore, PrimaryServer
from tuplegate.engine.postgres.upkeep.role_settings import undo_settings
from tuplegate.engine.postgres.upkeep.watch import PrimaryWatch
from tuplegate.engine.run.session import SessionRun
from tuplegate.engine.run.watched import begin_stream, open_session

_log = structlog.get_logger()

_EXPIRE_EVERY_S = 3600.0
_HEALTH_TIMEOUT_S = 2.0
_SIZES_EVERY_S = 0.5
_BEGUN_PER_REQUEST = 3
"""Transactions that a request can begin beside its own: its inspections, and the question for types."""
_OWN_TIMEOUT_MS = 10_000
_PAUSED_TICK_S = 0.1


@asynccontextmanager
async def open_postgres(settings: EngineSettings) -> AsyncIterator["PostgresEngine"]:
    """Probe the server, build the adapter, and run it until the block is left."""
    connector = AdminConnector(settings.conninfo, settings.connect_timeout_s, primary=settings.primary)
    async with AsyncExitStack() as stack:
        if connector.primary.follows:
            stack.callback(keep("primary", connector.primary.watch).cancel)
        session = await stack.enter_async_context(AdminSession(connector, METADATA_DATABASE))
        watch = PrimaryWatch(settings.idle_close_s, settings.disk)
        engine = PostgresEngine(settings, connector, session, await probe_all(session), watch)
        watch.begin()
        stack.callback(watch.end)
        settings.tally.versions.take_over(settings.worker)
        await engine.start(stack)
        await engine.start_alone(stack)
        yield engine


@asynccontextmanager
async def open_cell(settings: EngineSettings, probed: Probed, watch: PrimaryWatch) -> AsyncIterator["PostgresEngine"]:
    """Build the adapter for a server of one database. It has no task of its own: the watch does all its background
    work.

    The probed facts hold for all such servers. A tenant's server is never asked what it can do.
    """
    connector = AdminConnector(settings.conninfo, settings.connect_timeout_s, primary=settings.primary)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(AdminSession(connector, METADATA_DATABASE))
        engine = PostgresEngine(settings, connector, session, probed, watch)
        await engine.start(stack)
        yield engine


# size: the attributes are the parts of the adapter; each fills some methods of the port.
class PostgresEngine:
    """The port, filled by a PostgreSQL server that was probed. `open_postgres` makes one and closes it.

    `watch` looks after it, and can look after other servers, too. `size_bounds` are those of databases that have one.
    """

    def __init__(
        self,
        settings: EngineSettings,
        connector: AdminConnector,
        session: AdminSession,
        probed: Probed,
        watch: PrimaryWatch,
    ) -> None:
        secret = settings.secret
        self._settings = settings
        self._connector = connector
        self._session = session
        self.probed = probed
        self._time = asyncio.get_running_loop().time
        self._guard = SerializableGuard(probed.can.slots, settings.tally, settings.worker, exclusive=settings.exclusive)
        self._sizes = SizeWatch()
        recovery = self._recovery = Recovery(connector, settings.installation, secret)
        certainty = recovery.certainty
        self._pools = Pools(
            settings,
            connector,
            session,
            self._sizes,
            certainty.is_certain,
            certainty.is_confirmed,
            probed,
            self._guard,
        )
        recovery.on_commit = self._pools.note_change
        self.watch = watch
        self._primary = PrimaryServer(self._pools, self._sizes, self._guard, session)
        ledger = self._ledger = Ledger(self._pools.to_write, session, secret, certainty.is_certain)
        self._scratch = Scratch(connector, self._ledger.hold, recovery, secret)
        self._dumps = Dumps(
            connector,
            self._ledger.hold,
            secret,
            settings.dump_tools,
            settings.dumps_max,
            settings.hold_place or self._ledger.hold,
        )
        self._running = watch.running
        self._wires = Wires(self._pools, watch.running, self._guard, session.fetch, settings)
        self._decider = Decider(recovery, self._guard, self._ledger)
        requests = self._requests = Requests(
            self._pools, watch.running, self._decider, settings.attempts_max, settings.connections_max
        )
        # No method stands between where a part fills one of the port's.
        self.query, self.transaction, self.begin = requests.query, requests.transaction, requests.begin
        self.begin_id, self.abort_id, self.find_id = ledger.begin_id, ledger.abort_id, ledger.find_id
        self.find_kept, self.hold = ledger.find_kept, ledger.hold
        self.let_go, self.bound_size = self._pools.let_go, self._sizes.bound
        self.hold_answer, self.wire = self._pools.stocks.hold_answer, self._wires.open
        self.scratch = self._scratch.schema
        self._streams = Measures("stream")
        self._progress = Progress(connector, flushes=settings.worker == 0) if settings.replicas else None
        self._replicas = None if self._progress is None else self._make_replicas(self._progress)
        self.snapshots = SnapshotReads(self, self._replicas)
        self.weaknesses = settings.weaknesses
        self.tells_positions = bool(settings.replicas)
        self.stocks, self.size_bounds = self._pools.stocks, self._sizes.bounds

    def _make_replicas(self, progress: Progress) -> Replicas:
        settings, stocks = self._settings, self._pools.stocks
        replicas = [
            Replica(number, conninfo, settings, stocks, self.probed, self._decider, progress)
            for number, conninfo in enumerate(settings.replicas, 1)
        ]
        return Replicas(progress, replicas)

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the background work for the server; `stack` ends it, in the opposite order."""
        stack.push_async_callback(self._pools.close)
        await stack.enter_async_context(self._recovery)
        primary, disk = self._primary, self.watch.disk
        primary.chores = [
            Chore("recovery", EVERY_S, self._recovery.look),
            Chore("sizes", _SIZES_EVERY_S, partial(primary.measure, self._running)),
            Chore("scratch", LOOK_EVERY_S, self._scratch.look),
            Chore("records", _EXPIRE_EVERY_S, self._expire, _EXPIRE_EVERY_S),
        ]
        if self._settings.kill is not None:
            end = partial(end_held, self._session, self._pools.stubborn)
            primary.chores.append(Chore("autovacuum", AUTOVACUUM_EVERY_S, end, AUTOVACUUM_EVERY_S))
        if disk is not None and self._settings.worker == 0:
            checkpoint = partial(disk.checkpoint, primary, self._connector)
            primary.chores.append(Chore("checkpoints", CHECKPOINT_EVERY_S, checkpoint))
        self.watch.add(primary)
        stack.callback(self.watch.remove, primary)
        stack.callback(self._dumps.stop)

    async def start_alone(self, stack: AsyncExitStack) -> None:
        """Start the background work for a server that other service processes use, too, or that another server can
        replace."""
        settings, tally = self._settings, self._settings.tally
        if tally.shared:
            allowance = _BEGUN_PER_REQUEST * settings.connections_max * tally.workers
            await stack.enter_async_context(Lease(self._connector, tally, self._guard.slots, allowance))
        watches: dict[str, Work] = {}
        if settings.worker == 0:
            watches["role_settings"] = partial(undo_settings, self._connector)
        if self._replicas is not None:
            stack.push_async_callback(self._replicas.close)
            await self._replicas.look()
            watches["replicas"] = self._replicas.watch
        for name, watch in watches.items():
            stack.callback(keep(name, watch).cancel)

    # -- the port -----------------------------------------------------------------------------------------------

    async def position(self) -> bytes:
        if self._progress is None:
            return UNKNOWN
        try:
            return (await self._progress.position()).written()
        except port.EngineFailure:
            return UNKNOWN

    def pause(self, databases: frozenset[str]) -> None:
        self._running.abort_open(databases)
        self._wires.let_go(databases)
        self._pools.pause(databases)

    def hold_in(self, database: str, lock: port.Lock, key: str = "") -> AbstractAsyncContextManager[bool]:
        return self._ledger.hold(lock.name_in(database, key))

    async def outcome(self, target: port.Target, number: int, mark: str = "", history: int = 0) -> port.Outcome | None:
        return judge_elsewhere(history) if mark else await self._recovery.outcome(number, history)

    async def outcome_of_lost(self, target: port.Target, ticket: port.Ticket, mark: str = "") -> port.Outcome:
        if mark:
            return await self._recovery.outcome_of_former(ticket)
        return await self._recovery.outcome_of_lost(target.database, ticket)

    @asynccontextmanager
    async def stream(
        self, target: port.Target, statement: port.Statement, bounds: port.Bounds
    ) -> AsyncIterator[Stream]:
        run = StreamRun(self._pools.find_pool(target), target, statement, bounds)
        async with (
            begin_stream(self._requests, run, self._streams),
            open_stream(run, self._streams, self._settings.attempts_max) as stream,
        ):
            if self.tells_positions:
                stream.reached = await self.position()
            yield stream

    @property
    def decides(self) -> bool:
        """Return whether a transaction is being decided, even if its client has left."""
        return bool(self._recovery.seen_through)

    @property
    def is_in_use(self) -> bool:
        """Return whether a statement may run, or a transaction is being decided."""
        return self.decides or any(pool.is_in_use for pool in self._pools.all())

    def stop_running(self) -> None:
        self._dumps.stop()
        self.watch.stop_running()
        if self._replicas is not None:
            self._replicas.stop_running()

    async def health(self) -> port.EngineHealth:
        primary, disk = self._pools.primary, self.watch.disk
        warnings = {} if disk is None else {"disk": disk.describe()}
        if primary.follows:
            warnings["commits"] = primary.refuses or "ok"
        warnings |= {} if self._replicas is None else self._replicas.states
        return port.EngineHealth(
            "postgresql",
            self.probed.can.version,
            {"engine": primary.lost or await self._try_answer()},
            warnings,
            primary.replication.waits,
        )

    async def _try_answer(self) -> str:
        try:
            await within(_HEALTH_TIMEOUT_S, self._session.fetch("SELECT 1"))
        except TimeoutError:
            return f"no answer within {_HEALTH_TIMEOUT_S:g} s"
        except port.EngineFailure:
            return "it accepts no connection"
        return "ok"

    async def tables(self, target: port.Target, bounds: port.Bounds) -> port.Tables:
        async with borrow_session(self._running, self._pools.find_pool(target), target, bounds) as session:
            return await find_tables(session, bounds.bytes_max)

    def session(self, target: port.Target, timeout_ms: int) -> AbstractAsyncContextManager[SessionRun[Pool]]:
        bounds = port.Bounds(timeout_ms, None, 0)
        return open_session(SessionRun[Pool], self._running, self._pools.find_pool(target), target, bounds)

    @asynccontextmanager
    async def dump(
        self, database: str, timeout_s: float, organization: str | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        deadline = self._time() + _OWN_TIMEOUT_MS / 1000
        while self._pools.is_paused(database):
            if self._time() > deadline:
                raise port.EngineBusy("the database is being copied or reset; it can be dumped in a moment")
            await asyncio.sleep(_PAUSED_TICK_S)
        settings = {**SESSION_SETTINGS, "work_mem": self.probed.can.work_mem}
        async with self._dumps.dump(database, organization, settings, self.probed.can.major, timeout_s) as blocks:
            yield blocks

    async def durability(self, target: port.Target) -> port.Durability:
        async with self.session(target, _OWN_TIMEOUT_MS) as session:
            return await read_durability(session)

    def serializable_headroom(self) -> port.Headroom:
        return compute_headroom(self._guard, self._primary.begin_rate, self._time())

    def measure(self) -> port.Measured:
        events = {**self._recovery.events, "guard_conflicts_total": self._guard.ended}
        events |= {f"snapshot_reads_total {where}": count for where, count in self.snapshots.counts.items()}
        kinds = (self._requests.queries, self._requests.transactions, self._streams)
        found = collect_counts(kinds, events, self._pools.all(), self._settings.connections_max)
        found.gauges["engine_processes_stuck"] = self._pools.stubborn.stuck
        headroom = self.serializable_headroom()
        found.gauges["serializable_slots"] = headroom.slots
        found.gauges["serializable_safe_seconds"] = inf if headroom.safe_seconds is None else headroom.safe_seconds
        found.gauges["serializable_guarded"] = int(headroom.guarded)
        if (disk := self.watch.disk) is not None:
            found.gauges["disk_free_bytes"] = max(0, disk.free)
            found.gauges["disk_short"] = int(disk.shortage > 0)
        if self._replicas is not None:
            found.gauges.update(self._replicas.gauges)
        return found

    async def _expire(self) -> None:
        """Remove old records of the databases that are in use."""
        for database in list(self._pools.states):
            try:
                async with AdminSession(self._connector, database) as session:
                    await session.run_atomically([(statement, ()) for statement in EXPIRE])
                    for (table,) in await session.fetch(LOOSE):
                        await session.fetch(f"VACUUM (FULL) tuplegate.{table}")
            except port.EngineFailure as failure:
                _log.warning("old records were not removed", database=database, reason=str(failure))
