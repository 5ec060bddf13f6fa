"""Gives turns to those who want the same few rows: trying at the same time makes more conflicts than commits.

As long as conflicts are rare everybody just tries. Who has met one tries again when its turn comes. When a good share
of all tries ends in a conflict the database is hot, and who writes there waits for its turn before the first try, too,
until hardly any try fails any more. Nobody waits longer than a moment: what is slow holds nobody up for long.
"""

import asyncio
import random
from collections import deque
from typing import Final

_MEMORY: Final = 16
"""About how many tries the share of conflicts is taken over."""

_HOT, _COOL, _COLD = 0.35, 0.05, 0.001

_AT_ONCE: Final = 3
_PAUSE_BASE_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.1
_TURN_S: Final = 0.1


def choose_pause_s(attempt: int) -> float:
    """Return how long to pause before another try, for who need not wait for others: not at all after the first few,
    then longer and longer. What it conflicts with may be a commit that waits for the disk, and fails every try until it
    is done."""
    if attempt <= _AT_ONCE:
        return 0.0
    longest = min(_PAUSE_MAX_S, _PAUSE_BASE_S * 2 ** (attempt - _AT_ONCE))
    return random.uniform(0, longest)  # noqa: S311 - jitter


def choose_turn_s() -> float:
    """Return how long to wait for a turn at most."""
    return random.uniform(_TURN_S / 2, _TURN_S)  # noqa: S311 - jitter


class Turns:
    """The queue of one database. `heat` is the share of tries that end in a conflict."""

    def __init__(self) -> None:
        self.hot = False
        self.heat = 0.0
        self._taken = False
        self._waiting: deque[asyncio.Future[bool]] = deque()

    def note(self, *, conflict: bool) -> None:
        """Note how a try of something that writes has ended."""
        self.heat += (conflict - self.heat) / _MEMORY
        if self.heat < _COLD:
            self.heat = 0.0
        self.hot = self.heat > (_COOL if self.hot else _HOT)

    async def wait(self, at_most_s: float) -> bool:
        """Wait for a turn, which `leave` must end. Return false where the time is over."""
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
