"""A server that is written to, as the watch sees it, with the chores that are done for it again and again."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from tuplegate.background import attempt
from tuplegate.engine import port
from tuplegate.engine.postgres.pools.pools import Pools
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.safety.headroom import BeginRate
from tuplegate.engine.postgres.safety.sizes import SIZES_SQL, SizeWatch
from tuplegate.engine.postgres.service.admin import AdminSession
from tuplegate.engine.run.ends import Why
from tuplegate.engine.run.run import Running

_log = structlog.get_logger()


class Chore:
    """Work that is done again and again for one server, first after `pause_s`. No server's chores wait for
    another's."""

    def __init__(
        self, name: str, every_s: float, work: Callable[[], Coroutine[Any, Any, None]], pause_s: float = 0.0
    ) -> None:
        self._name = name
        self._every_s = every_s
        self._work = work
        self._due_at = asyncio.get_running_loop().time() + pause_s
        self._task: asyncio.Task[None] | None = None

    def look(self, now: float) -> None:
        """Begin the work if it is due, and not under way."""
        if now >= self._due_at and (self._task is None or self._task.done()):
            self._due_at = now + self._every_s
            self._task = asyncio.get_running_loop().create_task(attempt(self._name, self._work))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


class PrimaryServer:
    """A server that is written to, as the watch sees it. `chores` are done as long as somebody uses the server."""

    def __init__(self, pools: Pools, sizes: SizeWatch, guard: SerializableGuard, session: AdminSession) -> None:
        self.pools = pools
        self.sizes = sizes
        self.guard = guard
        self.session = session
        self.begin_rate = BeginRate()
        self.chores: list[Chore] = []

    @property
    def is_used(self) -> bool:
        """Return whether it has pools, and so connections now or until recently."""
        return bool(self.pools.writing or self.pools.reading)

    async def measure(self, running: Running) -> None:
        """Measure the databases that are written to, and end statements that make one far too large."""
        pools, sizes = self.pools, self.sizes
        names = sizes.bounds.keys() & {name for name, pool in pools.writing.items() if pool.size or pool.given_away}
        refusals = {database: state.refusals for database, state in pools.states.items()}
        try:
            rows = await self.session.fetch(SIZES_SQL, ",".join(names)) if names else []
        except port.EngineFailure:
            return  # it is asked again in a moment
        measured = {str(name): (int(files), int(shared or 0)) for name, files, shared in rows if files is not None}
        for database, state in pools.states.items():
            if state.refusals != refusals.get(database):  # it was full after it was measured
                measured.pop(database, None)
        sizes.note(measured, partial(self._end_growing, running))
        self.note_full()

    def note_full(self) -> None:
        for database, state in self.pools.states.items():
            state.full_at = self.sizes.find_full_at(database)

    def _end_growing(self, running: Running, database: str) -> None:
        for run in list(running.runs):
            if run.target.database == database and run.may_grow and run.ended is None:
                _log.warning("a statement was ended: its database has grown far beyond its bound", database=database)
                run.end(Why.ROOM, self.sizes.bounds.get(database, 0))
