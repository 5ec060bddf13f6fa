"""Removes old records of the audit and of usage, a portion at a time."""

from dataclasses import dataclass
from typing import Final

from tuplegate.catalog.metadata import Records

PORTION: Final = 1000
"""Records that one statement removes at most."""


@dataclass(frozen=True, slots=True)
class RecordTable:
    """A table of records: the columns that identify a record, and the one with the time at which it was made."""

    table: str
    key: str
    time: str


AUDIT: Final = RecordTable("audit", "id", "at")
USAGE: Final = RecordTable("usage", "organization, hour, database", "hour")


class OldRecords(Records):
    """Old records. Each method returns the number of records that it has removed; with fewer than a portion there are
    no more."""

    async def remove_older(self, of: RecordTable, days: int) -> int:
        return await self._remove(of, f"{of.time} < now() - $1::int * interval '1 day'", str(days), PORTION)

    async def count(self, of: RecordTable) -> dict[str, int]:
        """Count the records by organization."""
        rows = await self._metadata.fetch(f"SELECT organization, count(*) FROM {of.table} GROUP BY organization")
        return {str(organization): int(str(count)) for organization, count in rows}

    async def remove_oldest(self, of: RecordTable, organization: str, count: int) -> int:
        """Remove so many, but no more than a portion."""
        return await self._remove(of, "organization = $1", organization, min(count, PORTION))

    async def _remove(self, of: RecordTable, which: str, value: str, most: int) -> int:
        table, key = of.table, of.key
        rows = await self._metadata.fetch(
            f"DELETE FROM {table} WHERE ({key}) IN"
            f" (SELECT {key} FROM {table} WHERE {which} ORDER BY {of.time} LIMIT $2::int) RETURNING 1",
            value,
            str(most),
        )
        return len(rows)
