"""The open transactions that this worker holds, how long each may stay open, and the outcomes of ended ones."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from time import time
from typing import Final

from tuplegate.admission.fair_use.seats import WorkerSeats
from tuplegate.data_plane.interactive.ended import Answer, Ended, EndedTransactions, explain_end
from tuplegate.engine import port
from tuplegate.metrics.sums import Counted
from tuplegate.protocol.errors import ServiceError

ANSWER_BYTES_MAX: Final = 2**20
"""The largest answer that is kept to be sent again."""
_READER_S: Final = 1.0
_LATE_S: Final = 0.1
"""A timer that comes later than this says that nothing else was done meanwhile either."""


class Beginner:
    """The beginner of a transaction: the key, its organization, the database by its id and by the engine's name, the
    token that came with the request, and whether that token may write in it."""

    def __init__(self, key: str, organization: str, target: port.Target, token: bytes, may_write: bool) -> None:
        self.key = key
        self.organization = organization
        self.database = target.id
        self.engine_name = target.database
        self.token = token
        self.may_write = may_write


class _Seconds:
    """Writes moments. Most of them are in the same second as the one before."""

    def __init__(self) -> None:
        self._last = 0
        self._text = ""

    def write(self, second: int) -> str:
        if second != self._last:
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._last = second
        return self._text


_seconds: Final = _Seconds()


# size: what a client can ask of an open transaction is here, in one place.
class Held:
    """One open transaction, and its beginner.

    `sequence` is the number of the last request, and `answer` the answer to that request, or to the one that ended the
    transaction. `end_stream` ends the stream that runs, even if its reader has not taken it.
    """

    def __init__(
        self, id: str, begun_by: Beginner, transaction: port.OpenTransaction, idle_s: float, life_s: float
    ) -> None:
        self.id = id
        self.begun_by = begun_by
        self.transaction = transaction
        self.sequence = 0
        self.answer: Answer | None = None
        self.is_busy = False
        self.end_stream: Callable[[ServiceError], None] | None = None
        self._is_numbered = False
        self._is_closed = False
        self._over: asyncio.Event | None = None
        """Made when somebody waits for the end."""
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self.began_at = self._loop.time()
        self._ends_at = self.began_at + life_s
        self._idle_until = self._ends_at
        self._timer: asyncio.TimerHandle | None = None
        self._look_again_at(min(self._ends_at, self.began_at + idle_s))

    @property
    def left_s(self) -> float:
        """The seconds that the transaction may still stay open."""
        return max(self._ends_at - self._loop.time(), 0.001)

    @property
    def expires_at(self) -> str:
        """The time at which it is rolled back if no further request comes."""
        now = self._loop.time()
        until = min(self._ends_at, now + self._idle_s if self.is_busy else self._idle_until)
        second, ms = divmod(int((time() + max(0.0, until - now)) * 1000), 1000)
        return f"{_seconds.write(second)}.{ms:03}Z"

    def begin_request(self, sequence: int | None) -> Answer | None:
        """Begin a request, unless it is the last one once more: then return the answer to that."""
        if self.is_busy or self.transaction.state is port.OpenState.BUSY:
            raise ServiceError("transaction_in_use", f"another request of {self.id} is still running")
        repeated = find_repeated(sequence, self.sequence, self.answer)
        if repeated is None:
            self.is_busy = True
            self._is_numbered = sequence is not None
            if sequence is not None:
                self.sequence = sequence
                self.answer = None
        return repeated

    def end_request(self, answer: Answer | None) -> None:
        """End a request. Its answer is kept if it can be asked for again: by its number, or as that of the end."""
        self.is_busy = False
        if self._is_numbered or self.transaction.over is not None:
            self.answer = answer
        self._idle_until = self._loop.time() + self._idle_s

    def abort(self, reason: port.EndReason) -> None:
        """Roll it back. The reader of a stream gets a moment to take the rest, and cannot hold the locks for longer."""
        self.transaction.abort(reason)
        if self.end_stream is not None:
            self._loop.call_later(_READER_S, self._end_stream, reason)

    def _end_stream(self, reason: port.EndReason) -> None:
        if self.end_stream is not None:
            self.end_stream(explain_end(self.id, reason))

    def _look_at_clock(self) -> None:
        now = self._loop.time()
        if now >= self._ends_at:
            self.abort(port.EndReason.LIFETIME)
            return
        late_s = now - self._looks_at
        if late_s > _LATE_S:  # this process stood still: a request that came meanwhile is not read yet
            self._idle_until = max(self._idle_until, now + min(late_s, self._idle_s))
        if not self.is_busy and now >= self._idle_until:
            self.abort(port.EndReason.IDLE)
            return
        until = self._ends_at if self.is_busy else min(self._ends_at, self._idle_until)
        self._look_again_at(min(until, now + self._idle_s))

    def _look_again_at(self, when: float) -> None:
        self._looks_at = when
        self._timer = self._loop.call_at(when, self._look_at_clock)

    async def roll_back(self) -> None:
        """Roll it back, and wait until that is done: its locks are free then."""
        self.transaction.abort(port.EndReason.ROLLBACK)
        await self.wait_until_over()

    async def wait_until_over(self) -> None:
        """Wait until the transaction is over in the engine, and recorded as ended."""
        if self._is_closed:
            return
        if self._over is None:
            self._over = asyncio.Event()
        await self._over.wait()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # it refers to this
        self._is_closed = True
        if self._over is not None:
            self._over.set()


def find_repeated(sequence: int | None, last: int, answer: Answer | None) -> Answer | None:
    """Return the answer to the last request, if this is that request again; None if it is the next one."""
    if sequence is None or sequence == last + 1:
        return None
    if sequence == last and answer is not None:
        return answer
    kept = " and its answer was too large to be kept, or a stream" if sequence == last else ""
    raise ServiceError(
        "out_of_sequence", f"sequence {sequence} was sent, the last one was {last}{kept}; the next is {last + 1}"
    )


class Holdings:
    """The open transactions by id, and the `ended` ones. `ends` counts the latter by outcome."""

    def __init__(self, seats: WorkerSeats) -> None:
        self.seats = seats
        self.open: dict[str, Held] = {}
        self.ended = EndedTransactions()
        self.ends: Counter[str] = Counter({reason.value: 0 for reason in (*port.EndReason, port.Outcome.COMMITTED)})

    def add(self, held: Held, give_back: Callable[[], None]) -> None:
        """Hold an open transaction; `give_back` gives its seat back."""
        self.open[held.id] = held
        held.transaction.on_over = partial(self._end, held, give_back)

    def _end(self, held: Held, give_back: Callable[[], None]) -> None:
        give_back()
        del self.open[held.id]
        outcome = held.transaction.over
        assert outcome is not None
        self.ends[outcome.value] += 1
        self._remember(held, outcome)
        held.close()

    def keep_answer(self, held: Held) -> None:
        """Note the answer to the request that has ended the transaction."""
        ended = self.ended.find(held.begun_by.organization, held.id)
        if ended is not None and held.answer is not ended.answer:
            self._remember(held, ended.outcome)

    def _remember(self, held: Held, outcome: port.EndReason | port.Outcome) -> None:
        ended = Ended(held.begun_by.key, outcome, held.sequence, held.answer)
        self.ended.put(held.begun_by.organization, held.id, ended)

    @property
    def tokens(self) -> set[bytes]:
        return {held.begun_by.token for held in self.open.values()}

    def revoke(self, token: bytes) -> None:
        """Roll back transactions that were begun with a token that is no longer valid."""
        for held in [held for held in self.open.values() if held.begun_by.token == token]:
            held.abort(port.EndReason.REVOKED)

    def measure(self) -> Counted:
        """Return its counts, named as in the table of metrics."""
        ends = {f"open_transactions_ended_total {how}": count for how, count in self.ends.items()}
        now = asyncio.get_running_loop().time()
        oldest_s = max([now - held.began_at for held in self.open.values()], default=0.0)
        return ends, {"open_transactions": len(self.open), "open_transaction_age_seconds": oldest_s}
