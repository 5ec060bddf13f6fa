"""Keeps what a client knows about its open transaction: state, sequence, and whether an answer is missing. Pure.

Every request of a transaction has a sequence, and the same sequence sent again is not run again. The next one is one
more than the last that the service took. An error without a report on the transaction does not tell whether its
sequence was taken; then the highest that may be next is tried first. If it is too high, the service refuses it and runs
nothing. A sequence that was taken is never used for another request: that would get the answer of the first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from tuplegate.client import errors
from tuplegate.client.retries import NotSent

_LOST = "lost"


class TransactionState(StrEnum):
    """The state of an open transaction, as far as the client knows."""

    NEW = "new"
    """Nothing was sent yet."""
    OPEN = "open"
    FAILED = "failed"
    """A statement failed. It can only be rolled back, or rolled back to a savepoint."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in_progress"
    """The answer to its commit was lost, and the outcome is unknown."""


_GOES_ON = (TransactionState.NEW, TransactionState.OPEN, TransactionState.FAILED)


@dataclass
class Progress:
    """The progress of an open transaction. `is_running` is true from a request until its answer: after a lost answer
    it stays true, since the service may still be running it."""

    id: str | None = None
    state: TransactionState = TransactionState.NEW
    reason: str | None = None
    expires_at: datetime | None = None
    is_running: bool = False
    savepoints: int = 0
    _sequence: int = 0
    _lowest: int = 1
    _highest: int = 1

    @property
    def goes_on(self) -> bool:
        return self.state in _GOES_ON

    def check_can_run(self) -> None:
        """Raise if no statement can be sent now."""
        name = self.id or "the transaction"
        if self.state is TransactionState.ABORTED:
            error = errors.TransactionAborted(
                f"{name} was rolled back (reason: {self.reason}); nothing was applied", code="transaction_aborted"
            )
            error.reason = self.reason
            raise error
        if not self.goes_on:
            raise errors.AlreadyExists(f"{name} has ended: begin another transaction", code="wrong_state")
        if self.is_running:
            raise errors.AlreadyExists(
                f"{name} is running another statement: it runs one at a time, and a stream until it is closed",
                code="transaction_in_use",
            )

    def next_sequence(self) -> int:
        """Begin a request, and return its sequence."""
        self.is_running = True
        self._sequence = self._highest
        return self._sequence

    def lower_sequence(self, error: errors.TuplegateError) -> int | None:
        """Return the sequence to send instead of one that was refused as too high; None if that was not the reason."""
        is_too_high = error.code == "out_of_sequence" and not isinstance(error, errors.ConnectionFailed)
        if not is_too_high or self._sequence <= self._lowest:
            return None
        self._sequence -= 1
        return self._sequence

    def note_taken(self) -> None:
        """Note that the service has taken the sequence of the request."""
        self._lowest = self._highest = self._sequence + 1

    def note_answer(self, answer: Mapping[str, Any]) -> None:
        """Note the answer to a begin or to a statement."""
        self.id = answer.get("transaction_id", self.id)
        self.note_report(answer.get("transaction", answer))

    def note_report(self, report: Mapping[str, Any]) -> None:
        """Note an answer's report on the transaction."""
        self.is_running = False
        self.note_taken()
        self.state = TransactionState(report.get("state", self.state))
        self.reason = report.get("reason", self.reason)
        if "expires_at" in report:
            self.expires_at = datetime.fromisoformat(report["expires_at"])

    def note_error(self, error: errors.TuplegateError) -> None:
        """Note the failure of a begin or of a statement."""
        self.is_running = False
        if find_report(error):
            self.reason = "conflict" if error.code == "conflict" else "rollback"
            self.note_answer(error.answer or {})
            self.reason = None if self.goes_on else self.reason
        elif isinstance(error, errors.TransactionAborted):
            self.end(TransactionState.ABORTED, error.reason)
        elif isinstance(error, errors.TransactionExpired):
            self.end(TransactionState.ABORTED, "expired")
        elif isinstance(error, errors.ConnectionFailed | errors.OutcomeUnknown | errors.StreamCut) and not isinstance(
            error, NotSent
        ):
            self.lose()
        elif self.id is not None:
            self._highest = self._sequence + 1

    def lose(self) -> None:
        """Note that an answer will never be known. Nothing is applied without a commit, so this counts as aborted."""
        self.is_running = False
        if self.id is not None:
            self.end(TransactionState.ABORTED, _LOST)
            self.is_running = True

    def end(self, state: TransactionState, reason: str | None = None) -> None:
        self.is_running = False
        self.state, self.reason = state, reason


class Progressing:
    """The part of an open transaction that sends nothing: its known state."""

    def __init__(self) -> None:
        self._progress = Progress()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id or ''} {self.state}>"

    @property
    def id(self) -> str | None:
        """The transaction's id; None before the first statement."""
        return self._progress.id

    @property
    def state(self) -> TransactionState:
        """`new` before the first statement, then `open`, `failed`, `committed`, `aborted`, or `in_progress` if the
        answer to its commit was lost. It is a text."""
        return self._progress.state

    @property
    def reason(self) -> str | None:
        """Why it was aborted: `rollback`, `conflict`, `expired`, `revoked`, `limit` or `lost`."""
        return self._progress.reason

    @property
    def expires_at(self) -> datetime | None:
        """When the service rolls it back if no further statement comes; None before the first statement."""
        return self._progress.expires_at


def find_report(error: errors.TuplegateError) -> Mapping[str, Any]:
    """Return the answer's report on its transaction: `state` and more; empty if it has none."""
    answer = error.answer or {}
    report = answer.get("transaction", answer)
    return report if isinstance(report, Mapping) and "state" in report else {}


def is_settled(error: errors.TuplegateError) -> bool:
    """Return whether the error is the answer to a request with a sequence: asking again would give the same."""
    answer = error.answer or {}
    return (
        isinstance(error, errors.TransactionAborted | errors.TransactionExpired)
        or "transaction" in answer
        or ("transaction_id" in answer)
    )


def can_run_again(error: errors.TuplegateError) -> bool:
    """Return whether a transaction that ended with this error may succeed if all of it is run again."""
    if isinstance(error, errors.TransactionAborted):
        return error.reason in ("conflict", _LOST)
    if isinstance(error, errors.TransactionRollback):
        return error.retryable
    return isinstance(error, errors.ApiError) and error.retryable and find_report(error).get("state") == "aborted"
