"""Maps errors of the service and of the engine to those of PostgreSQL's protocol: the only place that does."""

from typing import Final

from tuplegate.data_plane.wire.messages import WireError
from tuplegate.engine import port
from tuplegate.protocol.errors import ServiceError

_SQLSTATES: Final = {
    "unauthenticated": "28P01",
    "forbidden": "42501",
    "not_found": "3D000",
    "rate_limited": "53400",
    "busy": "53300",
    "engine_unavailable": "57P03",
    "shutting_down": "57P01",
}


def to_wire_error(failure: ServiceError | port.EngineFailure) -> WireError:
    match failure:
        case ServiceError():
            body = failure.body
            return WireError(_SQLSTATES.get(body.code, "XX000"), body.message, body.hint)
        case port.StatementFailed():
            return WireError(failure.sqlstate or "XX000", failure.message, failure.hint, failure.detail)
        case port.EngineBusy():
            return WireError("53300", failure.told)
        case port.NotSupported():
            return WireError("0A000", failure.told)
        case _:
            return WireError("57P03", failure.told)
