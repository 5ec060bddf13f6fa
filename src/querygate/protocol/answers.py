"""What the data plane answers, as types: for the description of the service. The hot path writes the bytes itself."""

from typing import Any, Literal

import msgspec

from querygate.protocol.errors import ErrorBody


class Timings(msgspec.Struct):
    """In microseconds: of the whole request, and of the engine's part in it."""

    total_us: int
    exec_us: int


class NoticeBody(msgspec.Struct):
    severity: str
    message: str
    sqlstate: str | None
    detail: str | None
    hint: str | None


class QueryAnswer(msgspec.Struct, omit_defaults=True):
    """`rows` are objects by column name, or arrays where `row_mode` asks for them. Where `success` is false, the engine
    refused the statement, and `error` says why."""

    success: bool
    columns: list[str]
    types: list[str]
    rows: list[dict[str, Any] | list[Any]]
    affected_rows: int
    timings: Timings
    notices: list[NoticeBody] | None = None
    truncated: bool | None = None
    hint: str | None = None
    error: ErrorBody | None = None
    request_id: str | None = None


class StatementResult(msgspec.Struct, omit_defaults=True):
    columns: list[str]
    types: list[str]
    rows: list[dict[str, Any] | list[Any]]
    affected_rows: int
    truncated: bool | None = None


class TransactionAnswer(msgspec.Struct, omit_defaults=True):
    """Where `success` is false nothing was applied, and `error.statement` is the index of what failed."""

    success: bool
    transaction_id: str
    results: list[StatementResult]
    affected_rows: int
    attempts: int
    timings: Timings
    commit: Literal["two_phase", "one_phase", "read_only"] | None = None
    notices: list[NoticeBody] | None = None
    error: ErrorBody | None = None
    request_id: str | None = None


class TransactionState(msgspec.Struct):
    success: Literal[True]
    transaction_id: str
    state: Literal["committed", "aborted", "in_progress"]


class Banner(msgspec.Struct):
    service: str
    plane: str
    version: str
    description: str
    endpoints: dict[str, str]
    authentication: str
    documentation: str


class EngineBody(msgspec.Struct):
    kind: str
    version: str


class Health(msgspec.Struct):
    """`checks` names every check with `ok` or what is wrong."""

    status: Literal["ok", "failing"]
    version: str
    engine: EngineBody
    checks: dict[str, str]


class ErrorAnswer(msgspec.Struct, omit_defaults=True):
    """Every failure of every route, whatever its status."""

    success: Literal[False]
    error: ErrorBody
    request_id: str
    transaction_id: str | None = None
