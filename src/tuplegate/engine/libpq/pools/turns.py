"""Gives turns to transactions that want the same few rows: concurrent tries would make more conflicts than commits.

While conflicts are rare, every transaction just tries. One that met a conflict tries again when its turn comes. When a
good share of all tries ends in a conflict, the database is hot: then every transaction that writes waits for its turn
before the first try, too, until hardly any try fails. A wait is short, so a slow transaction does not hold up others
for long.
"""

import asyncio
import random
from collections import deque
from typing import Final

_MEMORY: Final = 16
"""The approximate number of tries over which the share of conflicts is taken."""

_HOT, _COOL, _COLD = 0.35, 0.05, 0.001

_AT_ONCE: Final = 3
_PAUSE_BASE_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.1
_TURN_S: Final = 0.1


def choose_pause_s(attempt: int) -> float:
    """Return the pause before another try, for a transaction that need not wait for others: none after the first few
    tries, then longer and longer. The conflict may be with a commit that waits for the disk, and every try fails until
    that is done."""
    if attempt <= _AT_ONCE:
        return 0.0
    longest = min(_PAUSE_MAX_S, _PAUSE_BASE_S * 2 ** (attempt - _AT_ONCE))
    return random.uniform(0, longest)  # noqa: S311 - jitter


def choose_turn_s() -> float:
    """Return the longest time to wait for a turn."""
    return random.uniform(_TURN_S / 2, _TURN_S)  # noqa: S311 - jitter


class Turns:
    """The queue of one database. `heat` is the share of tries that end in a conflict."""

    def __init__(self) -> None:
        self.hot = False
        self.heat = 0.0
        self._taken = False
        self._waiting: deque[asyncio.Future[bool]] = deque()

    def note(self, *, conflict: bool) -> None:
        """Note whether a try of a transaction that writes ended in a conflict."""
        self.heat += (conflict - self.heat) / _MEMORY
        if self.heat < _COLD:
            self.heat = 0.0
        self.hot = self.heat > (_COOL if self.hot else _HOT)

    async def wait(self, at_most_s: float) -> bool:
        """Wait for a turn, which `leave` must end. Return false if the time is over."""
        if not self._taken:
            self._taken = True
            return True
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(turn)
        late = loop.call_later(at_most_s, _end, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave()
            raise
        finally:
            late.cancel()

    def leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._taken = False


def _end(turn: "asyncio.Future[bool]") -> None:
    if not turn.done():
        turn.set_result(False)
