"""Decides whether a call is sent again, and after what pause. Pure: time and chance are arguments.

A call has a deadline and a number of retries; whichever is reached first ends it.
"""

from dataclasses import dataclass
from enum import Enum

from tuplegate.client.errors import ConnectionFailed, RateLimited, TuplegateError

_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 2.0
_STILL_RUNNING = frozenset({"idempotency_in_progress", "transaction_in_use"})
"""Codes of an answer that the first request will give in time."""


class Repeat(Enum):
    """The way in which a request may be repeated after a lost answer."""

    NEVER = "never"
    """It may have been applied, and applying it twice would be wrong."""
    HARMLESS = "harmless"
    """It changes nothing."""
    KEYED = "keyed"
    """It may change something, but has an Idempotency-Key: the service runs it once."""
    SEQUENCED = "sequenced"
    """It may change something, but has a sequence within its transaction: the service runs it once."""


class NotSent(ConnectionFailed):
    """There was no connection to send the request over."""


class AnswerLost(ConnectionFailed):
    """The request was sent, at least in part, and no whole answer came back."""


@dataclass
class Course:
    """The progress of a call. `deadline` and `now` are of the same clock."""

    deadline: float
    retries_left: int
    failures: int = 0

    def pause_s(self, error: TuplegateError, now: float, chance: float) -> float | None:
        """Return the pause before the request is sent again; None if the call ends with this error."""
        wait_s = error.retry_after_s
        if wait_s is None:
            wait_s = min(_PAUSE_FIRST_S * 2**self.failures, _PAUSE_MAX_S) * (0.5 + chance / 2)
        if now + wait_s >= self.deadline:
            return None
        # Waiting for the first request to end does not count as a failure.
        if error.code not in _STILL_RUNNING:
            if not self.retries_left:
                return None
            self.retries_left -= 1
        self.failures += 1
        return wait_s


def nothing_was_applied(error: TuplegateError) -> bool:
    """Return whether any request may be sent again after this error.

    That is so after a conflict too, but the service has already retried it for as long as its limits allow.
    """
    if isinstance(error, NotSent):
        return error.retryable
    return isinstance(error, RateLimited) or (error.retryable and error.code != "conflict")
