"""A transaction that stays open between requests: its statements come one by one, and its client ends it.

It is decided like any other `TransactionRun`, with one difference: it cannot be run again. So it is committed in two
phases only where nothing was run that PREPARE refuses, or that could hide such a thing in code of the tenant's own.
Both ways a record of its id is committed with it, which tells its outcome to whoever asks.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from time import perf_counter_ns
from typing import Final

import msgspec
from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.connection import Command, ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.failures import check, is_internal
from tuplegate.engine.libpq.leftovers import Leftovers, find_leftovers, is_plain
from tuplegate.engine.libpq.parameters import needs_describing, write_all_params
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.libpq.rows import Budget, RowCollector, join_results
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.query.rules import CURSORS, SNAPSHOT, begin, changes_types, chunk_rows
from tuplegate.engine.postgres.query.run import STREAM_IT, Run, Why, explain_width
from tuplegate.engine.postgres.query.stream_run import StreamRun
from tuplegate.engine.postgres.safety.sizes import SizeCheck, check_keyword
from tuplegate.engine.postgres.transaction.end_reasons import REASONS, find_reason
from tuplegate.engine.postgres.transaction.inside_run import LOST, InsideRun
from tuplegate.engine.postgres.transaction.open_stream import stream_inside
from tuplegate.engine.postgres.transaction.two_phase import (
    CHECK_NOW,
    SPEAK_UTF8,
    CannotPrepare,
    Decider,
    Stage,
    TransactionRun,
)

_IN_BLOCK: Final = int(pq.TransactionStatus.INTRANS)
_FAILED: Final = int(pq.TransactionStatus.INERROR)
_ROLLBACK: Final = Command(b"ROLLBACK", begins=False)
_FORGET_PREPARED: Final = Command(b"DEALLOCATE ALL", begins=False)
_NO_BOUNDS: Final = port.Bounds(0, None, 0)
_NO_SHAPE: Final = port.Shape()
_ROLLBACK_S: Final = 5.0
_NO_NEW_FILES: Final = b"4294967295"
"""The number after which files count as new, where it is unknown."""
_SAVEPOINTS: Final = frozenset({"savepoint", "release", "rollback"})


# size: it carries what its statements have left, from one request to the next.
class OpenTransaction(TransactionRun):
    """Fills the port's protocol. `runs` are the runs that the engine watches; it is one of them until it is over.

    `_waiting` is still to be sent in front of the next statement; `_must_speak`: so is what sets the encoding again,
    which a stream may have changed. `_left`, `_forgets_types` and `_notifies` are about
    all statements so far. `_wish` is the reason for which it must be rolled back as soon as its statement has ended.
    """

    __slots__ = (
        "_cancelling", "_forgets_types", "_id", "_in_doubt", "_left", "_must_speak", "_notifies", "_runs",
        "_size_check", "_stream", "_waiting", "_wish", "is_busy", "on_over", "over",
    )  # fmt: skip

    def __init__(
        self, pool: Pool, target: port.Target, decider: Decider, runs: dict[Run, float], id: str, *, read_only: bool
    ) -> None:
        super().__init__(pool, target, [], _NO_SHAPE, _NO_BOUNDS, math.inf, decider)
        self.is_read_only = read_only or not target.may_write
        self.on_over: Callable[[], None] | None = None
        self.over: port.EndReason | port.Outcome | None = None
        self._id = id
        self._runs = runs
        self._waiting: list[Command] = []
        self._must_speak = False
        self._left = Leftovers.NOTHING
        self._forgets_types = False
        self._notifies = False
        self._size_check: SizeCheck | None = None
        self.is_busy = False
        self._in_doubt = False
        self._cancelling: asyncio.Task[None] | None = None
        self._stream: InsideRun | None = None
        self._wish: port.EndReason | None = None

    async def open(self, member: Member, now: float) -> None:
        """Begin on a connection. The block opens with the first statement."""
        self.begin(member)
        self.access = port.Access.READ if self.is_read_only else port.Access.WRITE
        self._runs[self] = now
        self.pool.held += 1
        member.on_closed = self._see_lost
        full_at = None if self.is_read_only else self.pool.state.full_at
        try:
            self._reset = self.pool.freshen_ahead(member)
            if full_at is not None:
                self._size_check = await SizeCheck.before(member, self.pool.state, full_at)
        except BaseException as exc:
            self.pool.abandon(member)
            self._end_with(port.EndReason.LOST)
            if isinstance(exc, ConnectionLost):
                raise port.EngineUnavailable("the connection to the engine was lost") from exc
            raise
        self._waiting = begin(self.access, on_replica=False)

    @property
    def is_failed(self) -> bool:
        return self.over is None and self.member.pgconn.transaction_status == _FAILED

    # -- statements ---------------------------------------------------------------------------------------------

    async def query(self, statement: port.Statement, shape: port.Shape, bounds: port.Bounds) -> port.Result:
        started = perf_counter_ns()
        self._start(bounds)
        try:
            await self._send_statement(statement, shape, bounds, [])
            result = await self._result(0)
        except BaseException as exc:
            raise await self.see_failure(exc, started) from exc
        return await self._see_done(result, started)

    async def query_each(
        self, statement: port.Statement, lists: list[list[msgspec.Raw]], shape: port.Shape, bounds: port.Bounds
    ) -> port.Result:
        started = perf_counter_ns()
        self._start(bounds)
        try:
            results = await self._send_each(statement, lists, shape, bounds)
        except BaseException as exc:
            index = exc.statement if isinstance(exc, port.StatementFailed) else None
            failure = await self.see_failure(exc, started)
            if isinstance(failure, port.StatementFailed):
                failure.statement = index
            raise failure from exc
        return await self._see_done(join_results(results), started)

    async def _see_done(self, result: port.Result, started: int) -> port.Result:
        self.is_busy = False
        await self._see_statement_through()
        result.exec_us = (perf_counter_ns() - started) // 1000
        result.notices = result.notices + self._notices
        return result

    async def _send_each(
        self, statement: port.Statement, lists: list[list[msgspec.Raw]], shape: port.Shape, bounds: port.Bounds
    ) -> list[port.Result]:
        self._prepare_for(statement)
        await self._send([], [])
        written = await write_all_params(self.pool.encoders, self.member, statement.sql, lists, self)
        self.check_ended()
        sql, further, budget = statement.sql.encode(), self._speak(statement), Budget(bounds.bytes_max)
        self._closing = []
        self._rows = [RowCollector(self.pool.encoders, self.member, shape, bounds, budget=budget) for _ in written]
        commands: list[Command] = []
        owners: list[int | None] = []
        for index, params in enumerate(written):
            commands += [Command(sql, params, chunk_rows(statement, bounds), begins=False), *further]
            owners += [index, *([None] * len(further))]
        await self._send(commands, owners)
        return [await self._result(index) for index in range(len(written))]

    def stream(
        self, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> AbstractAsyncContextManager[port.RowStream]:
        return stream_inside(self, statement, shape, bounds)

    def start_stream(self, statement: port.Statement, shape: port.Shape, bounds: port.Bounds) -> StreamRun:
        """Begin the run of a stream. The time of its reader does not count."""
        self._start(bounds)
        self.deadline = math.inf
        self._stream = InsideRun(self, statement, shape, bounds)
        return self._stream

    async def send_ahead(self, statement: port.Statement) -> None:
        """Send what must be sent before the statement."""
        self._prepare_for(statement)
        await self._send([], [])

    async def finish_stream(self) -> None:
        """End a stream that has not failed. A failed transaction gets its encoding back with a savepoint."""
        stream, self._stream = self._stream, None
        if stream is not None and self.over is None and self.member.pgconn.transaction_status == _IN_BLOCK:
            self._must_speak = self._must_speak or bool(self._speak(stream.statement))
        self.is_busy = False
        await self._see_statement_through()

    async def leave_stream(self, close: Callable[[], Awaitable[None]]) -> None:
        """End a statement whose reader has left. The transaction goes on. It is busy until the statement has ended,
        also where whoever waits for that is cancelled once more."""
        await self._decider.recovery.see_through(self._end_stream(close))

    async def _end_stream(self, close: Callable[[], Awaitable[None]]) -> None:
        try:
            await self.pool.expire(self.member)
            if self.member.pgconn.transaction_status == _IN_BLOCK:
                await close()
        except (ConnectionLost, port.EngineFailure):
            self.pool.abandon(self.member)
            self._end_with(port.EndReason.LOST)
        await self.finish_stream()

    def _start(self, bounds: port.Bounds) -> None:
        self._check_open()
        assert not self.is_busy, "one at a time"
        self.is_busy = True
        self.bounds = bounds
        self.deadline = asyncio.get_running_loop().time() + bounds.timeout_ms / 1000

    def _see_lost(self) -> None:
        """End it with its connection. Whatever runs on that fails by itself, and says what that means."""
        if not self.is_busy:
            self._end_with(port.EndReason.LOST)

    def _check_open(self) -> None:
        if self.over is None and self.member.closed:
            self._end_with(port.EndReason.LOST)
        if self.over is not None:
            raise port.TransactionOver("the transaction is over")

    async def _send_statement(
        self, statement: port.Statement, shape: port.Shape, bounds: port.Bounds, closing: list[Command]
    ) -> list[PGresult]:
        """Send the statement, and what closes the transaction; return the results."""
        self._prepare_for(statement)
        self._rows = [RowCollector(self.pool.encoders, self.member, shape, bounds)]
        self._closing = []
        self.describe = statement.params is not None and any(bytes(param)[:1] == b'"' for param in statement.params)
        if statement.params and (self.describe or needs_describing(statement)):
            await self._send([], [])
        params = await self._params(0, statement)
        first = Command(statement.sql.encode(), params, chunk_rows(statement, bounds), begins=False)
        further = [*self._speak(statement), *closing]
        return await self._send([first, *further], [0, *([None] * len(further))])

    async def _send(self, commands: list[Command], owners: list[int | None]) -> list[PGresult]:
        """Send what waits, and then the commands; return the results of those."""
        waiting, self._waiting = self._waiting, []
        if self._must_speak:
            waiting.append(SPEAK_UTF8)
            self._must_speak = False
        results = await TransactionRun._send(self, [*waiting, *commands], [*([None] * len(waiting)), *owners])
        return results[len(waiting) :]

    def _prepare_for(self, statement: port.Statement) -> None:
        """Note what the statement may leave behind, and what must be sent before it. Raises what may not be sent."""
        keyword = statement.keyword
        self.statements = [statement]
        self._notices = []
        if keyword in _SAVEPOINTS:
            return
        if keyword == "copy" and ("stdin" in (text := statement.sql.lower()) or "stdout" in text):
            raise port.CopyRefused
        full_at = None if self.is_read_only else self.pool.state.full_at
        if full_at is not None:
            check_keyword(full_at, keyword, reads=keyword in CURSORS)
        plain = is_plain(statement.sql, keyword)
        if plain and self._waiting[1:] == [SNAPSHOT]:
            self._waiting.pop()  # it takes one itself, and cannot change the isolation before
        if not plain and self.is_plain:
            self.is_plain = False
            self._in_doubt = True
            self.pool.state.begin_doubt()
        if (self.pool.state.has_code or not plain) and self.member.kept:
            self.member.kept.clear()
            self._waiting.append(_FORGET_PREPARED)
        left = find_leftovers(statement.sql, keyword)
        if self._left is not Leftovers.ANYTHING and left is not Leftovers.NOTHING:
            self._left = left
        self._forgets_types = self._forgets_types or changes_types(keyword)
        self._notifies = self._notifies or "notify" in statement.sql.lower()

    def _speak(self, statement: port.Statement) -> list[Command]:
        if statement.keyword in _SAVEPOINTS or (self.is_plain and not self.pool.state.has_code):
            return []
        return [SPEAK_UTF8]

    async def _see_statement_through(self) -> None:
        """Wait for a cancel that came too late, and roll back where that was wished for."""
        self._rows, self._closing = [], []  # they would stay until the next request
        await self._see_cancel_through()
        why, self.ended = self.ended, None
        if self.over is not None:
            return
        if self._wish is not None:
            await self._roll_back(self._wish)
        elif why in REASONS:
            await self._roll_back(REASONS[why])
        elif not self._waiting and self.member.pgconn.transaction_status not in (_IN_BLOCK, _FAILED):
            await self._roll_back(port.EndReason.LOST)

    async def _see_cancel_through(self) -> None:
        """Wait until no cancel is under way: it would hit what is sent next."""
        self.deadline = math.inf
        if self._cancelling is not None:
            cancelling, self._cancelling = self._cancelling, None
            await cancelling

    async def see_failure(self, exc: BaseException, started: int) -> BaseException:
        """Find out what a failure means for the transaction; return what is to be raised."""
        self.is_busy = False
        self._stream = None
        exec_us = (perf_counter_ns() - started) // 1000
        if isinstance(exc, port.StatementFailed):
            exc.exec_us, exc.notices, exc.statement = exec_us, self._notices, None
            failure = self.explain_cancel(exc) if self.was_cancelled(exc) else exc
            await self._see_cancel_through()
            if is_internal(exc):
                self.pool.retire(self.member)
                self._end_with(port.EndReason.LOST)
            elif isinstance(exc, port.Conflict):
                await self._roll_back(port.EndReason.CONFLICT)
            await self._see_statement_through()
            return failure
        if isinstance(exc, port.EngineFailure):
            await self._see_statement_through()
            return exc
        if isinstance(exc, ConnectionLost):
            self._end_with(port.EndReason.LOST)
            return port.EngineUnavailable(LOST)
        self.pool.abandon(self.member)
        self._end_with(port.EndReason.LIMIT if isinstance(exc, RowsTooWide) else port.EndReason.LOST)
        if isinstance(exc, RowsTooWide):
            return explain_width(STREAM_IT, exec_us)
        return port.CopyRefused() if isinstance(exc, CopyStarted) else exc

    # -- ending -------------------------------------------------------------------------------------------------

    async def commit(
        self, last: port.Statement | None, shape: port.Shape, bounds: port.Bounds
    ) -> port.TransactionResult:
        started = perf_counter_ns()
        self._start(bounds)
        try:
            number, done = await self._run_last(last, shape, bounds)
        except BaseException as exc:
            raise await self._see_failed_commit(exc, started) from exc
        self.stage = Stage.DECIDING
        try:
            await self._decider.recovery.see_through(self._decide(number))
        except port.OutcomeUnknown as unknown:
            unknown.id = self._id
            self._end_with(port.Outcome.IN_PROGRESS)
            raise
        except port.Superseded as superseded:
            self._end_with(port.EndReason.LOST)
            raise port.TransactionOver("the transaction was aborted") from superseded
        except CannotPrepare as refused:
            self._end_with(port.EndReason.CONFLICT)
            raise port.Conflict("the engine had no room to prepare one more transaction", sqlstate="40001") from refused
        except port.EngineFailure as failure:
            self._end_with(find_reason(failure))
            raise
        self._end_with(port.Outcome.COMMITTED)
        done.exec_us = (perf_counter_ns() - started) // 1000
        return done

    async def _run_last(
        self, last: port.Statement | None, shape: port.Shape, bounds: port.Bounds
    ) -> tuple[int | None, port.TransactionResult]:
        """Run everything before the decision; return the engine's number of the transaction, and its result."""
        if self.member.pgconn.transaction_status == _FAILED:
            message = "a statement of the transaction failed, so that it can only be rolled back"
            raise port.StatementFailed(message, sqlstate="25P02")
        careful = (
            self.pool.state.has_code or not self.is_plain or not (last is None or is_plain(last.sql, last.keyword))
        )
        closing = self._close_with(careful=careful)
        if last is None:
            results = await self._send(closing, [None] * len(closing))
            rows = []
        else:
            results = await self._send_statement(last, shape, bounds, closing)
            rows = [await self._result(0)]
        if self.member.pgconn.transaction_status != _IN_BLOCK:
            raise port.StatementFailed("a statement ended the transaction", sqlstate="25P01")
        full_at = None if self.is_read_only else self.pool.state.full_at
        if self._size_check is None and full_at is not None:  # it was not full yet when this began
            self._size_check = SizeCheck(self.pool.state, full_at, _NO_NEW_FILES)
        if self._size_check is not None:
            await self._size_check.check(self.member)
        text = results[-1].get_value(0, 0)
        number = None if text is None else int(text)
        commit = port.Commit.READ_ONLY
        if number is not None:
            self.two_phase = self.two_phase and not careful
            commit = port.Commit.TWO_PHASE if self.two_phase else port.Commit.ONE_PHASE
            self._promised = port.Promise(self._id)
        done = port.TransactionResult(rows, commit, number, 1, 0, self._notices)
        await self._record(done)
        self.check_ended()
        return number, done

    def _close_with(self, *, careful: bool) -> list[Command]:
        closing = [CHECK_NOW]
        if careful and not self.is_read_only:
            closing.append(self.pool.state.ready_to_commit)
        closing.append(self._ask_number(numbered=self._notifies, careful=careful))
        return closing

    async def _see_failed_commit(self, exc: BaseException, started: int) -> BaseException:
        """End the transaction after a commit that failed: nothing stays open."""
        if isinstance(exc, port.Superseded):  # somebody made it aborted, and its connection was given back
            self.is_busy = False
            self._end_with(port.EndReason.LOST)
            return port.TransactionOver("the transaction was aborted")
        failure = await self.see_failure(exc, started)
        if self.over is None:
            await self._roll_back(port.EndReason.ROLLBACK)
        return failure

    async def roll_back(self) -> None:
        self._check_open()
        await self._roll_back(port.EndReason.ROLLBACK)

    def cancel(self) -> None:
        if self.is_busy:
            self.end(Why.LEFT)

    def abort(self, reason: port.EndReason) -> None:
        if self.over is not None or self.stage >= Stage.DECIDING:
            return
        self._wish = reason
        if self.is_busy:
            self.end(Why.OVER)
        else:
            self._decider.recovery.see_through(self._roll_back(reason))

    def end(self, why: Why, full_at: int = 0) -> None:
        """Cancel what runs, or roll back where nothing does."""
        if self.over is not None or self.stage >= Stage.DECIDING or self.ended is not None:
            return
        if not self.is_busy:
            if why in REASONS:
                self.abort(REASONS[why])
            return
        self.ended = why
        self.full_at = full_at
        if self._stream is not None:
            self._stream.ended, self._stream.full_at = why, full_at
        self._cancelling = self.pool.expire(self.member)

    async def _roll_back(self, reason: port.EndReason) -> None:
        """Roll back in the engine, and give the connection back. The locks are free when it returns."""
        if self.over is not None:
            return
        self.over = reason
        late = asyncio.get_running_loop().call_later(_ROLLBACK_S, self.pool.abandon, self.member)
        try:
            check(await self.member.run(_ROLLBACK))
        except (ConnectionLost, port.EngineFailure):
            self.pool.abandon(self.member)
        else:
            self._give_back()
        finally:
            late.cancel()
            self._finish()

    def _end_with(self, over: port.EndReason | port.Outcome) -> None:
        if self.over is None:
            self.over = over
            self._finish()

    def _finish(self) -> None:
        """Stop watching the transaction, and stop counting it."""
        self.is_busy = False
        del self._runs[self]
        self.pool.held -= 1
        self._end_doubt()
        if self.on_over is not None:
            self.on_over()

    def _end_doubt(self) -> None:
        if self._in_doubt:
            self._in_doubt = False
            self.pool.state.end_doubt()

    def _give_back(self, *, broken: bool = False) -> None:
        self.member.on_closed = None
        TransactionRun._give_back(self, broken=broken)

    def _find_left(self) -> Leftovers:
        return self._left

    def _may_change_types(self) -> bool:
        return self._forgets_types
