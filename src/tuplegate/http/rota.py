"""Turns of connections, where all that have something to do would take too long together.

In one pass of the event loop a connection does little; but there can be thousands of them. So a pass in which much was
done already begins nothing more for strangers, and later for nobody: they are put on the rota. Each pass of the loop
has some of them, for a few milliseconds, and one owner's after another's: whoever opens many connections waits for
himself, not the others for him.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from tuplegate.http.memory import STRANGER

_STRANGERS_NS: Final = 4_000_000
_KNOWN_NS: Final = 40_000_000
"""Time after which a pass of the loop begins nothing more, for those without a key and for those with one."""


class Turn:
    """One that was asked for. `act` is None when it was had, or is not wanted any more."""

    __slots__ = ("act",)

    def __init__(self, act: Callable[[], None]) -> None:
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self.act = None


class Rota:
    """Of all connections of one loop."""

    def __init__(self) -> None:
        self._began_ns = 0
        """When the pass began; 0 where nothing was done in it yet."""
        self._is_scheduled = False
        self._waiting: dict[str, deque[Turn]] = {}
        self._asked = 0
        """How many wait."""

    def is_late(self, owner: str) -> bool:
        """Whether it should ask for a turn: in this pass too much was done already."""
        now = perf_counter_ns()
        if self._began_ns == 0:
            self._began_ns = now
            self._schedule()
            return False
        return now - self._began_ns > (_STRANGERS_NS if owner.startswith(STRANGER) else _KNOWN_NS)

    def ask(self, owner: str, act: Callable[[], None]) -> Turn:
        turn = Turn(act)
        turns = self._waiting.get(owner)
        if turns is None:
            turns = self._waiting[owner] = deque()
        turns.append(turn)
        self._asked += 1
        self._schedule()
        return turn

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_pass)

    def _begin_pass(self) -> None:
        """A new pass of the loop begins."""
        self._is_scheduled = False
        self._began_ns = 0
        if self._asked == 0:
            return
        began = perf_counter_ns()
        try:
            for _ in range(self._asked):  # who asks again meanwhile has its next turn in the next pass
                self._give_turn()
                if perf_counter_ns() - began > _STRANGERS_NS:
                    break
        finally:
            if self._asked:
                self._schedule()

    def _give_turn(self) -> None:
        """The owner's that has waited longest since its last one."""
        owner = next(iter(self._waiting))
        turns = self._waiting.pop(owner)
        turn = turns.popleft()
        self._asked -= 1
        if turns:
            self._waiting[owner] = turns
        act, turn.act = turn.act, None
        if act is not None:
            act()
