"""Ends server processes that ignore a cancel, and counts those that ignore everything.

Some functions of PostgreSQL run for hours without checking for a cancel: `translate` of long texts is one of them.
These steps are taken, each if the one before did not help:

1. The pool cancels the statement.
2. After 5 seconds the process is told to terminate. Its database keeps the connection's place until it has ended.
3. After 10 more seconds the database's server is killed, if it has no other database and can be killed.
4. After 10 more seconds the operator is told. While a database has `STUCK_MAX` such processes, it takes no requests. On
a standby one is enough: it may hold up the replay for all.

No single process is killed: the server would restart, and end the statements of all its databases.

Seconds are looks at which the engine still lists the process, half a second apart: where the machine stands still, the
process could not end, and nobody looks either.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from tuplegate.background import keep
from tuplegate.engine.port import EngineBusy, EngineFailure

_log: Final = structlog.get_logger()

KILL_AFTER_LOOKS: Final = 20
STUCK_AFTER_LOOKS: Final = 40
"""Both count from the moment at which the process was told to terminate."""
STUCK_MAX: Final = 2
"""The number of stuck processes of one database, as one worker counts them, at which the database takes no requests."""
_TICK_S: Final = 0.5

_LOOK_SQL: Final = """
SELECT pid, datname, extract(epoch FROM backend_start) FROM pg_catalog.pg_stat_activity
 WHERE pid = ANY($1::pg_catalog.int4[])
"""


@dataclass(slots=True, eq=False)
class Ending:
    """A server process that is told to end. `settled` is set when it has, or when it counts as stuck. It had its number
    at `seen_at`, by the server's clock: another one may get the number. `looks` have found it alive since it was
    told."""

    process: int
    database: str
    seen_at: float
    looks: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    is_told: bool = False
    is_gone: bool = False
    is_killed: bool = False
    """Its server was to be killed."""
    is_stuck: bool = False
    on_gone: Callable[[], None] | None = None


class _Seen(NamedTuple):
    process: int
    database: str | None
    started: float


Fetch = Callable[..., Awaitable[list[tuple[str | None, ...]]]]
"""Runs a statement of the service's own, with parameters, and returns its rows. Raises EngineFailure."""

Terminate = Callable[[str, int, float], Awaitable[object]]
"""Tells the server process of a database to end that had a number at a time. Raises EngineFailure."""

Kill = Callable[[str], None]
"""Kills the server of one database, which has no other database."""


class Stubborn:
    """The server processes that were told to end. `kill` is None if nobody can kill the server, or databases share it.
    `stuck_max` is the number that a database may have before it takes no requests."""

    def __init__(
        self, fetch: Fetch, terminate: Terminate, *, kill: Kill | None = None, stuck_max: int = STUCK_MAX
    ) -> None:
        self._stuck_max = stuck_max
        self._fetch = fetch
        self._terminate = terminate
        self._kill = kill
        self._endings: dict[int, Ending] = {}
        self._task: asyncio.Task[None] | None = None
        self.full: frozenset[str] = frozenset()
        """The databases that have too many stuck processes."""

    @property
    def stuck(self) -> int:
        return sum(ending.is_stuck for ending in self._endings.values())

    def check(self, database: str) -> None:
        """Raise EngineBusy while the database has too many stuck processes."""
        if database in self.full:
            raise EngineBusy(
                f"{self._stuck_max} statements of this database ignore that they were told to end;"
                " it can be used again when the engine is rid of them"
            )

    async def end(self, database: str, process: int, seen_at: float) -> Ending:
        """Tell a server process to terminate, and watch it from now on."""
        ending = self._endings.get(process)
        if ending is None:
            ending = self._endings[process] = Ending(process, database, seen_at)
            if self._task is None or self._task.done():
                self._task = keep("stubborn", self._watch)
        await self._tell(ending)
        return ending

    async def is_gone(self, database: str, process: int, seen_at: float) -> bool:
        """Return whether a server process has ended; if it has not, tell it to terminate. Raises EngineFailure."""
        return not await self._terminate(database, process, seen_at)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for ending in self._endings.values():
            ending.settled.set()
        self._endings.clear()

    async def _watch(self) -> None:
        while self._endings:
            await asyncio.sleep(_TICK_S)
            try:
                await self._look()
            except EngineFailure:
                continue  # what was lost with the engine is seen when it is back

    async def _tell(self, ending: Ending) -> None:
        if not ending.is_told:
            try:
                await self._terminate(ending.database, ending.process, ending.seen_at)
            except EngineFailure:
                return  # it is told at the next look
            ending.is_told = True

    async def _look(self) -> None:
        endings = list(self._endings.values())
        numbers = ",".join(str(ending.process) for ending in endings)
        rows = await self._fetch(_LOOK_SQL, "{" + numbers + "}")
        seen = [_Seen(int(str(process)), database, float(started or 0)) for process, database, started in rows]
        for ending in endings:
            alive = next((each for each in seen if self._is(each, ending)), None)
            if alive is None:
                self._forget(ending)
                continue
            if ending.is_told:
                ending.looks += 1
                self._press(ending)
            else:
                await self._tell(ending)
        stuck = [ending.database for ending in self._endings.values() if ending.is_stuck]
        self.full = frozenset(database for database in stuck if stuck.count(database) >= self._stuck_max)

    @staticmethod
    def _is(seen: _Seen, ending: Ending) -> bool:
        same = seen.process == ending.process and seen.database == ending.database
        return same and seen.started <= ending.seen_at

    def _forget(self, ending: Ending) -> None:
        del self._endings[ending.process]
        ending.is_gone = True
        ending.settled.set()
        if ending.is_stuck:
            _log.info("a stuck server process has ended", process=ending.process, database=ending.database)
        if ending.on_gone is not None:
            ending.on_gone()

    def _press(self, ending: Ending) -> None:
        """Take the step that is due."""
        if self._kill is not None and ending.looks >= KILL_AFTER_LOOKS and not ending.is_killed:
            self._kill_server(self._kill, ending.database)
        if ending.looks >= STUCK_AFTER_LOOKS and not ending.is_stuck:
            ending.is_stuck = True
            ending.settled.set()
            _log.error(
                "a server process does not end: its statement ignores cancel and terminate. Kill it (SIGKILL) when all"
                " databases of its server can do without it for a moment: it restarts then",
                process=ending.process,
                database=ending.database,
            )

    def _kill_server(self, kill: Kill, database: str) -> None:
        """Kill the server, once for all processes of the database: a later process belongs to a new server."""
        for ending in self._endings.values():
            ending.is_killed = ending.is_killed or ending.database == database
        _log.error("the server of a database is killed: a statement ignores cancel and terminate", database=database)
        kill(database)
