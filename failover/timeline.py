"""Draws from what probes saw how long nobody was served, and whether the service said so. Pure.

A probe's sample has the time at which its answer came, or at which it was given up. Clocks are the same for all.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

HEALTH_S = 5.0
"""What `/health` says may be untrue for that much time."""
UP_S = 1.0
"""Where two acknowledged writes are closer together than that, the cluster was there between them."""


@dataclass(frozen=True, slots=True)
class Span:
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def has(self, at: float) -> bool:
        return self.began <= at <= self.ended


def longest_gap(successes: Sequence[float], window: Span) -> Span:
    """The longest time without a success that touches the window; one that never ends lasts until the window does."""
    first = bisect_left(successes, window.began)
    last = bisect_right(successes, window.ended)
    times = list(successes[max(0, first - 1) : last + 1])
    if not times or times[0] > window.began:
        times.insert(0, window.began)
    if times[-1] < window.ended:
        times.append(window.ended)
    return max((Span(earlier, later) for earlier, later in pairwise(times)), key=lambda span: span.seconds)


def merged(parts: Iterable[Iterable[float]]) -> list[float]:
    """When any of several probes was served."""
    return sorted(at for part in parts for at in part)


def lies(says: Iterable[tuple[float, str]], writes: Sequence[float], excused: Sequence[Span]) -> list[str]:
    """Where health went on saying what was not true for more than `HEALTH_S`.

    `says` holds `ok`, `degraded`, `failing` or `nothing`, where there was no answer. `writes` are when the cluster
    itself has acknowledged one. In what is `excused` the node was down.
    """
    found: list[str] = []
    begun = ""
    since = 0.0
    for at, said in says:
        lie = "" if any(span.has(at) for span in excused) else _lie(said, at, writes)
        if lie != begun:
            begun, since = lie, at
        elif lie and at - since > HEALTH_S:
            found.append(f"{lie}, for {at - since:.1f} s")
            since = at
    return found


def _lie(said: str, at: float, writes: Sequence[float]) -> str:
    """What is not true of it, if anything."""
    later = bisect_right(writes, at)
    if later == 0 or later == len(writes):
        return ""  # nobody knows what was true
    is_up = writes[later] - writes[later - 1] <= UP_S
    if is_up:
        return f"says {said} while writes are possible" if said in ("failing", "nothing") else ""
    return "says ok while nobody can write" if said == "ok" else ""
