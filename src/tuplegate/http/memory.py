"""What is held in memory for clients: bodies that are coming in, and answers that are not taken.

All of it together has a bound, and so has what one owner holds: an organization, or the address of somebody whose key
was not seen yet. Whoever is at its bound is told `busy`, and not read from; the others do not notice.
"""

from typing import Final

from tuplegate.protocol.errors import ServiceError

_SHARE: Final = 4
"""One owner may hold a fourth."""


class Memory:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._share = bytes_max // _SHARE
        self._held: dict[str, int] = {}
        self.used = 0

    def take(self, owner: str, size: int) -> None:
        """`give_back` must follow. Raises busy."""
        if self.used + size > self._bytes_max or self._held.get(owner, 0) + size > self._share:
            raise too_much_held()
        self.charge(owner, size)

    def charge(self, owner: str, size: int) -> None:
        """Of what is there already. `give_back` must follow."""
        self.used += size
        self._held[owner] = self._held.get(owner, 0) + size

    def give_back(self, owner: str, size: int) -> None:
        self.used -= size
        left = self._held[owner] - size
        if left:
            self._held[owner] = left
        else:
            del self._held[owner]

    def is_spent(self, owner: str) -> bool:
        """Whether nothing more should be begun for it."""
        return self.used > 0 and (self.used > self._bytes_max or self._held.get(owner, 0) > self._share)


def too_much_held() -> ServiceError:
    return ServiceError(
        "busy",
        "too much is being sent and received at once; the request was not run",
        hint="Read the answers that are waiting, or send less at a time.",
    )
