"""The order in which connections give way when all places are taken and another client arrives. Pure.

A client that has not shown a valid key is a stranger. A stranger's connection gives way in every state, so strangers
cannot keep others out. A connection of a known organization gives way while nothing of a request would be lost; one
that receives a body or does not take its answer gives way only beyond the organization's share of the places. A running
request of a known organization never does.

While strangers hold more than half of the places, one of them goes: many addresses with a connection each cannot take
the places of an organization. Otherwise the owner with the most places goes first: an organization, or an address for
its strangers. Of one owner, connections older than `NEW_S` go before newer ones, whose first request may be on its way.
Then the order of `Waiting` decides, and last the time for which a connection has waited. A new stranger's running
request counts as one that has not come: the client has not shown more than others, and a client that has just connected
should not go before it.
"""

from enum import IntEnum
from typing import Final, NamedTuple, assert_never

NEW_S: Final = 1.0
_SHARE: Final = 4
"""One organization may hold a quarter of the places by slow bodies and answers that it does not take."""
_STRANGERS_SHARE: Final = 2


def have_too_much(strangers: int, places_max: int) -> bool:
    """Return whether strangers give way before anybody else, while they hold so many places together."""
    return strangers > places_max // _STRANGERS_SHARE


class Waiting(IntEnum):
    """The state of a connection, by the thing that it waits for. Of one owner, the lesser gives way first."""

    END = 1
    """It has its last answer and lingers, so that the client can read it."""
    FIRST_REQUEST = 2
    """No request has come whole, or the TLS handshake is not done."""
    NEXT_REQUEST = 3
    BODY = 4
    """The body of a request arrives."""
    MESSAGES = 5
    """It speaks another protocol than HTTP by now."""
    READER = 6
    """The client does not take its answer."""
    HANDLER = 7
    """A request is in hand; a stranger's usually waits until its token was looked up."""


Order = tuple[bool, Waiting, float]


class Standing(NamedTuple):
    """The state of a connection, as far as it decides who gives way. `since` is by any clock that all of one state
    share; of a new one it is when it was opened."""

    owner: str
    is_known: bool
    waiting: Waiting
    is_new: bool
    since: float

    @property
    def order(self) -> Order:
        """The place among the connections of one owner, the least first."""
        if self.is_new and not self.is_known and self.waiting is Waiting.HANDLER:
            return True, Waiting.FIRST_REQUEST, self.since
        return self.is_new, self.waiting, self.since

    def gives_way(self, held: int, places_max: int) -> bool:
        """Return whether the connection can be closed for another client, while its owner holds so many places."""
        if not self.is_known:
            return True
        waiting = self.waiting
        match waiting:
            case Waiting.END | Waiting.FIRST_REQUEST | Waiting.NEXT_REQUEST:
                return True
            case Waiting.BODY | Waiting.READER:
                return held > max(1, places_max // _SHARE)
            case Waiting.MESSAGES | Waiting.HANDLER:
                return False
            case _:
                assert_never(waiting)
