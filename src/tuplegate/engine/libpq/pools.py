"""The pools of all databases of a server: made when asked for, bounded together, gone when nobody uses them."""

from typing import Generic, TypeVar

from tuplegate.engine.libpq.crowd import Crowd
from tuplegate.engine.libpq.pool import ConnectionPool
from tuplegate.engine.port import Target

_P = TypeVar("_P", bound=ConnectionPool)


class TargetPools(Generic[_P]):
    """For each database one pool that writes and one that reads. An engine's own kind says how one is made. `crowd` are
    all whose connections are bounded together."""

    def __init__(self, crowd: Crowd) -> None:
        self.writing: dict[str, _P] = {}
        self.reading: dict[str, _P] = {}
        self._paused: frozenset[str] = frozenset()
        self._crowd = crowd
        crowd.join(self)

    def _make(self, target: Target) -> _P:
        raise NotImplementedError

    def find_pool(self, target: Target) -> _P:
        """Return the pool of the target, and make one where there is none yet."""
        pools = self.writing if target.as_writer else self.reading
        return pools.get(target.database) or self._new(pools, target)

    def _new(self, pools: dict[str, _P], target: Target) -> _P:
        pool = pools[target.database] = self._make(target)
        if target.database in self._paused:
            pool.suspend()
        return pool

    def all(self) -> list[_P]:
        return [*self.writing.values(), *self.reading.values()]

    def pause(self, databases: frozenset[str]) -> None:
        for pool in self.all():
            if pool.database in databases - self._paused:
                pool.suspend()
            elif pool.database in self._paused - databases:
                pool.resume()
        self._paused = databases

    def is_paused(self, database: str) -> bool:
        return database in self._paused

    def let_go(self, database: str) -> None:
        for pool in self.all():
            if pool.database == database:
                pool.turn_away("the database is elsewhere now")

    def close_idle(self, since: float) -> None:
        """Close connections that nobody has used since then, and pools that have none left."""
        for pools in (self.writing, self.reading):
            for database, pool in list(pools.items()):
                pool.close_idle(since)
                if pool.is_unused:
                    del pools[database]

    async def close(self) -> None:
        for pool in self.all():
            await pool.close()
        self._crowd.leave(self)
