"""Decides a transaction: commits its block in two phases if possible, otherwise in one.

Phase one: the transaction is prepared; that includes the engine's check for conflicts. Phase two: the prepared
transaction is committed. Prepared means decided: from then on nobody rolls it back, and anyone who finds it commits it,
including another worker's recovery. So a connection that is lost at any point has a definite outcome: before PREPARE
was sent nothing can have been applied; after that the transaction is prepared, or it never was.

A transaction that PREPARE refuses (temporary tables, NOTIFY, …) is committed in one phase. It always has an id, its own
or one that the service makes for it, and the record of that id tells whether it was committed.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from tuplegate.direct_future import DirectFuture
from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.connections.server_errors import is_internal
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.rules import blocks
from tuplegate.engine.postgres.safety.guard import SEAL_BROKEN, SerializableGuard
from tuplegate.engine.postgres.service.records import NOT_FIRST
from tuplegate.engine.postgres.transaction.block import Block
from tuplegate.engine.postgres.transaction.ledger import Ledger
from tuplegate.engine.postgres.transaction.recovery import Recovery, Settled
from tuplegate.engine.run.ends import explain_age
from tuplegate.engine.run.run import Run
from tuplegate.engine.run.runner import Answers, check_tag
from tuplegate.engine.run.stages import Stage
from tuplegate.engine.run.steps import Does, Meaning, Script, Step
from tuplegate.engine.sql.facts import Leftovers

_T = TypeVar("_T")
_DECIDE_S: Final = 25.0
"""The time for a commit, within the time limit, before its connection is given up for lost."""
DECIDE_LEAST_S: Final = 2.0
"""The least time for a commit, however little is left of the time limit."""
_SETTLE_LEAST_S: Final = 1.0
"""The least time for finding the outcome, after the connection was lost."""
# COMMIT PREPARED waits by the session's setting: as the service wants, and not for a standby to replay it.
_WAIT_AS_ALWAYS: Final = Command(b"SET synchronous_commit = 'on'", begins=False)
# PREPARE fails with these if the transaction used something that cannot be prepared, or there is no room for one more.
_CANNOT_PREPARE: Final = frozenset({"0A000", "55000", "53200"})


class CannotPrepare(Exception):
    """PREPARE TRANSACTION was refused; nothing was applied."""


class Decider:
    """The parts of the engine side that decide a transaction: recovery, guard and ledger."""

    def __init__(self, recovery: Recovery, guard: SerializableGuard, ledger: Ledger) -> None:
        self.recovery = recovery
        self.guard = guard
        self.ledger = ledger


class Decision:
    """The decision of one block. If it is not made by `decide_by`, the answer is that the outcome is unknown.

    `promised` are the records to write with it. In two phases, `records` are written together with PREPARE.
    """

    def __init__(self, decider: Decider, run: Run[Pool], block: Block, promised: port.Promise | None) -> None:
        self.promised = promised
        self.two_phase = False
        self.decide_by = 0.0
        self._is_settled = False
        """After its connection was lost, it was found to be committed for good."""
        self._has_waited = False
        """Whether a standby had to have the prepared transaction before that was committed."""
        self._decider = decider
        self._run = run
        self._block = block
        self._records: Script = []

    def see_through(self, work: Coroutine[Any, Any, _T]) -> DirectFuture[_T]:
        """Run work to its end even if its caller is cancelled."""
        return self._decider.recovery.see_through(work)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Count a decision as under way until the block is left."""
        recovery = self._decider.recovery
        recovery.seen_through += 1
        try:
            yield
        finally:
            recovery.seen_through -= 1

    @property
    def id(self) -> str | None:
        return None if self.promised is None else self.promised.id

    @property
    def is_alone(self) -> bool:
        """Return whether only this worker begins transactions on the engine, so that no seal is needed."""
        return self._decider.guard.is_alone

    # -- before it ----------------------------------------------------------------------------------------------

    def promise_id(self, number: int | None) -> None:
        """Give the transaction an id if it commits in one phase. The record of that id tells the outcome."""
        promised = self.promised
        if number is None or self.two_phase or (promised is not None and promised.id is not None):
            return
        self.promised = port.Promise(new_id(), promised.keep if promised else None)

    async def record(self, done: port.TransactionResult) -> None:
        """Write the promised records inside the transaction; those of a read-only one are written after it."""
        if self.promised is None or self._block.read_only:
            return
        self._run.reach(Stage.RECORDING)
        commands = self._decider.ledger.records(self._run.target.database).insist(self.promised, done)
        self._records = [Step(Does.RECORD, command) for command in commands]
        if not self.two_phase:
            await self.carry_out(self._records)

    def record_with_number(self) -> Command:
        """Return the record of its id, which also returns the engine's number of the transaction."""
        assert self.id is not None
        return self._decider.ledger.records(self._run.target.database).insist_with_number(self.id)

    async def carry_out(self, script: Script) -> Answers:
        """Carry out steps of the decision, and translate their failures."""
        block = self._block
        try:
            return await block.carry_out(script)
        except port.StatementFailed as failure:
            failed = block.runner.failed
            does = None if failed is None else failed.does
            if does is Does.RECORD and failure.sqlstate == NOT_FIRST:
                block.give_back()
                raise port.Superseded("somebody else settled it first") from failure
            if does is Does.PREPARE_TRANSACTION and failure.sqlstate in _CANNOT_PREPARE:
                raise CannotPrepare(failure.message) from failure
            if does is Does.SEAL and failure.sqlstate == SEAL_BROKEN:
                raise self.outlive() from failure
            if does is Does.STANDBYS:  # it is prepared
                raise ConnectionLost(failure.message) from failure
            raise

    # -- the decision -------------------------------------------------------------------------------------------

    async def decide(self, number: int | None) -> None:
        """Commit, and give the connection back. Nothing cancels it; the connection counts as lost if it takes too
        long."""
        run, block = self._run, self._block
        try:
            left_s = run.deadline - asyncio.get_running_loop().time()
            with self.giving_up_after(max(DECIDE_LEAST_S, min(left_s, _DECIDE_S))):
                if number is None:
                    await self._commit([blocks.COMMIT])
                elif self.two_phase:
                    await self._prepare_and_commit(number)
                else:
                    await self._commit_recorded()
        except ConnectionLost as lost:
            self._give_up()
            raise run.explain_harmless_loss() from lost
        except port.StatementFailed as failure:
            block.give_back(broken=is_internal(failure))
            if run.was_cancelled(failure):
                raise run.explain_cancel(failure) from failure
            raise
        except CannotPrepare:
            block.give_back()
            raise
        except port.Superseded:
            raise  # it was given back
        except BaseException:
            self._give_up()
            raise
        else:
            await block.judge()
            block.give_back()
        finally:
            block.end_doubt()
        await self.see_confirmed(number)

    async def _commit(self, script: Script) -> None:
        answers = await self.carry_out(script)
        check_tag(answers, Does.COMMIT, b"COMMIT")

    async def _commit_recorded(self) -> None:
        """Commit in one phase. If the connection is lost meanwhile, the record of its id tells the outcome."""
        id = self.id
        assert id is not None, "what is committed in one phase has one"
        try:
            await self._commit([*await self._seal(), blocks.WAIT, blocks.COMMIT_RECORDED])
        except ConnectionLost as lost:
            await self._settle(lost, self._ask_for_record, id=id)
        self._run.reach(Stage.DECIDED)
        if self._block.careful and not self._is_settled:
            # A deferred trigger may have made the commit lazy at the last moment.
            try:
                await self._block.pool.flush_commits(self._block.member, self.settle_by())
            except port.OutcomeUnknown as unknown:
                raise explain_unknown(id) from unknown

    async def _ask_for_record(self) -> Settled:
        id, database = self.id or "", self._run.target.database
        ledger = self._decider.ledger

        async def find() -> tuple[bool, str]:
            verdict, server = await ledger.verdict_of(database, id)
            return verdict is port.Outcome.COMMITTED, server

        return await self._decider.recovery.settle_recorded(database, self._block.member, find, self.settle_by())

    async def _prepare_and_commit(self, number: int) -> None:
        with self.in_hand() as gid:
            # COMMIT PREPARED may not be sent before PREPARE is answered: if both answers were lost, an unlisted name
            # could mean that the transaction was committed, or that it never was prepared.
            if await self.prepare(gid, [*await self._seal(), *self._records]) is not None:
                self._run.reach(Stage.DECIDED)
                await self.commit_prepared(gid, number)

    @contextmanager
    def in_hand(self) -> Iterator[str]:
        """Yield the name of a transaction that nobody else may end while the block lasts."""
        recovery = self._decider.recovery
        gid = recovery.new_gid()
        recovery.in_hand.add(gid)
        try:
            yield gid
        finally:
            recovery.in_hand.discard(gid)

    async def prepare(self, gid: str, before: Script) -> Answers | None:
        """Prepare it behind these steps. Return None if its connection was lost and it is found to be committed."""
        block = self._block
        try:
            answers = await self.carry_out(blocks.prepare(gid, before, has_standbys=block.pool.primary.follows))
            check_tag(answers, Does.PREPARE_TRANSACTION, b"PREPARE TRANSACTION")
            if Does.STANDBYS in answers and answers[Does.STANDBYS].get_value(0, 0):
                await self._see_waited()
        except ConnectionLost as lost:
            if block.runner.risk is Meaning.HARMLESS:
                raise
            ticket = self._decider.recovery.ticket(gid, block.member)
            await self._settle(lost, lambda: self._ask_for_prepared(gid), ticket=ticket)
            return None
        return answers

    async def _see_waited(self) -> None:
        """Return once a standby has the prepared transaction: a tenant's code can keep PREPARE from waiting. Until then
        it is not committed here, so anyone who finds it on no server knows that it never will be."""
        block = self._block
        if block.careful:
            certainty = self._decider.recovery.certainty
            if not await certainty.has_waited(block.member.server, self.decide_by):
                self._give_up()
                raise ConnectionLost("no standby is known to have what is prepared")
        self._has_waited = True

    async def commit_prepared(self, gid: str, number: int) -> None:
        """Commit the transaction, which is prepared and so decided."""
        block = self._block
        history = self._decider.recovery.histories.of(block.member, replicated=self._has_waited)
        tidy = block.left is Leftovers.SEQUENCES
        try:
            if block.careful:
                block.member.send([_WAIT_AS_ALWAYS])
            await block.send(blocks.commit_prepared(gid, tidy=tidy))
            block.left = Leftovers.NOTHING if tidy else block.left
        except (ConnectionLost, port.EngineFailure):
            if block.runner.risk is Meaning.HARMLESS:
                return  # it is committed; what its statements have left is removed later
            # Decided and durable on its server: it is there to be committed, or was. Recovery commits it if we cannot.
            # A server that has replaced that one need not have it.
            lost = ConnectionLost("another server is the primary, and does not have it")
            ticket = port.Ticket(number, history=history)
            await self._settle(lost, lambda: self._ask_for_prepared(gid, ticket), ticket=ticket)

    def _ask_for_prepared(self, gid: str, ticket: port.Ticket | None = None) -> Awaitable[Settled]:
        database, member = self._run.target.database, self._block.member
        return self._decider.recovery.settle_prepared(database, member, gid, self.settle_by(), ticket)

    async def _settle(
        self,
        lost: ConnectionLost,
        ask: Callable[[], Awaitable[Settled]],
        *,
        id: str | None = None,
        ticket: port.Ticket | None = None,
    ) -> None:
        """Find the outcome of a transaction whose connection was lost. Return if it is committed."""
        settled = await ask()
        if settled is Settled.UNKNOWN:
            raise explain_unknown(id, ticket) from lost
        if settled is Settled.ABORTED:
            raise lost
        self._is_settled = True

    async def see_confirmed(self, number: int | None) -> None:
        """Raise OutcomeUnknown if a standby must have the commit, and none is known to."""
        if number is None or self._is_settled or not self._block.pool.demands_standby:
            return
        try:
            await self._block.pool.see_confirmed(self._block.member, self.decide_by)
        except port.OutcomeUnknown as unknown:
            unknown.id = self.id
            history = self._decider.recovery.histories.of(self._block.member, replicated=self._has_waited)
            unknown.ticket = port.Ticket(number, history=history)
            raise

    # -- guard and time -----------------------------------------------------------------------------------------

    async def _seal(self) -> Script:
        """Return the steps that precede the commit, in the same write. Raise a conflict instead if the engine may have
        forgotten transactions that it must compare this one with."""
        seal = await self._decider.guard.seal(self._run.begun, self.decide_by)
        if seal is None:
            raise self.outlive()
        return [Step(Does.SEAL, command) for command in seal]

    def check_age(self) -> None:
        """Raise a conflict if it has outlived the engine's memory."""
        if self._decider.guard.has_outlived(self._run.begun):
            raise self.outlive()

    def outlive(self) -> port.Conflict:
        self._decider.guard.ended += 1
        return explain_age()

    @contextmanager
    def giving_up_after(self, seconds: float) -> Iterator[None]:
        """Give the connection up for lost if the engine takes longer than that over the commit."""
        loop = asyncio.get_running_loop()
        self.decide_by = loop.time() + seconds
        late = loop.call_at(self.decide_by, self._give_up)
        try:
            yield
        finally:
            late.cancel()

    def _give_up(self) -> None:
        if not self._block.member.closed:
            self._block.pool.leave(self._block.member)

    def settle_by(self) -> float:
        """Return the time until which to look for the outcome, after the connection was lost."""
        return max(self.decide_by, asyncio.get_running_loop().time() + _SETTLE_LEAST_S)


def new_id() -> str:
    return f"txn_{secrets.token_hex(16)}"


def explain_unknown(id: str | None = None, ticket: port.Ticket | None = None) -> port.OutcomeUnknown:
    message = "the engine was lost while it committed; the transaction may have been applied"
    return port.OutcomeUnknown(message, id, ticket)
