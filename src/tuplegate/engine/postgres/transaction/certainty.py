"""Finds out whether a commit is final: on disk, and on the standbys that it must be on.

Only the server that has committed can tell. A server that has replaced it cannot: its log continues elsewhere, and its
standbys have other data. There the answer is no.
"""

import asyncio
import math
from typing import Final

from tuplegate.background import within
from tuplegate.engine.port import EngineFailure
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.engine.postgres.service.admin import AdminSession

_CERTAIN_S: Final = 10.0
_ONE_LOOK_S: Final = 0.5
# A commit that writes waits for the disk, and for standbys, and so for all earlier commits.
_COMMIT_SOMETHING: Final = """SELECT CASE WHEN current_setting('synchronous_standby_names') <> ''
                                       OR pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()
                                     THEN pg_logical_emit_message(true, 'tuplegate', '') END"""
_STANDBYS: Final = "SHOW synchronous_standby_names"
# The place in the log is that of the first question: where the log was on disk then.
_ASK_STANDBY: Final = """
SELECT place.lsn, EXISTS (SELECT FROM pg_stat_replication
                           WHERE sync_state IN ('sync', 'quorum') AND flush_lsn >= place.lsn)
  FROM (SELECT coalesce($1::pg_lsn, pg_current_wal_flush_lsn())) place (lsn)
"""
_CONFIRM_PAUSE_S: Final = 0.005


class Certainty:
    """Asks a server whether its commits are final. `waiting` is a session that may wait for standbys; `session` never
    does."""

    def __init__(self, primary: Primary, session: AdminSession, waiting: AdminSession) -> None:
        self._primary = primary
        self._session = session
        self._waiting = waiting
        self._under_way: asyncio.Task[None] | None = None
        self._next: dict[str, asyncio.Task[None]] = {}
        """The next commit on each server, which all current callers can wait for."""

    async def is_certain(self, server: str, until: float = math.inf) -> bool:
        """Return whether all commits there up to now are final: on disk, and on the standbys that commits wait for. It
        is false if another server is the primary by now, or if the answer is unknown at `until`."""
        try:
            await within(_left_s(until), self._see_commit(server))
            return not self._primary.demands_standby or await self.is_confirmed(server, until)
        except (TimeoutError, EngineFailure):
            return False

    async def has_waited(self, server: str, until: float) -> bool:
        """Return whether standbys that commits wait for have all commits there up to now, as the server says."""
        if not await self.is_certain(server, until):
            return False
        try:
            [(standbys,)] = await within(_left_s(until), self._session.fetch_of(server, _STANDBYS))
        except (TimeoutError, EngineFailure):
            return False
        return bool(standbys)

    async def is_confirmed(self, server: str, until: float = math.inf) -> bool:
        """Return whether all commits there up to now are on a standby, independent of the engine's own wait for
        standbys."""
        try:
            return await within(_left_s(until), self._wait_for_standby(server))
        except (TimeoutError, EngineFailure):
            return False

    async def _see_commit(self, server: str) -> None:
        """Return after a commit that began after this call. All who call while one is under way share the next."""
        if server not in self._next:
            self._next[server] = asyncio.get_running_loop().create_task(self._commit_behind(self._under_way, server))
        await asyncio.shield(self._next[server])

    async def _commit_behind(self, before: asyncio.Task[None] | None, server: str) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._under_way = self._next.pop(server)
        await self._waiting.fetch_of(server, _COMMIT_SOMETHING)

    async def _wait_for_standby(self, server: str) -> bool:
        lsn: str | None = None
        while True:
            [(lsn, is_there)] = await self._session.fetch_of(server, _ASK_STANDBY, lsn)
            if is_there == "t":
                return True
            await asyncio.sleep(_CONFIRM_PAUSE_S)


def _left_s(until: float) -> float:
    """Return the time to wait for the answer: there is time for at least one question."""
    return max(_ONE_LOOK_S, min(until - asyncio.get_running_loop().time(), _CERTAIN_S))
