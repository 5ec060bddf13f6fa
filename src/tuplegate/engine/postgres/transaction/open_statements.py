"""The statements of a transaction that stays open between requests, and its rollback.

They come one by one; what they leave is carried from each to the next. `open_transaction` commits them.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from time import perf_counter_ns
from typing import Any, Final, TypeVar

import msgspec
from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.direct_future import DirectFuture
from tuplegate.engine import port
from tuplegate.engine.libpq.commands import Command, ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.connection import STREAM_IT, explain_width
from tuplegate.engine.libpq.failures import check, is_internal
from tuplegate.engine.libpq.leftovers import WRITES, Leftovers, read_text, refuse_copy
from tuplegate.engine.libpq.parameters import needs_describing, write_all_params
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.libpq.rows import Budget, RowCollector, join_results
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.query.preparing import Preparing, measure_common
from tuplegate.engine.postgres.query.rules import CURSORS, SNAPSHOT, begin, changes_types, chunk_rows
from tuplegate.engine.postgres.query.run import Running, Why
from tuplegate.engine.postgres.query.stream_run import StreamRun
from tuplegate.engine.postgres.safety.sizes import SizeCheck, check_keyword
from tuplegate.engine.postgres.transaction.block_run import PREPARED_LENGTH_MAX, SPEAK_UTF8
from tuplegate.engine.postgres.transaction.end_reasons import REASONS
from tuplegate.engine.postgres.transaction.open_stream import stream_inside
from tuplegate.engine.postgres.transaction.two_phase import Decider, Stage, TransactionRun

_T = TypeVar("_T")

_IN_BLOCK: Final = int(pq.TransactionStatus.INTRANS)
_FAILED: Final = int(pq.TransactionStatus.INERROR)
_ROLLBACK: Final = Command(b"ROLLBACK", begins=False)
_FORGET_PREPARED: Final = Command(b"DEALLOCATE ALL", begins=False)
_NO_BOUNDS: Final = port.Bounds(0, None, 0)
_LOST: Final = "the connection to the engine was lost; the transaction was rolled back"
_ROLLBACK_S: Final = 5.0
_SAVEPOINTS: Final = frozenset({"savepoint", "release", "rollback"})


# size: it carries what its statements have left, from one request to the next.
class OpenStatements(TransactionRun):
    """Fills the port's protocol, but for the commit. `running` is what the engine watches; it is one of them until
    it is over.

    `_waiting` is still to be sent in front of the next statement; `_must_speak`: so is what sets the encoding again,
    which a stream may have changed. `_left`, `_forgets_types` and `_notifies` are about all statements so far.
    `_has_written`: the tag of one of them says so. `_is_ahead`: PREPARE is on its way behind what runs. `_is_unsure`:
    what was to be prepared has failed, and perhaps is not. `_wish` is the reason for which it must be rolled back as
    soon as its statement has ended.
    """

    def __init__(
        self, pool: Pool, target: port.Target, decider: Decider, running: Running, id: str, *, read_only: bool
    ) -> None:
        super().__init__(pool, target, [], _NO_BOUNDS, math.inf, decider)
        self.is_read_only = read_only or not target.may_write
        self.on_over: Callable[[], None] | None = None
        self.over: port.EndReason | port.Outcome | None = None
        self._id = id
        self._running = running
        self._waiting: list[Command] = []
        self._must_speak = False
        self._left = Leftovers.NOTHING
        self._forgets_types = False
        self._notifies = False
        self._has_written = False
        self._is_ahead = False
        self._is_unsure = False
        self._size_check: SizeCheck | None = None
        self.is_busy = False
        self._started = 0
        self._in_doubt = False
        self._cancelling: asyncio.Task[None] | None = None
        self._stream: _InsideRun | None = None
        self._wish: port.EndReason | None = None

    @property
    def rest(self) -> int | None:
        return None if self.is_busy else self._started

    async def open(self, member: Member, now: float) -> None:
        """Begin on a connection. The block opens with the first statement."""
        self.begin(member)
        self.access = port.Access.READ if self.is_read_only else port.Access.WRITE
        self._running.enter(self, now)
        self.pool.hold()
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
    def writes(self) -> bool:
        """Return whether PREPARE is on its way. Otherwise the guard is asked when it is to be sent."""
        return self._is_ahead

    @property
    def is_failed(self) -> bool:
        return self.over is None and self.member.pgconn.transaction_status == _FAILED

    # -- statements ---------------------------------------------------------------------------------------------

    async def query(self, statement: port.Statement, bounds: port.Bounds) -> port.Result:
        started = perf_counter_ns()
        self._start(bounds)
        try:
            await self._send_statement(statement, bounds, [])
            result = self._find_result(0) or await self._learn_result(0)
        except BaseException as exc:
            raise await self.see_failure(exc, started) from exc
        return await self._see_done(statement, result, started)

    async def query_each(
        self, statement: port.Statement, lists: list[list[msgspec.Raw]], bounds: port.Bounds
    ) -> port.Result:
        started = perf_counter_ns()
        self._start(bounds)
        try:
            results = await self._send_each(statement, lists, bounds)
        except BaseException as exc:
            index = exc.statement if isinstance(exc, port.StatementFailed) else None
            failure = await self.see_failure(exc, started)
            if isinstance(failure, port.StatementFailed):
                failure.statement = index
            raise failure from exc
        return await self._see_done(statement, join_results(results), started)

    async def _see_done(self, statement: port.Statement, result: port.Result, started: int) -> port.Result:
        self.is_busy = False
        if self._notices and self._preparing is not None:
            self._preparing.note_noise()
        if result.affected_rows and statement.keyword in WRITES:
            self._has_written = True
        await self._see_statement_through()
        result.exec_us = (perf_counter_ns() - started) // 1000
        result.notices = result.notices + self._notices
        return result

    async def _send_each(
        self, statement: port.Statement, lists: list[list[msgspec.Raw]], bounds: port.Bounds
    ) -> list[port.Result]:
        self._prepare_for(statement)
        await self._send([], [])
        written = await write_all_params(self.pool.encoders, self.member, statement.sql, lists, self)
        self.check_ended()
        sql, further, budget = statement.sql.encode(), self._speak(statement), Budget(bounds.bytes_max)
        self._closing = []
        self._rows = [
            RowCollector(self.pool.encoders, self.member, statement.shape, bounds, budget=budget) for _ in written
        ]
        commands: list[Command] = []
        owners: list[int | None] = []
        for index, params in enumerate(written):
            commands += [Command(sql, params, chunk_rows(statement, bounds), begins=False), *further]
            owners += [index, *([None] * len(further))]
        await self._send(commands, owners)
        return [self._find_result(index) or await self._learn_result(index) for index in range(len(written))]

    def stream(self, statement: port.Statement, bounds: port.Bounds) -> AbstractAsyncContextManager[port.RowStream]:
        return stream_inside(self, statement, bounds)

    def start_stream(self, statement: port.Statement, bounds: port.Bounds) -> StreamRun:
        """Begin the run of a stream. The time of its reader does not count."""
        self._start(bounds)
        self.deadline = math.inf
        self._stream = _InsideRun(self, statement, bounds)
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

    def see_through(self, work: Coroutine[Any, Any, _T]) -> DirectFuture[_T]:
        """Run work to its end even if whoever waits for it is cancelled."""
        return self._decider.recovery.see_through(work)

    async def leave_stream(self, close: Callable[[], Awaitable[None]]) -> None:
        """End a statement whose reader has left. The transaction goes on. It is busy until the statement has ended,
        also where whoever waits for that is cancelled once more."""
        await self.see_through(self._end_stream(close))

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
        self._started += 1
        self.pool.state.refresh()
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
        self, statement: port.Statement, bounds: port.Bounds, closing: list[Command]
    ) -> list[PGresult]:
        """Send the statement, and what closes the transaction; return the results."""
        self._prepare_for(statement)
        self._rows = [RowCollector(self.pool.encoders, self.member, statement.shape, bounds)]
        self._closing = []
        self.describe = statement.params is not None and any(bytes(param)[:1] == b'"' for param in statement.params)
        is_described = bool(statement.params) and (self.describe or needs_describing(statement))
        if is_described:
            await self._send([], [])
        params = await self._params(0, statement) if self._must_write_params(statement) else None
        put = [Command(statement.sql.encode(), params, chunk_rows(statement, bounds), begins=False)]
        preparing = None if is_described or statement.keyword in _SAVEPOINTS else self._find_preparing()
        if preparing is not None and len(statement.sql) <= PREPARED_LENGTH_MAX:
            put = preparing.put(0, statement, params, put[0].chunk_rows, self._rows[0])
        further = [*self._speak(statement), *closing]
        owners = [*([None] * (len(put) - 1)), 0, *([None] * len(further))]
        try:
            return await self._send([*put, *further], owners)
        except port.StatementFailed as failure:
            if preparing is not None:
                self._see_prepared_fail(preparing, statement, failure)
            raise

    def _see_prepared_fail(
        self, preparing: Preparing, statement: port.Statement, failure: port.StatementFailed
    ) -> None:
        """Make the error one of the statement as it was sent, which cannot be run again to see what it says itself.
        Raises a conflict where it failed only because it was prepared: some table is not what it was then."""
        self._is_unsure = self._is_unsure or preparing.is_in_doubt
        if not preparing.may_be_cause(failure) or isinstance(failure, port.ParameterMismatch):
            return
        preparing.prepare_anew()
        only_prepared = failure.statement == 0 and failure.position is None
        failure.statement = 0
        if only_prepared:
            raise port.Conflict("a table was changed meanwhile", sqlstate="40001") from failure
        if failure.position is not None and failure.position > measure_common(statement):
            failure.position = None

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
        refuse_copy(statement)
        full_at = None if self.is_read_only else self.pool.state.full_at
        if full_at is not None:
            check_keyword(full_at, keyword, reads=keyword in CURSORS)
        reading = read_text(statement.sql, keyword)
        plain = reading.plain
        if plain and self._waiting[1:] == [SNAPSHOT]:
            # It takes one itself, and cannot change the isolation before.
            self._waiting = self._put_own(self._waiting[0])
        if not plain and self.is_plain:
            self.is_plain = False
            self._in_doubt = True
            self.pool.state.begin_doubt()
        if (self.pool.state.has_code or not plain) and self.member.kept:
            self.member.kept.clear()
            self._waiting.append(_FORGET_PREPARED)
        if self._left is not Leftovers.ANYTHING and reading.leftovers is not Leftovers.NOTHING:
            self._left = reading.leftovers
        self._forgets_types = self._forgets_types or changes_types(keyword)
        self._notifies = self._notifies or "notify" in statement.sql.lower()

    def _put_own(self, command: Command) -> list[Command]:
        """Return what runs a command of the service's own."""
        preparing = self._find_preparing()
        return [command] if preparing is None else preparing.put_own(command)

    def _find_preparing(self) -> Preparing | None:
        """Return what prepares statements here, if they may be: others than plain ones could see it."""
        state = self.pool.state
        if self._is_unsure or not self.is_plain or state.has_code or not state.may_keep:
            return None
        if self._preparing is None:
            self._preparing = Preparing(self.pool, self.member, asyncio.get_running_loop().time())
        return self._preparing

    def _speak(self, statement: port.Statement) -> list[Command]:
        if statement.keyword in _SAVEPOINTS or (self.is_plain and not self.pool.state.has_code):
            return []
        return [SPEAK_UTF8]

    async def _see_statement_through(self) -> None:
        """Wait for a cancel that came too late, and roll back where that was wished for."""
        # They would stay until the next request. Of the statement only its first word is of interest then.
        self._rows, self._closing = [], []
        if self.member.collected:
            self.member.let_go()
        if self._preparing is not None and not (self._preparing.is_in_doubt or self._preparing.has_unjudged):
            self._preparing = None
        self.statements = [port.Statement("", statement.keyword) for statement in self.statements]
        self.deadline = math.inf
        if self._cancelling is not None:
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
            return port.EngineUnavailable(_LOST)
        self.pool.abandon(self.member)
        self._end_with(port.EndReason.LIMIT if isinstance(exc, RowsTooWide) else port.EndReason.LOST)
        if isinstance(exc, RowsTooWide):
            return explain_width(STREAM_IT, exec_us)
        return port.CopyRefused() if isinstance(exc, CopyStarted) else exc

    # -- ending -------------------------------------------------------------------------------------------------

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
            self.see_through(self._roll_back(reason))

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
        del self._running.runs[self]
        self.pool.end_holding()
        self._end_doubt()
        on_over, self.on_over = self.on_over, None  # it refers to whoever refers to this: that would outlive both
        if on_over is not None:
            on_over()

    def _end_doubt(self) -> None:
        if self._in_doubt:
            self._in_doubt = False
            self.pool.state.end_doubt()

    def _give_back(self, *, broken: bool = False) -> None:
        self.member.on_closed = None
        if self._is_unsure and not broken and not self.member.closed:
            self.pool.give_back_unclean(self.member, plain=self.is_plain)
            return
        TransactionRun._give_back(self, broken=broken)

    def _find_left(self) -> Leftovers:
        return self._left

    def _may_change_types(self) -> bool:
        return self._forgets_types


class _InsideRun(StreamRun):
    """A stream inside of an open transaction, which cancels for it."""

    def __init__(self, transaction: OpenStatements, statement: port.Statement, bounds: port.Bounds) -> None:
        super().__init__(transaction.pool, transaction.target, statement, bounds)
        self._transaction = transaction
        self.begin(transaction.member)
        self.access = transaction.access
        self.is_inside = True

    def end(self, why: Why, full_at: int = 0) -> None:
        self._transaction.end(why, full_at)

    def explain_loss(self, lost: ConnectionLost) -> port.EngineFailure:
        return port.EngineUnavailable(_LOST)
