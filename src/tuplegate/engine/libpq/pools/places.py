"""Bounds the connections of a worker to the engine, over all databases together, and over those of one organization."""

import math
from collections import Counter, deque
from collections.abc import Callable


class Places:
    """The places for the connections of all pools together, of which one owner has at most `of_one_max`.

    `make_room` closes a connection of some pool that has been idle since before a given time; where it is told an
    owner, one of that owner's.
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
        """Take a free place, or that of a connection that has been idle since before then: of the same owner's, where
        it has as many as it may have."""
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
    """The places of one owner, which are some of all."""

    def __init__(self, places: Places, owner: str) -> None:
        self._places = places
        self.owner = owner

    def take(self, idle_since: float = math.inf) -> bool:
        """Take a free place, or that of a connection that has been idle since before then."""
        return self._places.take(self.owner, idle_since)

    @property
    def is_wanted(self) -> bool:
        """Return whether a pool without any connection waits for one of these places."""
        return self._places.is_wanted(self.owner)

    def ask(self, found: Callable[[], None]) -> None:
        self._places.ask(self.owner, found)

    def give_back(self) -> None:
        self._places.give_back(self.owner)
