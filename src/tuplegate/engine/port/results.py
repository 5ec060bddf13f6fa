"""Further kinds of results: streams, the rows of a session, tables."""

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from tuplegate.protocol.answers import Notice


class RowStream(Protocol):
    """An open stream: the columns are known, rows are still to come."""

    columns: bytes
    types: bytes
    reached: bytes | None
    """A position behind everything that its rows show, if the engine tells positions; its own writes come later."""
    on_replica: bool

    def sum_up(self) -> "StreamSums":
        """Return what has come so far."""

    def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield blocks of rows, one row of JSON a line. The generator ends after the commit."""


class StreamSums(msgspec.Struct, frozen=True):
    """What a stream has brought. `truncated`: rows were cut off at its bound."""

    row_count: int
    affected_rows: int
    truncated: bool
    notices: list[Notice]
    exec_us: int


class SessionResult(msgspec.Struct, frozen=True):
    """The rows of a session's statement, with values as the engine writes them."""

    rows: list[tuple[str | None, ...]]


class Tables(msgspec.Struct, frozen=True):
    """The relations of a database as a JSON array in bytes; `truncated` if it was cut at its bound."""

    items: bytes
    truncated: bool
