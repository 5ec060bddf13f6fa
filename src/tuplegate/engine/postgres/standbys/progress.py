"""Records the primary's position over time: so a standby's lag is known without trust in any clock."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from math import inf
from typing import Any, Final, TypeVar

from tuplegate.background import within
from tuplegate.engine import port
from tuplegate.engine.postgres.replication.positions import Position, read_lsn
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession

_T = TypeVar("_T")

ANSWER_S: Final = 1.0
"""A server that takes longer to tell its position counts as away."""
LAG_MAX_S: Final = 5.0
"""A standby that is further behind is not read from."""
_SAMPLES_MAX: Final = 240
"""The number of remembered looks at the primary: two minutes."""

_PRIMARY_SQL: Final = """
SELECT left(pg_walfile_name(l), 8), l, pg_current_wal_flush_lsn(), (SELECT system_identifier FROM pg_control_system())
  FROM pg_current_wal_insert_lsn() l
"""
_POSITION_SQL: Final = "SELECT left(pg_walfile_name(l), 8), l FROM pg_current_wal_insert_lsn() l"
# A query may write hints to the log. They are no commit, so they may stay there and reach no standby. Any commit takes
# them along.
_FLUSH_SQL: Final = "SELECT pg_logical_emit_message(true, 'tuplegate', '')"


async def in_time(work: Coroutine[Any, Any, _T], deadline: float = inf) -> _T:
    """Return the answer of a server. Raises EngineUnavailable if it does not come within `ANSWER_S` and before the
    deadline."""
    seconds = min(ANSWER_S, max(0.0, deadline - asyncio.get_running_loop().time()))
    try:
        return await within(seconds, work)
    except TimeoutError:
        raise port.EngineUnavailable(f"no answer within {seconds:g} s") from None


class Progress:
    """The primary's position over time. `timeline` and `system` identify the primary; `trouble` is why it does not
    answer."""

    def __init__(self, connector: AdminConnector, *, flushes: bool) -> None:
        """Ask nothing yet. `flushes`: this worker writes to a log that has stopped short of its end, so that it
        moves."""
        self._session = AdminSession(connector, METADATA_DATABASE, local=True)
        self._flushes = flushes
        self._flushed = 0
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_MAX)
        self.timeline = 0
        self.system = ""
        self.trouble = "it was not asked yet"

    async def close(self) -> None:
        await self._session.close()

    async def position(self) -> Position:
        """Return the primary's position. Raises EngineFailure."""
        [(timeline, lsn)] = await in_time(self._session.fetch(_POSITION_SQL))
        return Position(int(str(timeline), 16), read_lsn(str(lsn)))

    async def look(self, now: float) -> None:
        try:
            [row] = await in_time(self._session.fetch(_PRIMARY_SQL))
            timeline, inserted, flushed = int(str(row[0]), 16), read_lsn(str(row[1])), read_lsn(str(row[2]))
            if (timeline, str(row[3])) != (self.timeline, self.system):
                self._samples.clear()
            self.timeline, self.system = timeline, str(row[3])
            self.sampled(now, inserted)
            self.trouble = ""
            stands, self._flushed = flushed == self._flushed, flushed
            if self._flushes and stands and flushed < inserted:
                await in_time(self._session.fetch(_FLUSH_SQL))
        except port.EngineFailure as failure:
            self.trouble = str(failure)
            await self._session.close()

    def sampled(self, now: float, inserted: int) -> None:
        self._samples.append((now, inserted))

    def is_known(self, now: float) -> bool:
        """Return whether the primary has told its position recently."""
        return bool(self._samples) and now - self._samples[-1][0] <= LAG_MAX_S

    def lag_s(self, replayed: int, now: float) -> float:
        """Return the age of the oldest change that a standby at `replayed` lacks; infinity if it is unknown."""
        if not self.is_known(now):
            return inf
        age = next((now - at for at, inserted in self._samples if inserted > replayed), 0.0)
        if self._samples[0][1] > replayed and age <= LAG_MAX_S:
            return inf  # what it lacks may be older than the first look that is remembered
        return age
