"""The port's failures in the words of the error table: the one map from one to the other."""

from tuplegate.engine import port
from tuplegate.protocol.errors import ServiceError

_COPY_HINT = "Load rows with INSERT and parameters, read them with a SELECT that is streamed."


def to_service_error(failure: port.EngineFailure) -> ServiceError:
    """The port's failures in the words of the error table."""
    match failure:
        case port.StatementFailed():
            return ServiceError(
                _code_of(failure),
                failure.message,
                sqlstate=failure.sqlstate,
                position=failure.position,
                hint=failure.hint,
                detail=failure.detail,
                statement=failure.statement,
            )
        case port.CopyRefused():
            return ServiceError(
                "copy_not_supported", "COPY from or to the client is not possible over HTTP", hint=_COPY_HINT
            )
        case port.EngineBusy():
            return ServiceError("busy", str(failure))
        case port.OutcomeUnknown():
            return ServiceError("outcome_unknown", str(failure))
        case _:
            return ServiceError("engine_unavailable", str(failure))


def _code_of(failure: port.StatementFailed) -> str:
    match failure:
        case port.ParseFailed():
            return "parse_error"
        case port.MultipleStatements():
            return "multiple_statements"
        case port.EmptyStatement():
            return "empty_statement"
        case port.ParameterMismatch():
            return "parameter_mismatch"
        case port.Conflict():
            return "conflict"
        case port.TimedOut():
            return "timeout"
        case port.Stopped():
            return "shutting_down"
        case port.NotInTime():
            return "busy"
        case _:
            return "sql_error"
