"""Watches running statements: their time and the size of their databases; and idle connections.

One look at everything a few times a second costs less than a timer for each statement, and one watch serves all servers
that a worker runs statements on. `PrimaryWatch` does more.
"""

import asyncio
from functools import partial
from math import inf

from tuplegate.background import Work, keep, tick
from tuplegate.engine.bundled.disk import Disk
from tuplegate.engine.libpq.connections.connection import look_at_broken
from tuplegate.engine.postgres.pools.pools import Pools
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.upkeep.disk_watch import DiskWatch
from tuplegate.engine.postgres.upkeep.primary_server import PrimaryServer
from tuplegate.engine.run.ends import Why
from tuplegate.engine.run.run import Running

_DEADLINE_TICK_S, _DEADLINE_RUNS = 0.02, 100
"""How often deadlines are checked, for up to this many runs; with more of them less often, as each look costs more."""
_LOOK_TICK_S = 0.25
_CHORES_TICK_S = 1.0


class Watch:
    """The watch over a worker's servers. A run must be in `running` from its beginning to its end."""

    def __init__(self, running: Running, idle_close_s: float) -> None:
        self.running = running
        self._all_pools: list[Pools] = []
        self._idle_close_s = idle_close_s
        self._tasks: list[asyncio.Task[None]] = []
        self._time = asyncio.get_running_loop().time

    def begin(self) -> None:
        self._tasks = [keep(name, watch) for name, watch in self._works().items()]

    def _works(self) -> dict[str, Work]:
        return {
            "idle_connections": self._sweep,
            "deadlines": self._watch_deadlines,
            "connections": self._watch_connections,
        }

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    def serve(self, pools: Pools) -> None:
        """Watch the pools of one more server."""
        self._all_pools.append(pools)

    def leave(self, pools: Pools) -> None:
        self._all_pools.remove(pools)

    def stop_running(self) -> None:
        """Cancel running statements, but nothing that is being committed: all get a definite answer."""
        for pools in self._all_pools:
            for pool in pools.all():
                pool.end_waiting(inf)
        self.running.stop()

    async def _watch_deadlines(self) -> None:
        """Check deadlines while something runs: one look costs less than a timer for each statement."""
        while True:
            await self.running.wait_for_some()
            await tick(_DEADLINE_TICK_S * (1 + len(self.running.runs) // _DEADLINE_RUNS))
            self._end_late(self._time())

    async def _watch_connections(self) -> None:
        """Look at all connections, and turn away late waiters while nothing runs. The process wakes then anyway."""
        while True:
            await tick(_LOOK_TICK_S)
            self._look(self._time())

    def _look(self, now: float) -> None:
        if not self.running.runs:
            self._end_late(now)

    def _end_late(self, now: float) -> None:
        for run in self.running.find_late(now):
            run.end(Why.TIME)
        for pools in self._all_pools:
            for pool in pools.all():
                pool.end_waiting(now)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._idle_close_s / 4)
            for pools in self._all_pools:
                pools.close_idle(self._time() - self._idle_close_s)


class PrimaryWatch(Watch):
    """Also watches the sizes of databases, the disk, and the memory of serializable transactions."""

    def __init__(self, idle_close_s: float, disk: Disk | None) -> None:
        super().__init__(Running(), idle_close_s)
        self._primaries: list[PrimaryServer] = []
        self.disk = None if disk is None else DiskWatch(disk, self._primaries)

    def _works(self) -> dict[str, Work]:
        works = {**super()._works(), "chores": self._watch_chores}
        if self.disk is not None:
            works["disk"] = self.disk.watch
            works["disk_growth"] = partial(self.disk.end_growing, self.running)
        return works

    def add(self, primary: PrimaryServer) -> None:
        """Watch one more server."""
        self.serve(primary.pools)
        self._primaries.append(primary)
        if self.disk is not None:
            self.disk.tell(primary)

    def remove(self, primary: PrimaryServer) -> None:
        for chore in primary.chores:
            chore.stop()
        self._primaries.remove(primary)
        self.leave(primary.pools)

    def _look(self, now: float) -> None:
        for primary in self._primaries:
            primary.begin_rate.sample(now, primary.guard.begun)
        look_at_broken()
        super()._look(now)

    def _end_late(self, now: float) -> None:
        super()._end_late(now)
        for run in self.running.find_writing():
            guard = run.member.meter
            assert isinstance(guard, SerializableGuard), "what writes runs on a primary"
            if guard.has_outlived(run.begun):
                guard.ended += 1
                run.end(Why.OUTLIVED)

    async def _watch_chores(self) -> None:
        while True:
            await tick(_CHORES_TICK_S)
            now = self._time()
            for primary in self._primaries:
                if primary.is_used:
                    for chore in primary.chores:
                        chore.look(now)
