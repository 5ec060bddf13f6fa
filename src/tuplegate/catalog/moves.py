"""Databases that go from one engine to another, on record.

Both names of the database are leftovers while it moves: what is not in place at the end is dropped.
"""

from dataclasses import dataclass

from tuplegate.catalog.databases import Place
from tuplegate.catalog.session import Actor, Session, change, noted

_REMEMBERED_S = 60.0
"""How long workers are told of a move that is over. A request that was held for a database waits for less."""


@dataclass(frozen=True, slots=True)
class Move:
    former: str
    successor: str
    engine: str


class Moves:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def begin(self, actor: Actor, place: Place, successor: str, engine: str) -> bool:
        """False where the database is not active any more."""
        began = noted(
            actor, "database.move", "name",
            "INSERT INTO move (former, database, successor, engine, step)"
            " SELECT d.engine_name, d.id, $2, $3, 'preparing' FROM database d"
            " WHERE d.id = $1 AND d.state = 'active' AND d.engine_name = $4"
            " ON CONFLICT (former) DO UPDATE SET successor = excluded.successor, engine = excluded.engine,"
            " step = 'preparing', started_at = clock_timestamp(), ended_at = NULL"
            " RETURNING database, (SELECT name FROM database WHERE id = $1) AS name",
            place.id, successor, engine, place.engine_name, concerns="database", quiet=True,
            also="left_over AS (INSERT INTO leftover (engine_name, database, engine)"
            " SELECT * FROM (VALUES ($4::text, $1::text, (SELECT engine FROM database WHERE id = $1)),"
            " ($2::text, $1::text, $3::text)) v WHERE EXISTS (SELECT FROM done) ON CONFLICT DO NOTHING)",
        )  # fmt: skip
        return bool(await self._session.fetch(*began[:1], *began[1]))

    async def step(self, former: str, step: str) -> None:
        await self._session.fetch("UPDATE move SET step = $2 WHERE former = $1", former, step)

    async def switch(self, actor: Actor, place: Place, successor: str, engine: str, furnishing: str) -> bool:
        """The successor takes the place of the database, for all at once. False where that may not be any more."""
        done = await change(
            self._session, actor, "database.arrive", "name",
            "UPDATE database SET engine_name = $3, engine = $4, furnishing = $5, paused_until = NULL"
            " WHERE id = $1 AND engine_name = $2 AND state = 'active'"
            " AND EXISTS (SELECT FROM leftover WHERE engine_name = $3 AND NOT doomed FOR SHARE) RETURNING id, name",
            place.id, place.engine_name, successor, engine, furnishing, concerns="id",
            also="moved AS (UPDATE move SET step = 'switched' WHERE former = $2 AND EXISTS (SELECT FROM done))",
        )  # fmt: skip
        return bool(done)

    async def find(self, database: str) -> list[Move]:
        """Those of a database that are not over."""
        rows = await self._session.fetch(
            "SELECT former, successor, engine FROM move WHERE database = $1 AND step <> 'done'", database
        )
        return [Move(*map(str, row)) for row in rows]

    async def unfinished(self) -> set[str]:
        """Ids of the databases that are moving."""
        rows = await self._session.fetch("SELECT database FROM move WHERE step <> 'done'")
        return {str(row[0]) for row in rows}

    async def end(self, former: str) -> None:
        """What has moved is remembered for a while; of what has not, nothing is."""
        await self._session.atomically(
            [
                ("UPDATE move SET step = 'done', ended_at = now() WHERE former = $1 AND step = 'switched'", (former,)),
                ("DELETE FROM move WHERE former = $1 AND step <> 'done'", (former,)),
            ]
        )

    async def forget_old(self) -> None:
        await self._session.fetch(
            "DELETE FROM move WHERE ended_at < now() - $1::float8 * interval '1 second'", str(_REMEMBERED_S)
        )
