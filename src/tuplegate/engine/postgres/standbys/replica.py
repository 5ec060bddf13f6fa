"""One standby of the engine that may be read from, and the statements that run there.

It keeps tenants apart by the primary's means: pools, and a watch over time, locks and idle connections. If it does not
answer, or must not be read from (see `standby`), all its connections are closed at once, and their statements run on
the primary instead. If it is too far behind, it is not used until it has caught up.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

import structlog

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Meter
from tuplegate.engine.libpq.connections.unread_rows import Stocks
from tuplegate.engine.libpq.pools.measures import Measures
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.pools.pools import Pools
from tuplegate.engine.postgres.query.execute import Execution
from tuplegate.engine.postgres.query.stream import Stream, open_stream
from tuplegate.engine.postgres.query.stream_run import StreamRun
from tuplegate.engine.postgres.replication.positions import Position, standby_lsn
from tuplegate.engine.postgres.replication.verified import Unfit
from tuplegate.engine.postgres.safety.sizes import SizeWatch
from tuplegate.engine.postgres.service.probes import Probed
from tuplegate.engine.postgres.service.settings import EngineSettings
from tuplegate.engine.postgres.standbys.progress import ANSWER_S, LAG_MAX_S, Progress
from tuplegate.engine.postgres.standbys.standby import Astray, NoStandby, Standby
from tuplegate.engine.postgres.transaction.deciding import Decider
from tuplegate.engine.postgres.transaction.transaction import TransactionRun
from tuplegate.engine.postgres.upkeep.watch import Watch
from tuplegate.engine.run.attempts import Attempts
from tuplegate.engine.run.run import Running

_log: Final = structlog.get_logger()

_AVOIDED_S: Final = 10.0
"""How long an address that led to several servers is avoided."""


class Replica:
    """One standby. `said` is "ok", or the reason why it is not read from. `running` are the runs there now."""

    def __init__(
        self, number: int, conninfo: str, settings: EngineSettings, stocks: Stocks, probed: Probed, decider: Decider,
        progress: Progress,
    ) -> None:  # fmt: skip
        self.number = number
        self.standby = Standby(conninfo, progress)
        self._settings = replace(settings, replicas=(), is_replica=True, connect_timeout_s=ANSWER_S, primary=None)
        self._stocks = stocks
        self._probed = probed
        self._decider = decider
        self._progress = progress
        self._open: tuple[Pools, Watch] | None = None
        """Set while the standby is reached."""
        self._looking: asyncio.Task[None] | None = None
        self.running = Running()
        # A read that fails here is repeated on the primary, so one attempt is enough.
        self._attempts = Attempts(self.running, decider.guard, 1)
        self._measures = Measures("replica")
        self.said = "it was not looked at yet"
        self.lag_s = inf
        self._avoided_until = -inf

    @property
    def is_usable(self) -> bool:
        return self._open is not None and self.said == "ok"

    # -- looking ------------------------------------------------------------------------------------------------

    async def visit(self) -> None:
        """Find out whether the standby can be read from."""
        standby, progress = self.standby, self._progress
        if asyncio.get_running_loop().time() < self._avoided_until:
            return
        try:
            if standby.session is None:
                await standby.reach()
            await self._look()
            if self._open is None:
                self._open = self._enter()
        except port.EngineFailure as failure:
            await self._let_go(failure)
            return
        now = asyncio.get_running_loop().time()
        self.lag_s = progress.lag_s(standby.replayed, now)
        if not progress.is_known(now):
            self._say(f"the engine does not say how far it is: {progress.trouble}")
        elif self.lag_s == inf:
            self._say("it has not caught up since the service first looked, so how far it is behind is not known")
        elif self.lag_s > LAG_MAX_S:
            self._say(f"it is {self.lag_s:.0f} s behind{self._find_cause()}")
        else:
            self._say("ok")

    async def _look(self, deadline: float = inf) -> None:
        """Ask for its current position. Close it if it must not be read from any more. Raises EngineFailure."""
        try:
            await self.standby.look(deadline)
        except NoStandby as failure:
            await self._let_go(failure)
            raise

    def _enter(self) -> tuple[Pools, Watch]:
        """Open the pools and the watch, which must exist before the first statement. Raises EngineFailure."""
        session = self.standby.session
        if session is None:
            raise port.EngineUnavailable("the replica went away")
        settings = replace(self._settings, conninfo=session.connector.conninfo)
        pools = Pools(
            settings, session.connector, session, SizeWatch(), _is_safe, _is_safe, self._probed, Meter(), self._stocks
        )
        watch = Watch(self.running, settings.idle_close_s)
        watch.serve(pools)
        watch.begin()
        return pools, watch

    def _find_cause(self) -> str:
        """Return a likely reason why its replay stands still, if the service knows one."""
        stuck = 0 if self._open is None else self._open[0].stubborn.stuck
        return ": a statement there ignores that it was told to end, and may hold up the replay" if stuck else ""

    def _say(self, said: str) -> None:
        before, self.said = self.said, said
        if (before == "ok") != (said == "ok"):
            (_log.info if said == "ok" else _log.warning)(
                "a replica was looked at", replica=str(self.standby.place), state=said
            )

    async def _let_go(self, failure: port.EngineFailure) -> None:
        """Close all connections; callers that wait for an answer learn that it is lost."""
        self._say(_explain(failure))
        if isinstance(failure, Astray):
            self._avoided_until = asyncio.get_running_loop().time() + _AVOIDED_S
        self.lag_s = inf
        opened, self._open = self._open, None
        await self.standby.close()
        if opened is not None:
            pools, watch = opened
            for pool in pools.all():
                pool.end_waiting(inf)
            watch.end()
            await pools.close()

    async def catch_up(self, at_most_s: float) -> None:
        """Ask for its current position; concurrent callers share one question."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_quietly())
        await asyncio.wait([self._looking], timeout=at_most_s)

    async def _look_quietly(self) -> None:
        try:
            await self._look()
        except port.EngineFailure:
            pass  # the next look will tell

    async def close(self) -> None:
        await self._let_go(NoStandby("the service is stopping"))

    # -- running ------------------------------------------------------------------------------------------------

    def _find_pool(self, target: port.Target) -> Pool:
        if self._open is None or not self.standby.timeline:
            raise port.EngineUnavailable("the replica went away")
        return self._open[0].find_pool(target)

    def _check_reached(self, after: Position | None) -> None:
        """Raise if the standby was restarted during the wait for a connection. It is known by then: the session that
        asks for the position was lost before any other connection could be opened."""
        if not self.standby.has_reached(after):
            raise port.EngineUnavailable("the replica was restarted")

    def _write_position(self, timeline: int, lsn: int, after: Position | None) -> bytes:
        """Return the position behind the rows that were read. Raises NoStandby if it is before the one that the client
        asked for."""
        if timeline != self.standby.timeline or (after is not None and (timeline, lsn) < after):
            raise NoStandby("the replica shows less than the client has seen")
        return Position(timeline, lsn).written()

    async def query(
        self,
        target: port.Target,
        statement: port.Statement,
        bounds: port.Bounds,
        after: Position | None,
        deadline: float,
    ) -> port.Result:
        """Make one attempt. Raises the failure that keeps the standby from answering."""
        target = target.replicated()
        run = Execution(self._find_pool(target), target, statement, bounds, deadline)
        timeline, now = self.standby.timeline, asyncio.get_running_loop().time()
        result = await self._attempts.carry_out(run, self._measures, now, partial(self._check_reached, after))
        lsn = None if result.reached is None else standby_lsn(result.reached)
        if lsn is None:
            raise NoStandby("the replica does not say how far it is")
        result.reached, result.on_replica = self._write_position(timeline, lsn, after), True
        return result

    async def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        bounds: port.Bounds,
        after: Position | None,
        deadline: float,
    ) -> port.TransactionResult:
        """Make one attempt, as `query` does."""
        target = target.replicated()
        run = TransactionRun(
            self._find_pool(target),
            target,
            statements,
            bounds,
            deadline,
            self._decider,
            read_only=True,
            two_phase=False,
            promise=None,
        )
        timeline, now = self.standby.timeline, asyncio.get_running_loop().time()
        done = await self._attempts.carry_out(run, self._measures, now, partial(self._check_reached, after))
        await self._look(deadline)
        done.reached, done.on_replica = self._write_position(timeline, self.standby.replayed, after), True
        return done

    @asynccontextmanager
    async def stream(
        self,
        target: port.Target,
        statement: port.Statement,
        bounds: port.Bounds,
        after: Position | None,
        deadline: float,
    ) -> AsyncIterator[Stream]:
        target = target.replicated()
        pool, timeline = self._find_pool(target), self.standby.timeline
        pool.check()
        run = StreamRun(pool, target, statement, bounds)
        run.begin(await self._attempts.take(pool, deadline, partial(self._check_reached, after)))
        self.running.enter(run)
        try:
            async with open_stream(run, self._measures, attempts_max=1) as stream:
                await self._look(deadline)
                stream.reached, stream.on_replica = self._write_position(timeline, self.standby.replayed, after), True
                yield stream
        finally:
            self.running.runs.remove(run)

    def stop_running(self) -> None:
        if self._open is not None:
            self._open[1].stop_running()


def _explain(failure: port.EngineFailure) -> str:
    """Return the reason in a failure to look at a standby, for people."""
    if isinstance(failure, NoStandby):
        return str(failure)
    if isinstance(failure.__cause__, Unfit):
        return str(failure.__cause__)
    return f"it does not answer: {failure}"


async def _is_safe(_server: str, _until: float) -> bool:
    """Return true: nothing is written to a standby."""
    return True
