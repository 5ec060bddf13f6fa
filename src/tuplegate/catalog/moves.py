"""Records of moves of databases between engines.

Both names of a moving database are leftovers: the one that is not in use at the end is dropped.
"""

from tuplegate.catalog.databases import EngineDatabase
from tuplegate.catalog.metadata import Actor, Records, build_change, change

_REMEMBERED_S = 60.0
"""How long workers still see a move that has ended. A request that is held for a database waits less."""


class MoveRecords(Records):
    async def begin(self, actor: Actor, database: EngineDatabase, successor: str, engine: str) -> bool:
        """Record the start of a move. Return False if the database is not active any more."""
        began = build_change(
            actor, "database.move", "name",
            "INSERT INTO move (former, database, successor, engine, step)"
            " SELECT d.engine_name, d.id, $2, $3, 'preparing' FROM database d"
            " WHERE d.id = $1 AND d.state = 'active' AND d.engine_name = $4"
            " ON CONFLICT (former) DO UPDATE SET successor = excluded.successor, engine = excluded.engine,"
            " step = 'preparing', started_at = clock_timestamp(), ended_at = NULL"
            " RETURNING database, (SELECT name FROM database WHERE id = $1) AS name",
            database.id, successor, engine, database.engine_name, concerns="database", quiet=True,
            also="left_over AS (INSERT INTO leftover (engine_name, database, engine, source)"
            " SELECT * FROM (VALUES ($4::text, $1::text, (SELECT engine FROM database WHERE id = $1), NULL),"
            " ($2::text, $1::text, $3::text, $4::text)) v WHERE EXISTS (SELECT 1 FROM done)"
            " ON CONFLICT DO NOTHING RETURNING 1)",
        )  # fmt: skip
        return bool(await self._metadata.fetch(*began[:1], *began[1]))

    async def set_step(self, former: str, step: str) -> None:
        await self._metadata.fetch("UPDATE move SET step = $2 WHERE former = $1", former, step)

    async def switch(
        self, actor: Actor, database: EngineDatabase, successor: str, engine: str, furnishing: str
    ) -> bool:
        """Put the successor in the place of the database, for everyone at once. Return False if that is not allowed any
        more."""
        return await change(
            self._metadata, actor, "database.arrive", "name",
            "UPDATE database SET engine_name = $3, engine = $4, furnishing = $5, paused_until = NULL"
            " WHERE id = $1 AND engine_name = $2 AND state = 'active'"
            " AND EXISTS (SELECT 1 FROM leftover WHERE engine_name = $3 AND NOT doomed FOR SHARE) RETURNING id, name",
            database.id, database.engine_name, successor, engine, furnishing, concerns="id",
            also="moved AS (UPDATE move SET step = 'switched' WHERE former = $2 AND EXISTS (SELECT 1 FROM done)"
            " RETURNING 1)",
        )  # fmt: skip

    async def list_unfinished(self) -> set[str]:
        """Return the ids of the databases that are moving."""
        rows = await self._metadata.fetch("SELECT database FROM move WHERE step <> 'done'")
        return {str(row[0]) for row in rows}

    async def end(self, database: str) -> None:
        """End the move of a database: keep its record for a while if it has moved, otherwise delete it."""
        await self._metadata.run_atomically(
            [
                (
                    "UPDATE move SET step = 'done', ended_at = now() WHERE database = $1 AND step = 'switched'",
                    (database,),
                ),
                ("DELETE FROM move WHERE database = $1 AND step <> 'done'", (database,)),
            ]
        )

    async def forget_old(self) -> None:
        await self._metadata.fetch(
            "DELETE FROM move WHERE ended_at < now() - $1::float8 * interval '1 second'", str(_REMEMBERED_S)
        )
