"""Chooses which connection gives way when all places are taken and another client arrives: see `precedence`."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from tuplegate.http.precedence import Order, Standing

_LOOKS: Final = 16
"""All occupants are looked at again, if need be, when every `_LOOKS`th of them was used up, or in the next second. So a
flood of newcomers stays cheap."""


class Occupant(Protocol):
    def standing(self) -> Standing | None:
        """Return its state; None once it has no place any more."""

    def give_way(self) -> None:
        """Close at once."""


class Places:
    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._held: Counter[str] = Counter()
        """Places by owner."""
        self._ready: dict[str, list[tuple[Occupant, Standing]]] = {}
        """The occupants of each owner as they stood; the next to give way is the last of its list."""
        self._owners: list[tuple[int, Order, str]] = []
        """A heap: the owner with the most places first. An entry with another number than `_held` is out of date."""
        self._spent = 0
        """The most places of an owner none of whose occupants is known any more."""
        self._left = 0
        """How many of those known may be used up before the next look."""

    def forget(self) -> None:
        """Forget the occupants, who may be gone. Called once a second."""
        self._ready = {}
        self._owners = []
        self._left = 0

    def find(self, newcomer: str, occupants: Callable[[], Sequence[Occupant]]) -> Occupant | None:
        """Return who gives way to a newcomer of this owner. The caller must close it; it does not count as an occupant
        any more."""
        leaving = self._pop(in_order=True)
        if leaving is None:
            if self._left <= 0:
                self._look(occupants())
            leaving = self._pop(in_order=False)
        if leaving is not None:
            self._change(newcomer, 1)
        return leaving

    def _look(self, occupants: Sequence[Occupant]) -> None:
        ready: dict[str, list[tuple[Occupant, Standing]]] = defaultdict(list)
        for each in occupants:
            standing = each.standing()
            if standing is not None:
                ready[standing.owner].append((each, standing))
        for of_owner in ready.values():
            of_owner.sort(key=lambda one: one[1].order)
            of_owner.reverse()
        self._ready = dict(ready)
        self._held = Counter({owner: len(of_owner) for owner, of_owner in ready.items()})
        self._owners = [(-len(of_owner), of_owner[-1][1].order, owner) for owner, of_owner in ready.items()]
        heapify(self._owners)
        self._spent = 0
        self._left = len(occupants) // _LOOKS

    def _pop(self, *, in_order: bool) -> Occupant | None:
        """Return the next to give way; None if nobody is known to. If `in_order`, also None if it is the turn of an
        owner none of whose occupants is known any more."""
        while self._owners and (not in_order or -self._owners[0][0] >= self._spent):
            number, _, owner = heappop(self._owners)
            ready = self._ready[owner]
            if -number != self._held[owner] or not ready:
                continue
            occupant, stood = ready.pop()
            stands = occupant.standing()
            if stands is None or stands[:3] != stood[:3]:  # another owner or state: its time has not come
                self._left -= 1
                self._change(owner, 0)
            elif stood.gives_way(-number, self._places_max):
                self._left -= 1
                self._change(owner, -1)
                return occupant
            elif ready:
                self._change(owner, 0)
        return None

    def _change(self, owner: str, difference: int) -> None:
        held = self._held[owner] = self._held[owner] + difference
        if ready := self._ready.get(owner):
            heappush(self._owners, (-held, ready[-1][1].order, owner))
        else:
            self._spent = max(self._spent, held)
