"""Organizations share a worker fairly: excess requests of one wait in its own lane, not in front of the others.

A single active organization may have many statements running. As soon as a second one is active, all together get only
as many as the machine works on at a time, in equal shares. So a newcomer finds the engine and the event loop with
little to do, and is served next. An organization that has sent little never waits. The queue of a lane is bounded;
beyond that the answer is `busy`.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from tuplegate.background import tick
from tuplegate.direct_future import DirectFuture
from tuplegate.protocol.errors import ServiceError

_TICK_S: Final = 0.1
"""An organization counts as active for one to two ticks after its last request."""

_KEPT_TICKS: Final = 100
"""A lane that was empty for this long is forgotten. Identities refer to it for less: otherwise an organization could
have two lanes, each with its own share."""

_LEAST: Final = 2


class _Waiting:
    """A request that waits for its turn, until a tick."""

    def __init__(self, turn: DirectFuture[None], until: int) -> None:
        self.turn = turn
        self.until = until


class Lane:
    """The requests of one organization in this worker."""

    def __init__(self, lanes: "Lanes") -> None:
        self._lanes = lanes
        self._seen = -1
        self._is_opening = False
        """Set while `let_in` is scheduled."""
        self.kept_until = 0
        self._waiting: deque[_Waiting] = deque()
        self.running = 0

    def enter(self) -> bool:
        """Return whether a request may run at once; if so, `leave` must follow."""
        self._mark_seen()
        if self.running < self._lanes.share and not self._waiting:
            self.running += 1
            return True
        return False

    async def wait(self) -> None:
        """Wait for a turn after `enter` returned False; `leave` must follow. Raises busy."""
        if len(self._waiting) >= self._lanes.queue_max:
            raise ServiceError("busy", f"{self._lanes.queue_max} requests of the organization are waiting already")
        turn: DirectFuture[None] = DirectFuture(asyncio.get_running_loop())
        waiting = _Waiting(turn, self._lanes.tick + self._lanes.patience_ticks)
        self._waiting.append(waiting)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:  # its turn had just come
                self.leave()
            with suppress(ValueError):  # it may just have been turned away or skipped
                self._waiting.remove(waiting)
            raise

    def leave(self) -> None:
        """End a request, and let waiting ones in once the loop has done its pending work. They are let in together:
        serving many of one kind in a row takes two thirds of the time that it takes in between other work."""
        self.running -= 1
        if self._waiting and not self._is_opening:
            self._is_opening = True
            asyncio.get_running_loop().call_soon(self.let_in)

    def let_in(self) -> None:
        """Give a turn to as many requests as the share allows."""
        self._is_opening = False
        while self._waiting and self.running < self._lanes.share:
            turn = self._waiting.popleft().turn
            if not turn.done():
                self.running += 1
                turn.hand_over(None)

    def turn_away(self) -> None:
        """Refuse the requests that have waited too long."""
        while self._waiting and self._waiting[0].until < self._lanes.tick:
            turn = self._waiting.popleft().turn
            if not turn.done():
                turn.set_exception_soon(ServiceError("busy", "the organization has too many statements running"))

    def end(self) -> None:
        """Refuse all that wait, because the service stops."""
        for waiting in self._waiting:
            if not waiting.turn.done():
                stopping = ServiceError("shutting_down", "the service is stopping; the request was not run")
                waiting.turn.set_exception_soon(stopping)

    def _mark_seen(self) -> None:
        """Note that the organization is active."""
        lanes = self._lanes
        if self._seen != lanes.tick:
            self._seen = lanes.tick
            self.kept_until = lanes.tick + _KEPT_TICKS
            lanes.count_organization()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_unused(self) -> bool:
        return self.running == 0 and not self._waiting and self.kept_until < self._lanes.tick


class Lanes:
    """`alone_max` is how many requests a single active organization may have running; `together` is how many all may
    have while several are active. `patience_s` is how long a request waits for its turn."""

    def __init__(self, alone_max: int, together: int, queue_max: int, patience_s: float) -> None:
        self.patience_ticks = round(patience_s / _TICK_S)
        self._alone_max = alone_max
        self._together = together
        self.queue_max = queue_max
        self.tick = 0
        self.share = alone_max
        self._there = 0
        self._there_before = 0
        self._lanes: dict[str, Lane] = {}
        self._is_used = asyncio.Event()

    def find_lane(self, organization: str) -> Lane:
        lane = self._lanes.get(organization)
        if lane is None:
            lane = self._lanes[organization] = Lane(self)
            self._is_used.set()
        lane.kept_until = self.tick + _KEPT_TICKS
        return lane

    def count_organization(self) -> None:
        """Count an organization that has sent its first request since the last tick."""
        self._there += 1
        self._set_share()
        self._is_used.set()

    async def watch(self) -> None:
        """Run for ever; rest while nobody is there. Lanes are kept meanwhile."""
        while True:
            if not self._there and not self._there_before and not self._is_busy:
                self._is_used.clear()
                await self._is_used.wait()
            await tick(_TICK_S)
            self.pass_tick()

    def pass_tick(self) -> None:
        self.tick += 1
        self._there_before, self._there = self._there, 0
        self._set_share()
        for name, lane in list(self._lanes.items()):
            lane.turn_away()
            lane.let_in()
            if lane.is_unused:
                del self._lanes[name]

    def end(self) -> None:
        """Refuse all that wait, because the service stops."""
        for lane in self._lanes.values():
            lane.end()

    @property
    def running(self) -> int:
        return sum(lane.running for lane in self._lanes.values())

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self._lanes.values())

    @property
    def _is_busy(self) -> bool:
        return any(lane.running or lane.waiting for lane in self._lanes.values())

    def _set_share(self) -> None:
        there = max(self._there, self._there_before)
        self.share = self._alone_max if there <= 1 else min(self._alone_max, max(_LEAST, self._together // there))
