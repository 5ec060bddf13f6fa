"""Organizations share a worker fairly: what one sends in excess waits in its own lane, not in front of the others.

An organization alone may have many statements running. As soon as a second one is there, all together get only as many
as the machine works on at a time, in equal shares: whoever comes then finds the engine and the event loop with little
in hand, and is served next. Whoever has sent little never waits. A lane's queue is bounded; beyond it the answer is
`busy`.

A request that is known to need its turn before anything was done for it waits as it is, which costs less where there
are many (docs/profile.md). The others wait inside their handler.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from tuplegate.http.exchange import Exchange, Gate
from tuplegate.protocol.errors import ServiceError
from tuplegate.reply import Reply

_TICK_S: Final = 0.1
"""An organization counts as there for as long after its last request, up to twice that."""

_KEPT_TICKS: Final = 100
"""A lane that nobody was in for so long is forgotten. It is longer than an identity holds on to it: else an
organization would have two, each with a share of its own. A head may hold one for longer, but an empty one detains
nobody."""

_LEAST: Final = 2


class Lane(Gate):
    """The requests of one organization in this worker."""

    __slots__ = ("_lanes", "_letting_in", "_seen", "_waiting", "kept_until", "running")

    def __init__(self, lanes: "Lanes") -> None:
        self._lanes = lanes
        self._seen = -1
        self.kept_until = 0
        self._waiting: deque[Exchange] = deque()
        self._letting_in = False
        self.running = 0

    def enter(self, exchange: Exchange) -> bool:
        """Whether the request may go on at once; if so, `leave` must follow."""
        if exchange.place is self:
            exchange.place = None
            return True
        self._note()
        if self.running < self._lanes.share and not self._waiting:
            self.running += 1
            return True
        return False

    def detain(self, exchange: Exchange) -> bool:
        """Whether the request cannot enter now. Then it is begun when it can, or when its time is over."""
        waiting = self._waiting
        if (self.running < self._lanes.share and not waiting) or len(waiting) >= self._lanes.queue_max:
            return False
        self._note()
        exchange.waits_at = self
        self._queue(exchange)
        return True

    def forget(self, exchange: Exchange) -> None:
        self._waiting.remove(exchange)

    async def wait(self, exchange: Exchange) -> None:
        """Waits for its turn; `leave` must follow. Raises busy."""
        if exchange.out_of_time:
            raise _out_of_time()
        if len(self._waiting) >= self._lanes.queue_max:
            raise ServiceError("busy", f"{self._lanes.queue_max} requests of the organization are waiting already")
        turn: Reply[None] = Reply(asyncio.get_running_loop())
        exchange.turn = turn
        self._queue(exchange)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # its turn had come just then
                self.leave()
            else:
                with suppress(ValueError):  # it may have been turned away, or passed over, just then
                    self.forget(exchange)
            raise

    def leave(self) -> None:
        self.running -= 1
        if self._waiting:
            self.let_in()

    def let_in(self) -> None:
        """Gives a turn to as many as there is room for."""
        if self._letting_in:
            return  # one that was let in has left at once; whoever let it in goes on with the next
        self._letting_in = True
        try:
            while self._waiting and self.running < self._lanes.share:
                exchange = self._waiting.popleft()
                turn = exchange.turn
                if turn is None:
                    # Before it enters its token may have to be looked up, or it is refused: the place is its own.
                    self.running += 1
                    exchange.waits_at, exchange.place = None, self
                    exchange.begin()
                elif not turn.done():
                    self.running += 1
                    turn.hand_over(None)
        finally:
            self._letting_in = False

    def turn_away(self) -> None:
        """Ends the wait of those whose time is over."""
        while self._waiting and self._waiting[0].waits_until < self._lanes.tick:
            exchange = self._waiting.popleft()
            turn = exchange.turn
            if turn is None:
                exchange.waits_at, exchange.out_of_time = None, True
                exchange.begin()
            elif not turn.done():
                turn.set_exception_soon(_out_of_time())

    def _queue(self, exchange: Exchange) -> None:
        exchange.waits_until = self._lanes.tick + self._lanes.patience_ticks
        self._waiting.append(exchange)

    def _note(self) -> None:
        """The organization is there."""
        lanes = self._lanes
        if self._seen != lanes.tick:
            self._seen = lanes.tick
            self.kept_until = lanes.tick + _KEPT_TICKS
            lanes.noted()

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

    def of(self, organization: str) -> Lane:
        lane = self._lanes.get(organization)
        if lane is None:
            lane = self._lanes[organization] = Lane(self)
        lane.kept_until = self.tick + _KEPT_TICKS
        return lane

    def noted(self) -> None:
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

    @property
    def running(self) -> int:
        return sum(lane.running for lane in self._lanes.values())

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self._lanes.values())

    def _set_share(self) -> None:
        there = max(self._there, self._there_before)
        self.share = self._alone_max if there <= 1 else min(self._alone_max, max(_LEAST, self._together // there))


def _out_of_time() -> ServiceError:
    return ServiceError("busy", "the organization has too many statements running")
