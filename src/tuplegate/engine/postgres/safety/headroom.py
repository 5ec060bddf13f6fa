"""Measures the rate at which transactions begin, and so the time that one may live before the engine forgets too
much."""

from collections import deque

from tuplegate.engine.port import Headroom
from tuplegate.engine.postgres.safety.guard import SerializableGuard

_WINDOW_S = 5.0
_STEP_S = 0.25


class BeginRate:
    """The begins of the last seconds. `sample` is called often, and keeps only some of the counts."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float, begun: int) -> None:
        samples = self._samples
        if samples and now - samples[-1][0] < _STEP_S:
            return
        samples.append((now, begun))
        while now - samples[0][0] > _WINDOW_S:
            samples.popleft()

    def per_second(self, now: float, begun: int) -> float:
        if not self._samples or now <= self._samples[0][0]:
            return 0.0
        since, count = self._samples[0]
        return (begun - count) / (now - since)


def compute_headroom(guard: SerializableGuard, rate: BeginRate, now: float) -> Headroom:
    per_second = rate.per_second(now, guard.begun)
    safe_seconds = round(guard.safe / per_second, 3) if per_second else None
    return Headroom(guard.slots, safe_seconds, guarded=guard.exclusive)
