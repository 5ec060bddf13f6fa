"""A connection for the service's own use: statements one after the other, with a deadline over all of them.

It carries statements that the service has written itself, so that they may open and end transactions, which no text of
a tenant may. It is guarded like any other: what writes and has outlived the engine's memory ends as a conflict.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.connection import Command, ConnectionLost, CopyStarted, OnRows, text_rows
from tuplegate.engine.libpq.failures import check
from tuplegate.engine.postgres.pool import Member, Pool
from tuplegate.engine.postgres.query.execute import ended, outlived, was_ended, why_ended

_IDLE = pq.TransactionStatus.IDLE


class Session:
    """`deadline` is on the loop's clock. `begun` is the meter's count at the begin of the transaction."""

    def __init__(self, pool: Pool, member: Member, bounds: port.Bounds, deadline: float) -> None:
        self._pool = pool
        self._member = member
        self.bounds = bounds
        self.deadline = deadline
        self.timed_out = False
        self.stopping = False
        self.outlived = False
        self.crowding = False
        self.filling: int | None = None
        self.begun = member.meter.begun
        self.writes = True
        self.under_way = False

    async def run(self, sql: str, *params: str | None) -> port.SessionResult:
        values = [None if param is None else param.encode() for param in params]
        return port.SessionResult(text_rows((await self.send([Command(sql.encode(), values or None)]))[-1]))

    async def send(self, commands: list[Command], on_rows: OnRows | None = None) -> list[PGresult]:
        """One segment, with its results when all of it went well."""
        self._check_time()
        if self._member.pgconn.transaction_status == _IDLE:
            self.begun = self._member.meter.begun
        self.under_way = True
        try:
            answer = self._member.send(commands, on_rows)
            self._member.flush()
            results = await answer
            self.under_way = False
            check(results)
        except ConnectionLost as exc:
            raise port.EngineUnavailable("the connection to the engine was lost") from exc
        except CopyStarted as exc:
            raise port.CopyRefused from exc
        except port.StatementFailed as failure:
            if self.outlived:
                raise outlived() from failure
            if was_ended(failure, self):
                raise ended(failure, self) from failure
            raise
        return results

    def _check_time(self) -> None:
        if self.outlived:
            raise outlived()
        if self.timed_out:
            raise why_ended(self)

    def expire(self) -> None:
        self.timed_out = True
        if self.under_way:
            self._pool.expire(self._member)


@asynccontextmanager
async def open_session(pool: Pool, bounds: port.Bounds, deadline: float) -> AsyncIterator[Session]:
    """On a connection apart from the pool's own: two that wait for each other need two, however small the pool is."""
    member = await pool.open_apart()
    session = Session(pool, member, bounds, deadline)
    try:
        yield session
    finally:
        if session.under_way and not member.closed:
            pool.abandon(member)
        else:
            member.close()


@asynccontextmanager
async def borrow_session(pool: Pool, bounds: port.Bounds, deadline: float) -> AsyncIterator[Session]:
    """On a connection of the pool, which gets it back and cleans it."""
    member = pool.take() or await pool.wait(deadline)
    session = Session(pool, member, bounds, deadline)
    session.writes = False
    try:
        member.hide_kept()
        await pool.freshen(member)
        yield session
    finally:
        if session.under_way or session.timed_out:
            pool.abandon(member)
        else:
            pool.give_back_unclean(member)
