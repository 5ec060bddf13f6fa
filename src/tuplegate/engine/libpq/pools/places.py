"""Bounds a worker's connections to the engine: of all databases together, and of each organization."""

import math
from collections import Counter, deque
from collections.abc import Callable


class Places:
    """The places for the connections of all pools together, of which one owner has at most `of_one_max`.

    `make_room` closes a connection that has been idle since before a given time, if there is one. If given an owner, it
    only closes that owner's.
    """

    def __init__(self, places: int, of_one_max: int, make_room: Callable[[float, str | None], None]) -> None:
        self._free = places
        self._of_one_max = of_one_max
        self._make_room = make_room
        self._taken: Counter[str] = Counter()
        self._asking: deque[tuple[str, Callable[[], None]]] = deque()

    def of(self, owner: str) -> "OwnPlaces":
        return OwnPlaces(self, owner)

    def take(self, owner: str, idle_since: float) -> bool:
        """Take a free place, or close a connection that has been idle since before `idle_since` and take its place. An
        owner at its own bound can only replace an idle connection of its own."""
        if not self._may_have_more(owner):
            self._make_room(math.inf, owner)
        elif self._free == 0:
            self._make_room(idle_since, None)
        if self._free == 0 or not self._may_have_more(owner):
            return False
        self._free -= 1
        self._taken[owner] += 1
        return True

    def is_wanted(self, owner: str) -> bool:
        """Return whether a pool without any connection waits for a place that this owner has."""
        return any(asking == owner or self._may_have_more(asking) for asking, _ in self._asking)

    def ask(self, owner: str, found: Callable[[], None]) -> None:
        self._asking.append((owner, found))

    def give_back(self, owner: str) -> None:
        self._free += 1
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        for asked in self._asking:
            if self._may_have_more(asked[0]):
                self._asking.remove(asked)
                asked[1]()
                return

    def _may_have_more(self, owner: str) -> bool:
        return self._taken[owner] < self._of_one_max


class OwnPlaces:
    """The places as one owner takes and returns them."""

    def __init__(self, places: Places, owner: str) -> None:
        self._places = places
        self.owner = owner

    def take(self, idle_since: float = math.inf) -> bool:
        """Take a free place, or that of a connection that has been idle since before `idle_since`."""
        return self._places.take(self.owner, idle_since)

    @property
    def is_wanted(self) -> bool:
        """Return whether a pool without any connection waits for one of this owner's places."""
        return self._places.is_wanted(self.owner)

    def ask(self, found: Callable[[], None]) -> None:
        self._places.ask(self.owner, found)

    def give_back(self) -> None:
        self._places.give_back(self.owner)
