"""Bounds the connections of a worker to the engine, over all databases together."""

import math
from collections import deque
from collections.abc import Callable


class Places:
    """The places for the connections of all pools together.

    `make_room` closes one of some pool that has been idle since before a given time.
    """

    def __init__(self, places: int, make_room: Callable[[float], None]) -> None:
        self._free = places
        self._make_room = make_room
        self._asking: deque[Callable[[], None]] = deque()

    def take(self, idle_since: float = math.inf) -> bool:
        """Take a free place, or that of a connection that has been idle since before then."""
        if self._free == 0:
            self._make_room(idle_since)
        if self._free == 0:
            return False
        self._free -= 1
        return True

    @property
    def is_wanted(self) -> bool:
        """Return whether a pool without any connection waits for a place."""
        return bool(self._asking)

    def ask(self, found: Callable[[], None]) -> None:
        self._asking.append(found)

    def give_back(self) -> None:
        self._free += 1
        if self._asking:
            self._asking.popleft()()
