"""Transactions in one request, those that are opened for several, and how to ask later what became of one."""

from typing import Protocol

from tuplegate.engine.port.open_transactions import OpenTransaction
from tuplegate.engine.port.queries import Answers
from tuplegate.engine.port.transactions import Outcome, Promise, Ticket, TransactionResult
from tuplegate.engine.port.work import Bounds, Statement, Target


class Transactions(Answers, Protocol):
    """Runs transactions, and tells what became of them."""

    async def transaction(
        self,
        target: Target,
        statements: list[Statement],
        bounds: Bounds,
        *,
        read_only: bool = False,
        promise: Promise | None = None,
    ) -> TransactionResult:
        """Run all statements or none. A failure carries the index of the statement that failed."""

    async def outcome(self, target: Target, number: int, mark: str = "", history: int = 0) -> Outcome | None:
        """Return the outcome of the transaction, or None if the engine does not know it any more. Raises OutcomeUnknown
        if another server has replaced the one that gave the number, and cannot tell. `mark` and `history` came with its
        result. A client learns the number only of a transaction that is committed or decided, so a number that another
        engine has given is that of a committed one."""

    async def outcome_of_lost(self, target: Target, ticket: Ticket, mark: str = "") -> Outcome:
        """Return the outcome of the transaction by the ticket of its OutcomeUnknown."""


class TransactionOpener(Answers, Protocol):
    """Begins transactions that stay open between requests."""

    async def begin(self, target: Target, id: str, timeout_ms: int, *, read_only: bool) -> OpenTransaction:
        """Begin a transaction that stays open. If it commits anything, `Records.abort_id` finds that out by its id.

        Raises EngineBusy where as many are open as may be. `timeout_ms` is how long it may wait for a connection.
        """
