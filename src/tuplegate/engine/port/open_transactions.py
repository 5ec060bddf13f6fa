"""Transactions that stay open between the requests of a client."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
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


class OpenTransaction(Protocol):
    """A transaction that stays open between the requests of a client. Its methods are called one at a time.

    A statement that fails makes the transaction failed: the engine refuses further statements until the client goes
    back to a savepoint. A conflict ends it.
    """

    on_over: Callable[[], None] | None
    """Called once, when the transaction is over."""

    @property
    def is_failed(self) -> bool: ...

    @property
    def is_busy(self) -> bool:
        """Return whether a statement has not ended yet, including one whose client has left."""

    @property
    def over(self) -> EndReason | Outcome | None:
        """Return the end of the transaction, or None while it is open: COMMITTED, IN_PROGRESS if the outcome is
        unknown, or the reason for the rollback."""

    async def query(self, statement: Statement, bounds: Bounds) -> Result: ...

    async def query_each(self, statement: Statement, lists: list[list[msgspec.Raw]], bounds: Bounds) -> Result:
        """Run a statement once with each list of parameters. The result has the rows of all runs in order, and the sum
        of the affected rows. A failure has the index of its list."""

    def stream(self, statement: Statement, bounds: Bounds) -> AbstractAsyncContextManager[RowStream]:
        """Run a statement and yield its rows as they come. Leaving the block early cancels the statement."""

    async def commit(self, last: Statement | None, bounds: Bounds) -> TransactionResult:
        """Run one more statement, if given, and commit. The transaction is over afterwards in any case.

        The caller must not be cancelled: what is decided must be carried out.
        """

    async def roll_back(self) -> None: ...

    def cancel(self) -> None:
        """Cancel the statement that runs, if one does."""

    def abort(self, reason: EndReason) -> None:
        """Roll the transaction back at any stage, unless it is being committed."""
