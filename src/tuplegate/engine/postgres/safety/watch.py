"""Watches running statements: their time, their locks, the size of what they fill; and idle connections.

One look at everything a few times a second costs less than a timer for each statement. Every server that tenants run
statements on has a `Watch`; the primary's does more.
"""

import asyncio
from functools import partial
from math import inf

import structlog

from tuplegate.engine import port
from tuplegate.engine.libpq.connection import look_at_broken
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminConnector, AdminSession
from tuplegate.engine.postgres.own.settings import EngineSettings
from tuplegate.engine.postgres.pools import Pools
from tuplegate.engine.postgres.query.run import Running, Why
from tuplegate.engine.postgres.safety.disk_watch import DiskWatch
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.safety.headroom import BeginRate
from tuplegate.engine.postgres.safety.lock_watch import LockWatch
from tuplegate.engine.postgres.safety.sizes import SIZES_SQL, SizeWatch
from tuplegate.keeping import Work, keep, tick

_log = structlog.get_logger()

_DEADLINE_TICK_S, _DEADLINE_RUNS = 0.02, 100
"""How often deadlines are looked at, for up to so many runs; for more of them less often, as each look costs more."""
_LOOK_TICK_S = 0.25
_SIZES_TICK_S = 1.0


class Watch:
    """Whoever runs something on the server puts it into `running`, and takes it out again."""

    def __init__(
        self, settings: EngineSettings, connector: AdminConnector, pools: Pools, running: Running, lock_capacity: int
    ) -> None:
        self.running = running
        self._pools = pools
        self._session = AdminSession(connector, METADATA_DATABASE)
        self._locks = LockWatch(self._session, pools, running, lock_capacity)
        self._idle_close_s = settings.idle_close_s
        self._tasks: list[asyncio.Task[None]] = []
        self._time = asyncio.get_running_loop().time

    async def begin(self) -> None:
        await self._locks.begin()
        self._tasks = [keep(name, watch) for name, watch in self._works().items()]

    def _works(self) -> dict[str, Work]:
        return {
            "idle_connections": self._sweep,
            "deadlines": self._watch_deadlines,
            "connections": self._watch_connections,
            "locks": self._locks.watch,
        }

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._session.close()

    def stop_running(self) -> None:
        """Cancels what runs in the engine, but nothing that is being committed: all get a definite answer."""
        for pool in self._pools.all():
            pool.end_waiting(inf)
        self.running.stop()

    async def _watch_deadlines(self) -> None:
        """One look at all running statements costs less than a timer for each of them."""
        while True:
            await self.running.wait_for_some()
            await tick(_DEADLINE_TICK_S * (1 + len(self.running.runs) // _DEADLINE_RUNS))
            self._end_late(self._time())

    async def _watch_connections(self) -> None:
        """Look at all connections, and at what waits for one while nothing runs. The process wakes then anyway."""
        while True:
            await tick(_LOOK_TICK_S)
            self._look(self._time())

    def _look(self, now: float) -> None:
        if not self.running.runs:
            self._end_late(now)

    def _end_late(self, now: float) -> None:
        for run in self.running.find_late(now):
            run.end(Why.TIME)
        for pool in self._pools.all():
            pool.end_waiting(now)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._idle_close_s / 4)
            self._pools.close_idle(self._time() - self._idle_close_s)


class PrimaryWatch(Watch):
    """Also looks after what is written, and after the memory of serializable transactions."""

    def __init__(
        self,
        settings: EngineSettings,
        connector: AdminConnector,
        pools: Pools,
        sizes: SizeWatch,
        guard: SerializableGuard,
        lock_capacity: int,
    ) -> None:
        super().__init__(settings, connector, pools, Running(), lock_capacity)
        self.begin_rate = BeginRate()
        self._sizes = sizes
        self.disk = None if settings.disk is None else DiskWatch(settings.disk, connector, pools, sizes)
        self._is_first = settings.worker == 0
        self._guard = guard

    def _works(self) -> dict[str, Work]:
        works = {**super()._works(), "sizes": self._watch_sizes}
        if self.disk is not None:
            works["disk"] = self.disk.watch
            works["disk_growth"] = partial(self.disk.end_growing, self.running)
            if self._is_first:
                works["checkpoints"] = self.disk.checkpoint
        return works

    def _look(self, now: float) -> None:
        self.begin_rate.sample(now, self._guard.begun)
        look_at_broken()
        super()._look(now)

    def _end_late(self, now: float) -> None:
        super()._end_late(now)
        for run in self.running.find_writing():
            if self._guard.has_outlived(run.begun):
                self._guard.ended += 1
                run.end(Why.OUTLIVED)

    async def _watch_sizes(self) -> None:
        pause = _SIZES_TICK_S
        while True:
            await tick(pause)
            used = {database for database, pool in self._pools.writing.items() if pool.size or pool.given_away}
            names = used & self._sizes.bounds.keys()
            started = self._time()
            refusals = {database: state.refusals for database, state in self._pools.states.items()}
            try:
                rows = await self._session.fetch(SIZES_SQL, ",".join(names)) if names else []
            except port.EngineFailure:
                continue  # it is asked again in a moment
            # Measuring is reading directories: where that takes long it is done less often.
            pause = max(_SIZES_TICK_S, 20 * (self._time() - started))
            measured = {str(name): (int(files), int(shared or 0)) for name, files, shared in rows if files is not None}
            for database, state in self._pools.states.items():
                if state.refusals != refusals.get(database):  # it was full after it was measured
                    measured.pop(database, None)
            self._sizes.note(measured, self._end_growing)
            for database, state in self._pools.states.items():
                state.full_at = self._sizes.find_full_at(database)

    def _end_growing(self, database: str) -> None:
        for run in list(self.running.runs):
            if run.target.database == database and run.may_grow and run.ended is None:
                _log.warning("a statement was ended: its database has grown far beyond its bound", database=database)
                run.end(Why.ROOM, self._sizes.bounds.get(database, 0))
