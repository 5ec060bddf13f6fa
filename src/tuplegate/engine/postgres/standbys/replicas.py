"""The standbys of the engine that may be read from.

Every standby is looked at twice a second, off the way of requests and within a bound.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from tuplegate.engine.postgres.replication.positions import Position
from tuplegate.engine.postgres.standbys.progress import Progress
from tuplegate.engine.postgres.standbys.replica import Replica

TICK_S: Final = 0.5
"""From one look at the standbys to the next."""
_PAUSE_S: Final = 0.005


class Replicas:
    """All of them. `watch` goes on for as long as the worker lives."""

    def __init__(self, progress: Progress, replicas: Sequence[Replica]) -> None:
        self._progress = progress
        self._all = list(replicas)
        self._turn = 0

    @property
    def states(self) -> dict[str, str]:
        """By their numbers, in the order in which they were given: the addresses are nobody's business."""
        return {f"replica {replica.number}": replica.said for replica in self._all}

    @property
    def gauges(self) -> dict[str, float]:
        lags = {f"replica_lag_seconds {replica.number}": replica.lag_s for replica in self._all}
        return lags | {f"replica_usable {replica.number}": int(replica.is_usable) for replica in self._all}

    async def look(self) -> None:
        await self._progress.look(asyncio.get_running_loop().time())
        await asyncio.gather(*(replica.visit() for replica in self._all))

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self.look()

    def stop_running(self) -> None:
        for replica in self._all:
            replica.stop_running()

    async def close(self) -> None:
        for replica in self._all:
            await replica.close()
        await self._progress.close()

    async def choose(self, after: Position | None, until: float, without: Collection[Replica]) -> Replica | None:
        """Return one that has come so far, waited for until then if need be; None where there is none."""
        loop = asyncio.get_running_loop()
        while True:
            usable = [replica for replica in self._all if replica.is_usable and replica not in without]
            ready = [replica for replica in usable if replica.standby.has_reached(after)]
            if ready:
                self._turn += 1
                return min(ready, key=self._order)
            nearest = max(
                (r for r in usable if after is not None and r.standby.timeline == after.timeline),
                key=lambda replica: replica.standby.replayed,
                default=None,
            )
            if nearest is None or loop.time() >= until:
                return None
            await nearest.catch_up(until - loop.time())
            if not nearest.standby.has_reached(after):
                await asyncio.sleep(_PAUSE_S)

    def _order(self, replica: Replica) -> tuple[int, int]:
        """The least busy one, and of those that are equally so each in turn."""
        return len(replica.running.runs), (replica.number + self._turn) % len(self._all)
