"""Ends server processes that ignore a cancel, and keeps count of those that ignore everything.

Some functions of PostgreSQL run for hours without looking whether they were told to stop: `translate` of long texts is
one of them. The steps, each taken where the one before did not help:

1. The pool cancels the statement.
2. After 5 seconds the process is told to terminate. Its database keeps the connection's place until it has ended.
3. After 10 more seconds it is sent SIGFPE, where the engine's processes are on this machine. PostgreSQL raises an error
   wherever the process is then, and because it was told to terminate it ends, without disturbing any other.
4. After 10 more seconds the operator is told, and the process gets the lowest priority. While a database has
   `STUCK_MAX` such processes, it takes no requests. On a standby one is enough: it may hold up the replay for all.

A process is never killed: that would end the statements of everybody.

An error must not be raised in a commit, or while the process waits or is in the kernel. So SIGFPE is only sent to one
that has run in user mode since the last look, waited for nothing, and has a snapshot: a commit gives that up.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from tuplegate.engine.port import EngineBusy, EngineFailure
from tuplegate.keeping import keep

_log: Final = structlog.get_logger()

SIGNAL_AFTER_S: Final = 10.0
STUCK_AFTER_S: Final = 20.0
"""Both since the process was told to terminate."""
STUCK_MAX: Final = 2
"""Stuck processes of one database, as one worker counts them, at which the database takes no requests."""
_TICK_S: Final = 0.5
_KERNEL_SHARE_MAX: Final = 0.1
_PRIORITY_LOWEST: Final = 19

# A parallel worker runs what its leader waits for.
_LOOK_SQL: Final = """
SELECT pid, leader_pid, datname, backend_start, wait_event IS NULL AND backend_xmin IS NOT NULL
  FROM pg_catalog.pg_stat_activity
 WHERE pid = ANY($1::pg_catalog.int4[]) OR leader_pid = ANY($1::pg_catalog.int4[])
"""


class Sample(NamedTuple):
    """The kernel's record of a process. Times are in its clock ticks."""

    is_running: bool
    user: int
    kernel: int
    waits: int


def read_sample(process: int, proc: Path = Path("/proc")) -> Sample | None:
    """Return None where there is no such process, or no such file system."""
    try:
        fields = (proc / str(process) / "stat").read_text().rpartition(")")[2].split()
        status = (proc / str(process) / "status").read_text()
    except OSError:
        return None
    waits = next(line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches:"))
    return Sample(fields[0] == "R", int(fields[11]), int(fields[12]), int(waits.split()[1]))


def only_computes(before: Sample | None, now: Sample | None) -> bool:
    """Return whether the process ran in user mode between the two samples and waited for nothing."""
    if before is None or now is None:
        return False
    user, kernel = now.user - before.user, now.kernel - before.kernel
    return now.is_running and now.waits == before.waits and user > 0 and kernel <= _KERNEL_SHARE_MAX * user


@dataclass(slots=True, eq=False)
class Ending:
    """A server process that was told to end at `since`. `settled` is set when it has, or when it counts as stuck."""

    process: int
    database: str
    since: float
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    is_told: bool = False
    is_gone: bool = False
    is_stuck: bool = False
    started: str | None = None
    """When the process was started: another may get its number."""
    samples: dict[int, Sample] = field(default_factory=dict)
    """Of the process and its parallel workers, at the last look."""
    on_gone: Callable[[], None] | None = None


class _Seen(NamedTuple):
    process: int
    leader: int
    """0 where it is no parallel worker."""
    database: str | None
    started: str | None
    computes: bool
    """The engine knows of nothing that it waits for, and of a snapshot that it has."""


def _give_way(process: int) -> None:
    """Let every other process go first. What it does may take hours, as the end of a commit can; then it ends."""
    try:
        os.setpriority(os.PRIO_PROCESS, process, _PRIORITY_LOWEST)
    except OSError:
        pass  # it has ended meanwhile, or is another user's


Fetch = Callable[..., Awaitable[list[tuple[str | None, ...]]]]
"""Runs a statement of the service's own, with parameters, and returns its rows. Raises EngineFailure."""

Terminate = Callable[[str, int], Awaitable[object]]
"""Tells a server process of a database to end. Raises EngineFailure."""


class Stubborn:
    """The server processes that were told to end. `may_signal`: they are on this machine, and the installation's.
    `stuck_max` is how many a database may have before it takes no requests."""

    def __init__(self, fetch: Fetch, terminate: Terminate, *, may_signal: bool, stuck_max: int = STUCK_MAX) -> None:
        self._stuck_max = stuck_max
        self._fetch = fetch
        self._terminate = terminate
        self._may_signal = may_signal
        self._endings: dict[int, Ending] = {}
        self._task: asyncio.Task[None] | None = None
        self.full: frozenset[str] = frozenset()
        """The databases that have as many stuck processes as they may."""

    @property
    def stuck(self) -> int:
        return sum(ending.is_stuck for ending in self._endings.values())

    def check(self, database: str) -> None:
        """Raise EngineBusy while the database has as many stuck processes as it may."""
        if database in self.full:
            raise EngineBusy(
                f"{self._stuck_max} statements of this database ignore that they were told to end;"
                " it can be used again when the engine is rid of them"
            )

    async def end(self, database: str, process: int) -> Ending:
        """Tell a server process to terminate, and look after it from now on."""
        loop = asyncio.get_running_loop()
        ending = self._endings.get(process)
        if ending is None:
            ending = self._endings[process] = Ending(process, database, loop.time())
            if self._task is None or self._task.done():
                self._task = keep("stubborn", self._watch)
        await self._tell(ending)
        return ending

    async def is_gone(self, database: str, process: int) -> bool:
        """Return whether a server process has ended; tell it to terminate where it has not. Raises EngineFailure."""
        return not await self._terminate(database, process)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for ending in self._endings.values():
            ending.settled.set()
        self._endings.clear()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while self._endings:
            await asyncio.sleep(_TICK_S)
            try:
                await self._look(loop.time())
            except EngineFailure:
                continue  # what was lost with the engine is seen when it is back

    async def _tell(self, ending: Ending) -> None:
        if not ending.is_told:
            try:
                await self._terminate(ending.database, ending.process)
            except EngineFailure:
                return  # it is told at the next look
            ending.is_told = True

    async def _look(self, now: float) -> None:
        endings = list(self._endings.values())
        numbers = ",".join(str(ending.process) for ending in endings)
        rows = await self._fetch(_LOOK_SQL, "{" + numbers + "}")
        seen = [_Seen(int(str(row[0])), int(row[1] or 0), row[2], row[3], row[4] == "t") for row in rows]
        for ending in endings:
            alive = next((each for each in seen if self._is(each, ending)), None)
            if alive is None:
                self._forget(ending)
                continue
            ending.started = alive.started
            await self._tell(ending)
            team = [each for each in seen if each is alive or each.leader == ending.process]
            self._press(ending, [each for each in team if each.database == ending.database], now)
        stuck = [ending.database for ending in self._endings.values() if ending.is_stuck]
        self.full = frozenset(database for database in stuck if stuck.count(database) >= self._stuck_max)

    @staticmethod
    def _is(seen: _Seen, ending: Ending) -> bool:
        same = seen.process == ending.process and seen.database == ending.database
        return same and ending.started in (None, seen.started)

    def _forget(self, ending: Ending) -> None:
        del self._endings[ending.process]
        ending.is_gone = True
        ending.settled.set()
        if ending.is_stuck:
            _log.info("a stuck server process has ended", process=ending.process, database=ending.database)
        if ending.on_gone is not None:
            ending.on_gone()

    def _press(self, ending: Ending, team: list[_Seen], now: float) -> None:
        """Take the step that is due. `team` is the process and its parallel workers."""
        age = now - ending.since
        if age < SIGNAL_AFTER_S - 2 * _TICK_S:
            return
        samples = {each.process: sample for each in team if (sample := read_sample(each.process)) is not None}
        if self._may_signal and ending.is_told and age >= SIGNAL_AFTER_S:
            for each in team:
                if each.computes and only_computes(ending.samples.get(each.process), samples.get(each.process)):
                    self._signal(each.process, ending)
        ending.samples = samples
        if age >= STUCK_AFTER_S and not ending.is_stuck:
            ending.is_stuck = True
            ending.settled.set()
            for each in team if self._may_signal else ():
                _give_way(each.process)
            _log.error(
                "a server process does not end: its statement ignores cancel and terminate. Kill it (SIGKILL) when all"
                " databases can do without the engine for a moment: it restarts then",
                process=ending.process,
                database=ending.database,
            )

    def _signal(self, process: int, ending: Ending) -> None:
        try:
            os.kill(process, signal.SIGFPE)
        except ProcessLookupError:
            return  # it has ended meanwhile
        except PermissionError:
            self._may_signal = False
            _log.warning("the engine runs as another user: its processes cannot be sent signals")
            return
        _log.warning("a process that ignored a terminate was sent SIGFPE", process=process, database=ending.database)
