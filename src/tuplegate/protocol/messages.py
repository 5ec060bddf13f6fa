"""Requests as they come in. Strict: an unknown field is refused, so that a misspelt `params` runs nothing."""

from enum import Enum
from typing import Annotated, Literal

import msgspec

RowMode = Literal["objects", "arrays"]
BigNumbers = Literal["number", "string"]
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
RowCount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class QueryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/query`. Parameters stay JSON text, so that the digits of a number are kept."""

    sql: str
    params: list[msgspec.Raw] | None = None
    timeout_ms: Milliseconds | None = None
    max_rows: RowCount | None = None
    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"


class StatementItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement of a transaction with its parameters."""

    sql: str
    params: list[msgspec.Raw] | None = None


class TransactionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/transaction`."""

    statements: list[str | StatementItem]
    read_only: bool = False
    timeout_ms: Milliseconds | None = None
    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"


class StreamFormat(Enum):
    """How a streamed answer frames its events."""

    SSE = "text/event-stream"
    NDJSON = "application/x-ndjson"
