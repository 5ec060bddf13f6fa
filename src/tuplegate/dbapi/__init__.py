"""PEP 249, the Python Database API 2.0: for programs and tools that speak to any database.

It needs nothing of the service, only `tuplegate.client`. `connect_async` gives the same with async and await.
"""

from tuplegate.dbapi.asynchronous.connection import AsyncConnection, connect_async
from tuplegate.dbapi.asynchronous.cursor import AsyncCursor
from tuplegate.dbapi.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)
from tuplegate.dbapi.synchronous.connection import Connection, connect
from tuplegate.dbapi.synchronous.cursor import Cursor
from tuplegate.dbapi.types import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
)

apilevel = "2.0"
threadsafety = 2
paramstyle = "numeric_dollar"
"""`$1`, `$2`, …: PostgreSQL's own. PEP 249 has no name for it; this is SQLAlchemy's."""

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "AsyncConnection",
    "AsyncCursor",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "connect_async",
    "paramstyle",
    "threadsafety",
]
