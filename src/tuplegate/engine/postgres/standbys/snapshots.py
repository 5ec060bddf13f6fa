"""Reads at snapshot consistency: a standby answers if it can, otherwise the primary, as if there were no standby.

Only successes come from a standby. If it refuses or fails, the primary is asked, with the time that is left: for a
statement that writes after all, one that a conflict with the replay has ended, a table that has not arrived yet. If the
standby itself is at fault, because it goes away or is behind, another standby is asked first. That costs only time,
since nothing can have been written. The first word of a statement and a few others decide whether a standby is tried at
all; a statement that passes by mistake is refused by the standby.

Advisory locks are the exception: a standby would grant them, but they would not exclude a holder on the primary. So a
text that names them goes to the primary.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import Final, TypeVar

from tuplegate.engine import port
from tuplegate.engine.postgres.replication.positions import read_position
from tuplegate.engine.postgres.standbys.replica import Replica
from tuplegate.engine.postgres.standbys.replicas import Replicas
from tuplegate.engine.sql.facts import QUERIES, fold

_T = TypeVar("_T")

_FOR_PRIMARY: Final = re.compile(
    r"\b(?:insert|update|delete|merge|into|share|nextval|setval|lo_\w+|pg_notify)\b|advisory"
)
"""Words of statements that write, lock rows or draw numbers. A name or a literal that contains one keeps a read off the
standbys, which does no harm."""


_WAIT_S: Final = 0.25
"""How long a read waits for a standby to reach the client's position, before the primary answers."""
_WAIT_SHARE: Final = 0.25
"""The part of a request's time that such a wait may take: the primary needs the rest."""
_LENGTH_MAX: Final = 10_000
"""Longer texts go to the primary: searching one would take too long of a turn of the loop."""


def may_run_on_standby(statement: port.Statement) -> bool:
    if len(statement.sql) > _LENGTH_MAX:
        return False
    return statement.keyword in QUERIES and _FOR_PRIMARY.search(fold(statement.sql)) is None


class SnapshotReads:
    """Fills the port's `Snapshots`. `counts` are the reads that replicas and the primary have answered."""

    def __init__(self, primary: port.Engine, replicas: Replicas | None) -> None:
        self._primary = primary
        self._replicas = replicas
        self.counts = {"replica": 0, "primary": 0}

    def check(self, position: bytes) -> None:
        read_position(position)

    def asked_of(self, engine: port.Engine) -> "SnapshotReads":
        return SnapshotReads(engine, None)

    async def query(
        self, target: port.Target, statement: port.Statement, bounds: port.Bounds, after: bytes | None
    ) -> port.Result:
        watch = _Watch(bounds, after)
        return await self._ask(
            [statement],
            watch,
            lambda replica: replica.query(target, statement, bounds, watch.after, watch.deadline),
            lambda left: self._primary.query(target, statement, left),
        )

    async def transaction(
        self, target: port.Target, statements: list[port.Statement], bounds: port.Bounds, after: bytes | None
    ) -> port.TransactionResult:
        watch = _Watch(bounds, after)
        return await self._ask(
            statements,
            watch,
            lambda replica: replica.transaction(target, statements, bounds, watch.after, watch.deadline),
            lambda left: self._primary.transaction(target, statements, left, read_only=True),
        )

    async def _ask(
        self,
        statements: list[port.Statement],
        watch: "_Watch",
        on_replica: Callable[[Replica], Awaitable[_T]],
        on_primary: Callable[[port.Bounds], Awaitable[_T]],
    ) -> _T:
        """Return a replica's answer; the primary's if no replica gives one and time is left."""
        while (replica := await self._choose(statements, watch)) is not None:
            try:
                answer = await on_replica(replica)
            except port.EngineFailure as failure:
                watch.note_failure(replica, failure)
            else:
                self.counts["replica"] += 1
                return answer
        self.counts["primary"] += 1
        try:
            return await on_primary(watch.left())
        except port.TimedOut as late:
            raise watch.explain(late) from late

    @asynccontextmanager
    async def stream(
        self, target: port.Target, statement: port.Statement, bounds: port.Bounds, after: bytes | None
    ) -> AsyncIterator[port.RowStream]:
        watch = _Watch(bounds, after)
        async with AsyncExitStack() as stack:
            rows: port.RowStream | None = None
            while rows is None and (replica := await self._choose([statement], watch)) is not None:
                stream = replica.stream(target, statement, watch.left(), watch.after, watch.deadline)
                rows = await _begin(stack, stream, replica, watch)
            self.counts["primary" if rows is None else "replica"] += 1
            if rows is None:
                try:
                    own = await stack.enter_async_context(self._primary.stream(target, statement, watch.left()))
                except port.TimedOut as late:
                    raise watch.explain(late) from late
                rows = _Begun(own, None, own.lines(), watch)
            yield rows

    async def _choose(self, statements: list[port.Statement], watch: "_Watch") -> Replica | None:
        if self._replicas is None or watch.is_primarys or not all(map(may_run_on_standby, statements)):
            return None
        return await self._replicas.choose(watch.after, watch.patience, watch.tried)


class _Watch:
    """The time of one request across several servers, and the replicas that were tried.

    `is_primarys`: the statement failed, not the replica, so no other replica is asked.
    """

    def __init__(self, bounds: port.Bounds, after: bytes | None) -> None:
        self._bounds = bounds
        self._time = asyncio.get_running_loop().time
        self.after = read_position(after)
        seconds = bounds.timeout_ms / 1000
        self.deadline = self._time() + seconds
        self.patience = self._time() + min(_WAIT_S, _WAIT_SHARE * seconds)
        self.tried: list[Replica] = []
        self.is_primarys = False

    def note_failure(self, replica: Replica, failure: port.EngineFailure) -> None:
        """Note that a replica failed. Raise if nothing else can be tried."""
        self.tried.append(replica)
        self.is_primarys = not isinstance(failure, port.EngineUnavailable | port.EngineBusy)
        failure.on_replica = True
        if isinstance(failure, port.Stopped):
            raise failure
        if isinstance(failure, port.TimedOut) or self._time() >= self.deadline:
            raise self.explain(failure) from failure

    def left(self) -> port.Bounds:
        left_ms = max(1, int((self.deadline - self._time()) * 1000))
        return port.Bounds(left_ms, self._bounds.rows_max, self._bounds.bytes_max, self._bounds.limit)

    def explain(self, late: port.EngineFailure) -> port.TimedOut:
        """Return the failure of a request whose time is over, with the client's own time limit: it was for all servers
        together."""
        failure = port.TimedOut(self._bounds)
        failure.on_replica = late.on_replica
        if isinstance(late, port.StatementFailed):
            failure.exec_us, failure.statement = late.exec_us, late.statement
            failure.attempts, failure.notices = late.attempts, late.notices
        return failure


async def _begin(
    stack: AsyncExitStack, opening: AbstractAsyncContextManager[port.RowStream], replica: Replica, watch: _Watch
) -> port.RowStream | None:
    """Return a stream whose first rows have arrived, so that it is known to run. None if another server must be
    asked."""
    opened = AsyncExitStack()
    try:
        stream = await opened.enter_async_context(opening)
        lines = stream.lines()
        first = await anext(lines, None)
    except port.EngineFailure as failure:
        await opened.aclose()
        watch.note_failure(replica, failure)
        return None
    except BaseException:
        await opened.aclose()
        raise
    stack.push_async_exit(opened.__aexit__)
    return _Begun(stream, first, lines, watch)


class _Begun:
    """A stream whose time is that of the whole request. `first` is a block that was read ahead, or None."""

    def __init__(
        self, stream: port.RowStream, first: bytes | None, rest: AsyncGenerator[bytes, None], watch: _Watch
    ) -> None:
        self._stream = stream
        self._first = first
        self._rest = rest
        self._watch = watch
        self.columns = stream.columns
        self.types = stream.types
        self.reached = stream.reached
        self.on_replica = stream.on_replica

    def sum_up(self) -> port.StreamSums:
        return self._stream.sum_up()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._rest) as rest:
                if self._first is not None:
                    yield self._first
                async for block in rest:
                    yield block
        except port.TimedOut as late:
            raise self._watch.explain(late) from late
