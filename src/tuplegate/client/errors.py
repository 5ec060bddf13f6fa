"""All errors that a call can raise: one tree, chosen by what happened and, for SQL, by SQLSTATE. Pure.

`TuplegateError` is the base of all. Each carries what the service said: `code`, `sqlstate`, `position`, `hint`,
`detail`, `statement`, `request_id` and `retryable`; None or False if there is nothing to say.
"""

import re
from collections.abc import Mapping
from typing import Any

_REASON = re.compile(r"\(reason: (\w+)\)")
"""How the service names the reason in the message of an aborted transaction."""


class TuplegateError(Exception):
    """Anything that went wrong between the call and its answer. `answer` is the body of the answer, if one came."""

    answer: Mapping[str, Any] | None = None

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        sqlstate: str | None = None,
        position: int | None = None,
        hint: str | None = None,
        detail: str | None = None,
        statement: int | None = None,
        retryable: bool = False,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.sqlstate = sqlstate
        self.position = position
        self.hint = hint
        self.detail = detail
        self.statement = statement
        self.retryable = retryable
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class ConnectionFailed(TuplegateError):
    """The service could not be reached, or its answer was lost; nothing was applied by this call."""


class OutcomeUnknown(TuplegateError):
    """The answer was lost. The request may have been applied or not.

    If the call had an Idempotency-Key, it is in `idempotency_key`: the same call with that key runs at most once. If it
    was the commit of a transaction, `transaction_id` is its id: `client.transaction_state` tells the outcome.
    """

    idempotency_key: str | None = None
    transaction_id: str | None = None


class StreamCut(TuplegateError):
    """A stream ended without its last event: the rows read so far are not a complete result."""


class NotOneRow(TuplegateError):
    """`one()` or `value()` was called on a result that does not have exactly one row."""


# -- refused by the service ----------------------------------------------------------------------------------------


class ApiError(TuplegateError):
    """The service refused the request, before or beside SQL."""


class BadRequest(ApiError):
    """400, 405, 406, 408, 415, 422: the service does not accept such a request."""


class Unauthenticated(ApiError):
    """401: the key or session token is missing, unknown, expired or revoked."""


class Forbidden(ApiError):
    """403: the token is valid, but lacks the scope."""


class NotFound(ApiError):
    """404: there is no such thing, or it belongs to another organization."""


class AlreadyExists(ApiError):
    """409: a name or id that is taken, or a state that does not allow it."""


class TransactionAborted(AlreadyExists):
    """409: the transaction was rolled back before it could be committed; nothing of it was applied.

    `reason` says why: `rollback`, `conflict`, `revoked`, `limit`, or `lost` if the service lost it; None if unknown.
    """

    reason: str | None = None


class TransactionExpired(ApiError):
    """410: the transaction waited too long for its next statement, or was open for too long; it was rolled back."""


class TooLarge(ApiError):
    """413: the request body is over the limit."""


class RateLimited(ApiError):
    """429: the organization's quota is used up; `retry_after_s` says for how long."""


class ServiceFault(ApiError):
    """500: a fault of the service; its log has the cause under `request_id`."""


class Unavailable(ApiError):
    """503: the engine is away, or everything is busy; nothing was applied."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: AlreadyExists,
    410: TransactionExpired,
    413: TooLarge,
    429: RateLimited,
    503: Unavailable,
}


# -- refused by the engine -----------------------------------------------------------------------------------------


_BY_SQLSTATE: dict[str, "type[SqlError]"] = {}
"""The errors of an SQLSTATE, or of a class of them."""


class SqlError(TuplegateError):
    """The engine refused a statement; nothing of it was applied. `sqlstate` says why."""

    def __init_subclass__(cls, sqlstate: str | None = None) -> None:
        if sqlstate is not None:
            _BY_SQLSTATE[sqlstate] = cls


class DataError(SqlError, sqlstate="22"):
    """Class 22: a value does not belong to its type, or is out of range."""


class NumericValueOutOfRange(DataError, sqlstate="22003"):
    """22003."""


class DivisionByZero(DataError, sqlstate="22012"):
    """22012."""


class InvalidTextRepresentation(DataError, sqlstate="22P02"):
    """22P02: a text or parameter is not a value of the type."""


class IntegrityError(SqlError, sqlstate="23"):
    """Class 23: a constraint is violated."""


class NotNullViolation(IntegrityError, sqlstate="23502"):
    """23502."""


class ForeignKeyViolation(IntegrityError, sqlstate="23503"):
    """23503."""


class UniqueViolation(IntegrityError, sqlstate="23505"):
    """23505."""


class CheckViolation(IntegrityError, sqlstate="23514"):
    """23514."""


class ExclusionViolation(IntegrityError, sqlstate="23P01"):
    """23P01."""


class InvalidTransactionState(SqlError, sqlstate="25"):
    """Class 25."""


class ReadOnlyTransaction(InvalidTransactionState, sqlstate="25006"):
    """25006: a write by a key or in a transaction that may only read."""


class TransactionRollback(SqlError, sqlstate="40"):
    """Class 40: a conflict with another transaction outlasted the service's own retries; the call may be repeated."""


class SerializationFailure(TransactionRollback, sqlstate="40001"):
    """40001."""


class DeadlockDetected(TransactionRollback, sqlstate="40P01"):
    """40P01."""


class ProgrammingError(SqlError, sqlstate="42"):
    """Class 42: the statement is wrong, or names something that does not exist or that its role may not touch."""


class SqlSyntaxError(ProgrammingError, sqlstate="42601"):
    """42601."""


class InsufficientPrivilege(ProgrammingError, sqlstate="42501"):
    """42501."""


class UndefinedColumn(ProgrammingError, sqlstate="42703"):
    """42703."""


class UndefinedFunction(ProgrammingError, sqlstate="42883"):
    """42883."""


class UndefinedTable(ProgrammingError, sqlstate="42P01"):
    """42P01."""


class DuplicateTable(ProgrammingError, sqlstate="42P07"):
    """42P07."""


class InsufficientResources(SqlError, sqlstate="53"):
    """Class 53."""


class DiskFull(InsufficientResources, sqlstate="53100"):
    """53100: the disk is full, or the database has reached its size limit."""


class QueryCanceled(SqlError, sqlstate="57014"):
    """57014: the statement ran longer than its limit."""


class RaisedException(SqlError, sqlstate="P0001"):
    """P0001: RAISE in a function."""


def make_error(
    status: int, error: Mapping[str, Any], request_id: str | None, retry_after_s: float | None
) -> "TuplegateError":
    """Return the exception for the `error` object of an answer."""
    fields = {name: error.get(name) for name in ("code", "sqlstate", "position", "hint", "detail", "statement")}
    made = _choose_class(status, error)(
        str(error.get("message") or f"the service answered with status {status}"),
        **fields,
        status=status,
        retryable=error.get("retryable") is True,
        request_id=request_id,
        retry_after_s=retry_after_s,
    )
    if isinstance(made, TransactionAborted):
        reason = _REASON.search(made.message)
        made.reason = None if reason is None else reason[1]
    return made


def _choose_class(status: int, error: Mapping[str, Any]) -> type[TuplegateError]:
    if error.get("code") == "outcome_unknown":
        return OutcomeUnknown
    if error.get("code") == "transaction_aborted":
        return TransactionAborted
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    sqlstate = error.get("sqlstate")
    if isinstance(sqlstate, str):
        return _BY_SQLSTATE.get(sqlstate) or _BY_SQLSTATE.get(sqlstate[:2]) or SqlError
    if status >= 500:
        return ServiceFault
    return SqlError if status == 200 else BadRequest
