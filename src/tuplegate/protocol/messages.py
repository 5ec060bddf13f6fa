"""Requests as they come in. Strict: an unknown field is refused, so that a misspelt `params` runs nothing."""

from enum import Enum
from typing import Annotated, Literal

import msgspec

RowMode = Literal["objects", "arrays"]
BigNumbers = Literal["number", "string"]
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
RowCount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


PARAMS_MAX = 65535
"""Parameters of one statement: the engine's protocol counts them in 16 bits."""


class QueryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/query`. Parameters stay JSON text, so that the digits of a number are kept."""

    sql: str
    params: list[msgspec.Raw] | None = None
    timeout_ms: Milliseconds | None = None
    max_rows: RowCount | None = None
    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"


class LongQueryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `QueryRequest` whose parameters are not read yet: an object for each of millions would take too long."""

    sql: str
    params: msgspec.Raw = msgspec.Raw(b"null")
    timeout_ms: Milliseconds | None = None
    max_rows: RowCount | None = None
    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"


class StatementItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement of a transaction with its parameters."""

    sql: str
    params: list[msgspec.Raw] | None = None


class LongStatementItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `StatementItem` whose parameters are not read yet."""

    sql: str
    params: msgspec.Raw = msgspec.Raw(b"null")


class TransactionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/transaction`."""

    statements: list[str | StatementItem]
    read_only: bool = False
    timeout_ms: Milliseconds | None = None
    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"


class LongTransactionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `TransactionRequest` whose parameters are not read yet."""

    statements: list[str | LongStatementItem]
    read_only: bool = False
    timeout_ms: Milliseconds | None = None
    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"


class StreamFormat(Enum):
    """How a streamed answer frames its events."""

    SSE = "text/event-stream"
    NDJSON = "application/x-ndjson"
