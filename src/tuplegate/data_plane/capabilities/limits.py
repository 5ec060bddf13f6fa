"""The limits in force: every whole number among the settings, except those about the machine."""

from tuplegate.access.quotas import read_tiers
from tuplegate.data_plane.bench import CONCURRENCY_MAX, SECONDS_MAX
from tuplegate.data_plane.storage_test import BYTES_MAX
from tuplegate.engine import port
from tuplegate.settings import Settings, list_settings

_NOT_LIMITS = frozenset({"data_port", "alias_port", "control_port", "engine_shared_buffers_mb"})


def list_limits(settings: Settings, engine: port.Engine) -> dict[str, object]:
    """Return the limits by the names of the settings, which include their units."""
    numbers = {
        setting.name: getattr(settings, setting.name)
        for setting in list_settings()
        if setting.kind is int and setting.name not in _NOT_LIMITS
    }
    return {
        **numbers,
        "tiers": {tier.name: {"requests_per_minute": tier.requests} for tier in read_tiers(settings.tiers).values()},
        "bench_seconds_max": SECONDS_MAX,
        "bench_concurrency_max": CONCURRENCY_MAX,
        "storage_test_bytes_max": BYTES_MAX,
        "serializable": engine.serializable_headroom(),
    }
