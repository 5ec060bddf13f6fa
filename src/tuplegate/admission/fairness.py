"""Organizations share a worker fairly: what one sends in excess waits in its own lane, not in front of the others.

An organization alone may have many statements running. As soon as a second one is there, all together get only as many
as the machine works on at a time, in equal shares: whoever comes then finds the engine and the event loop with little
in hand, and is served next. Whoever has sent little never waits. A lane's queue is bounded; beyond it the answer is
`busy`.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from tuplegate.direct_future import DirectFuture
from tuplegate.protocol.errors import ServiceError

_TICK_S: Final = 0.1
"""An organization counts as there for as long after its last request, up to twice that."""

_KEPT_TICKS: Final = 100
"""A lane that nobody was in for so long is forgotten. It is longer than an identity holds on to it: else an
organization would have two, each with a share of its own."""

_LEAST: Final = 2


class _Waiting:
    """A request that waits for its turn, until a tick."""

    __slots__ = ("turn", "until")

    def __init__(self, turn: DirectFuture[None], until: int) -> None:
        self.turn = turn
        self.until = until


class Lane:
    """The requests of one organization in this worker."""

    __slots__ = ("_is_opening", "_lanes", "_seen", "_waiting", "kept_until", "running")

    def __init__(self, lanes: "Lanes") -> None:
        self._lanes = lanes
        self._seen = -1
        self._is_opening = False
        """Those who wait are let in when the loop has seen to what it has in hand."""
        self.kept_until = 0
        self._waiting: deque[_Waiting] = deque()
        self.running = 0

    def enter(self) -> bool:
        """Whether a request may go on at once; if so, `leave` must follow."""
        self._mark_seen()
        if self.running < self._lanes.share and not self._waiting:
            self.running += 1
            return True
        return False

    async def wait(self) -> None:
        """Wait for the turn of one that could not enter; `leave` must follow. Raises busy."""
        if len(self._waiting) >= self._lanes.queue_max:
            raise ServiceError("busy", f"{self._lanes.queue_max} requests of the organization are waiting already")
        turn: DirectFuture[None] = DirectFuture(asyncio.get_running_loop())
        waiting = _Waiting(turn, self._lanes.tick + self._lanes.patience_ticks)
        self._waiting.append(waiting)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:  # its turn had come just then
                self.leave()
            with suppress(ValueError):  # it may have been turned away, or passed over, just then
                self._waiting.remove(waiting)
            raise

    def leave(self) -> None:
        """Whoever waits is let in together with others, as soon as the loop has seen to what it has in hand: to do the
        same for many, one after the other, takes two thirds of the time that it takes in turns with other things."""
        self.running -= 1
        if self._waiting and not self._is_opening:
            self._is_opening = True
            asyncio.get_running_loop().call_soon(self.let_in)

    def let_in(self) -> None:
        """Give a turn to as many as there is room for."""
        self._is_opening = False
        while self._waiting and self.running < self._lanes.share:
            turn = self._waiting.popleft().turn
            if not turn.done():
                self.running += 1
                turn.hand_over(None)

    def turn_away(self) -> None:
        """End the wait of those whose time is over."""
        while self._waiting and self._waiting[0].until < self._lanes.tick:
            turn = self._waiting.popleft().turn
            if not turn.done():
                turn.set_exception_soon(ServiceError("busy", "the organization has too many statements running"))

    def end(self) -> None:
        """Nobody's turn will come."""
        for waiting in self._waiting:
            if not waiting.turn.done():
                stopping = ServiceError("shutting_down", "the service is stopping; the request was not run")
                waiting.turn.set_exception_soon(stopping)

    def _mark_seen(self) -> None:
        """The organization is there."""
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
    """`alone_max` is what one organization may have running, `together` what all may while there are several.

    `patience_s` is how long a request waits for its turn.
    """

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

    def find_lane(self, organization: str) -> Lane:
        lane = self._lanes.get(organization)
        if lane is None:
            lane = self._lanes[organization] = Lane(self)
        lane.kept_until = self.tick + _KEPT_TICKS
        return lane

    def count_organization(self) -> None:
        """One more organization has sent something since the last tick."""
        self._there += 1
        self._set_share()

    async def watch(self) -> None:
        """Goes on for ever."""
        while True:
            await asyncio.sleep(_TICK_S)
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
        """The service stops, and it is too late for those who wait."""
        for lane in self._lanes.values():
            lane.end()

    @property
    def running(self) -> int:
        return sum(lane.running for lane in self._lanes.values())

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self._lanes.values())

    def _set_share(self) -> None:
        there = max(self._there, self._there_before)
        self.share = self._alone_max if there <= 1 else min(self._alone_max, max(_LEAST, self._together // there))
