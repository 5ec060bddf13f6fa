"""Chooses which connection gives way when all places are taken and another client arrives.

It is one that only waits for its client, of the address with the most places. So nobody can keep others out by holding
connections, and an address with half of the places or more gets another only in exchange for one of its own. Of one
address, connections go in this order: those that never sent a request, the oldest first; those that have waited longest
between two requests; requests of strangers whose body does not arrive; strangers who do not take their answers, who has
taken nothing for longest first.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

_FEW: Final = 16
_PAUSE_S: Final = 1.0
"""After a look that found fewer than one in `_FEW`, the next look waits this long."""


class Occupant(Protocol):
    @property
    def address(self) -> str: ...

    def readiness(self) -> tuple[int, float] | None:
        """Return how readily it gives way, the least first; None while it is busy."""

    def give_way(self) -> None:
        """Close at once."""


class Places:
    """Looks through all occupants once for many newcomers, so that a flood of them stays cheap."""

    def __init__(self, places_max: int) -> None:
        self._half = max(1, places_max // 2)
        self._order: list[Occupant] = []
        """Occupants that can give way; the next one is the last of the list."""
        self._fresh = 0
        """How many of them are of addresses that still have the most places, whoever has arrived meanwhile."""
        self._taken: Counter[str] = Counter()
        self._not_before = 0.0

    def forget(self) -> None:
        """Forget the order of occupants, who may be gone. Called once a second."""
        self._order = []
        self._fresh = 0

    def find(self, newcomer: str, occupants: Callable[[], Sequence[Occupant]], now: float) -> Occupant | None:
        """Return who gives way to a newcomer of this address. The caller must close it; it does not count as an
        occupant any more."""
        while self._order and self._order[-1].readiness() is None:
            self._pop()
        if self._fresh == 0 and now >= self._not_before:
            self._look(occupants(), now)
        order = self._order
        if not order or (self._taken[newcomer] >= self._half and order[-1].address != newcomer):
            return None
        leaving = self._pop()
        self._taken[leaving.address] -= 1
        self._taken[newcomer] += 1
        return leaving

    def _look(self, occupants: Sequence[Occupant], now: float) -> None:
        self._taken = Counter(each.address for each in occupants)
        ready: dict[str, list[tuple[tuple[int, float], Occupant]]] = defaultdict(list)
        for each in occupants:
            readiness = each.readiness()
            if readiness is not None:
                ready[each.address].append((readiness, each))
        places: list[tuple[int, tuple[int, float], Occupant]] = []
        for address, of_address in ready.items():
            of_address.sort(key=lambda one: one[0])
            # The next one to go counts for one place more of its address than the one behind it.
            left = self._taken[address]
            places += [(left - number, *one) for number, one in enumerate(of_address)]
        places.sort(key=lambda one: (-one[0], one[1]), reverse=True)
        self._order = [one[2] for one in places]
        self._fresh = sum(2 * one[0] >= places[-1][0] for one in places)
        self._not_before = now if self._fresh * _FEW >= len(occupants) else now + _PAUSE_S

    def _pop(self) -> Occupant:
        self._fresh = max(0, self._fresh - 1)
        return self._order.pop()
