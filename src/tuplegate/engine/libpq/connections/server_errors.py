"""Turns errors of the server into the port's exceptions, by SQLSTATE and, only if necessary, by message."""

from typing import Final

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.error_fields import copy_field
from tuplegate.protocol.errors import EngineFields

_Field: Final = pq.DiagnosticField
_ERROR: Final = int(pq.ExecStatus.FATAL_ERROR)
_EMPTY: Final = int(pq.ExecStatus.EMPTY_QUERY)

_RAISED: Final = "pl_exec.c"
"""The server's file that raises the errors of a tenant's PL/pgSQL code."""

CONFLICTS: Final = frozenset({"40001", "40P01"})
# The server is stopping, starting or has no room for a connection: nothing of the statement was applied.
_UNAVAILABLE: Final = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "53300"})


_OF_PREPARED: Final = frozenset({"RevalidateCachedQuery", "FetchPreparedStatement", "exec_bind_message"})
"""Functions of the server that refuse to run a prepared statement, because it is out of date or missing. Other failures
have the same SQLSTATEs."""


_TEXT_MAX: Final = 4096
"""The bound on the bytes of a message, detail, hint or context: a tenant's code can make them as long as it likes."""
_LONG: Final = (_Field.MESSAGE_PRIMARY, _Field.MESSAGE_DETAIL, _Field.MESSAGE_HINT, _Field.CONTEXT)

TOGETHER_MAX: Final = 64 * 2**20
"""The bound on the bytes of rows that libpq may gather before it hands them over, if they are more than one."""
TOO_WIDE: Final = f"rows that come together take more than {TOGETHER_MAX >> 20} MiB"
STREAM_IT: Final = "Ask for fewer rows at a time (LIMIT), for parts of their values, or stream them."
STREAM_APART: Final = (
    "Ask for parts of their values, or for rows that are much wider than those before them in a stream of their own."
)


def read_field(result: PGresult, name: pq.DiagnosticField) -> str | None:
    """Return a field of the server's error, cut if it is too long."""
    value = copy_field(result, name, _TEXT_MAX)
    if value is None:
        return None
    if len(value) > _TEXT_MAX:
        return value[:_TEXT_MAX].decode("utf-8", "ignore") + "…"
    return value.decode("utf-8", "replace")


def find_error(results: list[PGresult]) -> PGresult | None:
    """Return the last error of a segment: a failed commit reports its error after its statement was reported as
    done."""
    error = None
    for result in results:
        if result.status == _ERROR:
            error = result
    return error


def to_failure(result: PGresult) -> port.EngineFailure:
    """Return the exception for the server's error."""
    sqlstate = read_field(result, _Field.SQLSTATE)
    message = read_field(result, _Field.MESSAGE_PRIMARY) or result.get_error_message()[:_TEXT_MAX]
    position = read_field(result, _Field.STATEMENT_POSITION)
    context = read_field(result, _Field.CONTEXT)
    if sqlstate in _UNAVAILABLE:
        return port.EngineUnavailable(message)
    if sqlstate == "53100" and read_field(result, _Field.SOURCE_FILE) != _RAISED:
        return port.StatementFailed(
            "the disk of the engine is full; nothing was applied",
            sqlstate=sqlstate,
            hint="TRUNCATE or DROP what is not needed. Whoever runs the service can make room on its disk.",
            detail=message,
            context=context,
        )
    kind: type[port.StatementFailed] = port.StatementFailed
    if sqlstate == "42601" and position is not None and context is None:
        kind = port.ParseFailed
    elif sqlstate == "42601" and position is None and message.startswith("cannot insert multiple commands"):
        kind = port.MultipleStatements
    elif sqlstate == "08P01" and message.startswith("bind message supplies"):
        kind = port.ParameterMismatch
        message = _find_parameter_count(message)
    elif sqlstate in CONFLICTS:
        kind = port.Conflict
    failure = kind(
        message,
        sqlstate=sqlstate,
        position=int(position) if position else None,
        detail=read_field(result, _Field.MESSAGE_DETAIL),
        hint=read_field(result, _Field.MESSAGE_HINT),
        context=context,
    )
    fields = failure.fields = _read_further(result, context)
    failure.never_ran = failure.position is not None or fields.routine in _OF_PREPARED
    return failure


def _read_further(result: PGresult, context: str | None) -> EngineFields:
    """Return the fields of the server's error that few clients ask for."""
    return EngineFields(
        severity=read_field(result, _Field.SEVERITY_NONLOCALIZED),
        internal_position=read_field(result, _Field.INTERNAL_POSITION),
        internal_query=read_field(result, _Field.INTERNAL_QUERY),
        where=context,
        schema=read_field(result, _Field.SCHEMA_NAME),
        table=read_field(result, _Field.TABLE_NAME),
        column=read_field(result, _Field.COLUMN_NAME),
        data_type=read_field(result, _Field.DATATYPE_NAME),
        constraint=read_field(result, _Field.CONSTRAINT_NAME),
        file=read_field(result, _Field.SOURCE_FILE),
        line=read_field(result, _Field.SOURCE_LINE),
        routine=read_field(result, _Field.SOURCE_FUNCTION),
    )


def _find_parameter_count(message: str) -> str:
    numbers = [word for word in message.split() if word.isdigit()]
    if len(numbers) != 2:
        return message
    return f"{numbers[0]} parameters were sent, the statement has {numbers[1]} placeholders"


def is_internal(failure: port.StatementFailed) -> bool:
    """Return whether the engine failed by an error of its own (class XX).

    State in its process may be the cause, so nothing else may run there: PL/pgSQL keeps the types of its variables for
    as long as the connection lives, including those that a rollback has removed.
    """
    return (failure.sqlstate or "").startswith("XX")


def check(results: list[PGresult]) -> None:
    """Raise the failure in the results of a segment, if there is one."""
    error = find_error(results)
    if error is not None:
        raise to_failure(error)
    if results and results[-1].status == _EMPTY:
        raise port.EmptyStatement("there is no SQL statement in the text", sqlstate=None)


def is_last_word(result: PGresult) -> bool:
    """Return whether the server closes the connection with this error."""
    return read_field(result, _Field.SEVERITY_NONLOCALIZED) in ("FATAL", "PANIC")


def is_panic(result: PGresult) -> bool:
    """Return whether the whole server went down with this error, which can also happen after a commit was written."""
    return read_field(result, _Field.SEVERITY_NONLOCALIZED) == "PANIC"


def to_notice(result: PGresult) -> port.Notice:
    return port.Notice(
        severity=read_field(result, _Field.SEVERITY_NONLOCALIZED) or "NOTICE",
        message=read_field(result, _Field.MESSAGE_PRIMARY) or "",
        sqlstate=read_field(result, _Field.SQLSTATE),
        detail=read_field(result, _Field.MESSAGE_DETAIL),
        hint=read_field(result, _Field.MESSAGE_HINT),
    )


def count_texts(result: PGresult) -> int:
    """Return the bytes of a notice's long texts. After the handover, libpq no longer holds them."""
    return sum(len(result.error_field(field) or b"") for field in _LONG)


def explain_width(hint: str = STREAM_IT, exec_us: int = 0) -> port.StatementFailed:
    """Return the failure for rows that were too wide; their connection is closed, and nothing was committed."""
    failure = port.StatementFailed(f"{TOO_WIDE}; nothing was applied", sqlstate="54000", hint=hint)
    failure.exec_us = exec_us
    return failure
