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
from querygate.engine.postgres.admin import METADATA_DATABASE, AdminConnector, AdminSession
from querygate.engine.postgres.connection import look_at_broken
from querygate.engine.postgres.execute import ENCODING_SETTINGS, Execution
from querygate.engine.postgres.guard import SerializableGuard
from querygate.engine.postgres.headroom import BeginRate, headroom
from querygate.engine.postgres.inspect import find_tables, read_durability
from querygate.engine.postgres.lease import Lease
from querygate.engine.postgres.ledger import Ledger
from querygate.engine.postgres.logins import as_tenant, with_settings
from querygate.engine.postgres.measures import Measures
from querygate.engine.postgres.parameters import wants_types
from querygate.engine.postgres.placement import Placement
from querygate.engine.postgres.pool import DatabaseState, Member, Pool, Room
from querygate.engine.postgres.probes import CHECK_INTERVAL, Capabilities, probe
from querygate.engine.postgres.records import EXPIRE
from querygate.engine.postgres.recovery import Recovery
from querygate.engine.postgres.roles import forget_settings, role_of
from querygate.engine.postgres.scratch import Scratch
from querygate.engine.postgres.session import Session, borrow_session, open_session
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
_DEADLINE_TICK_S = 0.02
_PLACEMENT_TICK_S = 0.25
_EXPIRE_EVERY_S = 3600.0
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


class PostgresEngine:
    """See the module's text. `async with` opens and closes it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        connector = self._connector = AdminConnector(settings.conninfo, settings.connect_timeout_s)
        self._session = AdminSession(connector, METADATA_DATABASE)
        self._recovery = Recovery(connector, settings.installation, alone=settings.alone)
        self._ledger = Ledger(self._writing_pool, self._session, settings.secret)
        self._scratch = Scratch(connector, self._ledger.hold, self._recovery, settings.secret)
        self._pools: dict[port.Target, Pool] = {}
        self._room = Room(settings.connections_max, self._make_room)
        self._built_in: dict[int, TypeInfo] = {}
        self._states: dict[str, DatabaseState] = {}
        self._paused: frozenset[str] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []
        self._running: set[Execution | TransactionRun | EngineClock | Session] = set()
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
        await self._recovery.__aenter__()
        loop = asyncio.get_running_loop()
        self._time = loop.time
        self._tasks = [
            loop.create_task(self._sweep()),
            loop.create_task(self._watch_deadlines()),
            loop.create_task(self._place()),
            loop.create_task(self._expire()),
            loop.create_task(self._scratch.watch()),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await self._recovery.__aexit__(None, None, None)
        for pool in self._pools.values():
            await pool.close()
        if self._lease is not None:
            await self._lease.__aexit__(None, None, None)
        await self._session.close()

    # -- the port -----------------------------------------------------------------------------------------------

    async def query(
        self, target: port.Target, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> port.Result:
        pool = self._pools.get(target) or self._pool(target)
        now = self._time()
        deadline = now + bounds.timeout_ms / 1000
        describe = False
        attempt = 1
        measures = self._queries
        while True:
            member = pool.take() or await pool.wait(deadline)
            if self._guard.must_wait:
                await self._admitted(pool, member, deadline)
            execution = Execution(pool, member, target, statement, shape, bounds, deadline, describe)
            execution.begun = self._guard.begun
            self._running.add(execution)
            measures.attempts += 1
            try:
                result = await execution.run(now)
                result.attempts = attempt
                self._served += 1
                observe(measures.seconds, result.exec_us * 1000)
                return result
            except port.Conflict as conflict:
                measures.conflict(conflict.exec_us)
                if not _repeatable(statement):
                    raise
                await self._pause_before(attempt, deadline, conflict, measures)
                attempt += 1
            except port.StatementFailed as failure:
                observe(measures.seconds, failure.exec_us * 1000)
                if describe or not wants_types(failure, statement):
                    raise
                describe = True
            finally:
                self._running.discard(execution)
            now = self._time()

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
        pool = self._pools.get(target) or self._pool(target)
        deadline = self._time() + bounds.timeout_ms / 1000
        describe, two_phase = False, self.can.two_phase
        attempt = 1
        measures = self._transactions
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
            self._running.add(run)
            measures.attempts += 1
            try:
                result = await run.run()
                self._served += 1
                observe(measures.seconds, result.exec_us * 1000)
                if promise is not None and run.is_read_only:
                    await self._ledger.keep_promise(target.database, promise, result)
                return result
            except CannotPrepare:
                two_phase = False
                promise = await self._with_id(target.database, promise)
            except port.Conflict as conflict:
                conflict.attempts = attempt
                measures.conflict(conflict.exec_us)
                if promise is not None and run.recording and await self._ledger.is_settled(target.database, promise):
                    raise port.Superseded("somebody else settled it first") from conflict
                await self._pause_before(attempt, deadline, conflict, measures)
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
                self._running.discard(run)

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
        for target, pool in self._pools.items():
            if target.database in databases - self._paused:
                pool.suspend()
            elif target.database in self._paused - databases:
                pool.resume()
        self._paused = databases

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
        deadline = self._time() + bounds.timeout_ms / 1000
        member = pool.take() or await pool.wait(deadline)
        if self._guard.must_wait:
            await self._admitted(pool, member, deadline)
        clock = EngineClock(pool, member, target, statement, bounds)
        clock.begun = self._guard.begun
        self._running.add(clock)
        measures = self._streams
        measures.attempts += 1
        try:
            async with open_stream(pool, member, target, statement, shape, clock, measures) as stream:
                yield stream
        finally:
            self._running.discard(clock)
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
            self._running.add(session)
            try:
                yield session
            finally:
                self._running.discard(session)

    def scratch(self, database: str) -> AbstractAsyncContextManager[str]:
        return self._scratch.schema(database)

    async def durability(self, target: port.Target) -> port.Durability:
        async with self._watched(open_session, target, port.Bounds(_OWN_TIMEOUT_MS, None, 0)) as session:
            return await read_durability(session)

    def serializable_headroom(self) -> port.Headroom:
        return headroom(self._guard, self._begin_rate, self._time())

    def measured(self) -> port.Measured:
        kinds = (self._queries, self._transactions, self._streams)
        pools = self._pools.values()
        room = self.serializable_headroom()
        return port.Measured(
            {kind.kind: list(kind.seconds) for kind in kinds},
            {
                **{name: count for kind in kinds for name, count in kind.events.items()},
                **self._recovery.events,
                "guard_conflicts_total": self._guard.ended,
            },
            {
                "engine_connections open": sum(pool.size for pool in pools),
                "engine_connections idle": sum(pool.idle for pool in pools),
                "engine_connections_waiting": sum(pool.waiting for pool in pools),
                "engine_connections_max": self._settings.connections_max,
                "serializable_slots": room.slots,
                "serializable_safe_seconds": float("inf") if room.safe_seconds is None else room.safe_seconds,
                "serializable_guarded": int(room.guarded),
            },
        )

    # -- pools --------------------------------------------------------------------------------------------------

    def _writing_pool(self, database: str) -> Pool:
        target = port.Target(database, port.Access.WRITE)
        return self._pools.get(target) or self._pool(target)

    def _pool(self, target: port.Target) -> Pool:
        pool = self._pools.get(target)
        if pool is None:
            settings = self._settings
            pool = self._pools[target] = Pool(
                self._conninfo(target),
                self._states.setdefault(target.database, DatabaseState(TypeRegistry(self._built_in))),
                size_max=settings.connections_per_target_max,
                queue_max=settings.queue_max,
                connect_timeout_s=settings.connect_timeout_s,
                room=self._room,
                forget_settings=partial(self._forget_settings, target),
                meter=self._guard,
            )
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
        idle = [(pool.idle_since, pool) for pool in self._pools.values() if pool.idle_since is not None]
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
            for pool in self._pools.values():
                pool.end_waiting(now)

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
        for pool in self._pools.values():
            pool.end_waiting(float("inf"))
        for execution in list(self._running):
            if not execution.timed_out:
                execution.stopping = True
                execution.expire()

    async def _place(self) -> None:
        while self._placement.active:
            before, started = self._served, self._time()
            await asyncio.sleep(_PLACEMENT_TICK_S)
            processes = [process for pool in self._pools.values() for process in pool.processes]
            self._placement.update(self._served - before, self._time() - started, processes)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._settings.idle_close_s / 4)
            for target, pool in list(self._pools.items()):
                pool.close_idle(loop.time() - self._settings.idle_close_s)
                if pool.is_unused:
                    del self._pools[target]
            served = {target.database for target in self._pools}
            self._states = {name: state for name, state in self._states.items() if name in served}


def _repeatable(statement: port.Statement) -> bool:
    """A statement that commits in steps of its own cannot be started over."""
    return "concurrently" not in statement.sql.lower()
