"""Failures of the engine that no route handled, as errors of the table."""

from tuplegate.engine import port
from tuplegate.protocol.errors import ServiceError

_QUESTIONS = ("GET", "HEAD")


def to_fallback_error(failure: port.EngineFailure, method: str) -> ServiceError | None:
    """Return the error, or None for a fault of ours: the engine refused a statement of the service's own."""
    if isinstance(failure, port.EngineBusy):
        return ServiceError("busy", failure.told)
    if isinstance(failure, port.NotInTime):
        return ServiceError("busy", "what it needs in the engine is locked by somebody else; try again later")
    if isinstance(failure, port.OutcomeUnknown) or (isinstance(failure, port.EngineLost) and method not in _QUESTIONS):
        return ServiceError(
            "outcome_unknown", "the engine was lost on the way; it may have been done, or be done later"
        )
    if isinstance(failure, port.CommitsRefused):
        return ServiceError("engine_unavailable", failure.told)
    if isinstance(failure, port.EngineUnavailable):
        return ServiceError("engine_unavailable", "the engine is not there just now; nothing was changed")
    return None
