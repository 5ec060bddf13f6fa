"""The exceptions of PEP 249, chosen by SQLSTATE class as psycopg does. Pure.

Each carries what the service said: `sqlstate`, `code`, `position`, `hint`, `detail`, `request_id` and `retryable`. The
client's own exception is its `__cause__`.
"""

from tuplegate.client.errors import (
    BadRequest,
    ConnectionFailed,
    OutcomeUnknown,
    SqlError,
    TransactionAborted,
    TransactionRollback,
    TuplegateError,
    Unauthenticated,
)
from tuplegate.client.progress import find_report


class Warning(Exception):
    """Never raised; PEP 249 wants the name."""


class Error(Exception):
    """The base of all errors. `transaction_id` is set where the outcome of a commit is unknown."""

    sqlstate: str | None = None
    code: str | None = None
    position: int | None = None
    hint: str | None = None
    detail: str | None = None
    request_id: str | None = None
    retryable: bool = False
    transaction_id: str | None = None


class InterfaceError(Error):
    """The connection or the cursor cannot be used that way, for example because it is closed."""


class DatabaseError(Error):
    """The service or the engine refused something."""


class DataError(DatabaseError):
    """A value does not belong to its type, or is out of range."""


class OperationalError(DatabaseError):
    """Not the statement's fault: the service is away or busy, a conflict, a limit, a time that was over."""


class IntegrityError(DatabaseError):
    """A constraint is violated."""


class InternalError(DatabaseError):
    """The transaction is not in a state for this, for example failed and not rolled back."""


class ProgrammingError(DatabaseError):
    """The statement or its parameters are wrong."""


class NotSupportedError(DatabaseError):
    """The engine does not support it."""


_BY_CLASS: dict[str, type[DatabaseError]] = {
    "0A": NotSupportedError,
    "20": ProgrammingError,
    "21": ProgrammingError,
    "22": DataError,
    "23": IntegrityError,
    "24": InternalError,
    "25": InternalError,
    "26": ProgrammingError,
    "2B": InternalError,
    "2D": InternalError,
    "34": ProgrammingError,
    "3D": ProgrammingError,
    "3F": ProgrammingError,
    "42": ProgrammingError,
    "44": ProgrammingError,
    "P0": ProgrammingError,
    "XX": InternalError,
}
_OPERATIONAL = ("08", "27", "28", "2F", "38", "39", "3B", "40", "53", "54", "55", "57", "58", "F0", "HV")
_DISCONNECTED = (ConnectionFailed, OutcomeUnknown, Unauthenticated)


def make_error(error: TuplegateError) -> Error:
    """Return the exception of PEP 249 for one of the client's."""
    made = _choose_class(error)(error.message)
    made.sqlstate, made.code = error.sqlstate, error.code
    made.position, made.hint, made.detail = error.position, error.hint, error.detail
    made.request_id, made.retryable = error.request_id, error.retryable
    return made


def explain_failed(what: str) -> InternalError:
    """Return the error for a transaction that can only be rolled back."""
    error = InternalError(f"the transaction has failed: {what}")
    error.sqlstate = "25P02"
    return error


def leaves_open(error: TuplegateError) -> bool:
    """Return whether the transaction can continue, at least from a savepoint: only the statement was refused."""
    if isinstance(error, TransactionRollback):
        return False
    return isinstance(error, SqlError) or (isinstance(error, BadRequest) and error.status == 400)


def _choose_class(error: TuplegateError) -> type[DatabaseError]:
    if error.sqlstate is None:
        refused = isinstance(error, BadRequest) and error.status in (400, 422)
        return ProgrammingError if refused else OperationalError
    if error.sqlstate[:2] in _OPERATIONAL:
        return OperationalError
    return _BY_CLASS.get(error.sqlstate[:2], DatabaseError)


def is_disconnect(error: BaseException) -> bool:
    """Return whether further statements over the same connection would fail as well: the service is away, or has lost
    the transaction, with a worker or with a connection to the engine."""
    cause = error.__cause__
    if isinstance(cause, TransactionAborted):
        return cause.reason == "lost"
    lost = isinstance(cause, TuplegateError) and find_report(cause).get("reason") == "lost"
    return lost or isinstance(cause, _DISCONNECTED)
