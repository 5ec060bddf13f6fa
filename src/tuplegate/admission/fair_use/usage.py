"""Counts what every organization uses, by database, and records it every few seconds.

A worker that is killed loses the counts of its last seconds; nothing else depends on them.
"""

import structlog

from tuplegate.background import tick
from tuplegate.catalog.journal import Journal, Used
from tuplegate.catalog.tokens.credentials import Credentials
from tuplegate.engine.port import EngineFailure
from tuplegate.http.exchange import Counts

_log = structlog.get_logger()

_EVERY_S = 2.0


class Usage(Counts):
    """The usage of one database of one organization that is not recorded yet; `recorded` is what was, in the same
    order."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = (0, 0, 0, 0)


class UsageBook:
    def __init__(self, journal: Journal, credentials: Credentials) -> None:
        self._journal = journal
        self._credentials = credentials
        self._counts: dict[tuple[str, str], Usage] = {}
        self._keys: set[str] = set()

    def find_usage(self, organization: str, database: str) -> Usage:
        """Return the counts of a database, by the id that it keeps when its name in the engine changes."""
        key = (organization, database)
        usage = self._counts.get(key)
        if usage is None:
            usage = self._counts[key] = Usage()
        return usage

    def totals(self) -> dict[str, list[int]]:
        """Return the usage since the start, by organization and database, in the order in which they were first
        seen."""
        totals: dict[str, list[int]] = {}
        for (organization, database), usage in self._counts.items():
            used = (usage.requests, usage.rows, usage.bytes, usage.errors)
            totals[f"{organization} {database}"] = [sum(parts) for parts in zip(used, usage.recorded, strict=True)]
        return totals

    def note_key_used(self, key: str) -> None:
        self._keys.add(key)

    async def watch(self) -> None:
        """Run for ever."""
        while True:
            await tick(_EVERY_S)
            await self.record()

    async def record(self) -> None:
        used = [
            Used(organization, database, usage.requests, usage.rows, usage.bytes, usage.errors)
            for (organization, database), usage in self._counts.items()
            if usage.requests
        ]
        keys = list(self._keys)
        try:
            if used:
                await self._journal.add_usage(used)
                self._note_recorded(used)
            if keys:
                await self._credentials.mark_used(keys)
                self._keys.difference_update(keys)
        except EngineFailure as failure:
            _log.warning("usage was not recorded", reason=str(failure))

    def _note_recorded(self, used: list[Used]) -> None:
        """Subtract what was recorded, so that it is not recorded again even if the next step fails."""
        for one in used:
            usage = self._counts[one.organization, one.database]
            counts = (one.requests, one.rows, one.bytes, one.errors)
            requests, rows, sent, errors = (a + b for a, b in zip(usage.recorded, counts, strict=True))
            usage.recorded = (requests, rows, sent, errors)
            usage.requests -= one.requests
            usage.rows -= one.rows
            usage.bytes -= one.bytes
            usage.errors -= one.errors
