"""Limits for everybody, for a tier, or for one organization; the most specific one counts. Pure.

A limit has the name of its setting. A layer holds the limits that are set in one place: `settings` holds all of them, a
tier and an organization some. Layers are given with the most specific one first, so limits of a key would be another
layer in front of its organization's.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tuplegate.protocol.time_limits import TimeLimit, WorkKind

Layer = Mapping[str, int]

_TIMES: Final = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}
_SIZES: Final = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
LIMITS: Final[dict[str, Mapping[str, int]]] = {
    **{f"{kind}_timeout_ms{end}": _TIMES for kind in WorkKind for end in ("", "_max")},
    "organization_bytes_max": _SIZES,
    "databases_per_organization": {},
}
"""The limits that a tier or an organization can have, with the units that their texts may have."""

MOST: Final = 2**53
_VALUE: Final = re.compile(r"([0-9]{1,15}) ?([A-Za-z]*)")


def read_limit(name: str, text: str) -> int:
    """Read a limit such as `5min` or `20GB`. Raises ValueError."""
    units = LIMITS.get(name)
    if units is None:
        raise ValueError(f"there is no limit {name!r}; there are {', '.join(LIMITS)}")
    found = _VALUE.fullmatch(text)
    factor = 1 if found is not None and not found[2] else units.get(found[2]) if found is not None else None
    if found is None or factor is None:
        shown = f", or one with {', '.join(units)} behind it" if units else ""
        raise ValueError(f"{name} cannot be {text!r}; it takes a whole number{shown}")
    return check_limit(name, int(found[1]) * factor)


def check_limit(name: str, value: int) -> int:
    """Return the value of a limit. Raises ValueError if the limit is unknown or cannot have that value."""
    if name not in LIMITS:
        raise ValueError(f"there is no limit {name!r}; there are {', '.join(LIMITS)}")
    if not 1 <= value <= MOST:
        raise ValueError(f"{name} cannot be {value}; it takes 1 to {MOST}")
    return value


def find_limit(name: str, layers: Sequence[Layer]) -> int | None:
    return next((layer[name] for layer in layers if name in layer), None)


def bound_database(bytes_max: int | None, organization_bytes_max: int | None, others: int) -> int | None:
    """Return the bound on a database's size, given the size of its organization's other databases; None for no
    bound."""
    if not organization_bytes_max:
        return bytes_max
    left = max(1, organization_bytes_max - others)
    return left if bytes_max is None else min(bytes_max, left)


def find_time_limit(kind: WorkKind, layers: Sequence[Layer]) -> TimeLimit:
    """Return the time limit of this kind of work.

    A layer overrules all layers behind it. So a time that it sets raises a less specific maximum, and a maximum that it
    sets lowers a less specific time.
    """
    default: int | None = None
    most: int | None = None
    name = f"{kind}_timeout_ms"
    for layer in layers:
        if default is None and name in layer:
            default = layer[name] if most is None else min(layer[name], most)
        if most is None and f"{name}_max" in layer:
            most = layer[f"{name}_max"] if default is None else max(layer[f"{name}_max"], default)
    assert default is not None, "the settings have every limit"
    assert most is not None, "the settings have every limit"
    return TimeLimit(kind, default, most)
