"""Bounds the memory held for clients: bodies that are arriving, and answers that are not taken.

There is a bound for all of it, and one for each owner: an organization, or the address of a client whose key was not
seen yet. An owner at its bound is told `busy`, and not read from. When all memory is held, only owners that hold much
of it are refused; the others do not notice.

Strangers cannot take more than half, from however many addresses. If that is held and another stranger needs some, it
gets it from the others: connections of strangers are closed, those first whose holding has not changed for longest. So
nobody keeps strangers out, and all known owners were strangers first.
"""

import asyncio
import gc
from typing import Final

from tuplegate.http.sharing.stalls import cut_off
from tuplegate.protocol.errors import ServiceError

STRANGER: Final = "address "
"""The start of an owner's name while its key was not seen yet."""

_SHARE: Final = 4
"""One owner may hold a quarter of all memory, and strangers together a half."""
_STRANGERS_SHARE: Final = 2
_LITTLE: Final = 64
"""An organization that holds less than this part is not refused when all memory is held. Nor are strangers who hold
less together."""
_SLACK: Final = 4
"""When room is made for a stranger, a part of that little is made in addition, so that it need not be made for each."""
_COLLECTED_EVERY: Final = 32 * 2**20
"""Bytes given back between two runs of the garbage collector, which itself counts objects, however large."""


def stranger_at(transport: asyncio.BaseTransport) -> str:
    """Return the owner for whom memory is held until a key was seen."""
    peer = transport.get_extra_info("peername")
    return STRANGER + (peer[0] if isinstance(peer, tuple) else "")


class Memory:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._share = bytes_max // _SHARE
        self._strangers_share = bytes_max // _STRANGERS_SHARE
        self._little = bytes_max // _LITTLE
        self._slack = self._little // _SLACK
        self._held: dict[str, int] = {}
        self._strangers = 0
        """Bytes that strangers hold together."""
        self._strangers_holdings: dict[Holding, None] = {}
        """The holdings whose connection can be closed; the one that has not changed for longest is the first."""
        self._given_back = 0
        self.used = 0

    def take(self, owner: str, size: int) -> None:
        """Hold memory for the owner; `give_back` must follow. Raises busy."""
        if not self._may_hold(owner, size) and not (owner.startswith(STRANGER) and self._make_room(owner, size)):
            raise too_much_held()
        self.charge(owner, size)

    def _may_hold(self, owner: str, size: int) -> bool:
        held = self._held.get(owner, 0) + size
        if held > self._share:
            return False
        if owner.startswith(STRANGER):
            strangers = self._strangers + size
            return strangers <= self._strangers_share and (
                self.used + size <= self._bytes_max or strangers <= self._little
            )
        return self.used + size <= self._bytes_max or held <= self._little

    def _make_room(self, owner: str, size: int) -> bool:
        """Close connections of strangers until this one may hold `size` bytes. Return whether it may. An address at its
        bound makes room for itself."""
        if size > self._share:
            return False
        wanted = size + self._slack
        for is_of_owner in (True, False):
            for holding in list(self._strangers_holdings):
                if self._may_hold(owner, wanted):
                    return True
                if is_of_owner and self._held.get(owner, 0) + wanted <= self._share:
                    break
                if not is_of_owner or holding.owner == owner:
                    holding.cut_off()
            if self._held.get(owner, 0) + size > self._share:
                return False
        return self._may_hold(owner, size)

    def note_change(self, holding: "Holding") -> None:
        """Put the holding last among those that make room."""
        self._strangers_holdings.pop(holding, None)
        if holding.size and holding.can_be_cut_off and holding.owner.startswith(STRANGER):
            self._strangers_holdings[holding] = None

    def leave_out(self, holding: "Holding") -> None:
        """Do not close it to make room, until its next `note_change`."""
        self._strangers_holdings.pop(holding, None)

    def bound_strangers(self, owner: str) -> None:
        """Make room if a stranger was charged with more than may be held."""
        if owner.startswith(STRANGER) and not self._may_hold(owner, 0):
            self._make_room(owner, 0)

    def charge(self, owner: str, size: int) -> None:
        """Account for memory that is in use already; `give_back` must follow."""
        self.used += size
        self._held[owner] = self._held.get(owner, 0) + size
        if owner.startswith(STRANGER):
            self._strangers += size

    def give_back(self, owner: str, size: int) -> None:
        self.used -= size
        self._given_back += size
        if self._given_back > _COLLECTED_EVERY:
            self._given_back = 0
            asyncio.get_running_loop().call_soon(gc.collect)
        if owner.startswith(STRANGER):
            self._strangers -= size
        left = self._held[owner] - size
        if left:
            self._held[owner] = left
        else:
            del self._held[owner]

    def is_spent(self, owner: str) -> bool:
        """Return whether the owner holds so much that no request of it may begin."""
        if self.used == 0:
            return False
        held = self._held.get(owner, 0)
        return held > self._share or (self.used > self._bytes_max and held > self._little)


class Holding:
    """The memory that is held for one owner in one place. With a `transport`, it is closed where a stranger's holding
    must make room for others."""

    def __init__(self, memory: Memory, owner: str, transport: asyncio.Transport | None = None) -> None:
        self._memory = memory
        self._transport = transport
        self.owner = owner
        self.size = 0

    @property
    def can_be_cut_off(self) -> bool:
        return self._transport is not None

    def resize(self, size: int) -> None:
        """Hold `size` bytes from now on. Raises busy, and then holds as many as before."""
        more = size - self.size
        if more == 0:
            return
        memory = self._memory
        memory.leave_out(self)  # it is not closed to make room for itself
        try:
            if more > 0:
                memory.take(self.owner, more)
            else:
                memory.give_back(self.owner, -more)
            self.size = size
        finally:
            memory.note_change(self)

    def resize_for(self, owner: str, size: int) -> None:
        """Hold `size` bytes for this owner from now on. Raises busy, and then holds none."""
        if owner != self.owner:
            self.resize(0)
            self.owner = owner
        try:
            self.resize(size)
        except ServiceError:
            self.resize(0)
            raise

    def record(self, owner: str, size: int) -> None:
        """Record bytes that are in memory already, for this owner from now on. Never refused; but if strangers then
        hold too much, some are closed."""
        if owner == self.owner and size == self.size:
            return
        self.resize(0)
        self._memory.charge(owner, size)
        self.owner, self.size = owner, size
        self._memory.note_change(self)
        self._memory.bound_strangers(owner)

    def cut_off(self) -> None:
        """Close the connection, and hold nothing any more."""
        self.resize(0)
        if self._transport is not None:
            cut_off(self._transport)


def too_much_held() -> ServiceError:
    return ServiceError(
        "busy",
        "too much is being sent and received at once; the request was not run",
        hint="Read the answers that are waiting, or send less at a time.",
    )
