"""Transactions: how one was committed, what is recorded with it, and how to ask later what became of it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum, StrEnum
from typing import Protocol

import msgspec

from tuplegate.engine.port.results import RowStream, Shape
from tuplegate.engine.port.work import Bounds, Result, Statement
from tuplegate.protocol.answers import Notice


class Commit(Enum):
    """How a transaction was committed."""

    TWO_PHASE = "two_phase"
    ONE_PHASE = "one_phase"
    READ_ONLY = "read_only"


class TransactionResult(msgspec.Struct):
    """The results of a committed transaction.

    `number` is the engine's own number of a transaction that wrote, None for one that had nothing to commit. Where
    there are several engines, `mark` tells which one gave the number.
    """

    results: list[Result]
    commit: Commit
    number: int | None
    attempts: int
    exec_us: int
    notices: list[Notice]
    reached: bytes | None = None
    on_replica: bool = False
    mark: str = ""


class Keep(msgspec.Struct, frozen=True):
    """An answer to record together with the data. `request` stands for the request's body, `body` makes the answer."""

    route: str
    key: str
    request: str
    body: Callable[[TransactionResult], bytes]


class KeptAnswer(msgspec.Struct, frozen=True):
    """An answer that was recorded."""

    request: str
    body: bytes


class KeptAnswers(msgspec.Struct, frozen=True):
    """The answer recorded under one key, and how many bytes the answers of the whole database take."""

    found: KeptAnswer | None
    bytes: int


class Promise(msgspec.Struct, frozen=True):
    """What must be recorded if, and only if, the transaction commits: its id, its answer."""

    id: str | None = None
    keep: Keep | None = None


class Ticket(msgspec.Struct, frozen=True):
    """Lets the engine find out later what became of a transaction whose connection was lost.

    `word` has ten letters and digits, `number` 64 bits.
    """

    number: int
    word: str


class Outcome(Enum):
    """What became of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in_progress"


class EndReason(StrEnum):
    """Why an open transaction was rolled back."""

    ROLLBACK = "rollback"
    """Its client wanted it, or sent a commit that failed."""
    IDLE = "idle"
    LIFETIME = "lifetime"
    CONFLICT = "conflict"
    REVOKED = "revoked"
    """The key that began it may do no more."""
    LIMIT = "limit"
    """It took more than it may: locks, room, rows that were too wide."""
    LOST = "lost"
    """Its connection is gone, or the worker that held it."""


class OpenTransaction(Protocol):
    """A transaction that stays open between the requests of a client. Its methods are called one at a time.

    A statement that fails leaves it failed: the engine refuses every further one until the client goes back to a
    savepoint. A conflict ends it.
    """

    on_over: Callable[[], None] | None
    """Called once, when it is over."""

    @property
    def is_failed(self) -> bool: ...

    @property
    def over(self) -> EndReason | Outcome | None:
        """Return what became of it, once it is over: COMMITTED, IN_PROGRESS where that is unknown, or the reason for
        the rollback."""
        ...

    async def query(self, statement: Statement, shape: Shape, bounds: Bounds) -> Result: ...

    def stream(self, statement: Statement, shape: Shape, bounds: Bounds) -> AbstractAsyncContextManager[RowStream]:
        """Run a statement and give its rows as they come. Leaving the block early cancels the statement."""
        ...

    async def commit(self, last: Statement | None, shape: Shape, bounds: Bounds) -> TransactionResult:
        """Run one more statement, if there is one, and commit. The transaction is over afterwards in any case."""
        ...

    async def roll_back(self) -> None: ...

    def cancel(self) -> None:
        """Cancel the statement that runs, if one does."""
        ...

    def abort(self, reason: EndReason) -> None:
        """Roll it back, whatever it does just now, unless it is being committed."""
        ...
