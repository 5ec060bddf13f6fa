"""A cursor: one statement at a time, and its rows."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tuplegate.client.asynchronous.stream import AsyncRowStream
from tuplegate.client.errors import TuplegateError
from tuplegate.client.statements import seems_to_read
from tuplegate.dbapi.bodies import write_list, write_statement, write_text
from tuplegate.dbapi.errors import InterfaceError, InternalError, ProgrammingError, make_error
from tuplegate.dbapi.results import DescribedColumn, Result, Row, describe, is_declarable

if TYPE_CHECKING:
    from tuplegate.client.asynchronous.open_transaction import AsyncOpenTransaction
    from tuplegate.dbapi.asynchronous.connection import AsyncConnection

_STREAM_ROWS = 1000
"""Rows that are fetched at a time if `arraysize` says nothing."""


class AsyncDeclared:
    """The rows of a cursor that is declared in the engine, inside a transaction."""

    def __init__(self, connection: "AsyncConnection", name: str) -> None:
        self._connection = connection
        self._name = name
        self._transaction: AsyncOpenTransaction | None = connection._transaction
        self._is_open = True

    async def fetch(self, count: int) -> Result:
        """Return at most `count` further rows. Fewer are the last ones."""
        if self._connection._transaction is not self._transaction:
            raise InterfaceError("the transaction has ended, and with it the rows that were not fetched")
        result = await self._connection._run(f'"sql":"fetch forward {count} from {self._name}"', True)
        if len(result.rows) < count:
            await self.aclose()
        return result

    async def aclose(self) -> None:
        if self._is_open and self._connection._transaction is self._transaction and not self._connection._is_doomed:
            self._is_open = False
            try:
                await self._connection._run(f'"sql":"close {self._name}"', False)
            except InternalError:
                pass  # the transaction has failed, and its end closes the cursor


class AsyncCursor:
    """A cursor of PEP 249. Parameters fill `$1`, `$2`, …

    Where it streams, rows are fetched as they are asked for: inside a transaction `arraysize` rows at a time, or 1,000
    if that is 1; with autocommit as the service sends them. Then `rowcount` is -1. Statements that do not only read are
    never streamed.
    """

    def __init__(self, connection: "AsyncConnection", stream: bool) -> None:
        self.connection = connection
        self.arraysize = 1
        self.description: list[DescribedColumn] | None = None
        self.rowcount = -1
        self.lastrowid = None
        self.streams = stream
        self._source: AsyncDeclared | AsyncRowStream | None = None
        self._rows: list[Row] = []
        self._position = 0
        self._is_closed = False

    async def __aenter__(self) -> "AsyncCursor":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __aiter__(self) -> "AsyncCursor":
        return self

    async def __anext__(self) -> Row:
        row = await self.fetchone()
        if row is None:
            raise StopAsyncIteration
        return row

    # -- statements ---------------------------------------------------------------------------------------------

    async def execute(self, operation: str, parameters: Sequence[Any] | None = None) -> "AsyncCursor":
        """Run one statement."""
        await self._forget()
        statement = write_statement(operation, parameters)
        if self.streams and is_declarable(operation):
            await self._open(operation, parameters, statement)
        else:
            self._take(await self.connection._run(statement, seems_to_read(operation)))
        return self

    async def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[Any]]) -> "AsyncCursor":
        """Run one statement with each of many lists of parameters. Its rows are not kept.

        They are one request, or one for every 1,000 lists and every 4 MiB. With autocommit they are one transaction.
        """
        await self._forget()
        sql = write_text(operation)
        lists = [write_list(parameters) for parameters in seq_of_parameters]
        self.rowcount = await self.connection._run_many(sql, lists) if lists else 0
        return self

    async def _open(self, operation: str, parameters: Sequence[Any] | None, statement: str) -> None:
        connection = self.connection
        if connection.autocommit and not connection.in_transaction:
            source = connection._stream(statement)
            try:
                await source.__aenter__()
            except TuplegateError as error:
                raise make_error(error) from error
            self.description = describe(source.columns, source.types)
            self._source = source
            return
        name = f"tuplegate_{id(self):x}"
        declaration = write_statement(f"declare {name} no scroll cursor for {operation}", parameters)
        await connection._run(declaration, False)
        self._source = AsyncDeclared(connection, name)
        await self._read()

    def _take(self, result: Result) -> None:
        self.description, self.rowcount = result.description, result.rowcount
        self._rows, self._position = result.rows, 0

    async def _forget(self) -> None:
        """Forget the result of the last statement."""
        self._check_open()
        source, self._source = self._source, None
        self.description, self.rowcount = None, -1
        self._rows, self._position = [], 0
        if source is not None:
            await source.aclose()

    # -- rows ---------------------------------------------------------------------------------------------------

    async def fetchone(self) -> Row | None:
        """Return the next row; None if there are no more."""
        rows = await self.fetchmany(1)
        return rows[0] if rows else None

    async def fetchmany(self, size: int | None = None) -> list[Row]:
        """Return the next rows, at most `size`, or `arraysize`; an empty list if there are no more."""
        self._check_rows()
        size = self.arraysize if size is None else size
        while self._source is not None and len(self._rows) - self._position < size:
            await self._read()
        start = self._position
        self._position = min(start + size, len(self._rows))
        return self._rows[start : self._position]

    async def fetchall(self) -> list[Row]:
        """Return all further rows."""
        self._check_rows()
        while self._source is not None:
            await self._read()
        rows = self._rows[self._position :] if self._position else self._rows
        self._rows, self._position = [], 0
        return rows

    async def _read(self) -> None:
        """Read more rows from where they are streamed; without any, the stream is over."""
        source = self._source
        if isinstance(source, AsyncRowStream):
            try:
                rows = await source.next_tuples()
            except TuplegateError as error:
                self._source = None
                raise make_error(error) from error
            is_last = not rows
        else:
            assert source is not None
            count = self.arraysize if self.arraysize > 1 else _STREAM_ROWS
            result = await source.fetch(count)
            self.description, rows, is_last = result.description, result.rows, len(result.rows) < count
        if is_last:
            self._source = None
        self._rows, self._position = self._rows[self._position :] + rows, 0

    # -- ends ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if not self._is_closed:
            if not self.connection.closed:
                await self._forget()
            self._is_closed = True

    async def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Do nothing: the engine knows the types of parameters."""

    async def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing: values come whole."""

    def _check_open(self) -> None:
        if self._is_closed:
            raise InterfaceError("the cursor is closed")

    def _check_rows(self) -> None:
        self._check_open()
        if self.description is None:
            raise ProgrammingError("there are no rows to fetch: no statement was run, or the last one returns none")
