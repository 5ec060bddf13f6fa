"""Histories: the server that gave a transaction its number, and the guarantees that held when the number was told.

A server that replaces another begins a new timeline, and reuses numbers that it has not heard of. So a number
identifies a transaction only on its own timeline.
"""

from typing import Final

from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.port import Outcome, OutcomeUnknown
from tuplegate.engine.postgres.replication.primary import Primary

_ACKNOWLEDGED: Final = 1
_REPLICATED: Final = 2
_FLAGS: Final = 4
"""A history is a timeline with these behind it: whether the transaction was acknowledged, and whether a standby had to
have it when it was that, or was prepared. It is 0 where the server is always the same."""


class Histories:
    """The histories of one engine's transactions."""

    def __init__(self, primary: Primary) -> None:
        self._primary = primary

    def of(self, member: Connection, *, acknowledged: bool = False, replicated: bool = False) -> int:
        """Return the history of a transaction on the connection. `acknowledged`: its client is told of a success.
        `replicated`: a standby had to have it before that."""
        timeline = self._primary.timeline_of(member.server)
        if not timeline:
            return 0
        replicated = replicated or (acknowledged and self._primary.replication.waits)
        return timeline * _FLAGS + acknowledged * _ACKNOWLEDGED + replicated * _REPLICATED

    def fits(self, history: int, server: str) -> bool:
        """Return whether the server is on the timeline of the history, as far as known."""
        return not history or history // _FLAGS == self._primary.timeline_of(server)


def is_replicated(history: int) -> bool:
    return bool(history & _REPLICATED)


def must_be_confirmed(history: int) -> bool:
    """Return whether the transaction has a history and was never acknowledged as committed."""
    return bool(history) and not history & _ACKNOWLEDGED


def judge_elsewhere(history: int) -> Outcome:
    """Return the outcome of a transaction that was numbered before its database was moved or reset. A move or reset
    leaves no prepared transaction behind."""
    if history and not history & (_ACKNOWLEDGED | _REPLICATED):
        raise OutcomeUnknown("the database has been moved or reset since; it may have been applied or not")
    return Outcome.COMMITTED
