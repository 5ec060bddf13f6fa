"""Writes errors as Neon's clients read them: the fields of the engine's error, with status 400.

The driver reads only 400 as JSON. So an error about a statement, a key or a database is 400 here. Statuses that ask a
proxy or a client to wait and repeat (429, 503) stay, and so do those that concern only HTTP.
"""

from typing import Final

import msgspec

from tuplegate.protocol.errors import EngineFields, ServiceError
from tuplegate.protocol.neon import SqlFailure

_encode: Final = msgspec.json.Encoder().encode

STATUS: Final = 400
AS_400: Final = frozenset({200, 401, 403, 404, 406})
"""Statuses of the table of errors that are 400 on this route."""

_SQLSTATES: Final = {
    "malformed_request": "08P01",
    "empty_statement": "42601",
    "too_many_comments": "54000",
    "parameter_mismatch": "08P01",
    "transaction_control": "0A000",
    "copy_not_supported": "0A000",
    "unauthenticated": "28P01",
    "forbidden": "42501",
    "not_found": "3D000",
    "not_acceptable": "0A000",
    "request_timeout": "08006",
    "body_too_large": "54000",
    "idempotency_in_progress": "55006",
    "idempotency_mismatch": "22023",
    "answers_full": "53400",
    "rate_limited": "53400",
    "busy": "53300",
    "engine_unavailable": "57P03",
    "shutting_down": "57P01",
    "outcome_unknown": "08007",
}
"""The SQLSTATE that PostgreSQL would use, for refusals of the service itself."""

_INTERNAL: Final = "XX000"
_FATAL: Final = frozenset({"unauthenticated", "not_found"})
"""Errors with which PostgreSQL refuses a connection."""
_NO_FIELDS: Final = EngineFields()


def write_error(error: ServiceError, request_id: str) -> tuple[int, bytes]:
    """Return the status and the body."""
    body, fields = error.body, error.fields or _NO_FIELDS
    failure = SqlFailure(
        message=body.message,
        code=body.sqlstate or _SQLSTATES.get(body.code, _INTERNAL),
        severity=fields.severity or ("FATAL" if body.code in _FATAL else "ERROR"),
        detail=body.detail,
        hint=body.hint,
        position=None if body.position is None else str(body.position),
        internal_position=fields.internal_position,
        internal_query=fields.internal_query,
        where=fields.where,
        schema=fields.schema,
        table=fields.table,
        column=fields.column,
        data_type=fields.data_type,
        constraint=fields.constraint,
        file=fields.file,
        line=fields.line,
        routine=fields.routine,
        success=False,
        error=body,
        request_id=request_id,
    )
    return STATUS if error.status in AS_400 else error.status, _encode(failure)
