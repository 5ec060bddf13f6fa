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

    @property
    def row_count(self) -> int: ...

    @property
    def affected_rows(self) -> int: ...

    @property
    def notices(self) -> list[Notice]: ...

    @property
    def truncated(self) -> bool: ...

    @property
    def exec_us(self) -> int: ...

    def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield blocks of rows, one row of JSON a line. The generator ends after the commit."""


class SessionResult(msgspec.Struct, frozen=True):
    """The rows of a session's statement, with values as the engine writes them."""

    rows: list[tuple[str | None, ...]]


class Tables(msgspec.Struct, frozen=True):
    """The relations of a database as a JSON array in bytes; `truncated` if it was cut at its bound."""

    items: bytes
    truncated: bool
