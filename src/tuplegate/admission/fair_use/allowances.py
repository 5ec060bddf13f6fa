"""Resolves the limits of an organization once: its own, those of its tier, and the settings."""

from collections.abc import Mapping
from typing import Final

import msgspec

from tuplegate.access.limits import Layer, find_limit, find_time_limit
from tuplegate.access.quotas import Tier, find_tier
from tuplegate.engine.port import Bounds
from tuplegate.protocol.time_limits import WorkKind

_CACHE_MAX: Final = 1000
_decode: Final = msgspec.json.Decoder(dict[str, int]).decode


class Allowance:
    """The limits of one organization. `bounds` are those of a request that asks for nothing, by the kind of work."""

    def __init__(self, layers: tuple[Layer, ...], answer_bytes_max: int) -> None:
        self._layers = layers
        limits = {kind: find_time_limit(kind, layers) for kind in WorkKind}
        self.bounds = {kind: Bounds(one.default_ms, None, answer_bytes_max, one) for kind, one in limits.items()}
        self.statement = self.bounds[WorkKind.STATEMENT]

    def find(self, name: str) -> int | None:
        """Return a limit by its name; None or 0 if there is none."""
        return find_limit(name, self._layers)


class Allowances:
    """Finds and caches allowances. `settings` holds every limit that a tier or an organization may change."""

    def __init__(self, settings: Layer, tiers: Mapping[str, Tier], answer_bytes_max: int) -> None:
        self._settings = settings
        self._tiers = tiers
        self._answer_bytes_max = answer_bytes_max
        self._found: dict[tuple[str, str], Allowance] = {}

    def find(self, tier: str, own: str = "{}") -> Allowance:
        """Return the limits of an organization of this tier; `own` are its own, as JSON."""
        found = self._found.get((tier, own))
        if found is None:
            if len(self._found) >= _CACHE_MAX:
                self._found.clear()
            layers = (_decode(own), find_tier(self._tiers, tier).limits, self._settings)
            found = self._found[tier, own] = Allowance(layers, self._answer_bytes_max)
        return found
