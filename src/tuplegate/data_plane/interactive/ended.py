"""Remembers the outcomes of open transactions that have ended, and the last answers to their clients.

Each organization has a shelf of its own, so nobody's transactions are forgotten because others have many. A commit is
recorded in its database, too.
"""

from collections import OrderedDict
from typing import Final

from tuplegate.engine import port
from tuplegate.protocol.errors import ServiceError

_EXPIRED: Final = (port.EndReason.IDLE, port.EndReason.LIFETIME)
_SHELVES_MAX: Final = 1_000
_ENTRIES_MAX: Final = 1_000
"""Entries on one shelf."""
_SHELF_BYTES_MAX: Final = 4 * 2**20
_BYTES_MAX: Final = 64 * 2**20
"""The bytes of answers on one shelf, and on all. Beyond that the oldest answers of the fullest shelf are forgotten; the
outcomes of their transactions stay known."""


class Answer:
    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body


class Ended:
    """The outcome of a transaction, and the last answer that its client got."""

    def __init__(self, key: str, outcome: port.EndReason | port.Outcome, sequence: int, answer: Answer | None) -> None:
        self.key = key
        self.outcome = outcome
        self.sequence = sequence
        self.answer = answer


class _Shelf:
    """The ended transactions of one organization by id, the oldest first. `bytes` are those of their answers."""

    def __init__(self) -> None:
        self.entries: OrderedDict[str, Ended] = OrderedDict()
        self.answered: OrderedDict[str, int] = OrderedDict()
        self.bytes = 0

    def put(self, id: str, ended: Ended) -> None:
        self.drop_answer(id)
        self.entries[id] = ended
        if ended.answer is not None:
            self.answered[id] = len(ended.answer.body)
            self.bytes += len(ended.answer.body)
        while self.bytes > _SHELF_BYTES_MAX:
            self.drop_answer(next(iter(self.answered)))
        while len(self.entries) > _ENTRIES_MAX:
            oldest = next(iter(self.entries))
            self.drop_answer(oldest)
            del self.entries[oldest]

    def drop_answer(self, id: str) -> None:
        size = self.answered.pop(id, None)
        if size is not None:
            self.bytes -= size
            self.entries[id].answer = None


class EndedTransactions:
    def __init__(self) -> None:
        self._shelves: OrderedDict[str, _Shelf] = OrderedDict()
        self._bytes = 0

    def find(self, organization: str, id: str) -> Ended | None:
        shelf = self._shelves.get(organization)
        return None if shelf is None else shelf.entries.get(id)

    def put(self, organization: str, id: str, ended: Ended) -> None:
        """Remember an ended transaction; replace the entry of one that is known already."""
        shelf = self._shelves.setdefault(organization, _Shelf())
        self._shelves.move_to_end(organization)
        before = shelf.bytes
        shelf.put(id, ended)
        self._bytes += shelf.bytes - before
        while self._bytes > _BYTES_MAX:
            fullest = max(self._shelves.values(), key=lambda each: each.bytes)
            before = fullest.bytes
            fullest.drop_answer(next(iter(fullest.answered)))
            self._bytes += fullest.bytes - before
        if len(self._shelves) > _SHELVES_MAX:
            self._bytes -= self._shelves.popitem(last=False)[1].bytes


def explain_end(id: str, outcome: port.EndReason | port.Outcome) -> ServiceError:
    if outcome in _EXPIRED:
        what = "waited too long for its next request" if outcome is port.EndReason.IDLE else "was open for too long"
        return ServiceError("transaction_expired", f"{id} {what}, and was rolled back")
    if outcome is port.Outcome.COMMITTED:
        return ServiceError("wrong_state", f"{id} is committed")
    if outcome is port.Outcome.IN_PROGRESS:
        return ServiceError("transaction_in_use", f"what becomes of {id} is being found out")
    reason = port.EndReason.LOST if outcome is port.Outcome.ABORTED else outcome
    return ServiceError("transaction_aborted", f"{id} was rolled back (reason: {reason.value}); nothing was applied")
