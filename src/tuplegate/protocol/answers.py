"""The answers of the data plane, and of every plane, as types. They describe the service; the routes write the bytes
themselves.

A field that an answer may lack is `Unset` by default; None is for a field that is there and null. Every answer tells
its type by a constant `success`, by which generated clients tell answers apart.
"""

from typing import Any, Literal

import msgspec

from tuplegate.protocol.errors import ErrorBody

Unset = msgspec.UnsetType
UNSET = msgspec.UNSET
EndedBy = Literal["rollback", "idle", "lifetime", "conflict", "revoked", "limit", "lost"]
Rows = list[dict[str, Any] | list[Any]]
"""Objects by column name, or arrays where `row_mode` asks for them."""


class Timings(msgspec.Struct):
    """In microseconds: the whole request, and the part of the engine."""

    total_us: int
    exec_us: int


class Notice(msgspec.Struct):
    """A message that the engine sent beside the result."""

    severity: str
    message: str
    sqlstate: str | None
    detail: str | None
    hint: str | None


class QueryAnswer(msgspec.Struct):
    """`rows` are objects by column name, or arrays where `row_mode` asks for them."""

    success: Literal[True]
    columns: list[str]
    types: list[str]
    rows: Rows
    affected_rows: int
    timings: Timings
    notices: list[Notice] | Unset = UNSET
    truncated: Literal[True] | Unset = UNSET
    hint: str | Unset = UNSET


class QueryFailure(msgspec.Struct):
    """The engine refused the statement, and `error` says why. The lists are empty."""

    success: Literal[False]
    columns: list[str]
    types: list[str]
    rows: Rows
    affected_rows: int
    timings: Timings
    error: ErrorBody
    request_id: str
    notices: list[Notice] | Unset = UNSET


class StatementResult(msgspec.Struct):
    """The result of one statement of a transaction."""

    columns: list[str]
    types: list[str]
    rows: Rows
    affected_rows: int
    truncated: Literal[True] | Unset = UNSET


class TransactionAnswer(msgspec.Struct):
    """All statements are applied; if `commit` is `read_only`, there was nothing to apply."""

    success: Literal[True]
    transaction_id: str
    results: list[StatementResult]
    affected_rows: int
    attempts: int
    commit: Literal["two_phase", "one_phase", "engine", "read_only"]
    timings: Timings


class TransactionFailure(msgspec.Struct):
    """Nothing was applied; `error.statement` is the index of the statement that failed. `results` is empty."""

    success: Literal[False]
    transaction_id: str
    results: list[StatementResult]
    affected_rows: int
    attempts: int
    timings: Timings
    error: ErrorBody
    request_id: str


class TransactionState(msgspec.Struct):
    """The state of a transaction. `expires_at` is there while it is open, `reason` if it was open and was rolled
    back."""

    success: Literal[True]
    transaction_id: str
    state: Literal["committed", "aborted", "in_progress", "open", "failed"]
    expires_at: str | Unset = UNSET
    reason: EndedBy | Unset = UNSET


class OpenState(msgspec.Struct):
    """The state of a transaction that stays open, behind a statement of it."""

    state: Literal["open", "failed", "aborted"]
    expires_at: str | Unset = UNSET
    reason: EndedBy | Unset = UNSET


class OpenAnswer(msgspec.Struct):
    """A transaction that stays open. `result` is that of its first statement, if it was begun with one."""

    success: Literal[True]
    transaction_id: str
    state: Literal["open"]
    expires_at: str
    result: QueryAnswer | Unset = UNSET


class InnerAnswer(QueryAnswer):
    """As of a query, with the state of its transaction."""

    transaction: OpenState | Unset = UNSET


class InnerFailure(QueryFailure):
    """As of a query, with the state of its transaction."""

    transaction: OpenState | Unset = UNSET


class ColumnBody(msgspec.Struct):
    name: str
    type: str
    nullable: bool
    default: str | None
    primary_key: bool


class TableBody(msgspec.Struct):
    """`locked`: another transaction has exclusive use of it, so neither size nor defaults are known."""

    schema: str
    name: str
    kind: Literal["table", "view", "materialized view", "partitioned table", "foreign table"]
    columns: list[ColumnBody]
    row_estimate: int | None
    size_bytes: int | None
    locked: bool


class TablesAnswer(msgspec.Struct):
    success: Literal[True]
    tables: list[TableBody]
    truncated: Literal[True] | Unset = UNSET


class EngineBody(msgspec.Struct):
    kind: str
    version: str


class EngineState(msgspec.Struct):
    """A `replicated` commit waits until a standby has it; a `local` one does not."""

    kind: str
    version: str
    commits: Literal["local", "replicated"]


class ProbeVerdict(msgspec.Struct):
    name: str
    group: str
    title: str
    supported: bool


class WeaknessBody(msgspec.Struct):
    name: str
    reaches_others: bool
    meaning: str
    remedy: str


class CapabilitiesAnswer(msgspec.Struct):
    """`limits` are by the names of the settings, which include their units. `weaknesses` is empty where every
    database has the bundled engine."""

    success: Literal[True]
    engine: EngineBody
    limits: dict[str, Any]
    weaknesses: list[WeaknessBody]
    probes: list[ProbeVerdict]


class ProbeError(msgspec.Struct):
    message: str
    sqlstate: str | None


class ProbeStatement(msgspec.Struct):
    """In a race, `transaction` names the transaction that ran the statement; elsewhere there is `as_expected`."""

    sql: str
    rows: list[list[str | None]] | None
    error: ProbeError | None
    exec_us: int
    as_expected: bool | Unset = UNSET
    transaction: str | Unset = UNSET


class ProbeTimings(msgspec.Struct):
    exec_us: int


class ProbeAnswer(msgspec.Struct):
    success: Literal[True]
    name: str
    group: str
    title: str
    supported: bool
    statements: list[ProbeStatement]
    timings: ProbeTimings


class Percentiles(msgspec.Struct):
    """In microseconds; null if no operation succeeded."""

    p50: int | None
    p95: int | None
    p99: int | None


class BenchAnswer(msgspec.Struct):
    success: Literal[True]
    workload: str
    concurrency: int
    seconds: float
    operations: int
    retries: int
    errors: int
    per_second: float
    latency_us: Percentiles


class StorageSteps(msgspec.Struct):
    write: int
    commit: int
    read: int
    compare: int
    delete: int


class StorageAnswer(msgspec.Struct):
    """`durable` tells whether the engine's settings let a commit survive a loss of power, `replicated` whether a commit
    waits until a standby has it."""

    success: Literal[True]
    bytes: int
    sha256: str
    durable: bool
    replicated: bool
    engine_settings: dict[str, str]
    steps_us: StorageSteps


class ResetTimings(msgspec.Struct):
    total_us: int


class ResetAnswer(msgspec.Struct):
    success: Literal[True]
    timings: ResetTimings


class Banner(msgspec.Struct):
    """`data_url`, `control_url` and `console` are addresses; null if this plane does not know them."""

    service: str
    plane: str
    version: str
    description: str
    endpoints: dict[str, str]
    data_url: str | None
    control_url: str | None
    authentication: str
    documentation: str
    console: str | None
    openapi: str


class Health(msgspec.Struct):
    """`checks` names every check with `ok` or `failing`; an operator's token is told what is wrong. A `degraded`
    service works, but not in full. The alias reports no engine."""

    status: Literal["ok", "degraded", "failing"]
    version: str
    checks: dict[str, str]
    engine: EngineState | Unset = UNSET


class OpenApi(msgspec.Struct):
    """A description according to the OpenAPI Specification."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


class ErrorAnswer(msgspec.Struct):
    """Every failure of every route, whatever its status."""

    success: Literal[False]
    error: ErrorBody
    request_id: str
    transaction_id: str | Unset = UNSET
