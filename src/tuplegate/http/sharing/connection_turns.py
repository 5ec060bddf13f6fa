"""Gives connections their turns when all together have too much work for one pass of the event loop.

A connection does little in one pass of the event loop, but there can be thousands of them. So once a pass has done much
already, it begins nothing more for strangers, and later for nobody: they wait for turns. Each pass of the loop then
serves some of them, for a few milliseconds, one owner after another. An owner with many connections waits for itself;
the others do not wait for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from tuplegate.http.sharing.memory import STRANGER

_STRANGERS_NS: Final = 2_000_000
_KNOWN_NS: Final = 40_000_000
"""Time after which a pass of the loop begins nothing more, for clients without a key and for those with one. The first
may be twice as long: to notice every pass would cost every request more than to notice long ones a little later."""


class Turn:
    """A requested turn. `act` is None once it was taken or cancelled."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self.act = None


class ConnectionTurns:
    """The turns of all connections of one event loop."""

    def __init__(self) -> None:
        self._began_ns = 0
        """When the current pass began, or earlier; or up to `_STRANGERS_NS` later."""
        self._is_scheduled = False
        """`_begin_pass` is still to come, so the pass is the one in which it was scheduled."""
        self._waiting: dict[str, deque[Turn]] = {}
        self._asked = 0
        """The number of waiting turns."""

    def is_late(self, owner: str) -> bool:
        """Return whether the owner must ask for a turn, because this pass has done too much already."""
        now = perf_counter_ns()
        spent = now - self._began_ns
        if spent <= _STRANGERS_NS:
            return False
        if not self._is_scheduled:  # this may be another pass already
            self._began_ns = now
            self._schedule()
            return False
        return spent > _KNOWN_NS or owner.startswith(STRANGER)

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
        """Give turns for a few milliseconds, in a new pass of the loop."""
        self._is_scheduled = False
        if self._asked == 0:
            return
        began = self._began_ns = perf_counter_ns()
        try:
            for _ in range(self._asked):  # a turn that is asked for meanwhile comes in the next pass
                self._give_turn()
                if perf_counter_ns() - began > _STRANGERS_NS:
                    break
        finally:
            if self._asked:
                self._schedule()

    def _give_turn(self) -> None:
        """Give a turn to the owner that has waited longest since its last one."""
        owner = next(iter(self._waiting))
        turns = self._waiting.pop(owner)
        turn = turns.popleft()
        self._asked -= 1
        if turns:
            self._waiting[owner] = turns
        act, turn.act = turn.act, None
        if act is not None:
            act()
