"""Reads at snapshot consistency: from a standby where that can answer, and otherwise as if there were none.

A standby answers successes alone. Whatever it refuses or fails in, the primary is asked, with the time that is left: a
statement that writes after all, one that a conflict with the replay has ended, a table that has not arrived yet, a
standby that goes away. That costs nothing but time, since nothing can have been written. Which statements are tried
there at all is decided by their first word and a few others; what passes that by mistake is refused by the standby.

Advisory locks are the exception: a standby would grant them, and they would exclude nobody who asks the primary. So
a text that names them is for the primary.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Final, TypeVar

from tuplegate.engine import port
from tuplegate.engine.libpq.leftovers import fold
from tuplegate.engine.postgres.query.rules import CURSORS
from tuplegate.engine.postgres.replication.positions import Position, read_position
from tuplegate.engine.postgres.replication.replicas import Replica, Replicas

_T = TypeVar("_T")

_FOR_PRIMARY: Final = re.compile(
    r"\b(?:insert|update|delete|merge|into|share|nextval|setval|lo_\w+|pg_notify)\b|advisory"
)
"""Words of what writes, locks rows or draws numbers. In a name or a literal they cost the way to the standby."""


_LENGTH_MAX: Final = 10_000
"""Longer texts are the primary's: searching one would take too long of a turn of the loop."""


def may_run_on_standby(statement: port.Statement) -> bool:
    if len(statement.sql) > _LENGTH_MAX:
        return False
    return statement.keyword in CURSORS and _FOR_PRIMARY.search(fold(statement.sql)) is None


class SnapshotReads:
    """Fills the port's `Snapshots`. `counts` are reads by who has answered them."""

    def __init__(self, primary: port.Engine, replicas: Replicas | None) -> None:
        self._primary = primary
        self._replicas = replicas
        self.counts = {"replica": 0, "primary": 0}

    def check(self, position: bytes) -> None:
        read_position(position)

    def asked_of(self, engine: port.Engine) -> "SnapshotReads":
        return SnapshotReads(engine, None)

    async def query(
        self,
        target: port.Target,
        statement: port.Statement,
        shape: port.Shape,
        bounds: port.Bounds,
        after: bytes | None,
    ) -> port.Result:
        watch, position = _Watch(bounds), read_position(after)
        replica = await self._choose(position, [statement], watch)
        return await self._ask(
            watch,
            None if replica is None else replica.query(target, statement, shape, bounds, position, watch.deadline),
            lambda left: self._primary.query(target, statement, shape, left),
        )

    async def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        shape: port.Shape,
        bounds: port.Bounds,
        after: bytes | None,
    ) -> port.TransactionResult:
        watch, position = _Watch(bounds), read_position(after)
        replica = await self._choose(position, statements, watch)
        on_replica = None
        if replica is not None:
            on_replica = replica.transaction(target, statements, shape, bounds, position, watch.deadline)
        return await self._ask(
            watch,
            on_replica,
            lambda left: self._primary.transaction(target, statements, shape, left, read_only=True, promise=None),
        )

    async def _ask(
        self,
        watch: "_Watch",
        on_replica: Awaitable[_T] | None,
        on_primary: Callable[[port.Bounds], Awaitable[_T]],
    ) -> _T:
        """Return the replica's answer; the primary's where there is no replica, or where it failed with time left."""
        if on_replica is not None:
            try:
                answer = await on_replica
            except port.EngineFailure as failure:
                watch.check(failure)
            else:
                self.counts["replica"] += 1
                return answer
        self.counts["primary"] += 1
        try:
            return await on_primary(watch.left())
        except port.TimedOut as late:
            raise watch.in_all(late) from late

    @asynccontextmanager
    async def stream(
        self,
        target: port.Target,
        statement: port.Statement,
        shape: port.Shape,
        bounds: port.Bounds,
        after: bytes | None,
    ) -> AsyncIterator[port.RowStream]:
        watch, position = _Watch(bounds), read_position(after)
        replica = await self._choose(position, [statement], watch)
        async with AsyncExitStack() as stack:
            rows: port.RowStream | None = None
            if replica is not None:
                rows = await _begin(stack, replica, target, statement, shape, bounds, position, watch)
            self.counts["primary" if rows is None else "replica"] += 1
            if rows is None:
                rows = await stack.enter_async_context(self._primary.stream(target, statement, shape, watch.left()))
            yield rows

    async def _choose(
        self, after: Position | None, statements: list[port.Statement], watch: "_Watch"
    ) -> Replica | None:
        if self._replicas is None or not all(map(may_run_on_standby, statements)):
            return None
        return await self._replicas.choose(after, watch.deadline)


class _Watch:
    """The time of one request, which may be spent in two places."""

    def __init__(self, bounds: port.Bounds) -> None:
        self._bounds = bounds
        self._time = asyncio.get_running_loop().time
        self.deadline = self._time() + bounds.timeout_ms / 1000

    def check(self, failure: port.EngineFailure) -> None:
        """Raise the failure where nothing is left to be tried."""
        if isinstance(failure, port.TimedOut | port.Stopped) or self._time() >= self.deadline:
            raise failure

    def left(self) -> port.Bounds:
        left_ms = max(1, int((self.deadline - self._time()) * 1000))
        return port.Bounds(left_ms, self._bounds.rows_max, self._bounds.bytes_max)

    def in_all(self, late: port.TimedOut) -> port.TimedOut:
        """The failure in words that the client knows: its limit was for both."""
        limit = f"the statement was cancelled after {self._bounds.timeout_ms} ms, its time limit"
        failure = port.TimedOut(limit, sqlstate=late.sqlstate)
        failure.exec_us, failure.statement = late.exec_us, late.statement
        failure.attempts, failure.notices = late.attempts, late.notices
        return failure


async def _begin(
    stack: AsyncExitStack,
    replica: Replica,
    target: port.Target,
    statement: port.Statement,
    shape: port.Shape,
    bounds: port.Bounds,
    after: Position | None,
    watch: _Watch,
) -> port.RowStream | None:
    """A stream whose first rows are there, so that it is known to run. None where the primary is to be asked."""
    opened = AsyncExitStack()
    try:
        stream = await opened.enter_async_context(
            replica.stream(target, statement, shape, bounds, after, watch.deadline)
        )
        lines = stream.lines()
        first = await anext(lines, None)
    except port.EngineFailure as failure:
        await opened.aclose()
        watch.check(failure)
        return None
    except BaseException:
        await opened.aclose()
        raise
    stack.push_async_exit(opened.__aexit__)
    return _Begun(stream, first, lines)


class _Begun:
    """A stream of which a block was read ahead; None where it has none."""

    def __init__(self, stream: port.RowStream, first: bytes | None, rest: AsyncGenerator[bytes, None]) -> None:
        self._stream = stream
        self._first = first
        self._rest = rest
        self.columns = stream.columns
        self.types = stream.types
        self.reached = stream.reached
        self.on_replica = True

    @property
    def row_count(self) -> int:
        return self._stream.row_count

    @property
    def affected_rows(self) -> int:
        return self._stream.affected_rows

    @property
    def notices(self) -> list[port.Notice]:
        return self._stream.notices

    @property
    def truncated(self) -> bool:
        return self._stream.truncated

    @property
    def exec_us(self) -> int:
        return self._stream.exec_us

    async def lines(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._rest) as rest:
            if self._first is not None:
                yield self._first
            async for block in rest:
                yield block
