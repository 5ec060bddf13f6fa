"""Chooses the connection that gives way when all places are taken and another client arrives: see `precedence`."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from tuplegate.http.sharing.precedence import Order, Standing, have_too_much

_LOOKS: Final = 16
"""All occupants are looked at again, if need be, when every `_LOOKS`th of them was used up, or in the next second. So a
flood of newcomers stays cheap."""


class Occupant(Protocol):
    def standing(self) -> Standing | None:
        """Return its state; None once it has no place any more."""

    def give_way(self) -> None:
        """Close at once."""


Group = tuple[bool, str]
"""The owner of connections: whether it is known, and its name."""


class Places:
    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._held: Counter[Group] = Counter()
        self._strangers = 0
        """Places that all strangers hold."""
        self._ready: dict[Group, list[tuple[Occupant, Standing]]] = {}
        """The occupants of each owner as they stood; the next to give way is the last of its list."""
        self._owners: dict[bool, list[tuple[int, Order, Group]]] = {False: [], True: []}
        """Heaps of strangers and of known owners: the one with the most places first. An entry with another number than
        `_held` is out of date."""
        self._spent = {False: 0, True: 0}
        """The most places of an owner none of whose occupants is known any more."""
        self._left = 0
        """How many of those known may be used up before the next look."""

    def forget(self) -> None:
        """Forget the occupants, who may be gone. Called once a second."""
        self._ready = {}
        self._owners = {False: [], True: []}
        self._left = 0

    def find(self, newcomer: str, occupants: Callable[[], Sequence[Occupant]]) -> Occupant | None:
        """Return the occupant that gives way to a newcomer of this owner, which is a stranger. The caller must close
        it; it does not count as an occupant any more."""
        leaving = self._pop(in_order=True)
        if leaving is None:
            if self._left <= 0:
                self._look(occupants())
            leaving = self._pop(in_order=False)
        if leaving is not None:
            self._change((False, newcomer), 1)
        return leaving

    def _look(self, occupants: Sequence[Occupant]) -> None:
        ready: dict[Group, list[tuple[Occupant, Standing]]] = defaultdict(list)
        for each in occupants:
            standing = each.standing()
            if standing is not None:
                ready[standing.is_known, standing.owner].append((each, standing))
        self._owners = {False: [], True: []}
        for group, of_owner in ready.items():
            of_owner.sort(key=lambda one: one[1].order)
            of_owner.reverse()
            self._owners[group[0]].append((-len(of_owner), of_owner[-1][1].order, group))
        for heap in self._owners.values():
            heapify(heap)
        self._ready = dict(ready)
        self._held = Counter({group: len(of_owner) for group, of_owner in ready.items()})
        self._strangers = sum(held for (is_known, _), held in self._held.items() if not is_known)
        self._spent = {False: 0, True: 0}
        self._left = len(occupants) // _LOOKS

    def _next(self, *, in_order: bool) -> list[tuple[int, Order, Group]] | None:
        """Return the heap whose first owner's turn it is: that of strangers while they hold too much, otherwise that of
        the owner with the most. If `in_order`, None if none of the occupants of the owner in turn is known any more."""
        strangers, known = self._owners[False], self._owners[True]
        if have_too_much(self._strangers, self._places_max):
            heap, spent = strangers or known, self._spent[False]
        else:
            heap = min((heap for heap in (strangers, known) if heap), key=lambda heap: heap[0][:2], default=known)
            spent = max(self._spent.values())
        return heap if heap and (not in_order or -heap[0][0] >= spent) else None

    def _pop(self, *, in_order: bool) -> Occupant | None:
        """Return the next to give way; None if nobody is known to, or it is nobody's turn: see `_next`."""
        while (heap := self._next(in_order=in_order)) is not None:
            number, _, group = heappop(heap)
            ready = self._ready[group]
            if -number != self._held[group] or not ready:
                continue
            occupant, stood = ready.pop()
            stands = occupant.standing()
            if stands is None or stands[:3] != stood[:3]:  # another owner or state: its time has not come
                self._left -= 1
                self._change(group, 0)
            elif stood.gives_way(-number, self._places_max):
                self._left -= 1
                self._change(group, -1)
                return occupant
            elif ready:
                self._change(group, 0)
        return None

    def _change(self, group: Group, difference: int) -> None:
        is_known, _ = group
        held = self._held[group] = self._held[group] + difference
        if not is_known:
            self._strangers += difference
        if ready := self._ready.get(group):
            heappush(self._owners[is_known], (-held, ready[-1][1].order, group))
        else:
            self._spent[is_known] = max(self._spent[is_known], held)
