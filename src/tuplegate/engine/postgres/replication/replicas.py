"""Standbys of the engine that may be read from: how far each is, whether it can be trusted, and what runs there.

Every standby is looked at twice a second, off the way of requests and within a bound. One that does not answer, that is
promoted, follows another timeline than the primary or is another server's is let go at once: its connections are
closed, and what was running on them fails over to the primary. One that is too far behind is left alone until it has
caught up.

What is known of how far a standby has come is always too little and never too much: it only moves forward, and with a
restart of the standby, which ends our connection to it, it is forgotten.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

import structlog

from tuplegate.engine import port
from tuplegate.engine.libpq.connection import Connection, Meter
from tuplegate.engine.libpq.stocks import Stocks
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminConnector, AdminSession, make_primary
from tuplegate.engine.postgres.own.logins import list_places
from tuplegate.engine.postgres.own.probes import Probed
from tuplegate.engine.postgres.own.settings import EngineSettings
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.pools import Pools
from tuplegate.engine.postgres.query.attempts import Attempts
from tuplegate.engine.postgres.query.execute import Execution
from tuplegate.engine.postgres.query.measures import Measures
from tuplegate.engine.postgres.query.run import Running, Why
from tuplegate.engine.postgres.query.stream import Stream, open_stream
from tuplegate.engine.postgres.query.stream_run import StreamRun
from tuplegate.engine.postgres.replication.positions import Position, read_lsn, standby_lsn
from tuplegate.engine.postgres.replication.primary import addresses_of
from tuplegate.engine.postgres.safety.sizes import SizeWatch
from tuplegate.engine.postgres.transaction.two_phase import Decider, TransactionRun
from tuplegate.keeping import within

_log = structlog.get_logger()
_T = TypeVar("_T")

TICK_S: Final = 0.5
"""From one look at the standbys to the next."""
ANSWER_S: Final = 1.0
"""A server that takes longer to say how far it is counts as away."""
WAIT_S: Final = 0.25
"""How long a read waits for a standby to come as far as its client has seen, before the primary answers."""
LAG_MAX_S: Final = 5.0
"""A standby that is further behind is not read from."""
_PAUSE_S: Final = 0.005
_DEADLINE_TICK_S: Final = 0.02
_IDLE_TICK_S: Final = 0.1
_SAMPLES_MAX: Final = 240
"""Looks at the primary that are remembered: two minutes."""

_PRIMARY_SQL: Final = """
SELECT left(pg_walfile_name(l), 8), l, pg_current_wal_flush_lsn(), (SELECT system_identifier FROM pg_control_system())
  FROM pg_current_wal_insert_lsn() l
"""
_POSITION_SQL: Final = "SELECT left(pg_walfile_name(l), 8), l FROM pg_current_wal_insert_lsn() l"
# What a query writes to the log by itself (hints) is nobody's commit, so it may stay where no standby gets it. Any
# commit takes it along.
_FLUSH_SQL: Final = "SELECT pg_logical_emit_message(true, 'tuplegate', '')"
# Without a stream of the log, as with one that is copied file by file, the timeline is that of the last checkpoint.
_STANDBY_SQL: Final = """
SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn(), (SELECT system_identifier FROM pg_control_system()),
       coalesce((SELECT received_tli FROM pg_stat_wal_receiver), (SELECT timeline_id FROM pg_control_checkpoint()))
"""
_REPLAYED_SQL: Final = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() END"


class NoStandby(port.EngineUnavailable):
    """It is a server of its own by now, or does not say what it is."""


class _StandbySession(AdminSession):
    """Tells when its connection is lost, as with a restart of the standby."""

    def __init__(self, connector: AdminConnector, on_lost: Callable[[], None]) -> None:
        super().__init__(connector, METADATA_DATABASE)
        self.connector = connector
        self._on_lost = on_lost

    async def _connect(self) -> Connection:
        connection = await super()._connect()
        connection.on_lost = self._on_lost
        return connection


async def in_time(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of a question to a server. Raises EngineUnavailable where it does not come within `ANSWER_S`."""
    try:
        return await within(ANSWER_S, work)
    except TimeoutError:
        raise port.EngineUnavailable(f"no answer within {ANSWER_S:g} s") from None


class Progress:
    """How far the primary is, and was: so the age of what a standby lacks is known without trusting any clock."""

    def __init__(self, connector: AdminConnector, *, flushes: bool) -> None:
        """`flushes`: it is this worker that moves a log on which nobody commits to."""
        self._session = AdminSession(connector, METADATA_DATABASE, local=True)
        self._flushes = flushes
        self._flushed = 0
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_MAX)
        self.timeline = 0
        self.system = ""
        self.trouble = "it was not asked yet"

    async def close(self) -> None:
        await self._session.close()

    async def position(self) -> Position:
        """Raises EngineFailure."""
        [(timeline, lsn)] = await in_time(self._session.fetch(_POSITION_SQL))
        return Position(int(str(timeline), 16), read_lsn(str(lsn)))

    async def look(self, now: float) -> None:
        try:
            [row] = await in_time(self._session.fetch(_PRIMARY_SQL))
            timeline, inserted, flushed = int(str(row[0]), 16), read_lsn(str(row[1])), read_lsn(str(row[2]))
            if (timeline, str(row[3])) != (self.timeline, self.system):
                self._samples.clear()
            self.timeline, self.system = timeline, str(row[3])
            self.sampled(now, inserted)
            self.trouble = ""
            stands, self._flushed = flushed == self._flushed, flushed
            if self._flushes and stands and flushed < inserted:
                await in_time(self._session.fetch(_FLUSH_SQL))
        except port.EngineFailure as failure:
            self.trouble = str(failure)
            await self._session.close()

    def sampled(self, now: float, inserted: int) -> None:
        self._samples.append((now, inserted))

    def lag_s(self, replayed: int, now: float) -> float:
        """How old the oldest change is that a standby lacks which has come so far."""
        if not self._samples or now - self._samples[-1][0] > LAG_MAX_S:
            return inf  # nothing is known of the primary
        return next((now - at for at, inserted in self._samples if inserted > replayed), 0.0)


class Replica:
    """One standby. `said` tells what keeps it from being read from, or "ok"."""

    def __init__(
        self, number: int, conninfo: str, settings: EngineSettings, stocks: Stocks, probed: Probed,
        decider: Decider,
    ) -> None:  # fmt: skip
        self.number = number
        self._conninfo = conninfo
        self._place = list_places(conninfo)[0]
        self._settings = replace(
            settings, replicas=(), is_replica=True, may_signal=False, connect_timeout_s=ANSWER_S, primary=None
        )
        self._session: _StandbySession | None = None
        self._lookup: asyncio.Task[list[str]] | None = None
        self._stocks = stocks
        self._probed = probed
        self._decider = decider
        self._pools: Pools | None = None
        self._looking: asyncio.Task[None] | None = None
        self.running = Running()
        # What fails here is asked of the primary, so there is one attempt.
        self._attempts = Attempts(self.running, decider.guard, 1)
        self._measures = Measures("replica")
        self.said = "it was not looked at yet"
        self.lag_s = inf
        self.timeline = 0
        self.replayed = 0

    @property
    def is_usable(self) -> bool:
        return self._pools is not None and self.said == "ok"

    def has_reached(self, position: Position | None) -> bool:
        """Return whether it shows all that the position stands for. One of another timeline may not be part of it."""
        return position is None or (position.timeline == self.timeline and position.lsn <= self.replayed)

    # -- looking ------------------------------------------------------------------------------------------------

    async def visit(self, progress: Progress) -> None:
        """Finds out whether it can be read from."""
        try:
            session = self._session or await self._reach()
            [row] = await in_time(session.fetch(_STANDBY_SQL))
        except port.EngineFailure as failure:
            await self._let_go(f"it does not answer: {failure}")
            return
        if session is not self._session:
            return  # it was let go meanwhile
        if row[0] != "t":
            await self._let_go("it is no standby any more")
        elif not progress.timeline:
            await self._let_go(f"the engine does not say how far it is: {progress.trouble}")
        elif str(row[2]) != progress.system:
            await self._let_go("it is the standby of another server")
        elif int(str(row[3])) != progress.timeline:
            await self._let_go(f"it follows timeline {row[3]}, and the engine is on {progress.timeline}")
        else:
            self.timeline = progress.timeline
            self._note(row[1])
            self.lag_s = progress.lag_s(self.replayed, asyncio.get_running_loop().time())
            if self._pools is None:
                self._pools = self._new_pools(session)
            if self.lag_s == inf:
                self._say(f"the engine does not say how far it is: {progress.trouble}")
            else:
                self._say("ok" if self.lag_s <= LAG_MAX_S else f"it is {self.lag_s:.0f} s behind")

    async def _reach(self) -> "_StandbySession":
        """A session for the server that its name leads to just now."""
        connector = await in_time(self._connect())
        self._session = _StandbySession(connector, self._forget)
        return self._session

    async def _connect(self) -> AdminConnector:
        """One look-up of a name at a time: it may take long, and nothing ends it."""
        place, conninfo = self._place, self._conninfo
        if not place.is_socket and not place.address:
            if self._lookup is None or self._lookup.done():
                self._lookup = asyncio.get_running_loop().create_task(addresses_of(place.host))
            try:
                conninfo = f"{conninfo} {place.at((await asyncio.shield(self._lookup))[0])}"
            except OSError as failure:
                raise port.EngineUnavailable(f"its name cannot be looked up: {failure.strerror}") from failure
        return AdminConnector(conninfo, ANSWER_S, primary=make_primary(conninfo, follows=False), to_standby=True)

    def _new_pools(self, session: "_StandbySession") -> Pools:
        settings = replace(self._settings, conninfo=session.connector.conninfo)
        return Pools(
            settings, session.connector, session, SizeWatch(), _is_safe, _is_safe, self._probed, Meter(), self._stocks
        )

    def _note(self, replayed: str | None) -> None:
        """Answers come in the order of the questions."""
        if replayed is not None:
            self.replayed = read_lsn(replayed)

    def _forget(self) -> None:
        """After a restart it may show less than before."""
        self.timeline = self.replayed = 0

    def _say(self, said: str) -> None:
        before, self.said = self.said, said
        if (before == "ok") != (said == "ok"):
            (_log.info if said == "ok" else _log.warning)(
                "a replica was looked at", replica=str(self._place), state=said
            )

    async def _let_go(self, reason: str) -> None:
        """Closes all connections; what waits for an answer over one of them hears that it is lost."""
        self._say(reason)
        self.lag_s = inf
        self._forget()
        pools, self._pools = self._pools, None
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        if pools is not None:
            for pool in pools.all():
                pool.end_waiting(inf)
            await pools.close()

    async def catch_up(self, at_most_s: float) -> None:
        """Asks how far it is by now; several who wait share one question."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._ask_quietly())
        await asyncio.wait([self._looking], timeout=at_most_s)

    async def _ask_quietly(self) -> None:
        try:
            await self._ask()
        except port.EngineFailure:
            pass  # the next look will tell

    async def _ask(self) -> None:
        if self._session is None:
            raise port.EngineUnavailable("the replica went away")
        [(replayed,)] = await in_time(self._session.fetch(_REPLAYED_SQL))
        if replayed is None:
            await self._let_go("it is no standby any more")
            raise NoStandby("the replica was promoted")
        if self._pools is not None:
            self._note(replayed)

    async def _reached(self, timeline: int) -> bytes:
        """A position behind all that it has shown so far. Raises EngineFailure."""
        await self._ask()
        if not self.replayed:
            raise NoStandby("the replica was lost")
        return Position(timeline, self.replayed).written()

    async def close(self) -> None:
        await self._let_go("the service is stopping")

    # -- running ------------------------------------------------------------------------------------------------

    def _find_pool(self, target: port.Target) -> Pool:
        if self._pools is None or not self.timeline:
            raise port.EngineUnavailable("the replica went away")
        return self._pools.of(target)

    def _check_reached(self, after: Position | None) -> None:
        """Raise where the standby was restarted while a connection was waited for. That is known by then: the
        connection that is asked how far it is was lost before any other could be had."""
        if not self.timeline or not self.has_reached(after):
            raise port.EngineUnavailable("the replica was restarted")

    async def query(
        self,
        target: port.Target,
        statement: port.Statement,
        shape: port.Shape,
        bounds: port.Bounds,
        after: Position | None,
        deadline: float,
    ) -> port.Result:
        """Make one attempt. Raises what keeps it from being answered here."""
        target = target.replicated()
        run = Execution(self._find_pool(target), target, statement, shape, bounds, deadline)
        timeline, now = self.timeline, asyncio.get_running_loop().time()
        result = await self._attempts.carry_out(run, self._measures, now, partial(self._check_reached, after))
        lsn = None if result.reached is None else standby_lsn(result.reached)
        if lsn is None:
            raise NoStandby("the replica does not say how far it is")
        result.reached, result.on_replica = Position(timeline, lsn).written(), True
        return result

    async def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        shape: port.Shape,
        bounds: port.Bounds,
        after: Position | None,
        deadline: float,
    ) -> port.TransactionResult:
        """Make one attempt, as `query`."""
        target = target.replicated()
        run = TransactionRun(self._find_pool(target), target, statements, shape, bounds, deadline, self._decider)
        timeline, now = self.timeline, asyncio.get_running_loop().time()
        done = await self._attempts.carry_out(run, self._measures, now, partial(self._check_reached, after))
        done.reached, done.on_replica = await self._reached(timeline), True
        return done

    @asynccontextmanager
    async def stream(
        self,
        target: port.Target,
        statement: port.Statement,
        shape: port.Shape,
        bounds: port.Bounds,
        after: Position | None,
        deadline: float,
    ) -> AsyncIterator[Stream]:
        target = target.replicated()
        pool, timeline = self._find_pool(target), self.timeline
        pool.check()
        run = StreamRun(pool, target, statement, shape, bounds)
        run.begin(await self._attempts.take(pool, deadline, partial(self._check_reached, after)))
        self.running.runs[run] = asyncio.get_running_loop().time()
        try:
            async with open_stream(run, self._measures, attempts_max=1) as stream:
                stream.reached, stream.on_replica = await self._reached(timeline), True
                yield stream
        finally:
            del self.running.runs[run]

    def end_late(self, now: float) -> None:
        for run in self.running.find_late(now):
            run.end(Why.TIME)
        for pool in self._pools.all() if self._pools is not None else ():
            pool.end_waiting(now)

    def stop_running(self) -> None:
        self.running.stop()
        for pool in self._pools.all() if self._pools is not None else ():
            pool.end_waiting(inf)

    def close_idle(self, since: float) -> None:
        if self._pools is not None:
            self._pools.close_idle(since)


async def _is_safe() -> bool:
    """Nothing is written there."""
    return True


class Replicas:
    """All of them. `watch` and the two beside it go on for as long as the worker lives."""

    def __init__(self, progress: Progress, replicas: Sequence[Replica], idle_close_s: float) -> None:
        self._progress = progress
        self._all = list(replicas)
        self._idle_close_s = idle_close_s
        self._turn = 0

    @property
    def states(self) -> dict[str, str]:
        """By their numbers, in the order in which they were given: the addresses are nobody's business."""
        return {f"replica {replica.number}": replica.said for replica in self._all}

    @property
    def gauges(self) -> dict[str, float]:
        lags = {f"replica_lag_seconds {replica.number}": replica.lag_s for replica in self._all}
        return lags | {f"replica_usable {replica.number}": int(replica.is_usable) for replica in self._all}

    async def look(self) -> None:
        await self._progress.look(asyncio.get_running_loop().time())
        await asyncio.gather(*(replica.visit(self._progress) for replica in self._all))

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self.look()

    async def watch_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(
                _DEADLINE_TICK_S if any(replica.running.runs for replica in self._all) else _IDLE_TICK_S
            )
            for replica in self._all:
                replica.end_late(loop.time())

    async def sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._idle_close_s / 4)
            for replica in self._all:
                replica.close_idle(loop.time() - self._idle_close_s)

    def stop_running(self) -> None:
        for replica in self._all:
            replica.stop_running()

    async def close(self) -> None:
        for replica in self._all:
            await replica.close()
        await self._progress.close()

    async def choose(self, after: Position | None, deadline: float) -> Replica | None:
        """One that has come so far, waited for if need be; None where there is none in time."""
        loop = asyncio.get_running_loop()
        until = min(loop.time() + WAIT_S, deadline)
        while True:
            ready = [replica for replica in self._all if replica.is_usable and replica.has_reached(after)]
            if ready:
                self._turn += 1
                return min(ready, key=self._order)
            nearest = max(
                (r for r in self._all if r.is_usable and after is not None and r.timeline == after.timeline),
                key=lambda replica: replica.replayed,
                default=None,
            )
            if nearest is None or loop.time() >= until:
                return None
            await nearest.catch_up(until - loop.time())
            if not nearest.has_reached(after):
                await asyncio.sleep(_PAUSE_S)

    def _order(self, replica: Replica) -> tuple[int, int]:
        """The least busy one, and of those that are equally so each in turn."""
        return len(replica.running.runs), (replica.number + self._turn) % len(self._all)
