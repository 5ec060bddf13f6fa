"""Maps the port's failures to errors of the table: the only place that does."""

from tuplegate.engine import port
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.placeholders import foreign_placeholder

_COPY_HINT = "Load rows with INSERT and parameters, read them with a SELECT that is streamed."
_DISK_HINT = (
    "The disk of the service is full. Whoever runs it must make room; `tuplegate doctor` on its machine shows the disk."
)
_ENGINES_DISK_HINT = "Check free disk space."
_OF_NAMES = ("42703", "42883")
"""SQLSTATEs of a missing column and operator: for the engine, `%s` is one of these."""


def to_service_error(failure: port.EngineFailure, statement: port.Statement | None = None) -> ServiceError:
    """Return the error for the client. `statement` is the one that failed, if it is known."""
    match failure:
        case port.MultipleStatements():
            one, many = "Send them one by one", "together, as the list `statements`, to POST /v1/transaction"
            return ServiceError(
                "multiple_statements",
                "the text has more than one SQL statement, and one is taken; none was run",
                sqlstate=failure.sqlstate,
                hint=f"{one}, or {many}." if failure.statement is None else "Each entry of `statements` holds one.",
                statement=failure.statement,
                fields=failure.fields,
            )
        case port.StatementFailed():
            return ServiceError(
                _CODES.get(type(failure), "sql_error"),
                failure.message,
                sqlstate=failure.sqlstate,
                position=failure.position,
                hint=_hint(failure, statement),
                detail=failure.detail,
                statement=failure.statement,
                fields=failure.fields,
            )
        case port.CopyRefused():
            return ServiceError(
                "copy_not_supported", "COPY from or to the client is not possible over HTTP", hint=_COPY_HINT
            )
        case port.BadPosition():
            return ServiceError("malformed_request", failure.told)
        case port.EngineBusy():
            return ServiceError("busy", failure.told)
        case port.OutcomeUnknown():
            return ServiceError("outcome_unknown", failure.told)
        case _:
            return ServiceError("engine_unavailable", failure.told)


def _hint(failure: port.StatementFailed, statement: port.Statement | None) -> str | None:
    """Return the engine's hint, unless the service knows better what is wrong."""
    if failure.sqlstate == "53100" and failure.hint == _ENGINES_DISK_HINT:
        return _DISK_HINT
    if statement is not None and (
        isinstance(failure, port.ParseFailed | port.ParameterMismatch)
        or (statement.params and failure.sqlstate in _OF_NAMES)
    ):
        foreign = foreign_placeholder(statement.sql)
        if foreign is not None:
            return f"Placeholders are $1, $2 and so on, not {foreign}."
    return failure.hint


_CODES: dict[type[port.StatementFailed], str] = {
    port.ParseFailed: "parse_error",
    port.EmptyStatement: "empty_statement",
    port.ParameterMismatch: "parameter_mismatch",
    port.Conflict: "conflict",
    port.TimedOut: "timeout",
    port.Stopped: "shutting_down",
    port.NotInTime: "busy",
}
"""The codes of failures that are not the engine's plain refusal, `sql_error`."""
