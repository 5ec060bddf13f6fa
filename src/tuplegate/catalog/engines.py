"""Records of engines: the weight of each for new databases, and its databases."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuplegate.catalog.metadata import Actor, Records, change


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """An engine on record; `databases` are the names in the engine."""

    name: str
    weight: int
    state: str
    databases: list[str]


class EngineRecords(Records):
    async def add(self, name: str) -> None:
        await self._metadata.fetch("INSERT INTO engine (name) VALUES ($1) ON CONFLICT DO NOTHING", name)

    async def list_all(self) -> list[EngineEntry]:
        """Return all engines, the first one first."""
        rows = await self._metadata.fetch(
            "SELECT e.name, e.weight, e.state, (SELECT string_agg(d.engine_name, ',') FROM database d"
            " WHERE d.engine = e.name) FROM engine e ORDER BY e.name <> 'first', e.name"
        )
        return [
            EngineEntry(str(name), int(str(weight)), str(state), databases.split(",") if databases else [])
            for name, weight, state, databases in rows
        ]

    async def list_used(self) -> set[str]:
        """Return the engines that have a database, or leftovers of a reset or move."""
        rows = await self._metadata.fetch("SELECT engine FROM database UNION SELECT engine FROM leftover")
        return {str(row[0]) for row in rows}

    async def choose(self, names: Iterable[str]) -> str | None:
        """Choose an engine for a new database among these: the one with the fewest databases for its weight. Return
        None if all are draining or have no weight."""
        rows = await self._metadata.fetch(
            "SELECT e.name FROM engine e WHERE e.state = 'active' AND e.weight > 0"
            " AND e.name = ANY (string_to_array($1, ','))"
            " ORDER BY ((SELECT count(*) FROM database d WHERE d.engine = e.name) + 1)::float8 / e.weight,"
            " e.name <> 'first', e.name LIMIT 1",
            ",".join(names),
        )
        return rows[0][0] if rows else None

    async def change(self, actor: Actor, name: str, *, weight: int | None, state: str | None) -> bool:
        """Change the record; None leaves a field as it is. Return False if there is no such engine."""
        return await change(
            self._metadata, actor, "engine.change", "name",
            "UPDATE engine SET weight = coalesce($2::int, weight), state = coalesce($3, state)"
            " WHERE name = $1 RETURNING name",
            name, None if weight is None else str(weight), state, quiet=True,
        )  # fmt: skip

    async def locate(self, engine_names: Sequence[str]) -> dict[str, str]:
        """Return the engine of each name that is known."""
        rows = await self._metadata.fetch(
            "SELECT engine_name, engine FROM database WHERE engine_name = ANY (string_to_array($1, ','))"
            " UNION SELECT engine_name, engine FROM leftover WHERE engine_name = ANY (string_to_array($1, ','))",
            ",".join(engine_names),
        )
        return {str(name): str(engine) for name, engine in rows}
