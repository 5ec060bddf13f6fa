"""Watches the tables of locks of one server, and ends what would fill them or holds up everybody (see `locks`)."""

import asyncio

import structlog

from tuplegate.engine import port
from tuplegate.engine.postgres.own.admin import AdminSession
from tuplegate.engine.postgres.pools import Pools
from tuplegate.engine.postgres.query.run import Run, Running, Why
from tuplegate.engine.postgres.safety.locks import HELD_SQL, NAMES_SQL, Held, judge
from tuplegate.keeping import tick

_log = structlog.get_logger()

_TICK_S = 0.25
_RESTING_TICK_S = 1.0
"""How often it counts while everything that is old waits for its client, and the tables are not a quarter full."""
_RESTING_SHARE = 20
"""Counting reads every lock. Meanwhile it takes at most one part in so many of the time."""
_BANNED_S = 10.0
"""How long a database takes no statement after one of its statements has locked what all databases share."""


class LockWatch:
    """`capacity` is how many locks the server has room for. `running` is what this worker runs there."""

    def __init__(self, session: AdminSession, pools: Pools, running: Running, capacity: int) -> None:
        self._session = session
        self._pools = pools
        self._running = running
        self._capacity = capacity
        self._names: dict[int, str] = {}
        """Of databases, by their numbers in the engine."""
        self._crowded: set[str] = set()
        self._banned_until: dict[str, float] = {}
        self._rests: dict[Run, int | None] = {}
        """What waited for its client when the locks were counted last, and after which statement."""
        self._counted_at = -_RESTING_TICK_S
        self._counting_s = 0.0
        """How long it took to count last."""
        self._has_room = False
        self._time = asyncio.get_running_loop().time

    async def begin(self) -> None:
        """The session is opened before anybody can lock what a login needs."""
        await self._named(await self._session.fetch(HELD_SQL))

    async def watch(self) -> None:
        """Looks while a statement runs that is not a short one: only then are there many locks, or old ones."""
        banned_until = self._banned_until
        while True:
            if not self._crowded:
                await self._running.wait_for_some()
            await tick(_TICK_S)
            now = self._time()
            running = {
                run.member.backend: run
                for run, since in self._running.runs.items()
                if now - since > _TICK_S and not run.is_own
            }
            if not running and not self._crowded:
                continue
            rests = {run: run.rest for run in running.values()}
            if self._may_wait(rests, now):
                continue
            self._rests, self._counted_at = rests, now
            try:
                rows = await self._session.fetch(HELD_SQL)
                self._counting_s = self._time() - now
                self._end_reaching(rows, running, banned_until)
                held = await self._named(rows)
            except port.EngineFailure:
                continue  # it is asked again in a moment
            since = {process: self._running.runs[run] for process, run in running.items() if run in self._running.runs}
            verdict = judge(held, since, self._capacity)
            self._has_room = sum(entry.count for entry in held) < self._capacity // 4
            self._crowded = verdict.crowded | {database for database, until in banned_until.items() if until > now}
            for database, state in self._pools.states.items():
                state.is_crowded = database in self._crowded
            for process in since:
                run = running[process]
                if process not in verdict.ended | {verdict.outlived} or run.ended is not None:
                    continue
                _log.warning("a statement was ended for the engine's locks", database=run.target.database)
                if process in verdict.ended:
                    run.end(Why.LOCKS)
                else:
                    run.end_oldest()

    def _may_wait(self, rests: dict[Run, int | None], now: float) -> bool:
        """Return whether to count later: what is old has got no lock since, and what is short has left few behind."""
        if not self._has_room or self._crowded:
            return False
        if now - self._counted_at + _TICK_S / 2 >= max(_RESTING_TICK_S, _RESTING_SHARE * self._counting_s):
            return False
        return all(rest is not None and self._rests.get(run) == rest for run, rest in rests.items())

    def _end_reaching(
        self, rows: list[tuple[str | None, ...]], running: dict[int, Run], banned_until: dict[str, float]
    ) -> None:
        """Ends what holds or wants a lock on what all databases share, and keeps its database from the next try."""
        for process in {int(row[1] or 0) for row in rows if row[4] == "t"} & running.keys():
            run = running[process]
            if run.ended is not None or run not in self._running.runs:
                continue
            database = run.target.database
            _log.warning("a statement was ended for a lock on what all databases share", database=database)
            banned_until[database] = self._time() + _BANNED_S
            self._pools.states[database].is_crowded = True
            run.end(Why.LOCKS)

    async def _named(self, rows: list[tuple[str | None, ...]]) -> list[Held]:
        """Asks for the names of databases where there is one that it does not know."""
        numbers = {int(str(row[0])) for row in rows} - {0}
        if numbers - self._names.keys():
            named = await self._session.fetch(NAMES_SQL)
            self._names = {int(str(number)): str(name) for number, name in named}
        return [
            Held(self._names.get(int(str(row[0])), ""), int(row[1] or 0), row[2] == "t", int(str(row[3])))
            for row in rows
            if row[0] != "0"
        ]
