"""The reasons for which the service ends a run, and the failures that its client gets."""

from enum import Enum
from typing import Final

from tuplegate.engine import port

CANCELLED: Final = "57014"

LOST: Final = "the connection to the engine was lost; the transaction was rolled back"
MAKE_ROOM: Final = "Delete or truncate what is not needed. What DELETE frees is counted once VACUUM has given it back."


class Why(Enum):
    """The reason why the service ends a run."""

    TIME = "its time is over"
    STOPPING = "the service is stopping"
    ROOM = "its database, or the disk, is full"
    LEFT = "its client has left"
    OVER = "the transaction that it is part of was ended"
    OUTLIVED = "so many others began meanwhile that the engine cannot check it against them all"


def explain(why: Why | None, bounds: port.Bounds, full_at: int) -> port.StatementFailed:
    if why is Why.STOPPING:
        return port.Stopped("the service is stopping; the statement was cancelled", sqlstate=CANCELLED)
    if why is Why.ROOM:
        return explain_full(full_at)
    if why is Why.LEFT or why is Why.OVER:
        return port.StatementFailed(f"the statement was cancelled: {why.value}", sqlstate=CANCELLED)
    if why is Why.OUTLIVED:
        return explain_age()
    return port.TimedOut(bounds)


def explain_full(bound: int, hint: str = MAKE_ROOM) -> port.StatementFailed:
    """Return the refusal of a statement that takes room in a database that is full at `bound`."""
    message = "the database, or all of its organization together, has reached its size limit; nothing was applied"
    if bound < 0:
        message = "the disk of the service is nearly full, so that nothing may be added; nothing was applied"
    return port.StatementFailed(message, sqlstate="53100", hint=hint)


def explain_age() -> port.Conflict:
    message = "the statement ran while so many others began that the engine could not check it against them all"
    return port.Conflict(message, sqlstate="40001")
