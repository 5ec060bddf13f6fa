"""The records that every request passes through: the work asked of an engine, and the result.

They are plain classes because compiled code reads those fastest.
"""

from enum import StrEnum
from typing import Final

import msgspec

from tuplegate.engine.port.shapes import Shape
from tuplegate.protocol.answers import Notice
from tuplegate.protocol.time_limits import TimeLimit

_PLAIN: Final = Shape()


class Access(StrEnum):
    """The rights of a connection; the engine itself enforces them."""

    READ = "read"
    WRITE = "write"


class Target:
    """A tenant's database, by its name in the engine; `id` stays when that name changes.

    `owner` is the database's organization, by which connections are bounded; "" if the service itself asks. `as_writer`
    means that the connection logs in as the role that may write. `on_replica` means that a replica answers, where
    nothing can be written.
    """

    def __init__(self, database: str, access: Access, id: str = "", owner: str = "") -> None:
        self.database = database
        self.access = access
        self.id = id
        self.owner = owner
        self.may_write = self.as_writer = access is Access.WRITE
        self.on_replica = False

    def replicated(self) -> "Target":
        """Return the same database for the same login, on a replica."""
        target = Target(self.database, Access.READ, self.id, self.owner)
        target.as_writer = self.as_writer
        target.on_replica = True
        return target

    @property
    def bounded_with(self) -> str:
        """Return the owner whose connections are bounded together; for the service itself, the database."""
        return self.owner or self.database

    @property
    def login(self) -> Access:
        """Return the rights of the role that logs in."""
        return Access.WRITE if self.as_writer else Access.READ


class Statement:
    """One statement. `keyword` is its first word in lower case; `params` are JSON texts.

    If it `is_untyped`, its parameters are written independently of the placeholders: a string as it is, an array as one
    of the engine's, and anything else as its JSON text. If it `only_reads`, it may not write, whatever rights its
    sender has.
    """

    def __init__(
        self,
        sql: str,
        keyword: str,
        params: list[msgspec.Raw] | None = None,
        is_untyped: bool = False,
        shape: Shape = _PLAIN,
    ) -> None:
        self.sql = sql
        self.keyword = keyword
        self.params = params
        self.is_untyped = is_untyped
        self.shape = shape
        self.only_reads = False


class Bounds:
    """The limits of one statement. Rows and bytes beyond their limit are cut off, never refused.

    `limit` is the one that `timeout_ms` comes from; None for the service's own work.
    """

    def __init__(self, timeout_ms: int, rows_max: int | None, bytes_max: int, limit: TimeLimit | None = None) -> None:
        self.timeout_ms = timeout_ms
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self.limit = limit

    def narrow(self, asked_ms: int | None, rows_max: int | None) -> "Bounds":
        """Return the bounds of a request that asks for this time and these rows."""
        assert self.limit is not None, "a client's work has a limit"
        return Bounds(self.limit.choose(asked_ms), rows_max, self.bytes_max, self.limit)


class Result:
    """The result of a statement. `columns`, `types` and `rows` are JSON arrays as bytes.

    `reached` is a position of the engine behind everything that the statement has read and written, if the engine tells
    positions. `tag` is the engine's command tag: a command, and for some the number of rows.
    """

    def __init__(
        self, columns: bytes, types: bytes, rows: bytes, affected_rows: int, row_count: int = 0, truncated: bool = False
    ) -> None:
        self.columns = columns
        self.types = types
        self.rows = rows
        self.affected_rows = affected_rows
        self.row_count = row_count
        self.truncated = truncated
        self.exec_us = 0
        self.attempts = 1
        self.notices: list[Notice] = []
        self.reached: bytes | None = None
        self.on_replica = False
        self.tag = b""

    def bare(self) -> "Result":
        """Return the same result without its rows."""
        bare = Result(self.columns, self.types, b"[]", self.affected_rows, self.row_count, truncated=True)
        bare.exec_us, bare.attempts, bare.notices = self.exec_us, self.attempts, self.notices
        bare.tag = self.tag
        return bare
