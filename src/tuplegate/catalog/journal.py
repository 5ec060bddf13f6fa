"""Records of events: the audit of the control plane, and usage by hour and database."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tuplegate.catalog.metadata import Actor, Records, read, write_entry
from tuplegate.catalog.paging import Page
from tuplegate.protocol.control import AuditRecord, UsageRecord


@dataclass(frozen=True, slots=True)
class Used:
    """Use of one database since the last record. `database` is its id."""

    organization: str
    database: str
    requests: int
    rows: int
    bytes: int
    errors: int


class Journal(Records):
    """Audit and usage. `bound` is the id of the only database that a token may see; None for all of the
    organization."""

    async def list_audit(
        self, organization: str, bound: str | None, limit: int, before: int | None
    ) -> list[AuditRecord]:
        """Return entries of the audit, newest first."""
        return await read(
            self._metadata, AuditRecord,
            "SELECT id, at, action, subject, key, session, address, request_id, count, last_at FROM audit"
            " WHERE organization = $1"
            " AND ($2::text IS NULL OR database = $2)"
            " AND ($3::bigint IS NULL OR id < $3::bigint) ORDER BY id DESC LIMIT $4::int",
            organization, bound, None if before is None else str(before), str(limit + 1), order="r.id DESC",
        )  # fmt: skip

    async def note(self, actor: Actor, action: str, database: str) -> None:
        """Record an event that changes nothing in the catalog, counted by the hour. `database` is an id, and the
        subject."""
        places = [f"${number}::text" for number in range(1, 7)]
        await self._metadata.fetch(
            write_entry(places, "$7::text", "$7::text", tallied=True),
            actor.organization, actor.key, actor.session, action, actor.request_id, actor.address, database,
        )  # fmt: skip

    async def add_usage(self, used: Iterable[Used]) -> None:
        await self._metadata.run_atomically(
            [
                (
                    "INSERT INTO usage (organization, database, hour, requests, rows, bytes, errors)"
                    " SELECT $1, $2, date_trunc('hour', now()), $3::bigint, $4::bigint, $5::bigint, $6::bigint"
                    " WHERE EXISTS (SELECT 1 FROM organization WHERE id = $1)"
                    " ON CONFLICT (organization, hour, database) DO UPDATE SET"
                    " requests = usage.requests + excluded.requests, rows = usage.rows + excluded.rows,"
                    " bytes = usage.bytes + excluded.bytes, errors = usage.errors + excluded.errors",
                    (one.organization, one.database, *map(str, (one.requests, one.rows, one.bytes, one.errors))),
                )
                for one in used
            ]
        )

    async def list_usage(
        self, organization: str, bound: str | None, since: datetime | None, until: datetime | None, page: Page
    ) -> list[UsageRecord]:
        """Return usage by hour, newest first: one page, plus one record that tells whether another follows. A deleted
        database is shown by its id."""
        hour, shown = (None, None) if page.after is None else (page.after[0].isoformat(), page.after[1])
        return await read(
            self._metadata, UsageRecord,
            "SELECT u.hour, coalesce(d.name, u.database) AS database, u.requests, u.rows, u.bytes, u.errors"
            " FROM usage u LEFT JOIN database d ON d.id = u.database WHERE u.organization = $1"
            " AND ($2::text IS NULL OR u.database = $2)"
            " AND u.hour >= coalesce($3::timestamptz, now() - interval '24 hours')"
            " AND ($4::timestamptz IS NULL OR u.hour < $4::timestamptz)"
            " AND ($5::timestamptz IS NULL OR u.hour < $5::timestamptz"
            "  OR u.hour = $5::timestamptz AND coalesce(d.name, u.database) > $6)"
            " ORDER BY u.hour DESC, coalesce(d.name, u.database) LIMIT $7::int",
            organization, bound, since.isoformat() if since else None, until.isoformat() if until else None,
            hour, shown, str(page.limit + 1), order="r.hour DESC, r.database",
        )  # fmt: skip
