"""Numbers that all workers of one service process group share: how many transactions each has begun, the group's shares
of the engine's pool, and the versions of databases' definitions (`definitions.py`).

The supervisor makes this memory before it forks. Every number has one writer at a time and is aligned, so a reader sees
an old value or a new one and no lock is needed. A restarted worker continues its predecessor's number. If two numbers
belong together, their writer's order makes an old one the cautious one: see `lease.py`.
"""

import mmap
import os
import secrets
import tempfile
from zlib import crc32

from tuplegate.engine.libpq.pools.definitions import Versions

NEVER = 2**63 - 1
"""A time, or a number, that is not reached."""


# The places before the workers' counts. Times are of the machine's monotonic clock, in nanoseconds.
OTHERS_FLOOR = 0
"""The least number that the other groups have begun."""
OTHERS_CEILING = 1
"""The largest number that the other groups can have begun, until `VIEW_UNTIL`."""
VIEW_UNTIL = 2
OWN_CEILING = 3
"""The number that this group may begin, until `LEASE_UNTIL`."""
LEASE_UNTIL = 4
SEAL_UNTIL = 5
"""`VIEW_UNTIL` by the engine's clock, in microseconds since 1970."""
OTHERS_UNTIL = 6
"""The time until which another group may still end statements that it has begun."""
_COUNTS = 7


_OF_CELLS = 1 << 12
"""The number of places. Cells that share one count each other's transactions as their own, which only makes them more
careful."""


class Tally:
    """The numbers of one group on one engine. `workers` share it; `shared` says that other groups use the same engine,
    or may.

    Then nothing may begin until a lease says so. `lock` is for the worker that publishes the lease. `numbers` and
    `versions` are given if they are part of something larger.
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        shared: bool = False,
        numbers: memoryview | None = None,
        versions: Versions | None = None,
    ) -> None:
        self.workers = workers
        self.shared = shared
        self.group = secrets.token_hex(8)
        self.lock = _make_lock() if shared else None
        self.numbers = _share_numbers(_COUNTS + workers) if numbers is None else numbers
        self.counts = self.numbers[_COUNTS:]
        self.versions = Versions(workers, is_alone=not shared) if versions is None else versions
        if not shared:
            for place in (VIEW_UNTIL, OWN_CEILING, LEASE_UNTIL):
                self.numbers[place] = NEVER

    @property
    def begun(self) -> int:
        """Return the number of transactions that this group has begun."""
        return sum(self.counts)


class CellTallies:
    """The tallies of all cells. A cell's place is computed from its name, so workers need not agree on it."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._numbers = _share_numbers(_OF_CELLS * (_COUNTS + workers))
        self._versions = Versions(workers, is_alone=True)

    def take_over(self, worker: int) -> None:
        """End the changes that a worker's predecessor had under way when it died."""
        self._versions.take_over(worker)

    def find(self, cell: str) -> Tally:
        size = _COUNTS + self._workers
        first = crc32(cell.encode()) % _OF_CELLS * size
        return Tally(self._workers, numbers=self._numbers[first : first + size], versions=self._versions)


def _share_numbers(count: int) -> memoryview:
    return memoryview(mmap.mmap(-1, 8 * count)).cast("Q")


def _make_lock() -> int:
    lock, name = tempfile.mkstemp(prefix="tuplegate-")
    os.unlink(name)
    return lock
