"""Permits of a window: counts the requests of an organization that were let through, over all workers and machines.

In every report a holder states the total that it has used in the window, and asks for more on top of that; so it
returns unused permits. Since it states a total, a repeated report changes nothing, and one that failed, applied or not,
is corrected by the next. Reports of a holder are numbered: one that reaches the engine after a later one does nothing.
"""

from dataclasses import dataclass

from tuplegate.access.quotas import WINDOW_S
from tuplegate.catalog.metadata import Records

_WAITED_FOR_S = 5.0
"""A holder that has not reported for this long is not waited for: it may be dead."""

_SETTLE = f"""
WITH clock AS (SELECT extract(epoch FROM clock_timestamp())::numeric AS now),
     old AS (SELECT q.organization, greatest(q.started, floor(now / {WINDOW_S})::bigint) AS started, now,
                    CASE WHEN q.started >= floor(now / {WINDOW_S}) THEN q.used ELSE 0 END AS used,
                    CASE WHEN q.started >= floor(now / {WINDOW_S}) THEN q.holders ELSE '{{}}' END AS holders
               FROM quota q, clock WHERE q.organization = $1 FOR UPDATE OF q),
     own AS (SELECT old.*, coalesce((holders->$3->>0)::bigint, 0) < $4::bigint AS is_news,
                    coalesce((holders->$3->>1)::bigint, 0) AS had,
                    CASE WHEN holders ? $3 AND started = $5::bigint THEN $6::bigint ELSE 0 END AS spent
               FROM old),
     new AS (SELECT own.*, used - had + spent AS without,
                    CASE WHEN is_news THEN greatest(0, least($7::bigint, $2::bigint - (used - had + spent))) ELSE 0 END
                      AS count
               FROM own)
UPDATE quota q
   SET started = new.started,
       used = CASE WHEN is_news THEN without + count ELSE new.used END,
       holders = CASE WHEN NOT is_news THEN new.holders ELSE new.holders || jsonb_build_object(
         $3::text, jsonb_build_array($4::bigint, spent + count, greatest(count - 1, 0), now + {_WAITED_FOR_S})) END
  FROM new WHERE q.organization = new.organization
RETURNING q.started, spent, count, greatest(0, $2::bigint - q.used),
          (q.started + 1) * {WINDOW_S} - extract(epoch FROM clock_timestamp())::numeric,
          (SELECT coalesce(sum((of->>2)::bigint), 0) FROM jsonb_each(q.holders) AS other (name, of)
            WHERE name <> $3 AND (of->>3)::numeric > now)
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The `number`-th report of a holder: it has used `spent` permits of the window `started`, and asks for `count`
    more.

    A holder that asks for permits uses one at once.
    """

    holder: str
    number: int
    started: int
    spent: int
    count: int


@dataclass(frozen=True, slots=True)
class Grant:
    """`count` permits of the window `started`, which ends in `seconds_left`; the holder had used `spent` of it before.

    `remaining` permits are left for others. Others hold `held`, and may return them soon.
    """

    started: int
    spent: int
    count: int
    remaining: int
    seconds_left: float
    held: int = 0


class Permits(Records):
    async def settle(self, organization: str, limit: int, report: Report) -> Grant:
        """Record the used permits, and grant up to `count` permits of the current window, by the engine's clock."""
        values = (report.holder, str(report.number), str(report.started), str(report.spent), str(report.count))
        rows = await self._metadata.fetch(_SETTLE, organization, str(limit), *values)
        if not rows:
            await self._metadata.fetch(
                "INSERT INTO quota (organization, started, used) VALUES ($1, 0, 0) ON CONFLICT DO NOTHING", organization
            )
            rows = await self._metadata.fetch(_SETTLE, organization, str(limit), *values)
        started, spent, count, remaining, left, held = (str(value) for value in rows[0])
        return Grant(int(started), int(spent), int(count), int(remaining), float(left), int(held))
