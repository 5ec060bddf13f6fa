"""The number of requests that an organization may send: tiers, fixed windows, and the headers that report them. Pure.

A window is a minute of the engine's clock, so that all workers and machines agree on it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tuplegate.access.limits import Layer, read_limit

WINDOW_S: Final = 60


@dataclass(frozen=True, slots=True)
class Tier:
    """The limits of a tier. `requests` is the number let through in a window, `bytes_max` the size of a database; None
    for no limit. `limits` are those that it sets itself."""

    name: str
    requests: int | None
    bytes_max: int | None = None
    limits: Layer = field(default_factory=dict)


_UNITS: Final = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_LIMIT: Final = re.compile(r"\s+(?=[a-z]+_[a-z_]+=)")
"""The separator before each further limit of a tier."""
_SIZE: Final = re.compile(r"([1-9][0-9]{0,8}) ?(KB|MB|GB|TB)")


def read_tiers(text: str) -> dict[str, Tier]:
    """Read tiers from a setting such as `free=200/1GB, pro=6000 export_timeout_ms=4h, big=/1TB, unlimited`. Raises
    ValueError."""
    tiers: dict[str, Tier] = {}
    for written in text.split(","):
        part, *limits = _LIMIT.split(written.strip())
        name, equals, bounds = (piece.strip() for piece in part.partition("="))
        if not name or not name.isidentifier() or name in tiers:
            raise ValueError(f"{part.strip()!r} is not a tier; write name=requests a minute/size, each name once")
        number, slash, size = (piece.strip() for piece in bounds.partition("/"))
        if equals and (number or not slash) and (not number.isdigit() or int(number) < 1):
            raise ValueError(f"the tier {name} cannot have {number!r} requests a minute; a whole number, at least 1")
        matched = _SIZE.fullmatch(size)
        if slash and matched is None:
            raise ValueError(
                f"the databases of the tier {name} cannot have {size!r}; write a size such as 500MB or 2GB"
            )
        bytes_max = None if matched is None else int(matched[1]) * _UNITS[matched[2]]
        tiers[name] = Tier(name, int(number) if number else None, bytes_max, _read_limits(limits))
    return tiers


def _read_limits(words: list[str]) -> Layer:
    return {name: read_limit(name, value) for name, _, value in (word.partition("=") for word in words)}


def find_tier(tiers: Mapping[str, Tier], name: str) -> Tier:
    """Return the tier of this name. A tier that is no longer in the settings has the lowest limit of all."""
    return tiers.get(name) or min(tiers.values(), key=lambda t: t.requests or float("inf"))


def write_policy_header(limit: int) -> bytes:
    return b'"requests";q=%d;w=%d' % (limit, WINDOW_S)


def write_state_header(remaining: int, seconds: int) -> bytes:
    return b'"requests";r=%d;t=%d' % (remaining, seconds)


def choose_portion(remaining: int, recent: int) -> int:
    """Return the number of permits that a worker takes at once from those that are left in the window.

    It takes as many as it used lately, so that it soon uses the permits that it holds, but never more than a sixteenth
    of those left: towards the end of a window every worker takes them one by one, and none withholds permits from the
    others.
    """
    return max(1, min(recent, remaining // 16))
