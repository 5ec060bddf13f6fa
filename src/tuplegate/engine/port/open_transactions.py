"""Transactions that stay open between the requests of a client."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum, StrEnum
from typing import Protocol

import msgspec

from tuplegate.engine.port.results import RowStream
from tuplegate.engine.port.transactions import Outcome, TransactionResult
from tuplegate.engine.port.work import Bounds, Result, Statement


class EndReason(StrEnum):
    """The reason why an open transaction was rolled back."""

    ROLLBACK = "rollback"
    """Its client asked for it, or sent a commit that failed."""
    IDLE = "idle"
    LIFETIME = "lifetime"
    CONFLICT = "conflict"
    REVOKED = "revoked"
    """The key that began it has lost its rights."""
    LIMIT = "limit"
    """It exceeded a bound: locks, room, rows that were too wide."""
    LOST = "lost"
    """Its connection is gone, or the worker that held it."""


class OpenState(Enum):
    """The state of an open transaction in the engine."""

    WAITING = "waits for its client"
    FAILED = "waits, and a statement has failed"
    BUSY = "a statement has not ended yet; its client may have left"
    OVER = "over"


class OpenTransaction(Protocol):
    """A transaction that stays open between the requests of a client. Its methods are called one at a time.

    A statement that fails makes the transaction failed: the engine refuses further statements until the client goes
    back to a savepoint. A conflict ends it.
    """

    on_over: Callable[[], None] | None
    """Called once, when the transaction is over."""

    @property
    def state(self) -> OpenState: ...

    @property
    def over(self) -> EndReason | Outcome | None:
        """Return the end of the transaction, or None while it is open: COMMITTED, IN_PROGRESS if the outcome is
        unknown, or the reason for the rollback."""

    async def query(self, statement: Statement, bounds: Bounds, lists: list[list[msgspec.Raw]] | None = None) -> Result:
        """Run a statement: where there are lists of parameters, once with each. The result then has the rows of all,
        one after the other, and the sum of the affected rows. A failure tells at which list it happened."""

    def stream(self, statement: Statement, bounds: Bounds) -> AbstractAsyncContextManager[RowStream]:
        """Run a statement and yield its rows as they come. Leaving the block early cancels the statement."""

    async def commit(self, last: Statement | None, bounds: Bounds) -> TransactionResult:
        """Run one more statement, if given, and commit. The transaction is over afterwards in any case.

        The caller must not be cancelled: what is decided must be carried out.
        """

    def cancel(self) -> None:
        """Cancel the statement that runs, if one does."""

    def abort(self, reason: EndReason) -> None:
        """Roll it back, whatever it does just now, unless it is being committed. Its locks are free once it calls
        `on_over`."""
