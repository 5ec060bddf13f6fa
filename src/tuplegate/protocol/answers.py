"""What the data plane and every plane answer, as types: for the description of the service. The routes write the bytes
themselves."""

from typing import Any, Literal

import msgspec

from tuplegate.protocol.errors import ErrorBody


class Timings(msgspec.Struct):
    """In microseconds: of the whole request, and of the engine's part in it."""

    total_us: int
    exec_us: int


class Notice(msgspec.Struct):
    """A message that the engine sent beside the result."""

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
    notices: list[Notice] | None = None
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
    error: ErrorBody | None = None
    request_id: str | None = None


class TransactionState(msgspec.Struct):
    success: Literal[True]
    transaction_id: str
    state: Literal["committed", "aborted", "in_progress"]


class ColumnBody(msgspec.Struct):
    name: str
    type: str
    nullable: bool
    default: str | None
    primary_key: bool


class TableBody(msgspec.Struct):
    """`locked` where another transaction has it for itself: then neither size nor defaults are known."""

    schema: str
    name: str
    kind: Literal["table", "view", "materialized view", "partitioned table", "foreign table"]
    columns: list[ColumnBody]
    row_estimate: int | None
    size_bytes: int | None
    locked: bool


class TablesAnswer(msgspec.Struct, omit_defaults=True):
    success: Literal[True]
    tables: list[TableBody]
    truncated: bool | None = None


class EngineBody(msgspec.Struct):
    kind: str
    version: str


class ProbeVerdict(msgspec.Struct):
    name: str
    group: str
    title: str
    supported: bool


class CapabilitiesAnswer(msgspec.Struct):
    """`limits` are by the names of the settings, which carry their units."""

    success: Literal[True]
    engine: EngineBody
    limits: dict[str, Any]
    probes: list[ProbeVerdict]


class ProbeError(msgspec.Struct):
    message: str
    sqlstate: str | None


class ProbeStatement(msgspec.Struct, omit_defaults=True):
    """`transaction` says whose move it was, in a race; of others `as_expected` is told."""

    sql: str
    rows: list[list[str | None]] | None
    error: ProbeError | None
    exec_us: int
    as_expected: bool | None = None
    transaction: str | None = None


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
    """In microseconds; null where no operation succeeded."""

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
    """`durable` says whether the engine's settings make a commit one that outlasts the loss of power."""

    success: Literal[True]
    bytes: int
    sha256: str
    durable: bool
    engine_settings: dict[str, str]
    steps_us: StorageSteps


class ResetTimings(msgspec.Struct):
    total_us: int


class ResetAnswer(msgspec.Struct):
    success: Literal[True]
    timings: ResetTimings


class Banner(msgspec.Struct):
    service: str
    plane: str
    version: str
    description: str
    endpoints: dict[str, str]
    authentication: str
    documentation: str
    openapi: str


class Health(msgspec.Struct, omit_defaults=True):
    """`checks` names every check with `ok` or what is wrong. `degraded` is what can be read from, and takes no more.
    The alias knows no engine."""

    status: Literal["ok", "degraded", "failing"]
    version: str
    checks: dict[str, str]
    engine: EngineBody | None = None


class OpenApi(msgspec.Struct):
    """A description by the OpenAPI Specification."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


class ErrorAnswer(msgspec.Struct, omit_defaults=True):
    """Every failure of every route, whatever its status."""

    success: Literal[False]
    error: ErrorBody
    request_id: str
    transaction_id: str | None = None
