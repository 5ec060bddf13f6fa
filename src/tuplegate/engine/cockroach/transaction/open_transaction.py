"""A transaction that stays open between requests: its statements come one by one, and its client ends it."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter_ns
from typing import Final

import msgspec
from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.cockroach.connector import ROLLBACK
from tuplegate.engine.cockroach.failures import is_node_failure, refine
from tuplegate.engine.cockroach.narrow_numbers import check_numbers, may_be_cut
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.cockroach.query import rules
from tuplegate.engine.cockroach.query.described import check_first, find_types
from tuplegate.engine.cockroach.query.refusals import check_statement
from tuplegate.engine.cockroach.query.run import Run, Why
from tuplegate.engine.cockroach.query.stream import Stream, StreamRun, prepare_stream
from tuplegate.engine.cockroach.transaction import guard
from tuplegate.engine.cockroach.transaction.deciding import decide, see_through
from tuplegate.engine.cockroach.transaction.ledger import Ledger
from tuplegate.engine.cockroach.transaction.records import number_of
from tuplegate.engine.libpq.commands import Command, ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.connection import explain_width
from tuplegate.engine.libpq.failures import check, find_error, to_failure
from tuplegate.engine.libpq.leftovers import Leftovers, refuse_copy
from tuplegate.engine.libpq.parameters import write_all_params
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.libpq.rows import Budget, RowCollector, join_results

_IN_BLOCK: Final = int(pq.TransactionStatus.INTRANS)
_FAILED: Final = int(pq.TransactionStatus.INERROR)
_NO_BOUNDS: Final = port.Bounds(0, None, 0)
_ROLLBACK_S: Final = 5.0
_LOST: Final = "the connection to the engine was lost; the transaction was rolled back"
_SAVEPOINTS: Final = frozenset({"savepoint", "release", "rollback"})


# size: it carries what its statements have left, from one request to the next.
class OpenTransaction(Run):
    """Fills the port's protocol. `_wish` is the reason for which it must be rolled back as soon as its statement has
    ended. `on_free` is called when it holds its connection no longer."""

    def __init__(
        self,
        pool: Pool,
        target: port.Target,
        ledger: Ledger,
        id: str,
        on_free: Callable[["OpenTransaction"], None],
        *,
        read_only: bool,
    ) -> None:
        super().__init__(pool, target, _NO_BOUNDS, math.inf)
        self.on_over: Callable[[], None] | None = None
        self.over: port.EndReason | port.Outcome | None = None
        self.is_busy = False
        self._ledger = ledger
        self._id = id
        self._on_free = on_free
        self._is_read_only = read_only or not target.may_write
        self._begun = False
        self._writes = False
        self._changes_types = False
        self._wish: port.EndReason | None = None
        self._notices: list[port.Notice] = []
        self._sql = ""
        """The statement that runs."""

    def begin(self, member: Member) -> None:
        """Begin on a connection. The block opens with the first statement."""
        self.member = member
        member.on_closed = self._see_lost

    @property
    def is_failed(self) -> bool:
        return self.over is None and self.member.pgconn.transaction_status == _FAILED

    # -- statements ---------------------------------------------------------------------------------------------

    async def query(self, statement: port.Statement, bounds: port.Bounds) -> port.Result:
        started = self._start(bounds)
        try:
            result = await self._run_statement(statement, bounds)
        except BaseException as exc:
            raise await self._see_failure(exc, started) from exc
        return await self._see_done(result, started)

    async def query_each(
        self, statement: port.Statement, lists: list[list[msgspec.Raw]], bounds: port.Bounds
    ) -> port.Result:
        started = self._start(bounds)
        try:
            results = await self._run_each(statement, lists, bounds)
        except BaseException as exc:
            index = exc.statement if isinstance(exc, port.StatementFailed) else None
            raise await self._see_failure(exc, started, index) from exc
        return await self._see_done(join_results(results), started)

    @asynccontextmanager
    async def stream(self, statement: port.Statement, bounds: port.Bounds) -> AsyncIterator[port.RowStream]:
        started = self._start(bounds)
        self.close()  # the reader's time does not count
        run = _InsideRun(self, statement, bounds)
        stream: Stream | None = None
        try:
            await self._open_block(statement)
            stream = await prepare_stream(run)
            yield stream
        except BaseException as exc:
            if stream is None or stream.finished or isinstance(exc, port.EngineFailure):
                raise await see_through(self._see_failure(exc, started)) from exc
            await see_through(self._leave_stream(stream))
            raise
        if stream.finished:
            self.is_busy = False
            await see_through(self._see_through_wishes())
        else:
            await see_through(self._leave_stream(stream))

    async def _leave_stream(self, stream: Stream) -> None:
        """End a statement whose reader has left. A statement that is cut short has failed, and so the transaction."""
        stream.leave()
        self.cancelling = self.pool.expire(self.member)
        await self._see_cancelled()
        self.is_busy = False
        await self._see_through_wishes()

    async def _run_statement(self, statement: port.Statement, bounds: port.Bounds) -> port.Result:
        await self._open_block(statement)
        state = self.pool.state
        describe = any(bytes(param)[:1] == b'"' for param in statement.params or ())
        while True:
            try:
                values = await self.write_values(statement, describe=describe)
                await check_first(self, statement, values)
                break
            except port.StatementFailed as failure:
                if self.is_failed or not state.untold.learn(statement.sql, failure):
                    raise
        rows = RowCollector(state.encoders, self.member, statement.shape, bounds)
        types = state.untold.of_each(statement.sql, values)
        command = Command(statement.sql.encode(), values or None, rules.chunk_rows(statement, bounds), types=types)
        results = await self._send([command], lambda chunk, _: rows.take(chunk))
        self.check_ended()
        return rows.finish(results[0]) or await rows.learn(self.member, results[0])

    async def _run_each(
        self, statement: port.Statement, lists: list[list[msgspec.Raw]], bounds: port.Bounds
    ) -> list[port.Result]:
        await self._open_block(statement)
        encoders = self.pool.state.encoders
        written = await write_all_params(encoders, self.member, statement.sql, lists, self)
        self.check_ended()
        suspects = [index for index, params in enumerate(lists) if may_be_cut(params)]
        types = await find_types(self, statement.sql) if suspects else []
        for index in suspects:
            try:
                check_numbers(types, written[index])
            except port.StatementFailed as failure:
                failure.statement = index
                raise
        budget, sql = Budget(bounds.bytes_max), statement.sql.encode()
        collectors = [RowCollector(encoders, self.member, statement.shape, bounds, budget=budget) for _ in written]
        commands = [Command(sql, values, rules.chunk_rows(statement, bounds)) for values in written]
        results = await self._send(commands, lambda chunk, number: collectors[number].take(chunk))
        each = zip(collectors, results, strict=True)
        return [rows.finish(last) or await rows.learn(self.member, last) for rows, last in each]

    async def _open_block(self, statement: port.Statement) -> None:
        """Open the block before the first statement. Raises what may not be sent."""
        self._sql = statement.sql
        refuse_copy(statement)
        check_statement(self.pool.state, self.target, statement, full=not self._is_read_only)
        if statement.keyword not in _SAVEPOINTS:
            changes = self.pool.state.functions_write or rules.find_kind(statement) is not rules.Kind.READS
            self._writes = self._writes or (changes and not self._is_read_only)
            self._changes_types = self._changes_types or rules.changes_types(statement)
        if not self._begun:
            self._begun = True
            await self._send([rules.BEGIN_READING] if self._is_read_only else [rules.BEGIN_WRITING, guard.SET])

    async def _send(
        self, commands: list[Command], on_rows: Callable[[PGresult, int], None] | None = None
    ) -> list[PGresult]:
        answer = self.member.send(commands, on_rows)
        self.member.flush()
        results = await answer
        self._notices += self.member.take_notices()
        error = find_error(results)
        if error is not None:
            failure = to_failure(error)
            if isinstance(failure, port.StatementFailed):
                failure.statement = results.index(error)
            raise failure
        check(results)
        return results

    # -- the end of a statement ---------------------------------------------------------------------------------

    def _start(self, bounds: port.Bounds) -> int:
        if self.over is None and self.member.closed:
            self._end_with(port.EndReason.LOST)
        if self.over is not None:
            raise port.TransactionOver("the transaction is over")
        assert not self.is_busy, "one at a time"
        self.is_busy = True
        self.pool.state.refresh()
        self.bounds = bounds
        self.ended = None
        self._notices = []
        loop = asyncio.get_running_loop()
        self.deadline = loop.time() + bounds.timeout_ms / 1000
        self._timer = loop.call_at(self.deadline, self.end, Why.TIME)
        return perf_counter_ns()

    async def _see_done(self, result: port.Result, started: int) -> port.Result:
        self.is_busy = False
        self.close()
        await self._see_through_wishes()
        result.exec_us = (perf_counter_ns() - started) // 1000
        result.notices = result.notices + self._notices
        return result

    async def _see_failure(self, exc: BaseException, started: int, index: int | None = None) -> BaseException:
        """Find out what a failure means for the transaction; return what is to be raised. `index` is that of the run
        that failed, of several of one statement."""
        self.is_busy = False
        self.close()
        exec_us = (perf_counter_ns() - started) // 1000
        if isinstance(exc, port.StatementFailed):
            refined = refine(exc, self._sql)
            refined.exec_us, refined.notices, refined.statement = exec_us, self._notices, index
            if self.was_cancelled(refined):
                refined = self.explain_cancel(refined)
            if is_node_failure(refined):
                await self._roll_back(port.EndReason.LOST)
                return port.EngineUnavailable(_LOST)
            if isinstance(refined, port.Conflict):
                await self._roll_back(port.EndReason.CONFLICT)
            await self._see_through_wishes()
            return refined
        if isinstance(exc, port.EngineFailure):
            await self._see_through_wishes()
            return exc
        if isinstance(exc, ConnectionLost) and not isinstance(exc, RowsTooWide):
            self._end_with(port.EndReason.LOST)
            return port.EngineUnavailable(_LOST)
        self.pool.abandon(self.member)
        self._end_with(port.EndReason.LIMIT if isinstance(exc, RowsTooWide) else port.EndReason.LOST)
        if isinstance(exc, RowsTooWide):
            return explain_width()
        return port.CopyRefused() if isinstance(exc, CopyStarted) else exc

    async def _see_through_wishes(self) -> None:
        """Wait for a cancel that came too late, and roll back where that was wished for."""
        if self.member.collected:
            self.member.let_go()
        if self.ended is not None:
            self.ended = None
            await self._see_cancelled()
        if self.over is None and self._wish is not None:
            await self._roll_back(self._wish)
        elif self.over is None and self._begun and self.member.pgconn.transaction_status not in (_IN_BLOCK, _FAILED):
            await self._roll_back(port.EndReason.LOST)

    async def _see_cancelled(self) -> None:
        """Wait until a cancel can hit nothing more. Until then nobody knows the state of the transaction, either."""
        if self.cancelling is not None:
            await asyncio.wait([self.cancelling])
            self.cancelling = None
        if self.member.closed:
            self._end_with(port.EndReason.LOST)

    # -- ending -------------------------------------------------------------------------------------------------

    async def commit(self, last: port.Statement | None, bounds: port.Bounds) -> port.TransactionResult:
        started = self._start(bounds)
        try:
            if self.is_failed:
                message = "a statement of the transaction failed, so that it can only be rolled back"
                raise port.StatementFailed(message, sqlstate="25P02")
            results = [] if last is None else [await self._run_statement(last, bounds)]
            self.check_ended()
            number = number_of(self._id) if self._writes else None
            way = port.Commit.READ_ONLY if number is None else port.Commit.ENGINE
            done = port.TransactionResult(results, way, number, 1, 0, self._notices)
            self.close()
        except BaseException as exc:
            raise await self._see_failed_commit(exc, started) from exc
        self.decides = True
        # From here on the client may leave, but the decision is carried out.
        await see_through(self._decide(number, done, started))
        done.exec_us = (perf_counter_ns() - started) // 1000
        return done

    async def _decide(self, number: int | None, done: port.TransactionResult, started: int) -> None:
        try:
            # One that only reads is rolled back as its connection is given back (see TransactionRun).
            if self._begun and not self._is_read_only:
                await decide(self, self._ledger, number, port.Promise(self._id), done)
        except port.OutcomeUnknown as unknown:
            unknown.id = self._id
            self._end_with(port.Outcome.IN_PROGRESS)
            raise
        except port.Superseded as superseded:
            self.is_busy = False
            await self._roll_back(port.EndReason.LOST)
            raise port.TransactionOver("the transaction was aborted") from superseded
        except BaseException as exc:
            raise await self._see_failed_commit(exc, started) from exc
        self._give_back()
        self._end_with(port.Outcome.COMMITTED)

    async def _see_failed_commit(self, exc: BaseException, started: int) -> BaseException:
        """End the transaction after a commit that failed: nothing stays open."""
        failure = await self._see_failure(exc, started)
        if self.over is None:
            await self._roll_back(port.EndReason.ROLLBACK)
        return failure

    async def roll_back(self) -> None:
        if self.over is not None:
            raise port.TransactionOver("the transaction is over")
        await self._roll_back(port.EndReason.ROLLBACK)

    def cancel(self) -> None:
        if self.is_busy:
            self.end(Why.LEFT)

    def abort(self, reason: port.EndReason) -> None:
        if self.over is not None or self.decides:
            return
        self._wish = reason
        if self.is_busy:
            self.end(Why.OVER)
        else:
            see_through(self._roll_back(reason))

    def end(self, why: Why) -> None:
        """Cancel what runs; where nothing does and the service stops, roll back."""
        if self.is_busy:
            super().end(why)
        elif why is Why.STOPPING:
            self.abort(port.EndReason.LOST)

    async def _roll_back(self, reason: port.EndReason) -> None:
        """Roll back in the engine, and give the connection back. The locks are free when it returns."""
        if self.over is not None:
            return
        self.over = reason
        late = asyncio.get_running_loop().call_later(_ROLLBACK_S, self.pool.abandon, self.member)
        try:
            await self.member.run(ROLLBACK)
        except ConnectionLost:
            self.pool.abandon(self.member)
        else:
            self._give_back()
        finally:
            late.cancel()
            self._finish()

    def _give_back(self) -> None:
        self.member.on_closed = None
        self.pool.give_back(self.member, Leftovers.ANYTHING)
        if self._changes_types:
            self.pool.state.note_change()

    def _see_lost(self) -> None:
        """End it with its connection. Whatever runs on that fails by itself, and says what that means."""
        if not self.is_busy:
            self._end_with(port.EndReason.LOST)

    def _end_with(self, over: port.EndReason | port.Outcome) -> None:
        if self.over is None:
            self.over = over
            self._finish()

    def _finish(self) -> None:
        """Stop watching the transaction, and stop counting it."""
        self.is_busy = False
        self.close()
        self._on_free(self)
        on_over, self.on_over = self.on_over, None  # it refers to whoever refers to this: that would outlive both
        if on_over is not None:
            on_over()


class _InsideRun(StreamRun):
    """A stream inside of an open transaction, which cancels for it."""

    def __init__(self, transaction: OpenTransaction, statement: port.Statement, bounds: port.Bounds) -> None:
        super().__init__(transaction.pool, transaction.target, statement, bounds)
        self._transaction = transaction
        self.member = transaction.member
        self.is_inside = True
        self.in_block = False

    def end(self, why: Why) -> None:
        self.ended = why
        self._transaction.end(why)
