"""A transaction that stays open between requests: its statements come one by one, and its client ends it.

It is decided like any other `TransactionRun`, with one difference: it cannot be run again. So it is committed in two
phases only where nothing was run that PREPARE refuses, or that could hide such a thing in code of the tenant's own.
Both ways a record of its id is committed with it, which tells its outcome to whoever asks.

Where it is known to have written, and this worker alone begins transactions on the engine, its last statement, the
record and PREPARE go in one write. Until that is answered it is what a single statement is that may write: its time
limit ends it, and so does the guard of the engine's memory. A connection that is lost meanwhile is settled by the name
of the prepared transaction, like any other.
"""

from time import perf_counter_ns
from typing import Final

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.commands import Command, ConnectionLost
from tuplegate.engine.libpq.leftovers import WRITES, fold, is_plain
from tuplegate.engine.postgres.query.run import explain_age
from tuplegate.engine.postgres.safety.sizes import SizeCheck
from tuplegate.engine.postgres.transaction.block_run import CHECK_NOW
from tuplegate.engine.postgres.transaction.end_reasons import find_reason
from tuplegate.engine.postgres.transaction.open_statements import OpenStatements
from tuplegate.engine.postgres.transaction.records import NOT_FIRST
from tuplegate.engine.postgres.transaction.recovery import Settled
from tuplegate.engine.postgres.transaction.two_phase import (
    CANNOT_PREPARE,
    DECIDE_LEAST_S,
    CannotPrepare,
    Stage,
    explain_unknown,
)

_IN_BLOCK: Final = int(pq.TransactionStatus.INTRANS)
_FAILED: Final = int(pq.TransactionStatus.INERROR)
_NO_NEW_FILES: Final = b"4294967295"
"""The number after which files count as new, where it is unknown."""


class OpenTransaction(OpenStatements):
    """Fills the port's protocol."""

    async def commit(self, last: port.Statement | None, bounds: port.Bounds) -> port.TransactionResult:
        started = perf_counter_ns()
        self._start(bounds)
        recovery = self._decider.recovery
        recovery.seen_through += 1
        try:
            if self._goes_at_once(last):
                done = await self._commit_at_once(last, bounds, started)
            else:
                done = await self._commit_in_steps(last, bounds, started)
        finally:
            recovery.seen_through -= 1
        done.exec_us = (perf_counter_ns() - started) // 1000
        return done

    # -- in one write -------------------------------------------------------------------------------------------

    def _goes_at_once(self, last: port.Statement | None) -> bool:
        """Return whether the last statement and PREPARE can go in one write: nothing has to be looked at in between.

        A statement that may give rows cannot: where those are too wide its connection is closed, and nothing may have
        been applied then.
        """
        state = self.pool.state
        if not self._has_written or not self.two_phase or not self.is_plain or self._notifies or state.has_code:
            return False
        if self._size_check is not None or state.full_at is not None or not self._decider.guard.is_alone:
            return False
        if self.member.pgconn.transaction_status != _IN_BLOCK:
            return False
        if last is None:
            return True
        gives_none = last.keyword in WRITES and "returning" not in fold(last.sql)
        return gives_none and is_plain(last.sql, last.keyword)

    async def _commit_at_once(
        self, last: port.Statement | None, bounds: port.Bounds, started: int
    ) -> port.TransactionResult:
        recovery = self._decider.recovery
        gid = recovery.new_gid()
        recovery.in_hand.add(gid)
        try:
            late = self._give_up_after(bounds.timeout_ms / 1000 + DECIDE_LEAST_S)
            try:
                done = await self._prepare_at_once(gid, last, bounds)
                if done.number is not None:
                    await self._commit_prepared(gid, done.number)
            finally:
                late.cancel()
            await self._judge_prepared()
            self._give_back()
            if done.number is not None and self.pool.demands_standby:
                await self._see_confirmed(done.number)
        except port.OutcomeUnknown as unknown:
            unknown.id = self._id
            self._end_with(port.Outcome.IN_PROGRESS)
            raise
        except BaseException as exc:
            raise await self._see_failed_commit(exc, started) from exc
        finally:
            recovery.in_hand.discard(gid)
        self._end_with(port.Outcome.COMMITTED)
        return done

    async def _prepare_at_once(
        self, gid: str, last: port.Statement | None, bounds: port.Bounds
    ) -> port.TransactionResult:
        """Prepare it. The result has no number, and nothing of the last statement, where it was found to be committed
        after its connection was lost."""
        guard, recovery = self._decider.guard, self._decider.recovery
        if guard.has_outlived(self.begun):
            guard.ended += 1
            raise explain_age()
        self._is_ahead = True
        try:
            done = await self._send_at_once(gid, last, bounds)
        except ConnectionLost as lost:
            settled = await recovery.settle_prepared(self.target.database, self.member, gid, self._settle_by())
            if settled is Settled.UNKNOWN:
                raise explain_unknown(ticket=recovery.ticket(gid, self.member)) from lost
            if settled is Settled.ABORTED:
                raise
            done = port.TransactionResult([], port.Commit.TWO_PHASE, None, 1, 0, self._notices)
        finally:
            self._is_ahead = False
        self.stage = Stage.DECIDED
        # A cancel that came too late would hit the commit.
        await self._see_cancel_through()
        return done

    async def _send_at_once(self, gid: str, last: port.Statement | None, bounds: port.Bounds) -> port.TransactionResult:
        record = self._decider.ledger.records(self.target.database).insist_with_number(self._id)
        prepare = Command(f"PREPARE TRANSACTION '{gid}'".encode(), begins=False)
        closing = [*self._put_own(CHECK_NOW), *self._put_own(record), prepare]
        rows: list[port.Result] = []
        try:
            results: list[PGresult]
            if last is None:
                results = await self._send(closing, [None] * len(closing))
            else:
                results = await self._send_statement(last, bounds, closing)
                rows.append(self._find_result(0) or await self._learn_result(0))
        except port.StatementFailed as failure:
            if failure.statement is None and failure.sqlstate == NOT_FIRST:
                self._give_back()
                raise port.Superseded("somebody else settled it first") from failure
            if failure.statement is None and failure.sqlstate in CANNOT_PREPARE:
                raise _explain_no_room() from failure
            raise
        if results[-1].command_status != b"PREPARE TRANSACTION":
            raise port.StatementFailed("the engine rolled the transaction back", sqlstate="40000")
        number = int(results[-2].get_value(0, 1) or 0)
        return port.TransactionResult(rows, port.Commit.TWO_PHASE, number, 1, 0, self._notices)

    # -- step by step -------------------------------------------------------------------------------------------

    async def _commit_in_steps(
        self, last: port.Statement | None, bounds: port.Bounds, started: int
    ) -> port.TransactionResult:
        try:
            number, done = await self._run_last(last, bounds)
        except BaseException as exc:
            raise await self._see_failed_commit(exc, started) from exc
        self.stage = Stage.DECIDING
        try:
            await self._decide(number)
        except port.OutcomeUnknown as unknown:
            unknown.id = self._id
            self._end_with(port.Outcome.IN_PROGRESS)
            raise
        except port.Superseded as superseded:
            self._end_with(port.EndReason.LOST)
            raise port.TransactionOver("the transaction was aborted") from superseded
        except CannotPrepare as refused:
            self._end_with(port.EndReason.CONFLICT)
            raise _explain_no_room() from refused
        except port.EngineFailure as failure:
            self._end_with(find_reason(failure))
            raise
        self._end_with(port.Outcome.COMMITTED)
        return done

    async def _run_last(
        self, last: port.Statement | None, bounds: port.Bounds
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
            results = await self._send_statement(last, bounds, closing)
            rows = [self._find_result(0) or await self._learn_result(0)]
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
        if self._promised is not None and not self.is_read_only:
            await self._record(self._promised, done)
        self.check_ended()
        return number, done

    def _close_with(self, *, careful: bool) -> list[Command]:
        closing = [CHECK_NOW] if careful else self._put_own(CHECK_NOW)
        if careful and not self.is_read_only:
            closing.append(self.pool.state.ready_to_commit)
        closing += self._ask_number(numbered=self._notifies, careful=careful)
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


def _explain_no_room() -> port.Conflict:
    return port.Conflict("the engine had no room to prepare one more transaction", sqlstate="40001")
