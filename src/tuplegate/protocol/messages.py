"""The bodies of requests. Unknown fields are refused: a statement with a misspelt `params` must not run."""

from enum import Enum
from typing import Annotated, Literal

import msgspec

RowMode = Literal["objects", "arrays"]
BigNumbers = Literal["number", "string"]
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
RowCount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


PARAMS_MAX = 65535
"""The most parameters of one statement: the engine's protocol counts them in 16 bits."""


# Fields by keyword come behind the others: a request lists its own fields first, and its options after them.
class QueryOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout_ms: Milliseconds | None = None
    max_rows: RowCount | None = None
    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"
    export: bool = False


class QueryRequest(QueryOptions, frozen=True):
    """The body of `POST /v1/query`. Parameters stay JSON text to keep the digits of numbers."""

    sql: str
    params: list[msgspec.Raw] | None = None


class LongQueryRequest(QueryOptions, frozen=True):
    """A `QueryRequest` with unread parameters: reading millions of them at once would block the event loop."""

    sql: str
    params: msgspec.Raw = msgspec.Raw(b"null")


class StatementItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement of a transaction and its parameters."""

    sql: str
    params: list[msgspec.Raw] | None = None


class LongStatementItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `StatementItem` with unread parameters."""

    sql: str
    params: msgspec.Raw = msgspec.Raw(b"null")


class TransactionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    read_only: bool = False
    timeout_ms: Milliseconds | None = None
    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"


class TransactionRequest(TransactionOptions, frozen=True):
    """The body of `POST /v1/transaction`."""

    statements: list[str | StatementItem]


class LongTransactionRequest(TransactionOptions, frozen=True):
    """A `TransactionRequest` with unread statements."""

    statements: msgspec.Raw


Sequence = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class BeginOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`timeout_ms` is for the whole life of the transaction."""

    read_only: bool = False
    timeout_ms: Milliseconds | None = None
    idle_timeout_ms: Milliseconds | None = None
    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"


ParamsList = list[list[msgspec.Raw]]
"""Lists of parameters: the statement runs once with each."""


class FirstItem(StatementItem, frozen=True):
    """The first statement of an open transaction."""

    params_list: ParamsList | None = None


class LongFirstItem(LongStatementItem, frozen=True):
    """A `FirstItem` with unread parameters."""

    params_list: msgspec.Raw = msgspec.Raw(b"null")


class BeginRequest(BeginOptions, frozen=True):
    """The body of `POST /v1/transaction/begin`."""

    statement: str | FirstItem | None = None


class InnerQueryRequest(QueryRequest, frozen=True):
    """The body of `POST /v1/transaction/{id}/query`."""

    params_list: ParamsList | None = None
    sequence: Sequence | None = None


class LongInnerQueryRequest(LongQueryRequest, frozen=True):
    """An `InnerQueryRequest` with unread parameters."""

    params_list: msgspec.Raw = msgspec.Raw(b"null")
    sequence: Sequence | None = None


class LongBeginRequest(BeginOptions, frozen=True):
    """A `BeginRequest` with unread parameters."""

    statement: str | LongFirstItem | None = None


class CommitOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sequence: Sequence | None = None
    timeout_ms: Milliseconds | None = None
    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"


class CommitRequest(CommitOptions, frozen=True):
    """The body of `POST /v1/transaction/{id}/commit`."""

    statement: str | StatementItem | None = None


class LongCommitRequest(CommitOptions, frozen=True):
    """A `CommitRequest` with unread parameters."""

    statement: str | LongStatementItem | None = None


class StreamFormat(Enum):
    """The framing of a streamed answer's events."""

    SSE = "text/event-stream"
    NDJSON = "application/x-ndjson"
