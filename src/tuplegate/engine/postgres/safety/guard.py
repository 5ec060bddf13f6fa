"""Closes the hole in the engine's SERIALIZABLE.

PostgreSQL keeps what it must know of committed serializable transactions in a pool of fixed size. When more of them
begin than the pool holds, it forgets the oldest, and a transaction that overlapped with those can commit a write skew.
So what writes may not live longer than a safe share of the pool: the service counts every transaction that it can
begin, and what has seen too many of them is ended with a conflict and run again.

The count is that of all workers (`tally.py`) and of all service processes on the same engine (`lease.py`). Of the
others it is a bound from above; while that is out of date nothing that has written is committed. Clients of the engine
that are no Tuplegate are not seen.
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
"""Between the look at the count and the commit itself more transactions begin, and those that are open take room as
well, a tenth of the pool at most; the rest of the pool is for them."""

_PAUSE_S: Final = 0.005
_SEAL_S: Final = 0.25
_SEAL_LEFT_NS: Final = 100_000_000
"""A view that does not hold for this much longer is too old to commit with; a newer one comes soon."""

_SEAL: Final = (
    b"SELECT 1 OPERATOR(pg_catalog./) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<)"
    b" pg_catalog.to_timestamp($1::pg_catalog.float8))::pg_catalog.int4"
)
SEAL_BROKEN: Final = "22012"
"""What the engine says where a sealed command came too late."""

_BLIND_NS: Final = 1_000_000_000
"""A single statement commits by itself, so it is ended when the others were not heard of for this long."""


class SerializableGuard(Meter):
    """`slots` is the size of the pool, `worker` this worker's place in the tally.

    `exclusive` says that nobody but this installation begins transactions on the engine: only then is the hole closed.
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
        """Attempts that had outlived it, of this worker."""

    def count(self, begun: int) -> None:
        self._counts[self._worker] += begun

    @property
    def begun(self) -> int:
        """Return how many have begun at least: a transaction notes this when it begins."""
        return sum(self._counts) + self._numbers[OTHERS_FLOOR]

    @property
    def safe(self) -> int:
        """Return how many may begin while a transaction that writes is open, less what others may begin unseen."""
        unseen = self._numbers[OTHERS_CEILING] - self._numbers[OTHERS_FLOOR]
        return max(self._safe - unseen, 0)

    @property
    def is_alone(self) -> bool:
        """Return whether this worker alone begins transactions on the engine."""
        return not self._tally.shared and self._tally.workers == 1

    def has_outlived(self, begun: int) -> bool:
        """Return whether so many have begun since that the engine may have forgotten one that matters."""
        blind_for = time.monotonic_ns() - self._numbers[VIEW_UNTIL]
        most = sum(self._counts) + self._numbers[OTHERS_CEILING]
        return most - begun > self._safe or blind_for > _BLIND_NS

    async def seal(self, begun: int, until: float = math.inf) -> list[Command] | None:
        """Take the last look before a commit. Return what must go in front of it, in the same write; None where it is
        too old. Raises ConnectionLost at `until`, on the loop's clock: whoever commits gives its connection up then.

        The look holds only for a moment, so the seal fails if the engine gets it late. Where this worker alone begins
        transactions, none can begin in between, and nothing is needed. Waits until the others are known.
        """
        numbers = self._numbers
        while True:
            # The times first: what is read after them is as new as they are, or newer.
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
        """Wait until something may begin. `deadline` is on the loop's clock."""
        loop = asyncio.get_running_loop()
        while self.must_wait:
            if loop.time() > deadline:
                raise EngineBusy("this service's share of the engine was used up until the statement's time was over")
            await asyncio.sleep(_PAUSE_S)
