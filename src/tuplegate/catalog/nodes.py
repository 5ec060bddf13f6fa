"""Records of the machines that serve this installation, so that each finds the others."""

from typing import Final

from tuplegate.catalog.metadata import Records

GONE_AFTER_S: Final = 5.0
"""A machine that was not seen for this long is gone."""
_FORGOTTEN_AFTER_S: Final = 3600.0


class NodeRecords(Records):
    async def beat(self, number: int, url: str) -> None:
        """Record that this machine serves, and forget those that have long been gone."""
        forget = "DELETE FROM node WHERE seen_at < clock_timestamp() - $1::float8 * interval '1 second'"
        beat = (
            "INSERT INTO node (number, url) VALUES ($1, $2)"
            " ON CONFLICT (number) DO UPDATE SET url = excluded.url, seen_at = clock_timestamp()"
        )
        await self._metadata.run_atomically([(forget, (str(_FORGOTTEN_AFTER_S),)), (beat, (str(number), url))])

    async def find(self, number: int) -> str | None:
        """Return the address of a machine, "" if it has told none; None if it is gone."""
        rows = await self._metadata.fetch(
            "SELECT url FROM node WHERE number = $1 AND seen_at > clock_timestamp() - $2::float8 * interval '1 second'",
            str(number),
            str(GONE_AFTER_S),
        )
        return str(rows[0][0] or "") if rows else None
