"""Who gives way when all places for connections are taken, and another client comes.

It is one that waits for nothing but its client, of the address that has the most places: so nobody keeps the others out
by holding connections, and an address that has half of the places or more gets another only in exchange for one of its
own. Of an address, those go first that have never asked anything, the oldest first; then those that have waited longest
between two requests; then requests of strangers whose body does not come.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

_FEW: Final = 16
_PAUSE_S: Final = 1.0
"""Where one look has found fewer than one in so many, the next one is not before so long."""


class Occupant(Protocol):
    @property
    def address(self) -> str: ...

    def readiness(self) -> tuple[int, float] | None:
        """Return how readily it gives way, the least first; None where there is something to do for it."""

    def close(self) -> None: ...


class Places:
    """Looks through all occupants once for many newcomers: a flood of them must not cost more than it does anyway."""

    def __init__(self, places_max: int) -> None:
        self._half = max(1, places_max // 2)
        self._order: list[Occupant] = []
        """Those who can give way, the first one last."""
        self._fresh = 0
        """So many of them are of addresses that still have the most places, whoever has come meanwhile."""
        self._taken: Counter[str] = Counter()
        self._not_before = 0.0

    def forget(self) -> None:
        """Once a second: those that were found may be gone."""
        self._order = []
        self._fresh = 0

    def find(self, newcomer: str, occupants: Callable[[], Sequence[Occupant]], now: float) -> Occupant | None:
        """Return who is to give way to one of this address: it has to be closed, and is an occupant no more."""
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
            # Whoever is to go next counts for one place more of its address than the one behind it.
            left = self._taken[address]
            places += [(left - number, *one) for number, one in enumerate(of_address)]
        places.sort(key=lambda one: (-one[0], one[1]), reverse=True)
        self._order = [one[2] for one in places]
        self._fresh = sum(2 * one[0] >= places[-1][0] for one in places)
        self._not_before = now if self._fresh * _FEW >= len(occupants) else now + _PAUSE_S

    def _pop(self) -> Occupant:
        self._fresh = max(0, self._fresh - 1)
        return self._order.pop()
