"""Collects the counts of the engine's side."""

from tuplegate.engine import port
from tuplegate.engine.libpq.measures import Measures
from tuplegate.engine.postgres.pool import Pool


def collect_counts(
    kinds: tuple[Measures, ...],
    events: dict[str, int],
    pools: list[Pool],
    connections_max: int,
    stuck: int,
    headroom: port.Headroom,
) -> port.Measured:
    """Return all counts, named as in the table of metrics."""
    for kind in kinds:
        events = events | kind.events
    gauges = {
        "engine_connections open": sum(pool.size for pool in pools),
        "engine_connections idle": sum(pool.idle for pool in pools),
        "engine_connections_waiting": sum(pool.waiting for pool in pools),
        "engine_connections_max": connections_max,
        "engine_processes_stuck": stuck,
        "serializable_slots": headroom.slots,
        "serializable_safe_seconds": float("inf") if headroom.safe_seconds is None else headroom.safe_seconds,
        "serializable_guarded": int(headroom.guarded),
    }
    return port.Measured({kind.kind: list(kind.seconds) for kind in kinds}, events, gauges)
