"""Watches running statements: their time, their locks, the size of what they fill; and idle connections.

One look at everything a few times a second costs less than a timer for each statement.
"""

import asyncio
from functools import partial

import structlog

from tuplegate.engine import port
from tuplegate.engine.libpq.connection import look_at_broken
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminConnector, AdminSession
from tuplegate.engine.postgres.own.settings import EngineSettings
from tuplegate.engine.postgres.pools import Pools
from tuplegate.engine.postgres.query.run import Run, Running, Why
from tuplegate.engine.postgres.safety.disk_watch import DiskWatch
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.safety.headroom import BeginRate
from tuplegate.engine.postgres.safety.locks import HELD_SQL, NAMES_SQL, Held, judge
from tuplegate.engine.postgres.safety.placement import Placement
from tuplegate.engine.postgres.safety.sizes import SIZES_SQL, SizeWatch
from tuplegate.keeping import Work, keep

_log = structlog.get_logger()

_DEADLINE_TICK_S = 0.02
_IDLE_TICK_S = 0.1
_PLACEMENT_TICK_S, _PLACEMENT_SOON_S = 0.25, 0.05
_LOCKS_TICK_S = 0.25
_SIZES_TICK_S = 1.0
_BANNED_S = 10.0
"""How long a database takes no statement after one of its statements has locked what all databases share."""


class Watch:
    """The watch over runs: whoever runs something puts it into `running`, and takes it out again."""

    def __init__(
        self,
        settings: EngineSettings,
        connector: AdminConnector,
        pools: Pools,
        sizes: SizeWatch,
        guard: SerializableGuard,
        lock_capacity: int,
    ) -> None:
        self.running = Running()
        self.begin_rate = BeginRate()
        self._session = AdminSession(connector, METADATA_DATABASE)
        self._pools = pools
        self._sizes = sizes
        self.disk = None if settings.disk is None else DiskWatch(settings.disk, connector, pools, sizes)
        self._is_first = settings.worker == 0
        self._placement = Placement(settings.placement)
        self._idle_close_s = settings.idle_close_s
        self._lock_capacity = lock_capacity
        self._names: dict[int, str] = {}
        """Of databases, by their numbers in the engine."""
        self._crowded: set[str] = set()
        self._banned_until: dict[str, float] = {}
        self._guard = guard
        self._tasks: list[asyncio.Task[None]] = []
        self._time = asyncio.get_running_loop().time

    async def begin(self) -> None:
        """Open its session before anybody can lock what a login needs."""
        await self._name_databases(await self._session.fetch(HELD_SQL))
        watches: dict[str, Work] = {
            "idle_connections": self._sweep,
            "deadlines": self._watch_deadlines,
            "placement": self._place,
            "locks": self._watch_locks,
            "sizes": self._watch_sizes,
        }
        if self.disk is not None:
            watches["disk"] = self.disk.watch
            watches["disk_growth"] = partial(self.disk.end_growing, self.running)
            if self._is_first:
                watches["checkpoints"] = self.disk.checkpoint
        self._tasks = [keep(name, watch) for name, watch in watches.items()]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._session.close()

    def stop_running(self) -> None:
        """Cancel what runs in the engine, but nothing that is being committed: all get a definite answer."""
        for pool in self._pools.all():
            pool.end_waiting(float("inf"))
        self.running.stop()

    async def _watch_deadlines(self) -> None:
        """End runs past their deadline. One look at all of them costs less than a timer for each."""
        while True:
            await asyncio.sleep(_DEADLINE_TICK_S if self.running.runs else _IDLE_TICK_S)
            now = self._time()
            self.begin_rate.sample(now, self._guard.begun)
            look_at_broken()
            for run in self.running.find_late(now):
                run.end(Why.TIME)
            for run in [run for run in self.running.runs if run.ended is None]:
                if self._guard.has_outlived(run.begun) and run.writes:
                    self._guard.ended += 1
                    run.end(Why.OUTLIVED)
            for pool in self._pools.all():
                pool.end_waiting(now)

    async def _watch_locks(self) -> None:
        """Look while a statement runs that is not a short one: only then are there many locks, or old ones."""
        banned_until = self._banned_until
        while True:
            await asyncio.sleep(_LOCKS_TICK_S)
            now = self._time()
            running = {
                run.member.backend: run
                for run, since in self.running.runs.items()
                if now - since > _LOCKS_TICK_S and not run.is_own
            }
            if not running and not self._crowded:
                continue
            try:
                rows = await self._session.fetch(HELD_SQL)
                self._end_reaching(rows, running, banned_until)
                held = await self._name_databases(rows)
            except port.EngineFailure:
                continue  # it is asked again in a moment
            since = {process: self.running.runs[run] for process, run in running.items() if run in self.running.runs}
            verdict = judge(held, since, self._lock_capacity)
            self._crowded = verdict.crowded | {database for database, until in banned_until.items() if until > now}
            for database, state in self._pools.states.items():
                state.is_crowded = database in self._crowded
            for process in since:
                run = running[process]
                if process not in verdict.ended | {verdict.outlived} or run.ended is not None:
                    continue
                _log.warning("a statement was ended for the engine's locks", database=run.target.database)
                run.end(Why.LOCKS if process in verdict.ended else Why.OUTLIVED)

    def _end_reaching(
        self, rows: list[tuple[str | None, ...]], running: dict[int, Run], banned_until: dict[str, float]
    ) -> None:
        """End what holds or wants a lock on what all databases share, and keep its database from the next try."""
        for process in {int(row[1] or 0) for row in rows if row[4] == "t"} & running.keys():
            run = running[process]
            if run.ended is not None or run not in self.running.runs:
                continue
            database = run.target.database
            _log.warning("a statement was ended for a lock on what all databases share", database=database)
            banned_until[database] = self._time() + _BANNED_S
            self._pools.states[database].is_crowded = True
            run.end(Why.LOCKS)

    async def _name_databases(self, rows: list[tuple[str | None, ...]]) -> list[Held]:
        """Return who holds what, with the names of databases. Ask for the names where one is not known."""
        numbers = {int(str(row[0])) for row in rows} - {0}
        if numbers - self._names.keys():
            named = await self._session.fetch(NAMES_SQL)
            self._names = {int(str(number)): str(name) for number, name in named}
        return [
            Held(self._names.get(int(str(row[0])), ""), int(row[1] or 0), row[2] == "t", int(str(row[3])))
            for row in rows
            if row[0] != "0"
        ]

    async def _watch_sizes(self) -> None:
        pause = _SIZES_TICK_S
        while True:
            await asyncio.sleep(pause)
            used = {database for database, pool in self._pools.writing.items() if pool.size}
            names = used & self._sizes.bounds.keys()
            started = self._time()
            try:
                rows = await self._session.fetch(SIZES_SQL, ",".join(names)) if names else []
            except port.EngineFailure:
                continue  # it is asked again in a moment
            # Measuring is reading directories: where that takes long it is done less often.
            pause = max(_SIZES_TICK_S, 20 * (self._time() - started))
            measured = {str(name): (int(files), int(shared or 0)) for name, files, shared in rows if files is not None}
            self._sizes.note(measured, self._end_growing)
            for database, state in self._pools.states.items():
                state.full_at = self._sizes.find_full_at(database)

    def _end_growing(self, database: str) -> None:
        for run in list(self.running.runs):
            if run.target.database == database and run.may_grow and run.ended is None:
                _log.warning("a statement was ended: its database has grown far beyond its bound", database=database)
                run.end(Why.ROOM, self._sizes.bounds.get(database, 0))

    async def _place(self) -> None:
        """Place server processes soon after many short statements have begun to come. A quiet worker looks seldom."""
        pause = _PLACEMENT_TICK_S
        while self._placement.active:
            before, started = self.running.served, self._time()
            await asyncio.sleep(pause)
            processes = [process for pool in self._pools.all() for process in pool.processes]
            placed = self._placement.update(self.running.served - before, self._time() - started, processes)
            pause = _PLACEMENT_TICK_S if placed or not self.running.runs else _PLACEMENT_SOON_S

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._idle_close_s / 4)
            self._pools.close_idle(self._time() - self._idle_close_s)
