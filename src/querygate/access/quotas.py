"""How many requests an organization may send: tiers, fixed windows, and what the headers say of them. Pure.

A window is a minute of the engine's clock, so that all workers and machines agree on it.
"""

from dataclasses import dataclass

WINDOW_S = 60


@dataclass(frozen=True, slots=True)
class Tier:
    """`requests` is the number let through in a window; None for any number. `bytes_max` bounds a database."""

    name: str
    requests: int | None


def read_tiers(text: str) -> dict[str, Tier]:
    """Tiers from a setting such as `free=200, pro=6000, unlimited`. Raises ValueError."""
    tiers: dict[str, Tier] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not name or not name.isidentifier() or name in tiers:
            raise ValueError(f"{part.strip()!r} is not a tier; write name=requests a minute, each name once")
        if equals and (not number.isdigit() or int(number) < 1):
            raise ValueError(f"the tier {name} cannot have {number!r} requests a minute; a whole number, at least 1")
        tiers[name] = Tier(name, int(number) if equals else None)
    return tiers


def policy_header(limit: int) -> str:
    return f'"requests";q={limit};w={WINDOW_S}'


def state_header(remaining: int, seconds: int) -> str:
    return f'"requests";r={remaining};t={seconds}'


def portion(remaining: int, recent: int) -> int:
    """How many permits a worker takes at once from those that are left in the window.

    As many as it used of late, so that what it holds is soon used; never more than a sixteenth of what is left, so that
    towards the end of a window every worker takes them one by one and none is held back from the others.
    """
    return max(1, min(recent, remaining // 16))
