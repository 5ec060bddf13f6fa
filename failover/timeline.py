"""Draws from what probes saw how long nobody was served, and whether the service said so. Pure.

A probe's sample has the time at which its answer came, or at which it was given up. Clocks are the same for all.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

HEALTH_S = 5.0
"""After that much time `/health` must tell the truth."""
EARLY_S = 2.0
"""Health may know that much earlier than a probe, which has to give up first and to connect again."""
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
    """Where health said what had not been true for `HEALTH_S`.

    `says` holds `ok`, `degraded`, `failing` or `nothing`, where there was no answer. `writes` are when the cluster
    itself has acknowledged one. In what is `excused` the node was down.
    """
    found = []
    for at, said in says:
        if any(span.has(at) for span in excused):
            continue
        later = bisect_right(writes, at)
        if later == 0 or later == len(writes):
            continue  # nobody knows what was true
        since = at - writes[later - 1]
        if since > HEALTH_S and writes[later] - at > EARLY_S and said == "ok":
            found.append(f"says ok {since:.1f} s after the last write that anybody could make")
        recent = writes[max(0, bisect_right(writes, at - HEALTH_S) - 1) : later + 1]
        is_up = recent[0] <= at - HEALTH_S and all(b - a <= UP_S for a, b in pairwise(recent))
        if is_up and said in ("failing", "nothing"):
            found.append(f"says {said} though writes have been possible for {HEALTH_S:g} s")
    return found
