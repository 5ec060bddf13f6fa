"""Finds out whether a commit is final: on disk, and on the standbys that it must be on.

Only the server that has committed can tell. Another one that has taken its place cannot: its log goes on elsewhere, and
its standbys have other things. There the answer is no.
"""

import asyncio
import math
from typing import Final, NamedTuple

from tuplegate.engine.port import EngineUnavailable
from tuplegate.engine.postgres.own.admin import AdminSession
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.keeping import within

_CERTAIN_S: Final = 10.0
_ONE_LOOK_S: Final = 0.5
# A commit that writes waits for the disk, and for standbys, and so for all that was committed before it.
_COMMIT_SOMETHING: Final = """SELECT CASE WHEN current_setting('synchronous_standby_names') <> ''
                                       OR pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()
                                     THEN pg_logical_emit_message(true, 'tuplegate', '') END"""
_FIND_STANDBY: Final = (
    "SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum') AND flush_lsn >= $1::pg_lsn"
)
_CONFIRM_PAUSE_S: Final = 0.005


class LogPlace(NamedTuple):
    """A place in the log of one server. Places of two servers cannot be compared, so only that server is asked."""

    server: str
    lsn: str

    async def is_on_standby(self, session: AdminSession) -> bool:
        """Return whether a standby has the log up to here. Raises EngineUnavailable if the session is with another
        server."""
        return bool(await session.fetch_of(self.server, _FIND_STANDBY, self.lsn))


class Certainty:
    """Asks a server whether its commits are final. `waiting` is a session that may wait for standbys; `session` never
    does."""

    def __init__(self, primary: Primary, session: AdminSession, waiting: AdminSession) -> None:
        self._primary = primary
        self._session = session
        self._waiting = waiting

    async def is_certain(self, server: str, until: float = math.inf) -> bool:
        """Return whether what is committed there now is final: it is on disk, and standbys that commits wait for have
        it. It is not where another server is the primary by now, or where that is not known by `until`."""
        try:
            await within(_left_s(until), self._waiting.fetch_of(server, _COMMIT_SOMETHING))
            return not self._primary.demands_standby or await self.is_confirmed(server, until)
        except (TimeoutError, EngineUnavailable):
            return False

    async def is_confirmed(self, server: str, until: float = math.inf) -> bool:
        """Return whether what is committed there now is on a standby, whatever the engine's commits wait for."""
        try:
            return await within(_left_s(until), self._wait_for_standby(server))
        except (TimeoutError, EngineUnavailable):
            return False

    async def _wait_for_standby(self, server: str) -> bool:
        [(lsn,)] = await self._session.fetch_of(server, "SELECT pg_current_wal_flush_lsn()")
        place = LogPlace(server, str(lsn))
        while not await place.is_on_standby(self._session):  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(_CONFIRM_PAUSE_S)
        return True


def _left_s(until: float) -> float:
    """Return how long to wait for the answer: there is time for at least one question."""
    return max(_ONE_LOOK_S, min(until - asyncio.get_running_loop().time(), _CERTAIN_S))
