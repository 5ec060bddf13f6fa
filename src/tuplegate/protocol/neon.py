"""The messages of `POST /sql`, which are Neon's: the body, the answers and the error. Pure.

The names of fields are those of that protocol. Unknown fields of a request are refused, as on every route.
"""

from typing import Any, Literal

import msgspec

from tuplegate.protocol.errors import ErrorBody


class SqlQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several statements, and its parameters."""

    query: str
    params: list[msgspec.Raw] | None = None
    array_mode: bool | None = msgspec.field(name="arrayMode", default=None)


class LongSqlQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `SqlQuery` with unread parameters."""

    query: str
    params: msgspec.Raw = msgspec.Raw(b"null")
    array_mode: bool | None = msgspec.field(name="arrayMode", default=None)


class SqlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body: one statement as `query`, or several as `queries`, which run as one transaction."""

    query: str | None = None
    params: list[msgspec.Raw] | None = None
    array_mode: bool | None = msgspec.field(name="arrayMode", default=None)
    queries: list[SqlQuery] | None = None


class LongSqlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `SqlRequest` with unread parameters and statements."""

    query: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"null")
    array_mode: bool | None = msgspec.field(name="arrayMode", default=None)
    queries: msgspec.Raw = msgspec.Raw(b"null")


class SqlField(msgspec.Struct):
    """A column. Its table and its number there are 0 where it is an expression."""

    name: str
    data_type_id: int = msgspec.field(name="dataTypeID")
    table_id: int = msgspec.field(name="tableID")
    column_id: int = msgspec.field(name="columnID")
    data_type_size: int = msgspec.field(name="dataTypeSize")
    data_type_modifier: int = msgspec.field(name="dataTypeModifier")
    format: Literal["text"]


class SqlResult(msgspec.Struct):
    """The result of a statement. `rowCount` is null where the engine counts no rows, as for DDL."""

    fields: list[SqlField]
    rows: list[dict[str, Any] | list[Any]]
    command: str
    row_count: int | None = msgspec.field(name="rowCount")
    row_as_array: bool = msgspec.field(name="rowAsArray")


class SqlResults(msgspec.Struct):
    """The results of a transaction, in the order of its statements."""

    results: list[SqlResult]


# size: it has the fields that the protocol gives to an error.
class SqlFailure(msgspec.Struct):
    """An error in Neon's words, with `code` as the SQLSTATE; and the `error` of all other routes beside it."""

    message: str
    code: str
    severity: str
    detail: str | None
    hint: str | None
    position: str | None
    internal_position: str | None = msgspec.field(name="internalPosition")
    internal_query: str | None = msgspec.field(name="internalQuery")
    where: str | None
    schema: str | None
    table: str | None
    column: str | None
    data_type: str | None = msgspec.field(name="dataType")
    constraint: str | None
    file: str | None
    line: str | None
    routine: str | None
    success: Literal[False]
    error: ErrorBody
    request_id: str
