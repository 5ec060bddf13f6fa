"""Records of organizations."""

from tuplegate.access.tokens import Token
from tuplegate.catalog.metadata import Actor, Records, change, read
from tuplegate.catalog.paging import ORDER, Page, build_page
from tuplegate.protocol.control import OrganizationRecord

_RECORDS = "SELECT o.id, o.name, o.tier, o.created_at, o.limits FROM organization o WHERE o.deleted_at IS NULL"


class OrganizationRecords(Records):
    async def find_first(self) -> str | None:
        """Return the id of the installation's own organization."""
        rows = await self._metadata.fetch("SELECT id FROM organization ORDER BY created_at, id LIMIT 1")
        return rows[0][0] if rows else None

    async def count(self) -> int:
        """Count the organizations that are not being deleted."""
        rows = await self._metadata.fetch("SELECT count(*) FROM organization WHERE deleted_at IS NULL")
        return int(str(rows[0][0]))

    async def add(
        self,
        actor: Actor,
        id: str,
        name: str,
        tier: str,
        database: tuple[str, str],
        key: Token | None = None,
        engine: str = "first",
    ) -> None:
        """Record an organization, its default database, which is to be created, and a key that manages it.

        A name that is taken fails with 23505. `database` is its id and name.
        """
        await change(
            self._metadata, actor, "organization.create", "name",
            "INSERT INTO organization (id, name, tier) VALUES ($1, $2, $3) RETURNING id, name",
            id, name, tier, *database, *((key.id, key.digest.hex(), key.hint) if key else (None, None, None)),
            engine,
            also="placed AS (INSERT INTO database (id, engine_name, organization, name, state, is_default, engine)"
            " SELECT $4::text, $4, id, $5, 'creating', true, $9 FROM done RETURNING id),"
            " keyed AS (INSERT INTO api_key (id, organization, name, digest, hint, scopes)"
            " SELECT $6::text, id, 'first', decode($7, 'hex'), $8, ARRAY['admin'] FROM done WHERE $6::text IS NOT NULL"
            " RETURNING id)",
        )  # fmt: skip

    async def list_page(self, page: Page) -> list[OrganizationRecord]:
        sql, params = build_page("o", page, _RECORDS)
        return await read(self._metadata, OrganizationRecord, sql, *params, order=ORDER)

    async def show(self, id: str) -> OrganizationRecord | None:
        records = await read(self._metadata, OrganizationRecord, f"{_RECORDS} AND o.id = $1", id)
        return records[0] if records else None

    async def change(self, actor: Actor, id: str, name: str | None, tier: str | None, limits: str | None) -> bool:
        """Change the given fields. `limits` is a JSON object of those that change; null removes one."""
        return await change(
            self._metadata, actor, "organization.change", "id",
            "UPDATE organization SET name = coalesce($2, name), tier = coalesce($3, tier),"
            " limits = coalesce(jsonb_strip_nulls(limits || $4::jsonb), limits)"
            " WHERE id = $1 AND deleted_at IS NULL RETURNING id",
            id, name, tier, limits,
        )  # fmt: skip

    async def start_deleting(self, actor: Actor, id: str) -> bool:
        """End the organization's keys and start deleting its databases. Return False if it is gone already."""
        return await change(
            self._metadata, actor, "organization.delete", "id",
            "UPDATE organization SET deleted_at = now(), name = 'deleted-' || replace(id, '_', '-')"
            " WHERE id = $1 AND deleted_at IS NULL RETURNING id",
            id,
        )  # fmt: skip

    async def finish_deleting(self) -> list[str]:
        """Start deleting the databases of deleted organizations, and remove organizations without databases. Return the
        ids of those that still have some."""
        await self._metadata.fetch(
            "UPDATE database SET state = 'deleting', delete_protection = false, is_default = false"
            " WHERE state IN ('active', 'failed')"
            " AND organization IN (SELECT id FROM organization WHERE deleted_at IS NOT NULL)"
        )
        await self._metadata.run_atomically(
            [
                (
                    "DELETE FROM api_key WHERE organization IN"
                    " (SELECT o.id FROM organization o WHERE o.deleted_at IS NOT NULL"
                    " AND NOT EXISTS (SELECT 1 FROM database d WHERE d.organization = o.id))",
                    (),
                ),
                (
                    "DELETE FROM organization o WHERE o.deleted_at IS NOT NULL"
                    " AND NOT EXISTS (SELECT 1 FROM database d WHERE d.organization = o.id)",
                    (),
                ),
            ]
        )
        rows = await self._metadata.fetch("SELECT id FROM organization WHERE deleted_at IS NOT NULL")
        return [str(row[0]) for row in rows]
