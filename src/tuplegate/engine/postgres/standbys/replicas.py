"""The standbys of the engine that may be read from.

Each is looked at twice a second, outside of requests and within a bound.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from tuplegate.engine.postgres.replication.positions import Position
from tuplegate.engine.postgres.standbys.progress import Progress
from tuplegate.engine.postgres.standbys.replica import Replica

TICK_S: Final = 0.5
"""The pause between two looks at the standbys."""
_PAUSE_S: Final = 0.005


class Replicas:
    """All standbys of one engine. `watch` runs as long as the worker."""

    def __init__(self, progress: Progress, replicas: Sequence[Replica]) -> None:
        self._progress = progress
        self._all = list(replicas)
        self._turn = 0

    @property
    def states(self) -> dict[str, str]:
        """The states by the replicas' numbers, in the order of the settings: their addresses must not be shown."""
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
        """Return a replica that has replayed past `after`, waiting for one until `until`; None if there is none."""
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
        """Prefer the replica with the fewest runs, and among equals take each in turn."""
        return len(replica.running.runs), (replica.number + self._turn) % len(self._all)
