"""Watches the room on the disk of the bundled engine, and keeps tenants from filling it.

With less than the least every database counts as full (see `sizes`): what takes room is refused, reading and what frees
room goes on. Obvious writes are refused before they run, for what they write takes room also where it is rolled back;
those that run already are ended while the room still gets less. With less than half of the least, what may write and
does not free room runs read-only or not at all, and is ended too, as is what sorts in files; with less than a quarter
also what deletes, whose log takes room. Checkpoints give back what the engine's log does not need any more.
"""

import asyncio
import re
from pathlib import Path
from typing import assert_never

import structlog

from tuplegate.engine import port
from tuplegate.engine.bundled.disk import Disk, Shortage
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminConnector, AdminSession
from tuplegate.engine.postgres.pools import Pools
from tuplegate.engine.postgres.query.run import Run, Running, Why
from tuplegate.engine.postgres.safety.sizes import DISK_LOW, DISK_SHORT, FREEING, TAKING, SizeWatch
from tuplegate.keeping import tick

_log = structlog.get_logger()

_TICK_S, _SHORT_TICK_S = 0.1, 0.02
_CHECKPOINT_EVERY_S = 10.0
_TEMPORARY = re.compile(r"pgsql_tmp([0-9]+)\.")

_WRITING = "SELECT pid FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL"
"""The server processes whose transaction has a number, which it gets when it writes for the first time."""


class DiskWatch:
    """`free` is what was free at the last look."""

    def __init__(self, disk: Disk, connector: AdminConnector, pools: Pools, sizes: SizeWatch) -> None:
        self._disk = disk
        self._connector = connector
        self._pools = pools
        self._sizes = sizes
        self.free = 0
        self._gets_less = False
        self.shortage = Shortage.NONE

    @property
    def _tick_s(self) -> float:
        return _SHORT_TICK_S if self.shortage else _TICK_S

    def describe(self) -> str:
        """Return what the health check says."""
        if self.shortage is Shortage.NONE:
            return "ok"
        free, least = max(0, self.free) // 2**20, self._disk.bytes_min // 2**20
        return f"{free} MiB are free, {least} MiB are the least; what takes room is refused"

    async def watch(self) -> None:
        """Watch the disk for ever, whatever the engine does."""
        while True:
            before, self.free = self.free, self._disk.free()
            shortage = self._disk.judge(self.free, self.shortage)
            if shortage is not self.shortage:
                self._note(shortage)
            self._gets_less = self._gets_less or (shortage > Shortage.NONE and self.free < before)
            await tick(self._tick_s)

    def _note(self, shortage: Shortage) -> None:
        say = _log.error if shortage > self.shortage else _log.warning
        self.shortage = shortage
        say("the room on the disk has changed", shortage=shortage.name.lower(), disk=self.describe())
        self._sizes.disk = DISK_LOW if shortage >= Shortage.LOW else DISK_SHORT if shortage else None
        for database, state in self._pools.states.items():
            state.full_at = self._sizes.find_full_at(database)

    async def end_growing(self, running: Running) -> None:
        """End what takes room while it gets less, for ever."""
        async with AdminSession(self._connector, METADATA_DATABASE) as session:
            while True:
                await tick(self._tick_s)
                if not self._gets_less:
                    continue
                self._gets_less = False
                try:
                    rows = await session.fetch(_WRITING)
                except port.EngineFailure:
                    continue  # it is asked again in a moment
                self._end(running, {int(str(pid)) for (pid,) in rows})

    def _end(self, running: Running, writing: set[int]) -> None:
        sorting = _find_sorting(self._disk.directory / "postgres" / "base" / "pgsql_tmp")
        for run in list(running.runs):
            if run.is_own or run.ended is not None:
                continue
            process = run.member.backend
            grows = process in writing and run.may_grow and self._is_ended(run)
            if grows or (process in sorting and self.shortage >= Shortage.LOW):
                _log.warning("a statement was ended: the disk is nearly full", database=run.target.database)
                run.end(Why.ROOM, DISK_LOW)

    def _is_ended(self, run: Run) -> bool:
        """Return whether what writes has to end: the less room there is, the more."""
        match self.shortage:
            case Shortage.NONE:
                return False
            case Shortage.SHORT:
                return any(word in TAKING for word in run.keywords)
            case Shortage.LOW:
                return any(word not in FREEING for word in run.keywords)
            case Shortage.LAST:
                return True
            case _:
                assert_never(self.shortage)

    async def checkpoint(self) -> None:
        """Let the engine give back its log while there is little room, for ever."""
        while True:
            await tick(_TICK_S)
            if self.shortage is Shortage.NONE:
                continue
            try:
                async with AdminSession(self._connector, METADATA_DATABASE, patient=True) as session:
                    await session.fetch("CHECKPOINT")
            except port.EngineFailure as failure:
                _log.warning("no checkpoint could be made", reason=str(failure))
            await asyncio.sleep(_CHECKPOINT_EVERY_S)


def _find_sorting(directory: Path) -> set[int]:
    """Return the server processes that have temporary files."""
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return set()  # it is made with the first of them
    return {int(found[1]) for name in names if (found := _TEMPORARY.match(name))}
