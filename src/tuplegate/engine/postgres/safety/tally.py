"""Numbers that all workers of one service process group see: how many transactions each has begun, and their shares;
and the versions of databases' definitions (`definitions.py`).

Shared memory, made by the supervisor before it forks. Every number has one writer at a time and is aligned, so a reader
sees an old value or a new one and no lock is needed. A worker that is started again goes on with its predecessor's
number. Where two numbers belong together, their writer's order makes an old one the cautious one: see `lease.py`.
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
"""So many have the other groups begun, at least."""
OTHERS_CEILING = 1
"""So many have they begun, at most, until `VIEW_UNTIL`."""
VIEW_UNTIL = 2
OWN_CEILING = 3
"""So many may this group begin, until `LEASE_UNTIL`."""
LEASE_UNTIL = 4
SEAL_UNTIL = 5
"""What `VIEW_UNTIL` is by the engine's clock, in microseconds since 1970."""
OTHERS_UNTIL = 6
"""Until then another group may still end statements that it has begun."""
_COUNTS = 7


_OF_CELLS = 1 << 12
"""Cells that have the same place count each other's transactions as their own, which only makes them more careful."""


class Tally:
    """`workers` is how many share it; `shared` says that other groups use the same engine, or may.

    Then nothing may begin until a lease says so. `lock` is for the worker that sees to the lease. `numbers` and
    `versions` are given where they are part of something larger.
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
        """Return how many transactions this group has begun."""
        return sum(self.counts)


class CellTallies:
    """The tallies of all cells. Each cell has a place by its name, which nobody has to agree on."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._numbers = _share_numbers(_OF_CELLS * (_COUNTS + workers))
        self._versions = Versions(workers, is_alone=True)

    def take_over(self, worker: int) -> None:
        """End what a worker's predecessor had under way when it died."""
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
