"""The table of error codes, and the exception that carries one of them to the client.

Every answer that is not a success has a code from `ERRORS`. The table gives its HTTP status, tells whether the same
request may be sent again, and makes `docs/errors.md`. Nothing else in the service decides a status.
"""

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class ErrorCode:
    code: str
    status: int
    retryable: bool
    meaning: str


ERRORS: dict[str, ErrorCode] = {
    row[0]: ErrorCode(*row)
    for row in (
        ("malformed_request", 400, False, "The request is not what the route takes; the message says where."),
        ("parse_error", 400, False, "The engine could not parse the SQL; `position` counts from 1."),
        ("empty_statement", 400, False, "There is no statement, only white space, comments or semicolons."),
        ("multiple_statements", 400, False, "More than one statement in a text; use `POST /v1/transaction`."),
        ("too_many_comments", 400, False, "The engine would take too long to skip the comments; leave them out."),
        ("parameter_mismatch", 400, False, "There are more or fewer parameters than placeholders `$1`, `$2`, …"),
        ("transaction_control", 400, False, "BEGIN, COMMIT and the like; use `POST /v1/transaction`."),
        ("copy_not_supported", 400, False, "COPY from or to the client; use INSERT with parameters or a stream."),
        ("unauthenticated", 401, False, "The token is missing, malformed, unknown, expired or revoked."),
        ("forbidden", 403, False, "The token is valid but lacks the scope that the route needs."),
        ("not_found", 404, False, "There is no such route or thing, or it is another organization's."),
        ("method_not_allowed", 405, False, "The route exists but not for this method; see `Allow`."),
        ("not_acceptable", 406, False, "None of the media types in `Accept` can be produced."),
        ("request_timeout", 408, True, "The request did not arrive in time; the connection is closed."),
        ("already_exists", 409, False, "Another thing has this name."),
        ("wrong_state", 409, False, "The state of the thing does not allow this."),
        (
            "weaker_walls",
            409,
            False,
            "The engine does not keep organizations apart in full, and the operator has not accepted that.",
        ),
        (
            "organization_full",
            409,
            False,
            "The databases of the organization take all the room they may; make some first.",
        ),
        ("too_many_databases", 409, False, "The organization has as many databases as it may; delete one first."),
        ("delete_protected", 409, False, "The database is protected; remove its protection first."),
        ("transaction_id_used", 409, False, "The transaction id was used before; ask for its outcome."),
        ("transaction_aborted", 409, False, "The id was aborted before the transaction could commit."),
        ("transaction_in_use", 409, True, "Another request of the transaction is still running."),
        ("out_of_sequence", 409, False, "The `sequence` is neither the last one nor the next."),
        ("transaction_expired", 410, False, "The transaction was idle, or open, for too long; it was rolled back."),
        ("idempotency_in_progress", 409, True, "A request with this Idempotency-Key is still running."),
        (
            "already_running",
            409,
            True,
            "Only one of its kind runs at a time in a database or an organization, and one is running.",
        ),
        ("dump_failed", 409, False, "The database cannot be dumped as it is; the message says why."),
        ("move_failed", 409, False, "The database could not be moved, and stays where it was; the message says why."),
        ("body_too_large", 413, False, "The request body is over the limit."),
        ("unsupported_media_type", 415, False, "The body's content type is not the one the route takes."),
        ("answers_full", 503, True, "The database keeps as many answers for Idempotency-Keys as it may."),
        ("idempotency_mismatch", 422, False, "The Idempotency-Key was used with another body."),
        ("upgrade_required", 426, False, "The route speaks WebSocket, version 13, and nothing else."),
        ("rate_limited", 429, True, "The organization has used up its requests of this minute."),
        ("sql_error", 200, False, "The engine refused the statement; `sqlstate` says why."),
        ("conflict", 200, True, "A serialization conflict or deadlock outlasted the service's own retries."),
        ("timeout", 200, False, "The statement ran longer than its limit and was cancelled; nothing was applied."),
        ("internal", 500, False, "A fault of the service; the log has it under the request id."),
        ("storage_mismatch", 500, False, "The engine returned other bytes than were stored: an alarm."),
        ("not_supported", 501, False, "This installation cannot do it; the message says what it lacks."),
        ("busy", 503, True, "Too many statements are running or waiting; nothing was run."),
        ("engine_unavailable", 503, True, "The engine is not there or full; nothing was applied."),
        ("data_plane_unavailable", 503, True, "The alias cannot reach the data plane; nothing was applied."),
        ("shutting_down", 503, True, "The service is stopping; nothing was applied."),
        (
            "outcome_unknown",
            503,
            False,
            "The connection to the engine, or from alias to data plane, was lost; the request may have been applied.",
        ),
    )
}


class ErrorBody(msgspec.Struct, frozen=True):
    """The `error` object of an answer. Every field is always there."""

    code: str
    message: str
    sqlstate: str | None
    position: int | None
    hint: str | None
    detail: str | None
    statement: int | None
    retryable: bool


class EngineFields(msgspec.Struct, frozen=True):
    """The fields of an engine's error that `ErrorBody` does not have. Positions and lines are digits."""

    severity: str | None = None
    internal_position: str | None = None
    internal_query: str | None = None
    where: str | None = None
    schema: str | None = None
    table: str | None = None
    column: str | None = None
    data_type: str | None = None
    constraint: str | None = None
    file: str | None = None
    line: str | None = None
    routine: str | None = None


class ServiceError(Exception):
    """Ends a request with a code of the table. `headers` are added to the answer. `fields` are for routes that tell all
    that an engine said."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        sqlstate: str | None = None,
        position: int | None = None,
        hint: str | None = None,
        detail: str | None = None,
        statement: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        fields: EngineFields | None = None,
    ) -> None:
        super().__init__(message)
        entry = ERRORS[code]
        self.status = entry.status
        self.headers = headers
        self.fields = fields
        self.body = ErrorBody(code, message, sqlstate, position, hint, detail, statement, entry.retryable)

    def at_statement(self, index: int) -> "ServiceError":
        """Return the same error for the statement with this index."""
        return self._changed(statement=index)

    def with_hint(self, hint: str) -> "ServiceError":
        return self._changed(hint=hint)

    def _changed(self, **changes: str | int) -> "ServiceError":
        changed = ServiceError(self.body.code, self.body.message, headers=self.headers, fields=self.fields)
        changed.body = msgspec.structs.replace(self.body, **changes)
        return changed
