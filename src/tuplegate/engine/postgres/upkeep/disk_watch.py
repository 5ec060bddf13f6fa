"""Watches the room on the disk of the bundled engine, and keeps tenants from filling it.

Below the minimum, every database counts as full (see `sizes`): statements that take room are refused; reads, and
statements that free room, continue. Obvious writes are refused before they run, since they take room even if they are
rolled back; those that already run are ended while the room still shrinks. Below half of the minimum, a statement that
may write and does not free room runs read-only or not at all, and running ones are ended, as are those that sort in
files. Below a quarter, deletes are ended, too, since their log takes room. Checkpoints free the log that the engine
needs no more.
"""

import asyncio
from typing import Any, assert_never

import structlog

from tuplegate.background import tick, within
from tuplegate.engine import port
from tuplegate.engine.bundled.disk import Disk, Shortage
from tuplegate.engine.postgres.safety.sizes import DISK_LOW, DISK_SHORT, FREEING, TAKING
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession
from tuplegate.engine.postgres.upkeep.primary_server import PrimaryServer
from tuplegate.engine.run.ends import Why
from tuplegate.engine.run.run import Run, Running

_log = structlog.get_logger()

_AMPLE_TICK_S, _TICK_S, _SHORT_TICK_S = 0.5, 0.1, 0.02
_AMPLE_BYTES = 4 * 2**30
"""So much beside the least is not written between two looks: a quiet service looks less often, which is half of what
wakes it."""
_ANSWER_S = 2.0
CHECKPOINT_EVERY_S = 10.0

_WRITING_AND_SORTING = """
SELECT a.pid, a.backend_xid IS NOT NULL,
       EXISTS (SELECT FROM pg_catalog.pg_ls_tmpdir() t WHERE starts_with(t.name, 'pgsql_tmp' || a.pid || '.'))
  FROM pg_catalog.pg_stat_activity a WHERE a.backend_type = 'client backend'
"""
"""A transaction gets its number with its first write. The names of a process's temporary files contain its process
id."""


class DiskWatch:
    """Watches one disk. `free` are the bytes free at the last look. `primaries` are the servers with data on the
    disk."""

    def __init__(self, disk: Disk, primaries: list[PrimaryServer]) -> None:
        self._disk = disk
        self._primaries = primaries
        self.free = 0
        self._gets_less = False
        self.shortage = Shortage.NONE

    @property
    def _tick_s(self) -> float:
        if self.shortage:
            return _SHORT_TICK_S
        return _AMPLE_TICK_S if self.free > self._disk.bytes_min + _AMPLE_BYTES else _TICK_S

    def describe(self) -> str:
        """Return the text of the health check."""
        if self.shortage is Shortage.NONE:
            return "ok"
        free, least = max(0, self.free) // 2**20, self._disk.bytes_min // 2**20
        return f"{free} MiB are free, {least} MiB are the least; what takes room is refused"

    async def watch(self) -> None:
        """Watch the disk until cancelled, whatever state the engine is in."""
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
        for primary in self._primaries:
            self.tell(primary)

    def tell(self, primary: PrimaryServer) -> None:
        """Let a server's pools know how much room there is."""
        primary.sizes.disk = DISK_LOW if self.shortage >= Shortage.LOW else DISK_SHORT if self.shortage else None
        primary.note_full()

    async def end_growing(self, running: Running) -> None:
        """End statements that take room while it shrinks, until cancelled."""
        while True:
            await tick(self._tick_s)
            if not self._gets_less:
                continue
            self._gets_less = False
            used = [primary for primary in self._primaries if primary.is_used]
            await asyncio.gather(*(self._end_growing_on(primary, list(running.runs)) for primary in used))

    async def _end_growing_on(self, primary: PrimaryServer, runs: list[Run[Any]]) -> None:
        try:
            rows = await within(_ANSWER_S, primary.session.fetch(_WRITING_AND_SORTING))
        except (port.EngineFailure, TimeoutError):
            return  # it is asked again in a moment
        writing = {int(str(pid)) for pid, writes, _ in rows if writes == "t"}
        sorting = {int(str(pid)) for pid, _, sorts in rows if sorts == "t"}
        pools = primary.pools.all()
        for run in runs:
            if run.pool not in pools or run.is_own or run.ended is not None:
                continue
            process = run.member.backend
            grows = process in writing and run.may_grow and self._is_ended(run)
            if grows or (process in sorting and self.shortage >= Shortage.LOW):
                _log.warning("a statement was ended: the disk is nearly full", database=run.target.database)
                run.end(Why.ROOM, DISK_LOW)

    def _is_ended(self, run: Run[Any]) -> bool:
        """Return whether a writing statement must end: the less room there is, the more must."""
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

    async def checkpoint(self, primary: PrimaryServer, connector: AdminConnector) -> None:
        """Make a server free its log while there is little room."""
        if self.shortage is Shortage.NONE:
            return
        try:
            async with AdminSession(connector, METADATA_DATABASE, patient=True) as session:
                await session.fetch("CHECKPOINT")
        except port.EngineFailure as failure:
            _log.warning("no checkpoint could be made", reason=str(failure))
