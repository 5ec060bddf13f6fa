"""The port, filled by a PostgreSQL server: a pool per target, retries, streams, health."""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

import structlog

from querygate.engine import port
from querygate.engine.binaries import DumpTool
from querygate.engine.postgres.admin import METADATA_DATABASE, AdminConnector, AdminSession, terminate
from querygate.engine.postgres.connection import look_at_broken
from querygate.engine.postgres.dump import Dumps
from querygate.engine.postgres.execute import ENCODING_SETTINGS, Execution, may_write
from querygate.engine.postgres.guard import SerializableGuard
from querygate.engine.postgres.headroom import BeginRate, headroom
from querygate.engine.postgres.inspect import find_tables, read_durability
from querygate.engine.postgres.lease import Lease
from querygate.engine.postgres.ledger import Ledger
from querygate.engine.postgres.locks import CAPACITY_SQL, HELD_SQL, Held, judge
from querygate.engine.postgres.logins import as_tenant, with_settings
from querygate.engine.postgres.measures import Measures, measured
from querygate.engine.postgres.parameters import wants_types
from querygate.engine.postgres.placement import Placement
from querygate.engine.postgres.pool import DatabaseState, Member, Pool, Room
from querygate.engine.postgres.probes import CHECK_INTERVAL, Capabilities, probe
from querygate.engine.postgres.records import EXPIRE
from querygate.engine.postgres.recovery import Recovery
from querygate.engine.postgres.roles import forget_settings, role_of
from querygate.engine.postgres.scratch import Scratch
from querygate.engine.postgres.session import Session, borrow_session, open_session
from querygate.engine.postgres.sizes import SIZES_SQL, SizeWatch
from querygate.engine.postgres.stream import EngineClock, Stream, open_stream
from querygate.engine.postgres.tally import Tally
from querygate.engine.postgres.transaction import CannotPrepare, TransactionRun
from querygate.engine.postgres.types import BUILT_IN_TYPES_SQL, TypeInfo, TypeRegistry, read_types
from querygate.metrics.cells import observe

_log = structlog.get_logger()

# Options of the start-up packet win over what a role or a database was given with ALTER … SET, so a tenant cannot
# change what its next connection starts with.
_SESSION_SETTINGS = {
    **ENCODING_SETTINGS,
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "off",
    "client_min_messages": "notice",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "synchronous_commit": "on",
    "row_security": "on",
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "search_path": '"$user",public',
    "local_preload_libraries": "",
    "exit_on_error": "off",
    "array_nulls": "on",
}
_SINCE_17 = {"transaction_timeout": "0"}
_RETRY_BASE_S = 0.001
_RETRY_CAP_S = 0.03
_TURN_S = 0.1
_DEADLINE_TICK_S = 0.02
_PLACEMENT_TICK_S = 0.25
_EXPIRE_EVERY_S = 3600.0
_LOCKS_TICK_S = 0.25
_SIZES_TICK_S = 1.0
_HEALTH_TIMEOUT_S = 2.0
_IDLE_TICK_S = 0.1
_BEGUN_PER_REQUEST = 3
"""What a request can begin beside its own transaction: its inspections, and the question for types."""
_OWN_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds of the adapter. `conninfo` is libpq's, with the installation's owner, without database and options."""

    conninfo: str
    installation: str
    secret: bytes
    connections_max: int = 90
    connections_per_target_max: int = 16
    queue_max: int = 1000
    connect_timeout_s: float = 10.0
    idle_close_s: float = 60.0
    placement: bool = True
    attempts_max: int = 50
    tally: Tally = field(default_factory=Tally)
    worker: int = 0
    alone: bool = True
    exclusive: bool = True
    dump_tools: tuple[DumpTool, ...] = ()
    dumps_max: int = 2


class PostgresEngine:
    """See the module's text. `async with` opens and closes it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        connector = self._connector = AdminConnector(settings.conninfo, settings.connect_timeout_s)
        self._session = AdminSession(connector, METADATA_DATABASE)
        self._watching = AdminSession(connector, METADATA_DATABASE)
        self._recovery = Recovery(connector, settings.installation, alone=settings.alone)
        self._ledger = Ledger(self._writing_pool, self._session, settings.secret)
        self._scratch = Scratch(connector, self._ledger.hold, self._recovery, settings.secret)
        self._dumps = Dumps(connector, self._ledger.hold, settings.secret, settings.dump_tools, settings.dumps_max)
        self._writing: dict[str, Pool] = {}
        self._reading: dict[str, Pool] = {}
        self._room = Room(settings.connections_max, self._make_room)
        self._built_in: dict[int, TypeInfo] = {}
        self._states: dict[str, DatabaseState] = {}
        self._paused: frozenset[str] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []
        self._running: dict[Execution | TransactionRun | EngineClock | Session, float] = {}
        self._sizes = SizeWatch()
        self._lock_capacity = 0
        self._time = time.monotonic
        self._served = 0
        self._placement = Placement(settings.placement)
        self.can: Capabilities
        self._lease: Lease | None = None
        self._guard = SerializableGuard(0, settings.tally, settings.worker)
        self._begin_rate = BeginRate()
        self._queries, self._transactions, self._streams = (Measures(k) for k in ("query", "transaction", "stream"))

    @property
    def version(self) -> str:
        return self.can.version

    async def __aenter__(self) -> "PostgresEngine":
        self._built_in = read_types(await self._session.fetch(BUILT_IN_TYPES_SQL))
        self.can = await probe(self._session)
        settings, tally = self._settings, self._settings.tally
        self._guard = SerializableGuard(self.can.slots, tally, settings.worker, exclusive=settings.exclusive)
        if tally.shared:
            allowance = _BEGUN_PER_REQUEST * settings.connections_max * tally.workers
            self._lease = await Lease(self._connector, tally, self.can.slots, allowance).__aenter__()
        self._lock_capacity = int(str((await self._session.fetch(CAPACITY_SQL))[0][0]))
        await self._recovery.__aenter__()
        loop = asyncio.get_running_loop()
        self._time = loop.time
        self._tasks = [
            loop.create_task(self._sweep()),
            loop.create_task(self._watch_deadlines()),
            loop.create_task(self._place()),
            loop.create_task(self._expire()),
            loop.create_task(self._scratch.watch()),
            loop.create_task(self._watch_locks()),
            loop.create_task(self._watch_sizes()),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        self._dumps.stop()
        await self._recovery.__aexit__(None, None, None)
        for pool in self._pools():
            await pool.close()
        if self._lease is not None:
            await self._lease.__aexit__(None, None, None)
        await self._session.close()
        await self._watching.close()

    # -- the port -----------------------------------------------------------------------------------------------

    async def query(
        self, target: port.Target, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> port.Result:
        pool = self._pool(target)
        if pool.state.crowded:
            raise _crowded()
        now = self._time()
        deadline = now + bounds.timeout_ms / 1000
        describe = False
        attempt = 1
        measures = self._queries
        turns = pool.state.turns
        turn = turns.hot and may_write(target, statement, pool) and await turns.wait(self._moment())
        try:
            while True:
                member = pool.take() or await pool.wait(deadline)
                if self._guard.must_wait:
                    await self._admitted(pool, member, deadline)
                execution = Execution(pool, member, target, statement, shape, bounds, deadline, describe)
                execution.begun = self._guard.begun
                self._running[execution] = now
                measures.attempts += 1
                try:
                    result = await execution.run(now)
                    result.attempts = attempt
                    self._served += 1
                    observe(measures.seconds, result.exec_us * 1000)
                    if turns.heat and may_write(target, statement, pool):
                        turns.note(conflict=False)
                    return result
                except port.Conflict as conflict:
                    measures.conflict(conflict.exec_us)
                    if not _repeatable(statement):
                        raise
                    turn = await self._next_try(pool, turn, attempt, deadline, conflict, measures)
                    attempt += 1
                except port.StatementFailed as failure:
                    observe(measures.seconds, failure.exec_us * 1000)
                    if describe or not wants_types(failure, statement):
                        raise
                    describe = True
                finally:
                    del self._running[execution]
                now = self._time()
        finally:
            if turn:
                turns.leave()

    async def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        shape: port.Shape,
        bounds: port.Bounds,
        *,
        read_only: bool,
        promise: port.Promise | None,
    ) -> port.TransactionResult:
        pool = self._pool(target)
        if pool.state.crowded:
            raise _crowded()
        deadline = self._time() + bounds.timeout_ms / 1000
        describe, two_phase = False, self.can.two_phase
        attempt = 1
        measures = self._transactions
        turns = pool.state.turns
        turn = turns.hot and not read_only and await turns.wait(self._moment())
        try:
            while True:
                member = pool.take() or await pool.wait(deadline)
                if self._guard.must_wait:
                    await self._admitted(pool, member, deadline)
                run = TransactionRun(
                    pool=pool,
                    member=member,
                    target=target,
                    statements=statements,
                    shape=shape,
                    bounds=bounds,
                    recovery=self._recovery,
                    deadline=deadline,
                    read_only=read_only,
                    promise=promise,
                    records=self._ledger.records(target.database),
                    describe=describe,
                    two_phase=two_phase,
                    attempt=attempt,
                    guard=self._guard,
                    begun=self._guard.begun,
                    is_recorded=partial(self._is_committed, target.database),
                )
                self._running[run] = self._time()
                measures.attempts += 1
                try:
                    result = await run.run()
                    self._served += 1
                    observe(measures.seconds, result.exec_us * 1000)
                    if turns.heat and not read_only:
                        turns.note(conflict=False)
                    if promise is not None and run.is_read_only:
                        await self._ledger.keep_promise(target.database, promise, result)
                    return result
                except CannotPrepare:
                    two_phase = False
                    promise = await self._with_id(target.database, promise)
                except port.Conflict as conflict:
                    conflict.attempts = attempt
                    measures.conflict(conflict.exec_us)
                    if (
                        promise is not None
                        and run.recording
                        and await self._ledger.is_settled(target.database, promise)
                    ):
                        raise port.Superseded("somebody else settled it first") from conflict
                    turn = await self._next_try(pool, turn, attempt, deadline, conflict, measures)
                    attempt += 1
                except port.EngineUnavailable as lost:
                    await self._pause_before(attempt, deadline, lost, measures)
                    attempt += 1
                except port.StatementFailed as failure:
                    failure.attempts = attempt
                    observe(measures.seconds, failure.exec_us * 1000)
                    if describe or not any(wants_types(failure, statement) for statement in statements):
                        raise
                    describe = True
                finally:
                    del self._running[run]
        finally:
            if turn:
                turns.leave()

    async def _admitted(self, pool: Pool, member: Member, deadline: float) -> None:
        """Returns when this service may begin one more transaction; the connection is kept."""
        try:
            await self._guard.wait(deadline)
        except BaseException:
            pool.give_back_unclean(member)
            raise

    async def _with_id(self, database: str, promise: port.Promise | None) -> port.Promise:
        """What is committed in one phase needs an id, so that its record tells what became of it."""
        if promise is not None and promise.id is not None:
            return promise
        id = f"txn_{secrets.token_hex(16)}"
        await self._ledger.begin_id(database, id)
        return port.Promise(id, promise.keep if promise is not None else None)

    async def _is_committed(self, database: str, id: str) -> bool:
        return await self._ledger.verdict(database, id) is port.Outcome.COMMITTED

    async def _next_try(
        self, pool: Pool, turn: bool, attempt: int, deadline: float, conflict: port.Conflict, measures: Measures
    ) -> bool:
        """Waits until it is worth another try; whether that has the turn. Raises the conflict where there is none."""
        turns = pool.state.turns
        turns.note(conflict=True)
        if attempt >= self._settings.attempts_max:
            raise conflict
        if turn:
            measures.retries += 1
            return True
        at_most = self._moment()
        if self._time() + at_most > deadline:
            raise conflict
        measures.retries += 1
        return await turns.wait(at_most)

    @staticmethod
    def _moment() -> float:
        """How long to wait for a turn at most."""
        return random.uniform(_TURN_S / 2, _TURN_S)  # noqa: S311 - jitter

    async def _pause_before(
        self, attempt: int, deadline: float, failure: port.EngineFailure, measures: Measures
    ) -> None:
        """Full jitter, growing with the attempts; raises the failure where there is no time or no try left."""
        pause = random.uniform(0, min(_RETRY_CAP_S, _RETRY_BASE_S * 2**attempt))  # noqa: S311 - jitter
        if attempt >= self._settings.attempts_max or self._time() + pause > deadline:
            raise failure
        measures.retries += 1
        await asyncio.sleep(pause)

    async def begin_id(self, database: str, id: str) -> bool:
        return await self._ledger.begin_id(database, id)

    async def abort_id(self, database: str, id: str) -> port.Outcome:
        return await self._ledger.abort_id(database, id)

    async def find_id(self, database: str, id: str) -> port.Outcome | None:
        return await self._ledger.find_id(database, id)

    async def find_kept(self, database: str, route: str, key: str) -> port.Kept | None:
        return await self._ledger.find_kept(database, route, key)

    def pause(self, databases: frozenset[str]) -> None:
        for pools in (self._writing, self._reading):
            for database, pool in pools.items():
                if database in databases - self._paused:
                    pool.suspend()
                elif database in self._paused - databases:
                    pool.resume()
        self._paused = databases

    def bound_size(self, database: str, bytes_max: int | None) -> None:
        self._sizes.bound(database, bytes_max)

    def hold(self, name: str) -> AbstractAsyncContextManager[bool]:
        return self._ledger.hold(name)

    async def outcome(self, target: port.Target, number: int) -> port.Outcome | None:
        return await self._recovery.outcome(number)

    def stream(
        self, target: port.Target, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> AbstractAsyncContextManager[port.RowStream]:
        return self._stream(target, statement, shape, bounds)

    @asynccontextmanager
    async def _stream(
        self, target: port.Target, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> AsyncIterator[Stream]:
        pool = self._pool(target)
        if pool.state.crowded:
            raise _crowded()
        deadline = self._time() + bounds.timeout_ms / 1000
        member = pool.take() or await pool.wait(deadline)
        if self._guard.must_wait:
            await self._admitted(pool, member, deadline)
        clock = EngineClock(pool, member, target, statement, bounds)
        clock.begun = self._guard.begun
        self._running[clock] = self._time()
        measures = self._streams
        measures.attempts += 1
        try:
            async with open_stream(pool, member, target, statement, shape, clock, measures) as stream:
                yield stream
        finally:
            del self._running[clock]
            observe(measures.seconds, clock.elapsed_us * 1000)

    async def health(self) -> port.EngineHealth:
        asked = asyncio.get_running_loop().create_task(self._session.fetch("SELECT 1"))
        done, _ = await asyncio.wait([asked], timeout=_HEALTH_TIMEOUT_S)
        if not done:
            asked.cancel()
            state = f"no answer within {_HEALTH_TIMEOUT_S:g} s"
        else:
            state = "ok" if asked.exception() is None else "it accepts no connection"
        return port.EngineHealth("postgresql", self.version, {"engine": state})

    async def tables(self, target: port.Target, bounds: port.Bounds) -> port.Tables:
        async with self._watched(borrow_session, target, bounds) as session:
            return await find_tables(session, bounds.bytes_max)

    def session(self, target: port.Target, timeout_ms: int) -> AbstractAsyncContextManager[port.EngineSession]:
        return self._watched(open_session, target, port.Bounds(timeout_ms, None, 0))

    @asynccontextmanager
    async def _watched(
        self,
        open: Callable[[Pool, port.Bounds, float], AbstractAsyncContextManager[Session]],
        target: port.Target,
        bounds: port.Bounds,
    ) -> AsyncIterator[Session]:
        """A session with its deadline over it."""
        async with open(self._pool(target), bounds, self._time() + bounds.timeout_ms / 1000) as session:
            self._running[session] = self._time()
            try:
                yield session
            finally:
                del self._running[session]

    def scratch(self, database: str) -> AbstractAsyncContextManager[str]:
        return self._scratch.schema(database)

    @asynccontextmanager
    async def dump(self, database: str, timeout_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        deadline = self._time() + _OWN_TIMEOUT_MS / 1000
        while database in self._paused:
            if self._time() > deadline:
                raise port.EngineBusy("the database is being copied or reset; it can be dumped in a moment")
            await asyncio.sleep(_IDLE_TICK_S)
        settings = {**_SESSION_SETTINGS, "work_mem": self.can.work_mem}
        async with self._dumps.dump(database, settings, self.can.major, self._lock_capacity, timeout_s) as blocks:
            yield blocks

    async def durability(self, target: port.Target) -> port.Durability:
        async with self._watched(open_session, target, port.Bounds(_OWN_TIMEOUT_MS, None, 0)) as session:
            return await read_durability(session)

    def serializable_headroom(self) -> port.Headroom:
        return headroom(self._guard, self._begin_rate, self._time())

    def measured(self) -> port.Measured:
        events = {**self._recovery.events, "guard_conflicts_total": self._guard.ended}
        kinds = (self._queries, self._transactions, self._streams)
        return measured(kinds, events, self._pools(), self._settings.connections_max, self.serializable_headroom())

    # -- pools --------------------------------------------------------------------------------------------------

    def _pool(self, target: port.Target) -> Pool:
        pools = self._writing if target.access is port.Access.WRITE else self._reading
        return pools.get(target.database) or self._new_pool(pools, target)

    def _writing_pool(self, database: str) -> Pool:
        return self._pool(port.Target(database, port.Access.WRITE))

    def _pools(self) -> list[Pool]:
        return [*self._writing.values(), *self._reading.values()]

    def _new_pool(self, pools: dict[str, Pool], target: port.Target) -> Pool:
        settings = self._settings
        pool = pools[target.database] = Pool(
            self._conninfo(target),
            self._states.setdefault(target.database, DatabaseState(TypeRegistry(self._built_in))),
            size_max=settings.connections_per_target_max,
            queue_max=settings.queue_max,
            connect_timeout_s=settings.connect_timeout_s,
            room=self._room,
            forget_settings=partial(self._forget_settings, target),
            terminate=partial(terminate, self._session, target.database),
            meter=self._guard,
        )
        pool.state.full_at = self._sizes.full_at(target.database)
        if target.database in self._paused:
            pool.suspend()
        return pool

    async def _forget_settings(self, target: port.Target) -> None:
        for statement in forget_settings(target.database, role_of(target.database, target.access)):
            await self._session.fetch(statement)

    def _conninfo(self, target: port.Target) -> str:
        read_only = "on" if target.access is port.Access.READ else "off"
        options = {**_SESSION_SETTINGS, "default_transaction_read_only": read_only, "work_mem": self.can.work_mem}
        if self.can.major >= 17:
            options |= _SINCE_17
        if self.can.notices_leaving:
            options["client_connection_check_interval"] = CHECK_INTERVAL
        settings = self._settings
        tenant = as_tenant(settings.conninfo, settings.secret, target.database, target.access)
        return with_settings(tenant, target.database, options)

    def _make_room(self) -> None:
        """Every place is taken: closes a connection that nobody uses, the longest idle of all."""
        idle = [(pool.idle_since, pool) for pool in self._pools() if pool.idle_since is not None]
        if idle:
            since, pool = min(idle, key=lambda entry: entry[0])
            pool.close_idle(since + 0.000001)

    async def _watch_deadlines(self) -> None:
        """One look at all running statements costs less than a timer for each of them."""
        while True:
            await asyncio.sleep(_DEADLINE_TICK_S if self._running else _IDLE_TICK_S)
            now = self._time()
            self._begin_rate.sample(now, self._guard.begun)
            look_at_broken()
            for execution in [e for e in self._running if not e.timed_out]:
                if execution.deadline < now:
                    execution.expire()
                elif execution.writes and self._guard.outlived(execution.begun):
                    execution.outlived = True
                    self._guard.ended += 1
                    execution.expire()
            for pool in self._pools():
                pool.end_waiting(now)

    async def _watch_locks(self) -> None:
        """Looks while a statement runs that is not a short one: only then are there many locks, or old ones."""
        crowded: set[str] = set()
        while True:
            await asyncio.sleep(_LOCKS_TICK_S)
            now = self._time()
            running = {
                run.member.backend: run
                for run, since in self._running.items()
                if now - since > _LOCKS_TICK_S and not isinstance(run, Session)
            }
            if not running and not crowded:
                continue
            try:
                rows = await self._watching.fetch(HELD_SQL)
            except port.EngineFailure:
                continue  # it is asked again in a moment
            held = [Held(str(row[0]), int(row[1] or 0), row[2] == "t", int(str(row[3]))) for row in rows]
            since = {process: self._running[run] for process, run in running.items() if run in self._running}
            verdict = judge(held, since, self._lock_capacity)
            crowded = verdict.crowded
            for database, state in self._states.items():
                state.crowded = database in crowded
            for process in since:
                run = running[process]
                if process not in verdict.ended | {verdict.outlived} or run.timed_out:
                    continue
                _log.warning("a statement was ended for the engine's locks", database=run.target.database)
                run.crowding, run.outlived = process in verdict.ended, process == verdict.outlived
                run.expire()

    async def _watch_sizes(self) -> None:
        pause = _SIZES_TICK_S
        while True:
            await asyncio.sleep(pause)
            used = {database for database, pool in self._writing.items() if pool.size}
            names = used & self._sizes.bounds.keys()
            started = self._time()
            try:
                rows = await self._watching.fetch(SIZES_SQL, ",".join(names)) if names else []
            except port.EngineFailure:
                continue  # it is asked again in a moment
            # Measuring is reading directories: where that takes long it is done less often.
            pause = max(_SIZES_TICK_S, 20 * (self._time() - started))
            self._sizes.note({str(name): int(str(size)) for name, size in rows}, self._end_growing)
            for database, state in self._states.items():
                state.full_at = self._sizes.full_at(database)

    def _end_growing(self, database: str) -> None:
        for run in list(self._running):
            if isinstance(run, Session) or run.target.database != database:
                continue
            if run.may_grow and not run.timed_out:
                _log.warning("a statement was ended: its database has grown far beyond its bound", database=database)
                run.filling = True
                run.expire()

    async def _expire(self) -> None:
        """Removes old records of the databases that are in use."""
        while True:
            await asyncio.sleep(_EXPIRE_EVERY_S)
            for database in list(self._states):
                try:
                    async with AdminSession(self._connector, database, "pg_catalog") as session:
                        await session.atomically([(statement, ()) for statement in EXPIRE])
                except port.EngineFailure as failure:
                    _log.warning("old records were not removed", database=database, reason=str(failure))

    def stop_running(self) -> None:
        """Cancels what runs in the engine, but nothing that is being committed: all get a definite answer."""
        self._dumps.stop()
        for pool in self._pools():
            pool.end_waiting(float("inf"))
        for execution in list(self._running):
            if not execution.timed_out:
                execution.stopping = True
                execution.expire()

    async def _place(self) -> None:
        while self._placement.active:
            before, started = self._served, self._time()
            await asyncio.sleep(_PLACEMENT_TICK_S)
            processes = [process for pool in self._pools() for process in pool.processes]
            self._placement.update(self._served - before, self._time() - started, processes)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._settings.idle_close_s / 4)
            for pools in (self._writing, self._reading):
                for database, pool in list(pools.items()):
                    pool.close_idle(loop.time() - self._settings.idle_close_s)
                    if pool.is_unused:
                        del pools[database]
            served = self._writing.keys() | self._reading.keys()
            self._states = {name: state for name, state in self._states.items() if name in served}


def _crowded() -> port.EngineBusy:
    return port.EngineBusy("the database holds more locks than there is room for; it can be used again in a moment")


def _repeatable(statement: port.Statement) -> bool:
    """A statement that commits in steps of its own cannot be started over."""
    return "concurrently" not in statement.sql.lower()
