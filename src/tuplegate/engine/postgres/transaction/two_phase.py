"""Runs several statements as one transaction: optimistically, serializable, committed in two phases.

Phase one: the statements run in a block and the transaction is prepared; the engine's check for conflicts falls there.
Phase two: what was prepared is committed. Prepared means decided: from then on nobody rolls it back, and whoever finds
it, the recovery of another worker included, commits it. That is why a connection lost at any point has a definite end:
before PREPARE was sent nothing can have been applied; after it the transaction is prepared, or it never was.

What PREPARE refuses (temporary tables, NOTIFY, …) is run again and committed in one phase. It always has an id, its own
or one that the service makes for it, and the record of that id tells whether it was committed.
"""

import asyncio
import secrets
from enum import IntEnum
from time import perf_counter_ns
from typing import Final

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.commands import Command, ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.connection import STREAM_IT, explain_width
from tuplegate.engine.libpq.failures import check, is_internal, read_field, to_failure
from tuplegate.engine.libpq.leftovers import Leftovers
from tuplegate.engine.libpq.pool import DISCARD_SEQUENCES, Member
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.query.rules import text_may_write
from tuplegate.engine.postgres.query.run import RunAgain, Why, explain_age
from tuplegate.engine.postgres.safety.guard import SEAL_BROKEN, SerializableGuard
from tuplegate.engine.postgres.transaction.block_run import BlockRun
from tuplegate.engine.postgres.transaction.ledger import Ledger
from tuplegate.engine.postgres.transaction.records import NOT_FIRST
from tuplegate.engine.postgres.transaction.recovery import Recovery, Settled

_ERROR: Final = int(pq.ExecStatus.FATAL_ERROR)
_DECIDE_S: Final = 25.0
"""How long the engine may take over a commit before its connection is given up for lost, within the time limit."""
DECIDE_LEAST_S: Final = 2.0
"""How long it may take at least, however little is left of the time limit."""
_SETTLE_LEAST_S: Final = 1.0
"""How long the outcome is looked for at least, after the connection was lost."""
# COMMIT PREPARED waits as the session is set: for what the service wants, and not for a standby to replay it.
_WAIT_AS_ALWAYS: Final = Command(b"SET synchronous_commit = 'on'", begins=False)
# PREPARE says so where it cannot: the transaction used what cannot be prepared, or there is no room for one more.
CANNOT_PREPARE: Final = frozenset({"0A000", "55000", "53200"})


class CannotPrepare(Exception):
    """PREPARE TRANSACTION was refused; nothing was applied."""


class Decider:
    """The parts of the engine side that decide a transaction: recovery, guard and ledger."""

    def __init__(self, recovery: Recovery, guard: SerializableGuard, ledger: Ledger) -> None:
        self.recovery = recovery
        self.guard = guard
        self.ledger = ledger


class Stage(IntEnum):
    """How far one attempt has come. From DECIDING on nothing cancels it, unless its code fills the database."""

    RUNNING = 0
    RECORDING = 1
    DECIDING = 2
    DECIDED = 3


# size: the decision, and every way in which it can be lost, stands in one place.
class TransactionRun(BlockRun):
    """One transaction. Its deadline holds for phase one.

    `promise` is what the client was promised, and `_promised` the same with the id that this attempt needs. Where it is
    committed in two phases, `_records` of it go together with PREPARE. What is not decided by `_decide_by` is answered
    as unknown.
    """

    def __init__(
        self,
        pool: Pool,
        target: port.Target,
        statements: list[port.Statement],
        bounds: port.Bounds,
        deadline: float,
        decider: Decider,
    ) -> None:
        super().__init__(pool, target, statements, bounds, deadline)
        self._decider = decider
        self.promise: port.Promise | None = None
        self.two_phase = False
        self._decide_by = 0.0

    def begin(self, member: Member) -> None:
        super().begin(member)
        self.stage = Stage.RUNNING
        self._promised = self.promise
        self._records: list[Command] = []
        if self.promise is not None and self.promise.keep is not None and not self.is_read_only:
            keep = self.promise.keep
            self._claim = self._decider.ledger.records(self.target.database).claim(keep.route, keep.key)

    @property
    def must_commit(self) -> bool:
        # What was promised is recorded, also of what only reads.
        return self.promise is not None or (
            not self.is_read_only and any(text_may_write(statement) for statement in self.statements)
        )

    @property
    def survives_loss(self) -> bool:
        return True

    async def check_conflict(self, conflict: port.Conflict) -> None:
        """Raise Superseded where somebody else has settled its records: no further attempt could succeed."""
        promise = self.promise
        if promise is None or self.stage < Stage.RECORDING:
            return
        if await self._decider.ledger.is_settled(self.target.database, promise):
            raise port.Superseded("somebody else settled it first") from conflict

    def adapt(self, failure: port.StatementFailed, *, fresh: bool) -> bool:
        if self.adapt_connection(failure, fresh=fresh):
            return True
        if self._preparing is not None and self._preparing.may_be_cause(failure):
            self._as_sent = True  # so that the error speaks of the text that its writer knows, or there is none
            return True
        return self.adapt_types(failure, self.statements)

    def end(self, why: Why, full_at: int = 0) -> None:
        """Cancel it, but not what is being decided, unless its code fills the database: a deferred trigger runs while
        the transaction is prepared. The engine's answer tells whether the cancel came in time."""
        if self.stage < Stage.DECIDING or (why is Why.ROOM and self.stage is not Stage.DECIDED):
            super().end(why, full_at)

    async def run(self, now: float) -> port.TransactionResult:
        if not self.is_plain:
            self.pool.state.begin_doubt()
        started = perf_counter_ns()
        try:
            number, done = await self._run_undecided(started)
        except BaseException:
            self._end_doubt()
            raise
        self.stage = Stage.DECIDING
        try:
            # From here on the client may leave, but the decision is carried out.
            await self._decider.recovery.see_through(self._decide(number))
        except CannotPrepare as refused:
            await self._take_id()
            self.two_phase = False
            raise RunAgain from refused
        self.exec_us = done.exec_us = (perf_counter_ns() - started) // 1000
        if self.promise is not None and self.is_read_only:
            await self._decider.ledger.keep_promise(self.target.database, self.promise, done, self._settle_by())
        return done

    async def _take_id(self) -> None:
        """Give it an id if it has none: what is committed in one phase needs one, whose record tells its outcome."""
        promise = self.promise
        if promise is None or promise.id is None:
            id = _new_id()
            await self._decider.ledger.begin_id(self.target.database, id)
            self.promise = port.Promise(id, promise.keep if promise is not None else None)

    async def _decide(self, number: int | None) -> None:
        try:
            await self._phase_two(number)
        finally:
            self._end_doubt()
        if number is not None and self.pool.demands_standby:
            await self._see_confirmed(number)

    async def _see_confirmed(self, number: int) -> None:
        """Raise OutcomeUnknown where no standby is known to have it."""
        try:
            await self.pool.see_confirmed(self.member, self._decide_by)
        except port.OutcomeUnknown as unknown:
            unknown.id = self._promised.id if self._promised is not None else None
            unknown.ticket = self._number_ticket(number)
            raise

    def _number_ticket(self, number: int) -> port.Ticket:
        return port.Ticket(number, history=self._decider.recovery.histories.of(self.member))

    def _end_doubt(self) -> None:
        if not self.is_plain:
            self.pool.state.end_doubt()

    async def _run_undecided(self, started: int) -> tuple[int | None, port.TransactionResult]:
        """Run everything before the decision. Return the engine's number for it, and the result."""
        try:
            number = await self._run_block(numbered=self._promised is not None)
            self._promise_id(number)
            results = [
                self._find_result(index) or await self._learn_result(index) for index in range(len(self.statements))
            ]
            commit = port.Commit.TWO_PHASE if self.two_phase else port.Commit.ONE_PHASE
            done = port.TransactionResult(
                results, port.Commit.READ_ONLY if number is None else commit, number, self.attempt, 0, self._notices
            )
            done.exec_us = (perf_counter_ns() - started) // 1000
            if number is not None:
                done.history = self._decider.recovery.histories.of(self.member, acknowledged=True)
            if self._promised is not None and not self.is_read_only:
                await self._record(self._promised, done)
        except port.StatementFailed as failure:
            failure.exec_us = (perf_counter_ns() - started) // 1000
            failure.notices = self._notices
            self._give_back(broken=is_internal(failure))
            if self.was_cancelled(failure):
                raise self.explain_cancel(failure) from failure
            raise
        except RowsTooWide as wide:
            raise explain_width(STREAM_IT, (perf_counter_ns() - started) // 1000) from wide
        except ConnectionLost as lost:
            raise self.explain_harmless_loss() from lost
        except CopyStarted as copy:
            raise port.CopyRefused from copy
        except port.Superseded:
            raise
        except BaseException:
            self.pool.abandon(self.member)
            raise
        return number, done

    def _promise_id(self, number: int | None) -> None:
        """Give the attempt an id where it commits in one phase. The record of that id tells the outcome."""
        promised = self._promised
        if number is None or self.two_phase or (promised is not None and promised.id is not None):
            return
        self._promised = port.Promise(_new_id(), promised.keep if promised else None)

    async def _record(self, promised: port.Promise, done: port.TransactionResult) -> None:
        """Write the promised records inside the transaction. In two phases they are sent together with PREPARE; those
        of a transaction that only reads are written after it."""
        self.stage = Stage.RECORDING
        self._records = self._decider.ledger.records(self.target.database).insist(promised, done)
        if not self.two_phase:
            results = await self.member.run(*self._records)
            self._check_records(results)
            check(results)

    def _check_records(self, results: list[PGresult]) -> None:
        """Raise Superseded, and give the connection back, where somebody else was the first to write a record."""
        for result in results[: len(self._records)]:
            if result.status == _ERROR and read_field(result, pq.DiagnosticField.SQLSTATE) == NOT_FIRST:
                self._give_back()
                raise port.Superseded("somebody else settled it first")

    # -- phase two ----------------------------------------------------------------------------------------------

    async def _phase_two(self, number: int | None) -> None:
        """Commit, and give the connection back. Nothing cancels it; the connection counts as lost if it takes too
        long."""
        left_s = self.deadline - asyncio.get_running_loop().time()
        late = self._give_up_after(max(DECIDE_LEAST_S, min(left_s, _DECIDE_S)))
        try:
            if number is None:
                await self._commit_plainly(wrote=False)
            elif self.two_phase:
                await self._prepare_and_commit(number)
            else:
                await self._commit_recorded()
        except ConnectionLost as lost:
            raise self.explain_harmless_loss() from lost
        except port.StatementFailed as failure:
            self._give_back(broken=is_internal(failure))
            if self.was_cancelled(failure):
                raise self.explain_cancel(failure) from failure
            raise
        except CannotPrepare:
            self._give_back()
            raise
        finally:
            late.cancel()
        await self._judge_prepared()
        self._give_back()

    async def _judge_prepared(self) -> None:
        """Find out what may be prepared next time, after the commit."""
        if self._preparing is None:
            return
        if self._notices:
            self._preparing.note_noise()
        if self._preparing.has_unjudged:
            await self._preparing.judge()

    async def _guarded(self, *commands: Command) -> list[PGresult]:
        """Send the commands and return their results. Raise a conflict instead if the engine may have forgotten
        transactions that it must compare this one with."""
        seal = await self._decider.guard.seal(self.begun, self._decide_by)
        if seal is None:
            self._decider.guard.ended += 1
            raise explain_age()
        results = await self.member.run(*seal, *commands)
        if not seal or results[0].status != _ERROR:
            return results[len(seal) :]
        if read_field(results[0], pq.DiagnosticField.SQLSTATE) == SEAL_BROKEN:
            self._decider.guard.ended += 1
            raise explain_age()
        return results

    def _give_up_after(self, seconds: float) -> asyncio.TimerHandle:
        """Give the connection up for lost where the engine takes longer than that over a commit."""
        self._decide_by = asyncio.get_running_loop().time() + seconds
        return asyncio.get_running_loop().call_at(self._decide_by, self._give_up)

    def _settle_by(self) -> float:
        """Return until when the outcome is looked for, now that the connection is lost."""
        return max(self._decide_by, asyncio.get_running_loop().time() + _SETTLE_LEAST_S)

    def _give_up(self) -> None:
        if not self.member.closed:
            self.pool.leave(self.member)

    async def _commit_plainly(self, *, wrote: bool) -> None:
        commit = Command(b"COMMIT", begins=False)
        results = await (self._guarded(self.pool.state.ready_to_commit, commit) if wrote else self.member.run(commit))
        check(results)
        if results[-1].command_status != b"COMMIT":
            raise port.StatementFailed("the engine rolled the transaction back", sqlstate="40000")

    async def _commit_recorded(self) -> None:
        """Commit in one phase. If the connection is lost meanwhile, the record of its id tells the outcome."""
        assert self._promised is not None
        assert self._promised.id is not None
        id = self._promised.id
        try:
            await self._commit_plainly(wrote=True)
        except ConnectionLost as exc:
            settled = await self._decider.recovery.settle_recorded(
                self.target.database, self.member, lambda: self._find_record(id), self._settle_by()
            )
            if settled is Settled.UNKNOWN:
                raise explain_unknown(id) from exc
            if settled is Settled.ABORTED:
                raise
        self.stage = Stage.DECIDED
        if self.pool.state.has_code or not self.is_plain:
            # A deferred trigger may have made the commit lazy at the last moment.
            try:
                await self.pool.flush_commits(self.member, self._settle_by())
            except port.OutcomeUnknown as unknown:
                raise explain_unknown(id) from unknown

    async def _find_record(self, id: str) -> tuple[bool, str]:
        verdict, server = await self._decider.ledger.verdict_of(self.target.database, id)
        return verdict is port.Outcome.COMMITTED, server

    async def _prepare_and_commit(self, number: int) -> None:
        """Commit in two phases. It can always be found out whether it was prepared: a prepared transaction stays listed
        until it is committed or rolled back."""
        gid = self._decider.recovery.new_gid()
        self._decider.recovery.in_hand.add(gid)
        try:
            await self._prepare_and_commit_as(gid, number)
        finally:
            self._decider.recovery.in_hand.discard(gid)

    async def _prepare_and_commit_as(self, gid: str, number: int) -> None:
        # COMMIT PREPARED may not leave before PREPARE is answered: if both answers were lost, a name that is not listed
        # could mean that it was committed as well as that it never was prepared.
        try:
            prepare = Command(f"PREPARE TRANSACTION '{gid}'".encode(), begins=False)
            prepared = await self._guarded(*self._records, prepare)
        except ConnectionLost as exc:
            settled = await self._decider.recovery.settle_prepared(
                self.target.database, self.member, gid, self._settle_by()
            )
            if settled is Settled.UNKNOWN:
                raise explain_unknown(ticket=self._decider.recovery.ticket(gid, self.member)) from exc
            if settled is Settled.ABORTED:
                raise
            return
        self._check_records(prepared)
        _check_prepared(prepared)
        self.stage = Stage.DECIDED
        await self._commit_prepared(gid, number)

    async def _commit_prepared(self, gid: str, number: int) -> None:
        """Commit what is prepared, and so decided."""
        commands = [Command(f"COMMIT PREPARED '{gid}'".encode(), begins=False)]
        if self._find_left() is Leftovers.SEQUENCES:
            commands += self._put_own(DISCARD_SEQUENCES)
        try:
            if self.pool.state.has_code or not self.is_plain:
                self.member.send([_WAIT_AS_ALWAYS])
            committed = await self.member.run(*commands)
        except ConnectionLost:
            committed = []
        if committed and committed[0].status != _ERROR:
            self._is_clean = len(commands) > 1 and committed[-1].status != _ERROR
            if self._is_clean and self._preparing is not None:
                self._preparing.is_in_doubt = False
        else:
            # Decided and durable on its server: it is there to be committed, or it has been. Recovery sees to it if we
            # cannot. A server that has taken its place need not have it.
            settled = await self._decider.recovery.settle_prepared(
                self.target.database, self.member, gid, self._settle_by(), number
            )
            if settled is Settled.UNKNOWN:
                raise explain_unknown(ticket=self._number_ticket(number))
            if settled is Settled.ABORTED:
                raise ConnectionLost("another server is the primary, and does not have it")


def _new_id() -> str:
    return f"txn_{secrets.token_hex(16)}"


def _check_prepared(results: list[PGresult]) -> None:
    """Raise the failure of PREPARE, which is the last of the results, or of what went together with it."""
    last = results[-1]
    failure = to_failure(last) if last.status == _ERROR else None
    if isinstance(failure, port.StatementFailed) and failure.sqlstate in CANNOT_PREPARE:
        raise CannotPrepare(failure.message) from failure
    if failure is not None:
        raise failure
    check(results)
    if last.command_status != b"PREPARE TRANSACTION":
        raise port.StatementFailed("the engine rolled the transaction back", sqlstate="40000")


def explain_unknown(id: str | None = None, ticket: port.Ticket | None = None) -> port.OutcomeUnknown:
    message = "the engine was lost while it committed; the transaction may have been applied"
    return port.OutcomeUnknown(message, id, ticket)
