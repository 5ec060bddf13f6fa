"""Asks an engine through the port in one call, as a plane would."""

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from tuplegate.engine.port import (
    Access,
    Bounds,
    Engine,
    Promise,
    Result,
    RowStream,
    Shape,
    Statement,
    StatementFailed,
    Target,
    TransactionResult,
)
from tuplegate.protocol.statements import first_keyword

ENOUGH_MS = 30_000
"""More than any statement of these tests takes that is to succeed."""
BYTES_MAX = 2**26
_NOT_AVAILABLE = "55P03"
_TICK_S = 0.01
_WAIT_S = 60.0


def new_name() -> str:
    """Return a name for a database, as the service makes them."""
    return f"tg_{secrets.token_hex(8)}"


ARRAYS = Shape("arrays")


def statement(sql: str, params: tuple[Any, ...] = (), *, is_untyped: bool = False, shape: Shape = ARRAYS) -> Statement:
    written = [msgspec.Raw(json.dumps(value).encode()) for value in params]
    return Statement(sql, first_keyword(sql)[0], written or None, is_untyped, shape)


@dataclass(frozen=True)
class Tenant:
    """A database of the engine, and a schema in it that nobody else uses."""

    engine: Engine
    database: str
    schema: str

    @property
    def writer(self) -> Target:
        return Target(self.database, Access.WRITE)

    @property
    def reader(self) -> Target:
        return Target(self.database, Access.READ)

    async def query(
        self,
        sql: str,
        *params: Any,
        target: Target | None = None,
        shape: Shape = ARRAYS,
        timeout_ms: int = ENOUGH_MS,
        rows_max: int | None = None,
        bytes_max: int = BYTES_MAX,
        is_untyped: bool = False,
    ) -> Result:
        bounds = Bounds(timeout_ms, rows_max, bytes_max)
        asked = statement(sql, params, is_untyped=is_untyped, shape=shape)
        return await self.engine.query(target or self.writer, asked, bounds)

    async def rows(self, sql: str, *params: Any, **more: Any) -> list[Any]:
        rows: list[Any] = json.loads((await self.query(sql, *params, **more)).rows)
        return rows

    async def value(self, sql: str, *params: Any, **more: Any) -> Any:
        [[value]] = await self.rows(sql, *params, **more)
        return value

    async def table(self, name: str = "t", columns: str = "a int primary key, b text") -> str:
        """Make a table in the schema; return its name in full."""
        await self.query(f"create table {self.schema}.{name} ({columns})")
        return f"{self.schema}.{name}"

    async def transaction(
        self,
        *statements: str | tuple[Any, ...],
        target: Target | None = None,
        read_only: bool = False,
        promise: Promise | None = None,
        timeout_ms: int = ENOUGH_MS,
    ) -> TransactionResult:
        """Run statements as one; a tuple is a statement with its parameters."""
        listed = [statement(s) if isinstance(s, str) else statement(s[0], s[1:]) for s in statements]
        bounds = Bounds(timeout_ms, None, BYTES_MAX)
        return await self.engine.transaction(
            target or self.writer, listed, bounds, read_only=read_only, promise=promise
        )

    def stream(
        self, sql: str, *params: Any, timeout_ms: int = ENOUGH_MS, rows_max: int | None = None
    ) -> AbstractAsyncContextManager[RowStream]:
        bounds = Bounds(timeout_ms, rows_max, BYTES_MAX)
        return self.engine.stream(self.writer, statement(sql, params), bounds)

    @asynccontextmanager
    async def row_held(self, table: str, row: int) -> AsyncIterator[None]:
        """Change a row, and keep the change uncommitted until the block is left: who wants the row waits."""
        async with self.engine.session(self.writer, ENOUGH_MS) as session:
            await session.run("begin")
            await session.run(f"update {table} set b = 'held' where a = {row}")
            yield

    async def is_held(self, table: str, row: int) -> bool:
        """Return whether somebody keeps a row from being changed."""
        try:
            await self.query(f"select a from {table} where a = {row} for update nowait")
        except StatementFailed as failure:
            if failure.sqlstate != _NOT_AVAILABLE:
                raise
            return True
        return False


async def read(stream: RowStream) -> list[Any]:
    """Return all rows that a stream has left."""
    blocks = [block async for block in stream.lines()]
    return [json.loads(line) for line in b"".join(blocks).splitlines()]
