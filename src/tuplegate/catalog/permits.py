"""Permits of a window: how many requests of an organization were let through, over all workers and machines."""

from dataclasses import dataclass

from tuplegate.access.quotas import WINDOW_S
from tuplegate.catalog.session import Session

_TAKE = f"""
WITH clock AS (SELECT floor(extract(epoch FROM clock_timestamp()) / {WINDOW_S})::bigint AS started),
     old AS (SELECT q.organization, greatest(q.started, clock.started) AS started,
                    CASE WHEN q.started >= clock.started THEN q.used ELSE 0 END AS used
               FROM quota q, clock WHERE q.organization = $1 FOR UPDATE OF q)
UPDATE quota q SET started = old.started, used = old.used + greatest(0, least($3::bigint, $2::bigint - old.used))
  FROM old WHERE q.organization = old.organization
RETURNING q.started, q.used - old.used, greatest(0, $2::bigint - q.used),
          (q.started + 1) * {WINDOW_S} - extract(epoch FROM clock_timestamp())
"""


@dataclass(frozen=True, slots=True)
class Grant:
    """`count` permits of the window `started`, which ends in `seconds_left`; `remaining` are left for others."""

    started: int
    count: int
    remaining: int
    seconds_left: float


class Permits:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def take(self, organization: str, limit: int, count: int) -> Grant:
        """Up to `count` permits of the window that it is now by the engine's clock."""
        rows = await self._session.fetch(_TAKE, organization, str(limit), str(count))
        if not rows:
            await self._session.fetch(
                "INSERT INTO quota (organization, started, used) VALUES ($1, 0, 0) ON CONFLICT DO NOTHING", organization
            )
            rows = await self._session.fetch(_TAKE, organization, str(limit), str(count))
        started, taken, remaining, left = (str(value) for value in rows[0])
        return Grant(int(started), int(taken), int(remaining), float(left))

    async def give_back(self, organization: str, started: int, count: int) -> None:
        """Permits that nobody used, while their window lasts."""
        await self._session.fetch(
            "UPDATE quota SET used = used - $3::bigint WHERE organization = $1 AND started = $2::bigint",
            organization,
            str(started),
            str(count),
        )
