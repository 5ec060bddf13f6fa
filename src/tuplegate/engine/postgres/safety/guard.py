"""Closes the hole in the engine's SERIALIZABLE.

PostgreSQL remembers committed serializable transactions in a pool of fixed size. When more begin than the pool holds,
it forgets the oldest, and a transaction that overlapped with a forgotten one can commit a write skew. So a transaction
that writes may not live longer than a safe share of the pool. The service counts every transaction that it can begin; a
writing one during which too many have begun is ended with a conflict and run again.

The count covers all workers (`tally.py`) and all service processes on the same engine (`lease.py`). For the latter it
is an upper bound; while that is out of date, no transaction that has written is committed. Clients of the engine other
than Tuplegate are not counted.
"""

import asyncio
import math
import time
from typing import Final

from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost, Meter
from tuplegate.engine.port import EngineBusy
from tuplegate.engine.postgres.safety.tally import (
    LEASE_UNTIL,
    OTHERS_CEILING,
    OTHERS_FLOOR,
    OWN_CEILING,
    SEAL_UNTIL,
    VIEW_UNTIL,
    Tally,
)

_SAFE_SHARE: Final = 0.75
"""Between the look at the count and the commit itself more transactions begin, and open ones take room as well, a tenth
of the pool at most; the rest of the pool is for them."""

_PAUSE_S: Final = 0.005
_SEAL_S: Final = 0.25
_SEAL_LEFT_NS: Final = 100_000_000
"""A view that is valid for less than this is too old to commit with; a newer one comes soon."""

_SEAL: Final = (
    b"SELECT 1 OPERATOR(pg_catalog./) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<)"
    b" pg_catalog.to_timestamp($1::pg_catalog.float8))::pg_catalog.int4"
)
SEAL_BROKEN: Final = "22012"
"""The engine's error when a sealed command came too late."""

_BLIND_NS: Final = 1_000_000_000
"""A single statement commits by itself, so it is ended when other groups were not heard of for this long."""


class SerializableGuard(Meter):
    """Counts transactions, and tells which of them have outlived the pool. `slots` is the size of the pool, `worker`
    this worker's place in the tally.

    `exclusive` says that only this installation begins transactions on the engine: only then is the hole closed.
    """

    def __init__(self, slots: int, tally: Tally, worker: int, *, exclusive: bool = True) -> None:
        self.slots = slots
        self.exclusive = exclusive
        self._tally = tally
        self._numbers = tally.numbers
        self._counts = tally.counts
        self._worker = worker
        self._safe = int(slots * _SAFE_SHARE)
        self.ended = 0
        """The number of this worker's attempts that had outlived the pool."""

    def count(self, begun: int) -> None:
        self._counts[self._worker] += begun

    @property
    def begun(self) -> int:
        """Return the least number of transactions that have begun: a transaction notes this when it begins."""
        return sum(self._counts) + self._numbers[OTHERS_FLOOR]

    @property
    def safe(self) -> int:
        """Return the number that may begin while a writing transaction is open, minus those that others may begin
        unseen."""
        unseen = self._numbers[OTHERS_CEILING] - self._numbers[OTHERS_FLOOR]
        return max(self._safe - unseen, 0)

    @property
    def is_alone(self) -> bool:
        """Return whether only this worker begins transactions on the engine."""
        return not self._tally.shared and self._tally.workers == 1

    def has_outlived(self, begun: int) -> bool:
        """Return whether so many have begun since then that the engine may have forgotten one that matters."""
        blind_for = time.monotonic_ns() - self._numbers[VIEW_UNTIL]
        most = sum(self._counts) + self._numbers[OTHERS_CEILING]
        return most - begun > self._safe or blind_for > _BLIND_NS

    async def seal(self, begun: int, until: float = math.inf) -> list[Command] | None:
        """Take the last look before a commit. Return the commands that must precede it in the same write; None if the
        transaction has outlived the pool. Raises ConnectionLost at `until`, on the loop's clock: then the commit's
        connection is given up.

        The look is valid only for a moment, so the seal fails if the engine gets it late. If only this worker begins
        transactions, none can begin in between, and nothing is needed. Waits until a current view of the other groups
        is known.
        """
        numbers = self._numbers
        while True:
            # Read the times first: values read after them are as new as they are, or newer.
            view_until, seal_until = numbers[VIEW_UNTIL], numbers[SEAL_UNTIL] / 1e6
            if self.has_outlived(begun):
                return None
            if view_until - time.monotonic_ns() > _SEAL_LEFT_NS:
                break
            if asyncio.get_running_loop().time() > until:
                raise ConnectionLost("the other service processes were not heard of in time")
            await asyncio.sleep(_PAUSE_S)
        if self.is_alone:
            return []
        if not self._tally.shared:
            seal_until = time.time() + _SEAL_S  # the engine is on this machine
        return [Command(_SEAL, [repr(seal_until).encode()], begins=False)]

    # -- this group's own share ---------------------------------------------------------------------------------

    @property
    def must_wait(self) -> bool:
        """Return whether this group may begin nothing just now."""
        if not self._tally.shared:
            return False
        numbers = self._numbers
        return sum(self._counts) >= numbers[OWN_CEILING] or numbers[LEASE_UNTIL] <= time.monotonic_ns()

    async def wait(self, deadline: float) -> None:
        """Wait until this group may begin a transaction. `deadline` is on the loop's clock."""
        loop = asyncio.get_running_loop()
        while self.must_wait:
            if loop.time() > deadline:
                raise EngineBusy("this service's share of the engine was used up until the statement's time was over")
            await asyncio.sleep(_PAUSE_S)
