"""A transaction that stays open between requests: its statements come one by one, and its client ends it.

It cannot be run again. Each engine's own class decides how statements run there, and how the transaction is committed.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from time import perf_counter_ns
from typing import Any, Final, TypeVar

import msgspec

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import (
    FAILED,
    IDLE,
    IN_BLOCK,
    ROLLBACK,
    ConnectionLost,
    CopyStarted,
    RowsTooWide,
)
from tuplegate.engine.libpq.connections.server_errors import STREAM_IT, check, explain_width
from tuplegate.engine.libpq.pools.pool import ConnectionPool, Member
from tuplegate.engine.libpq.statements.arriving_rows import StreamedRows
from tuplegate.engine.libpq.statements.rows import join_results
from tuplegate.engine.run.ends import LOST, Why
from tuplegate.engine.run.inside_stream import stream_inside
from tuplegate.engine.run.run import Run, Running
from tuplegate.engine.run.stages import UNDECIDED
from tuplegate.engine.run.stream_run import StreamRun

_P = TypeVar("_P", bound=ConnectionPool)
_T = TypeVar("_T")
_NO_BOUNDS: Final = port.Bounds(0, None, 0)
_ROLLBACK_S: Final = 5.0
_REASONS: Final = {
    Why.STOPPING: port.EndReason.LOST,
    Why.ROOM: port.EndReason.LIMIT,
    Why.OUTLIVED: port.EndReason.CONFLICT,
}
"""The reason for the rollback after the service has ended a statement. If only its time is over, the statement just
fails."""


# size: it carries the state that statements leave from one request to the next.
class OpenTransaction(Run[_P]):
    """Fills the port's protocol. `running` are the runs that the engine watches; this is one of them until it is over.

    `_wish` is the reason to roll it back as soon as its statement has ended.
    """

    def __init__(self, pool: _P, target: port.Target, member: Member, running: Running) -> None:
        super().__init__(pool, target, _NO_BOUNDS, math.inf)
        self.begin(member)
        self.on_over: Callable[[], None] | None = None
        self.over: port.EndReason | port.Outcome | None = None
        self.is_busy = False
        self._running = running
        self._stream: StreamRun[_P] | None = None
        self._wish: port.EndReason | None = None

    # -- what an engine's own kind adds ---------------------------------------------------------------------------

    @property
    def notices(self) -> list[port.Notice]:
        """Return the engine's notices during this request."""
        raise NotImplementedError

    @property
    def is_begun(self) -> bool:
        """Return whether its block was opened."""
        raise NotImplementedError

    async def _run(self, statement: port.Statement) -> port.Result:
        raise NotImplementedError

    async def _run_each(self, statement: port.Statement, lists: list[list[msgspec.Raw]]) -> Sequence[port.Result]:
        raise NotImplementedError

    def _begin_stream(self, statement: port.Statement) -> StreamRun[_P]:
        """Return the run of a stream inside; to end it cancels the transaction's statement."""
        raise NotImplementedError

    async def _open_stream(self, run: StreamRun[_P]) -> StreamedRows:
        raise NotImplementedError

    async def _cut_stream(self, stream: StreamedRows) -> None:
        """End a stream whose reader has left. Raises ConnectionLost and EngineFailure if that fails."""
        raise NotImplementedError

    def _see_failed(self, failure: port.StatementFailed) -> tuple[port.EngineFailure, port.EndReason | None]:
        """Return the failure for the client, and the reason for which it ends the transaction, if it does."""
        raise NotImplementedError

    async def _commit(self, last: port.Statement | None, started: int) -> port.TransactionResult:
        raise NotImplementedError

    def _let_go(self, result: port.Result | None) -> None:
        """Forget a statement that has ended; `result` is None if it has failed, or was a stream."""
        raise NotImplementedError

    def _give_back(self) -> None:
        """Give the connection back, after the end of the transaction."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Clean up after the end of the transaction."""

    def see_through(self, work: Coroutine[Any, Any, _T]) -> Awaitable[_T]:
        """Run work to its end even if its caller is cancelled."""
        raise NotImplementedError

    # -- statements -----------------------------------------------------------------------------------------------

    @property
    def is_failed(self) -> bool:
        return self.over is None and self.member.pgconn.transaction_status == FAILED

    @property
    def state(self) -> port.OpenState:
        if self.over is not None:
            return port.OpenState.OVER
        if self.is_busy:
            return port.OpenState.BUSY
        return port.OpenState.FAILED if self.is_failed else port.OpenState.WAITING

    async def query(
        self, statement: port.Statement, bounds: port.Bounds, lists: list[list[msgspec.Raw]] | None = None
    ) -> port.Result:
        if lists is not None:
            return await self._query_each(statement, bounds, lists)
        started = self.start(bounds)
        try:
            result = await self._run(statement)
        except BaseException as exc:
            raise await self.see_failure(exc, started) from exc
        return await self._see_done(result, started)

    async def _query_each(
        self, statement: port.Statement, bounds: port.Bounds, lists: list[list[msgspec.Raw]]
    ) -> port.Result:
        started = self.start(bounds)
        try:
            results = await self._run_each(statement, lists)
        except BaseException as exc:
            index = exc.statement if isinstance(exc, port.StatementFailed) else None
            failure = await self.see_failure(exc, started)
            if isinstance(failure, port.StatementFailed):
                failure.statement = index
            raise failure from exc
        return await self._see_done(join_results(results), started)

    def stream(self, statement: port.Statement, bounds: port.Bounds) -> AbstractAsyncContextManager[port.RowStream]:
        return stream_inside(self, statement, bounds)

    async def open_stream(self, statement: port.Statement) -> StreamedRows:
        self.deadline = math.inf  # the time of its reader does not count
        run = self._stream = self._begin_stream(statement)
        return await self._open_stream(run)

    async def end_stream(self, stream: StreamedRows) -> None:
        """End a stream, which may have been left. The transaction continues. It is busy until the statement has ended,
        even if the caller is cancelled once more."""
        try:
            if not stream.finished:
                await self._cut_stream(stream)
        except (ConnectionLost, port.EngineFailure):
            self.pool.abandon(self.member)
            self.end_with(port.EndReason.LOST)
        self.is_busy = False
        self._let_go(None)
        self._stream = None
        await self._see_statement_through()

    def start(self, bounds: port.Bounds) -> int:
        """Begin a request; return its start time."""
        self._check_open()
        assert not self.is_busy, "one at a time"
        self.is_busy = True
        self.pool.refresh()
        self.bounds = bounds
        self.deadline = asyncio.get_running_loop().time() + bounds.timeout_ms / 1000
        self.notices.clear()
        return perf_counter_ns()

    def see_lost(self) -> None:
        """End the transaction with its connection. A statement under way fails by itself, and explains the loss."""
        if not self.is_busy:
            self.end_with(port.EndReason.LOST)

    def _check_open(self) -> None:
        if self.over is None and self.member.closed:
            self.end_with(port.EndReason.LOST)
        if self.over is not None:
            raise port.TransactionOver("the transaction is over")

    # -- the end of a statement -----------------------------------------------------------------------------------

    async def _see_done(self, result: port.Result, started: int) -> port.Result:
        self.is_busy = False
        notices = [*self.notices]
        self._let_go(result)
        await self._see_statement_through()
        result.exec_us = (perf_counter_ns() - started) // 1000
        result.notices = result.notices + notices
        return result

    async def _see_statement_through(self) -> None:
        """Wait for a cancel that came too late, and roll back if that was wished for."""
        if self.member.collected:
            self.member.let_go()
        await self.see_cancel_through()
        why, self.ended = self.ended, None
        if self.over is None and self.member.closed:
            self.end_with(port.EndReason.LOST)
        if self.over is not None:
            return
        if self._wish is not None:
            await self.roll_back_for(self._wish)
        elif why in _REASONS:
            await self.roll_back_for(_REASONS[why])
        elif self.is_begun and self.member.pgconn.transaction_status not in (IN_BLOCK, FAILED):
            await self.roll_back_for(port.EndReason.LOST)

    async def see_cancel_through(self) -> None:
        """Wait until no cancel is under way: it would hit the next statement."""
        self.deadline = math.inf
        if self.cancelling is not None:
            cancelling, self.cancelling = self.cancelling, None
            await asyncio.wait([cancelling])

    async def see_failure(self, exc: BaseException, started: int) -> BaseException:
        """Find the consequences of a failure for the transaction; return the exception to raise."""
        self.is_busy, self._stream = False, None
        exec_us = (perf_counter_ns() - started) // 1000
        if isinstance(exc, port.StatementFailed):
            return await self._see_statement_failed(exc, exec_us)
        self._let_go(None)
        if isinstance(exc, port.EngineFailure):
            await self._see_statement_through()
            return exc
        if isinstance(exc, RowsTooWide):
            self.pool.abandon(self.member)
            self.end_with(port.EndReason.LIMIT)
            return explain_width(STREAM_IT, exec_us)
        if isinstance(exc, ConnectionLost):
            self.end_with(port.EndReason.LOST)
            return port.EngineUnavailable(LOST)
        self.pool.abandon(self.member)
        self.end_with(port.EndReason.LOST)
        return port.CopyRefused() if isinstance(exc, CopyStarted) else exc

    async def _see_statement_failed(self, exc: port.StatementFailed, exec_us: int) -> port.EngineFailure:
        notices = [*self.notices]
        failure, reason = self._see_failed(exc)
        self._let_go(None)
        if isinstance(failure, port.StatementFailed):
            failure.exec_us, failure.notices, failure.statement = exec_us, notices, None
            if self.was_cancelled(failure):
                failure = self.explain_cancel(failure)
        await self.see_cancel_through()
        if reason is not None:
            await self.roll_back_for(reason)
        await self._see_statement_through()
        return failure

    # -- ending -----------------------------------------------------------------------------------------------------

    async def commit(self, last: port.Statement | None, bounds: port.Bounds) -> port.TransactionResult:
        started = self.start(bounds)
        try:
            done = await self._commit(last, started)
        finally:
            self._let_go(None)  # rows of the last statement would stay for as long as anybody knows of this
        done.exec_us = (perf_counter_ns() - started) // 1000
        return done

    def check_not_failed(self) -> None:
        if self.is_failed:
            message = "a statement of the transaction failed, so that it can only be rolled back"
            raise port.StatementFailed(message, sqlstate="25P02")

    async def see_failed_commit(self, exc: BaseException, started: int) -> BaseException:
        """End the transaction after a commit that failed: nothing stays open."""
        if isinstance(exc, port.Superseded):  # somebody made it aborted, and its connection was given back
            self.is_busy = False
            self.end_with(port.EndReason.LOST)
            return port.TransactionOver("the transaction was aborted")
        failure = await self.see_failure(exc, started)
        if self.over is None:
            await self.roll_back_for(port.EndReason.ROLLBACK)
        return failure

    def cancel(self) -> None:
        if self.is_busy:
            self.end(Why.LEFT)

    def abort(self, reason: port.EndReason) -> None:
        if self.over is not None or self.stage not in UNDECIDED:
            return
        self._wish = reason
        if self.is_busy:
            self.end(Why.OVER)
        else:
            self.see_through(self.roll_back_for(reason))

    def end(self, why: Why, full_at: int = 0) -> None:
        """Cancel the running statement; if there is none, roll back if the reason demands it."""
        if self.over is not None or self.stage not in UNDECIDED or self.ended is not None:
            return
        if not self.is_busy:
            if why in _REASONS:
                self.abort(_REASONS[why])
            return
        super().end(why, full_at)
        if self._stream is not None:
            self._stream.ended, self._stream.full_at = why, full_at

    async def roll_back_for(self, reason: port.EndReason) -> None:
        """Roll back in the engine, and give the connection back. The locks are free when it returns."""
        if self.over is not None:
            return
        self.over = reason
        if self.member.pgconn.transaction_status == IDLE and not self.member.closed:
            # Some engines refuse to roll back where nothing was begun, or all was already.
            try:
                self._end_on_member()
            finally:
                self._finish()
            return
        late = asyncio.get_running_loop().call_later(_ROLLBACK_S, self.pool.abandon, self.member)
        try:
            check(await self.member.run(ROLLBACK))
        except (ConnectionLost, port.EngineFailure):
            self.pool.abandon(self.member)
        else:
            self._end_on_member()
        finally:
            late.cancel()
            self._finish()

    def _end_on_member(self) -> None:
        self.member.on_closed = None
        self._give_back()

    def end_with(self, over: port.EndReason | port.Outcome) -> None:
        if self.over is None:
            self.over = over
            self._finish()

    def _finish(self) -> None:
        """Stop watching the transaction, and stop counting it."""
        self.is_busy = False
        self._running.runs.remove(self)
        self.pool.end_holding()
        self._leave()
        on_over, self.on_over = self.on_over, None  # it refers to whoever refers to this: that would outlive both
        if on_over is not None:
            on_over()

    def _enter(self) -> None:
        """Have the transaction watched, and counted."""
        self._running.enter(self)
        self.pool.hold()
        self.member.on_closed = self.see_lost
