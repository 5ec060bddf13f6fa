"""Keeps the audit and usage within bounds, by age and by number, in one worker of the installation at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from tuplegate.access.retention import choose_share
from tuplegate.background import tick
from tuplegate.catalog.retention import PORTION, OldRecords, RecordTable
from tuplegate.engine import port
from tuplegate.tenancy.alone import work_alone

_log: Final = structlog.get_logger()

_EVERY_S: Final = 600.0
_PAUSE_S: Final = 0.1
"""Between two portions: other work on the catalog goes first."""
_NAME: Final = "retention"


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """The bounds on records of a kind: their age, and their number, for one organization and in all."""

    records: RecordTable
    days: int
    each_max: int
    total_max: int


class Retention:
    def __init__(self, records: OldRecords, locks: port.Locks, rules: Sequence[RetentionRule]) -> None:
        self._records = records
        self._locks = locks
        self._rules = rules

    async def watch(self) -> None:
        """Run for ever."""
        while True:
            await work_alone(self._locks, _NAME, self.remove_all, "old records were not removed from the catalog")
            await tick(_EVERY_S)

    async def remove_all(self) -> None:
        """Remove all records beyond the rules."""
        for rule in self._rules:
            removed = 0
            while (portion := await self._records.remove_older(rule.records, rule.days)) > 0:
                removed += portion
                if portion < PORTION:
                    break
                await tick(_PAUSE_S)
            removed += await self._remove_beyond(rule)
            if removed:
                _log.info("old records were removed", table=rule.records.table, records=removed)

    async def _remove_beyond(self, rule: RetentionRule) -> int:
        counts = await self._records.count(rule.records)
        share = choose_share(counts.values(), rule.each_max, rule.total_max)
        removed = 0
        for organization, count in counts.items():
            excess = count - share
            while excess > 0:
                portion = await self._records.remove_oldest(rule.records, organization, excess)
                if not portion:
                    break
                removed, excess = removed + portion, excess - portion
                await tick(_PAUSE_S)
        return removed
