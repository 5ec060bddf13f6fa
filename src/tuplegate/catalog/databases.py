"""Records of databases: their names, and their states."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuplegate.catalog.metadata import Actor, Records, build_change, change, read
from tuplegate.catalog.paging import ORDER, Page, build_page
from tuplegate.protocol.control import DatabaseName, DatabaseRecord

_NAMES_MAX = 1000

_RECORDS = (
    "SELECT d.id, d.name, CASE WHEN EXISTS (SELECT 1 FROM move m WHERE m.database = d.id AND m.step <> 'done')"
    " AND d.state = 'active' THEN 'moving' ELSE d.state END AS state, 'asleep' AS activity, d.engine,"
    " d.is_default AS default, d.delete_protection, NULL AS size_bytes, d.created_at"
    " FROM database d WHERE d.organization = $1 AND ($2::text IS NULL OR d.id = $2)"
)


@dataclass(frozen=True, slots=True)
class EngineDatabase:
    """A database as the engine knows it. `clone_of` is the id of the database to copy."""

    id: str
    engine_name: str
    state: str
    clone_of: str | None
    engine: str


@dataclass(frozen=True, slots=True)
class Tenant:
    """An active database, with its name and its organization's."""

    id: str
    engine_name: str
    name: str
    organization: str
    organization_name: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """A database in the engine that took part in a reset or move. If it is not `doomed`, it is the one in use. `source`
    is the name of the database that was moved into it: its engine may have roles of that name."""

    engine_name: str
    engine: str
    doomed: bool
    source: str | None


class DatabaseRecords(Records):
    """Databases on record. `bound` is the id of the only database that a token may see; None for all of the
    organization."""

    async def add(
        self,
        actor: Actor,
        id: str,
        engine_name: str,
        organization: str,
        name: str,
        clone_of: str | None,
        engine: str,
    ) -> None:
        """Record a database that is to be created. A name that is taken fails with SQLSTATE 23505."""
        await change(
            self._metadata, actor, "database.clone" if clone_of else "database.create", "name",
            "INSERT INTO database (id, engine_name, organization, name, state, clone_of, engine)"
            " VALUES ($1, $2, $3, $4, 'creating', $5, $6) RETURNING id, name",
            id, engine_name, organization, name, clone_of, engine, concerns="id",
        )  # fmt: skip

    async def count(self, organization: str) -> int:
        """Return the number of databases of the organization, in any state."""
        [(count,)] = await self._metadata.fetch("SELECT count(*) FROM database WHERE organization = $1", organization)
        return int(str(count))

    async def list_tenants(self) -> list[tuple[str, str, str]]:
        """Return the name in the engine of every active database, with the tier and the limits of its organization."""
        rows = await self._metadata.fetch(
            "SELECT d.engine_name, o.tier, o.limits FROM database d JOIN organization o ON o.id = d.organization"
            " WHERE d.state = 'active'"
        )
        return [(str(name), str(tier), str(limits)) for name, tier, limits in rows]

    async def list_engine_names(self, organization: str) -> list[str]:
        rows = await self._metadata.fetch("SELECT engine_name FROM database WHERE organization = $1", organization)
        return [str(name) for (name,) in rows]

    async def note_sizes(self, sizes: Mapping[str, int]) -> None:
        """Note how large databases are, by their names in the engine."""
        await self._metadata.fetch(
            "UPDATE database SET size_bytes = v.size FROM (SELECT unnest(string_to_array($1, ',')) AS name,"
            " unnest(string_to_array($2, ','))::bigint AS size) v"
            " WHERE engine_name = v.name AND size_bytes IS DISTINCT FROM v.size",
            ",".join(sizes),
            ",".join(map(str, sizes.values())),
        )

    async def list_page(self, organization: str, bound: str | None, page: Page) -> list[DatabaseRecord]:
        sql, params = build_page("d", page, _RECORDS, organization, bound)
        return await read(self._metadata, DatabaseRecord, sql, *params, order=ORDER)

    async def list_names(self, organization: str, bound: str | None) -> list[DatabaseName]:
        """Return the active databases by name, at most one page: there should be no more."""
        return await read(
            self._metadata, DatabaseName,
            "SELECT name, is_default AS default FROM database WHERE organization = $1 AND state = 'active'"
            f" AND ($2::text IS NULL OR id = $2) ORDER BY name LIMIT {_NAMES_MAX}",
            organization, bound, order="r.name",
        )  # fmt: skip

    async def show(self, organization: str, bound: str | None, name: str) -> DatabaseRecord | None:
        records = await read(self._metadata, DatabaseRecord, f"{_RECORDS} AND d.name = $3", organization, bound, name)
        return records[0] if records else None

    async def find(self, organization: str, id: str) -> DatabaseRecord | None:
        records = await read(self._metadata, DatabaseRecord, _RECORDS, organization, id)
        return records[0] if records else None

    async def find_default(self, organization: str) -> str | None:
        """Return the engine's name for the default database, if it is active on the first engine."""
        rows = await self._metadata.fetch(
            "SELECT engine_name FROM database WHERE organization = $1 AND is_default AND state = 'active'"
            " AND engine = 'first'",
            organization,
        )
        return rows[0][0] if rows else None

    async def find_engine_names(self, ids: list[str]) -> dict[str, str]:
        rows = await self._metadata.fetch(
            "SELECT id, engine_name FROM database WHERE id = ANY (string_to_array($1, ','))", ",".join(ids)
        )
        return {str(id): str(name) for id, name in rows}

    async def change(
        self, actor: Actor, id: str, *, name: str | None, delete_protection: bool | None, default: bool
    ) -> bool:
        """Change the record in one transaction; None leaves a field as it is. A new default replaces the old one."""
        change = build_change(
            actor, "database.change", "name",
            "UPDATE database SET name = coalesce($3, name), is_default = is_default OR $5::boolean,"
            " delete_protection = coalesce($4::boolean, delete_protection)"
            " WHERE organization = $1 AND id = $2 AND state = 'active' RETURNING id, name",
            actor.organization, id, name, None if delete_protection is None else str(delete_protection).lower(),
            str(default).lower(), concerns="id",
        )  # fmt: skip
        if not default:
            return bool(await self._metadata.fetch(change[0], *change[1]))
        # Rows are locked in a fixed order, so no other change of the default and no deletion can interfere.
        lock = "SELECT 1 FROM database WHERE organization = $1 ORDER BY id FOR UPDATE"
        clear = (
            "UPDATE database SET is_default = false WHERE organization = $1 AND is_default AND EXISTS"
            " (SELECT 1 FROM database WHERE organization = $1 AND id = $2 AND state = 'active')"
        )
        steps = [(lock, (actor.organization,)), (clear, (actor.organization, id)), change]
        return bool(await self._metadata.run_atomically(steps))

    async def start_deleting(self, actor: Actor, id: str) -> bool:
        """Make the database unavailable and record its deletion. Return False if its state does not allow that."""
        return await change(
            self._metadata, actor, "database.delete", "name",
            "UPDATE database SET state = 'deleting' WHERE organization = $1 AND id = $2"
            " AND state IN ('active', 'failed') AND NOT is_default AND NOT delete_protection RETURNING id, name",
            actor.organization, id, concerns="id",
        )  # fmt: skip

    async def note_dump(self, actor: Actor, id: str) -> None:
        """Record in the audit that a dump was given out."""
        sql = "SELECT name FROM database WHERE id = $1"
        await change(self._metadata, actor, "database.dump", "name", sql, id, quiet=True)

    # -- its life, as the service brings it forward -------------------------------------------------------------

    async def list_unfinished(self, organization: str | None = None) -> list[EngineDatabase]:
        """Find databases that are being created or deleted, of one organization or of all."""
        return await self._find_all(
            "state IN ('creating', 'deleting') AND ($1::text IS NULL OR organization = $1)", organization
        )

    async def find_in_engine(self, id: str) -> EngineDatabase | None:
        found = await self._find_all("id = $1", id)
        return found[0] if found else None

    async def list_active(self) -> list[Tenant]:
        """Return the databases of all organizations, oldest first."""
        rows = await self._metadata.fetch(
            "SELECT d.id, d.engine_name, d.name, o.id, o.name FROM database d"
            " JOIN organization o ON o.id = d.organization WHERE d.state = 'active' ORDER BY d.created_at, d.id"
        )
        return [Tenant(*map(str, row)) for row in rows]

    async def is_protected(self, id: str) -> bool:
        return bool(await self._metadata.fetch("SELECT 1 FROM database WHERE id = $1 AND delete_protection", id))

    async def list_furnished_otherwise(self, furnishing: str, engine: str) -> list[EngineDatabase]:
        """Find active databases of the engine that another version of the service has furnished."""
        condition = "state = 'active' AND furnishing IS DISTINCT FROM $1 AND engine = $2"
        return await self._find_all(condition, furnishing, engine)

    async def mark_furnished(self, id: str, furnishing: str) -> None:
        await self._metadata.fetch("UPDATE database SET furnishing = $2 WHERE id = $1", id, furnishing)

    async def mark_made(self, id: str, furnishing: str) -> None:
        await self._advance(
            "UPDATE database SET state = 'active', clone_of = NULL, furnishing = $2"
            " WHERE id = $1 AND state = 'creating'",
            id,
            furnishing,
        )

    async def mark_failed(self, id: str) -> None:
        await self._advance("UPDATE database SET state = 'failed' WHERE id = $1 AND state = 'creating'", id)

    async def discard(self, actor: Actor, id: str) -> None:
        """Forget a database that could not be created and was never reported: its name becomes free."""
        await change(
            self._metadata, actor, "database.fail", "name",
            "DELETE FROM database WHERE id = $1 AND state = 'failed' RETURNING id, name",
            id, concerns="id",
        )  # fmt: skip

    async def remove(self, id: str) -> None:
        """Remove the record of a deleted database, with its keys and their sessions."""
        await self._advance("DELETE FROM database WHERE id = $1 AND state = 'deleting'", id)

    async def note_leftovers(self, id: str, engine_names: list[str], engine: str) -> None:
        """Before a reset, note both databases in the engine: the one that is not in use at the end will be dropped."""
        await self._metadata.fetch(
            "INSERT INTO leftover (engine_name, database, engine)"
            " SELECT unnest(string_to_array($2, ',')), $1, $3 ON CONFLICT DO NOTHING",
            id,
            ",".join(engine_names),
            engine,
        )

    async def list_in_reset(self) -> dict[str, str]:
        """Return the databases in the engines that take part in a reset or move, each with the id of its record."""
        rows = await self._metadata.fetch("SELECT engine_name, database FROM leftover")
        return {str(name): str(id) for name, id in rows}

    async def doom_leftovers(self, id: str) -> list[Leftover]:
        """Doom the databases that are not in use, so that they never will be: a statement of a killed worker may still
        be running in the engine."""
        # Locked first, so that the second statement sees the changes of the previous holder of the lock.
        rows = await self._metadata.run_atomically(
            [
                ("SELECT 1 FROM leftover WHERE database = $1 ORDER BY engine_name FOR UPDATE", (id,)),
                (
                    "UPDATE leftover l SET doomed ="
                    " NOT EXISTS (SELECT 1 FROM database d WHERE d.engine_name = l.engine_name)"
                    " WHERE l.database = $1 RETURNING l.engine_name, l.engine, l.doomed, l.source",
                    (id,),
                ),
            ]
        )
        return [Leftover(str(name), str(engine), doomed == "t", source) for name, engine, doomed, source in rows]

    async def forget_leftover(self, engine_name: str) -> None:
        await self._metadata.fetch("DELETE FROM leftover WHERE engine_name = $1", engine_name)

    async def replace(self, actor: Actor, id: str, engine_name: str) -> bool:
        """Put another database of the engine, noted as a leftover, in its place. Return False if it may not be
        reset."""
        return await change(
            self._metadata, actor, "database.reset", "name",
            "UPDATE database SET engine_name = $3 WHERE organization = $1 AND id = $2 AND state = 'active'"
            " AND NOT delete_protection"
            " AND EXISTS (SELECT 1 FROM leftover WHERE engine_name = $3 AND NOT doomed FOR SHARE)"
            " RETURNING id, name",
            actor.organization, id, engine_name, concerns="id",
        )  # fmt: skip

    async def pause(self, id: str, seconds: float, engine_name: str | None = None) -> None:
        """Ask all workers to release the database for this long; 0 ends the pause. With `engine_name`, only while the
        database has that name in the engine."""
        await self._metadata.fetch(
            "UPDATE database SET paused_until = CASE WHEN $2::float8 > 0"
            " THEN clock_timestamp() + $2::float8 * interval '1 second' END"
            " WHERE id = $1 AND ($3::text IS NULL OR engine_name = $3)",
            id,
            str(seconds),
            engine_name,
        )

    async def _find_all(self, condition: str, *params: str | None) -> list[EngineDatabase]:
        rows = await self._metadata.fetch(
            f"SELECT id, engine_name, state, clone_of, engine FROM database WHERE {condition} ORDER BY created_at",
            *params,
        )
        return [
            EngineDatabase(str(id), str(engine_name), str(state), clone_of, str(engine))
            for id, engine_name, state, clone_of, engine in rows
        ]

    async def _advance(self, sql: str, *params: str) -> None:
        await self._metadata.run_atomically([(sql, params), ("UPDATE revision SET number = number + 1", ())])
