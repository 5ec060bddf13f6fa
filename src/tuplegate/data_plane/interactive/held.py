"""The open transactions that this worker holds, how long each may stay open, and what became of those that ended."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from tuplegate.admission.seats import WorkerSeats
from tuplegate.engine import port
from tuplegate.protocol.errors import ServiceError

ANSWER_BYTES_MAX: Final = 2**20
"""The largest answer that is kept to be sent again."""
_ENDED_MAX: Final = 10_000
"""Transactions that have ended and are remembered here. What was committed is recorded in its database, too."""
_ENDED_BYTES_MAX: Final = 16 * 2**20
_READER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a transaction, and the last answer that its client got."""

    key: str
    outcome: port.EndReason | port.Outcome
    sequence: int
    answer: Answer | None


# size: what a client can ask of an open transaction is here, in one place.
class Held:
    """One open transaction. `key` is the one that began it, and `token` what the request came with.

    `sequence` is the last number that a request came with, and `answer` what it was answered. `cut_off` ends the
    connection of the reader of a stream.
    """

    def __init__(
        self, id: str, key: str, token: bytes, transaction: port.OpenTransaction, idle_s: float, life_s: float
    ) -> None:
        self.id = id
        self.key = key
        self.token = token
        self.transaction = transaction
        self.sequence = 0
        self.answer: Answer | None = None
        self.is_busy = False
        self.cut_off: Callable[[], None] | None = None
        self.over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self.began_at = self._loop.time()
        self._ends_at = self.began_at + life_s
        self._idle_until = self._ends_at
        self._timer = self._loop.call_at(min(self._ends_at, self.began_at + idle_s), self._look_at_clock)

    @property
    def left_s(self) -> float:
        """How much of its life is left."""
        return max(self._ends_at - self._loop.time(), 0.001)

    @property
    def expires_at(self) -> str:
        """When it is rolled back if no further request comes."""
        now = self._loop.time()
        until = min(self._ends_at, now + self._idle_s if self.is_busy else self._idle_until)
        at = datetime.now(UTC) + timedelta(seconds=max(0.0, until - now))
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def begin_request(self, sequence: int | None) -> Answer | None:
        """Begin a request, unless it is the last one once more: then return what that was answered."""
        if self.is_busy:
            raise ServiceError("transaction_in_use", f"another request of {self.id} is still running")
        repeated = find_repeated(sequence, self.sequence, self.answer)
        if repeated is None:
            self.is_busy = True
            self.answer = None
            if sequence is not None:
                self.sequence = sequence
        return repeated

    def end_request(self, answer: Answer | None) -> None:
        """End a request; its answer is kept, so that it can be sent again."""
        self.is_busy = False
        self.answer = answer
        self._idle_until = self._loop.time() + self._idle_s

    def abort(self, reason: port.EndReason) -> None:
        """Roll it back. The reader of a stream gets a moment to take the rest, and cannot hold the locks for longer."""
        self.transaction.abort(reason)
        if self.cut_off is not None:
            self._loop.call_later(_READER_S, self._cut_off)

    def _cut_off(self) -> None:
        if self.cut_off is not None:
            self.cut_off()

    def _look_at_clock(self) -> None:
        now = self._loop.time()
        if now >= self._ends_at:
            self.abort(port.EndReason.LIFETIME)
            return
        if not self.is_busy and now >= self._idle_until:
            self.abort(port.EndReason.IDLE)
            return
        until = self._ends_at if self.is_busy else min(self._ends_at, self._idle_until)
        self._timer = self._loop.call_at(min(until, now + self._idle_s), self._look_at_clock)

    def close(self) -> None:
        self._timer.cancel()
        self.over.set()


def find_repeated(sequence: int | None, last: int, answer: Answer | None) -> Answer | None:
    """Return the answer to the last request, where this is that one again; None where it is the next one."""
    if sequence is None or sequence == last + 1:
        return None
    if sequence == last and answer is not None:
        return answer
    kept = " and its answer was too large to be kept, or a stream" if sequence == last else ""
    raise ServiceError(
        "out_of_sequence", f"sequence {sequence} was sent, the last one was {last}{kept}; the next is {last + 1}"
    )


class Holdings:
    """`open` are the transactions by id; `ended` those that ended lately. `ends` counts them by what became of them."""

    def __init__(self, seats: WorkerSeats) -> None:
        self.seats = seats
        self.open: dict[str, Held] = {}
        self.ended: OrderedDict[str, Ended] = OrderedDict()
        self._ended_bytes = 0
        self.ends: Counter[str] = Counter({reason.value: 0 for reason in (*port.EndReason, port.Outcome.COMMITTED)})

    def add(self, held: Held, give_back: Callable[[], None]) -> None:
        """Hold an open transaction; `give_back` gives its seat back."""
        self.open[held.id] = held

        def end() -> None:
            give_back()
            del self.open[held.id]
            outcome = held.transaction.over
            assert outcome is not None
            self.ends[outcome.value] += 1
            self._remember(held.id, Ended(held.key, outcome, held.sequence, held.answer))
            held.close()

        held.transaction.on_over = end

    def keep_answer(self, held: Held) -> None:
        """Note the answer to the request that has ended the transaction."""
        ended = self.ended.get(held.id)
        if ended is not None and held.answer is not None:
            self._remember(held.id, Ended(ended.key, ended.outcome, held.sequence, held.answer))

    def _remember(self, id: str, ended: Ended) -> None:
        self._forget(self.ended.pop(id, None))
        self.ended[id] = ended
        self._ended_bytes += _size_of(ended)
        while len(self.ended) > _ENDED_MAX or self._ended_bytes > _ENDED_BYTES_MAX:
            self._forget(self.ended.popitem(last=False)[1])

    def _forget(self, ended: Ended | None) -> None:
        if ended is not None:
            self._ended_bytes -= _size_of(ended)

    @property
    def tokens(self) -> set[bytes]:
        return {held.token for held in self.open.values()}

    def revoke(self, token: bytes) -> None:
        """Roll back what was begun with a token that is good for nothing any more."""
        for held in [held for held in self.open.values() if held.token == token]:
            held.abort(port.EndReason.REVOKED)

    @property
    def oldest_s(self) -> float:
        """How long the oldest one has been open."""
        if not self.open:
            return 0.0
        return asyncio.get_running_loop().time() - min(held.began_at for held in self.open.values())


def _size_of(ended: Ended) -> int:
    return 0 if ended.answer is None else len(ended.answer.body)
