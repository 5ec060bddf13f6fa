"""Counts the attempts of each kind of work, how long they took and how they failed."""

from collections.abc import Sequence

from tuplegate.engine.libpq.pools.pool import ConnectionPool
from tuplegate.engine.port import Measured
from tuplegate.metrics.cells import Cell, new_cell, observe


class Measures:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.seconds: Cell = new_cell()
        self.attempts = 0
        self.conflicts = 0
        self.retries = 0

    def conflict(self, exec_us: int) -> None:
        self.conflicts += 1
        observe(self.seconds, exec_us * 1000)

    @property
    def events(self) -> dict[str, int]:
        return {
            f"attempts_total {self.kind}": self.attempts,
            f"conflicts_total {self.kind}": self.conflicts,
            f"retries_total {self.kind}": self.retries,
        }


def collect_counts(
    kinds: tuple[Measures, ...], events: dict[str, int], pools: Sequence[ConnectionPool], connections_max: int
) -> Measured:
    """Return the counts that every engine has, named as in the table of metrics."""
    for kind in kinds:
        events = events | kind.events
    gauges: dict[str, float] = {
        "engine_connections open": sum(pool.size for pool in pools),
        "engine_connections idle": sum(pool.idle for pool in pools),
        "engine_connections_waiting": sum(pool.waiting for pool in pools),
        "engine_connections_max": connections_max,
    }
    return Measured({kind.kind: list(kind.seconds) for kind in kinds}, events, gauges)
