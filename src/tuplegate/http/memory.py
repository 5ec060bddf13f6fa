"""Bounds the memory held for clients: bodies that are arriving, and answers that are not taken.

There is a bound for all of it, and one for each owner: an organization, or the address of a client whose key was not
seen yet. An owner at its bound is told `busy`, and not read from. When all memory is held, only owners that hold much
of it are refused; the others do not notice. Strangers cannot take more than half, from however many addresses.
"""

import asyncio
import gc
from typing import Final

from tuplegate.protocol.errors import ServiceError

STRANGER: Final = "address "
"""The start of an owner's name while its key was not seen yet."""

_SHARE: Final = 4
"""One owner may hold a quarter of all memory, and strangers together a half."""
_STRANGERS_SHARE: Final = 2
_LITTLE: Final = 64
"""An organization that holds less than this part is not refused when all memory is held."""
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
        self._held: dict[str, int] = {}
        self._strangers = 0
        """Bytes that strangers hold together."""
        self._given_back = 0
        self.used = 0

    def take(self, owner: str, size: int) -> None:
        """Hold memory for the owner; `give_back` must follow. Raises busy."""
        if not self._may_hold(owner, size):
            raise too_much_held()
        self.charge(owner, size)

    def _may_hold(self, owner: str, size: int) -> bool:
        held = self._held.get(owner, 0) + size
        if held > self._share:
            return False
        if owner.startswith(STRANGER):
            return self._strangers + size <= self._strangers_share and self.used + size <= self._bytes_max
        return self.used + size <= self._bytes_max or held <= self._little

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
    """The memory that is held for one owner in one place."""

    __slots__ = ("_memory", "_owner", "size")

    def __init__(self, memory: Memory, owner: str) -> None:
        self._memory = memory
        self._owner = owner
        self.size = 0

    def resize(self, size: int) -> None:
        """Hold `size` bytes from now on. Raises busy, and then holds as many as before."""
        more = size - self.size
        if more > 0:
            self._memory.take(self._owner, more)
        elif more < 0:
            self._memory.give_back(self._owner, -more)
        self.size = size

    def record(self, owner: str, size: int) -> None:
        """Hold bytes that are in memory already, for this owner from now on. Never refused."""
        self.resize(0)
        self._memory.charge(owner, size)
        self._owner, self.size = owner, size


def too_much_held() -> ServiceError:
    return ServiceError(
        "busy",
        "too much is being sent and received at once; the request was not run",
        hint="Read the answers that are waiting, or send less at a time.",
    )
