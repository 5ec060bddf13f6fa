"""Runs several statements as one transaction: optimistically, serializable, and as often as necessary."""

from collections.abc import Sequence
from time import perf_counter_ns

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.connections.server_errors import STREAM_IT, explain_width, is_internal
from tuplegate.engine.libpq.pools.turns import choose_pause_s
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.query.preparing import Preparing
from tuplegate.engine.postgres.transaction.block import Block
from tuplegate.engine.postgres.transaction.deciding import CannotPrepare, Decider, Decision, new_id
from tuplegate.engine.run.run import RepeatableRun, RunAgain
from tuplegate.engine.run.stages import Stage
from tuplegate.engine.sql.facts import read_facts


# size: two thirds are what any run has that can be tried again.
class TransactionRun(RepeatableRun[Pool, port.TransactionResult]):
    """The statements of one transaction. The deadline holds until it is decided. `promise` are the records to commit
    with it."""

    def __init__(
        self,
        pool: Pool,
        target: port.Target,
        statements: Sequence[port.Statement],
        bounds: port.Bounds,
        deadline: float,
        decider: Decider,
        *,
        read_only: bool,
        two_phase: bool,
        promise: port.Promise | None,
    ) -> None:
        super().__init__(pool, target, bounds, deadline)
        self._statements = statements
        self._facts = [read_facts(statement.sql, statement.keyword) for statement in statements]
        self._decider = decider
        self._read_only = read_only or not target.may_write
        self._two_phase = two_phase
        self._promise = promise
        self._as_sent = False
        self._preparing: Preparing | None = None

    # `writes` is False: it asks the guard itself before it prepares, once it is known whether it has written.

    @property
    def may_grow(self) -> bool:
        return not self._read_only

    @property
    def keywords(self) -> list[str]:
        return [facts.keyword for facts in self._facts]

    @property
    def contends(self) -> bool:
        return not self._read_only

    @property
    def must_commit(self) -> bool:
        # A promise is recorded even for a transaction that only reads.
        return self._promise is not None or (not self._read_only and any(facts.may_write for facts in self._facts))

    def note_loss(self, lost: port.EngineUnavailable, attempts_max: int) -> float | None:
        if self.attempt >= attempts_max:
            return None
        self.attempt += 1
        return choose_pause_s(self.attempt - 1)

    async def check_conflict(self, conflict: port.Conflict) -> None:
        """Raise Superseded if somebody else has settled its records: then no further attempt could succeed."""
        if self._promise is None or self.stage is Stage.RUNNING:
            return
        if await self._decider.ledger.is_settled(self.target.database, self._promise):
            raise port.Superseded("somebody else settled it first") from conflict

    def adapt(self, failure: port.StatementFailed, *, fresh: bool) -> bool:
        if self.adapt_connection(failure, fresh=fresh):
            return True
        if self._preparing is not None and self._preparing.may_be_cause(failure):
            self._as_sent = True  # so that the error speaks of the text that its writer knows, or there is none
            return True
        return self.adapt_types(failure, self._statements)

    async def run(self, now: float) -> port.TransactionResult:
        started = perf_counter_ns()
        block = Block(self, read_only=self._read_only)
        block.describe, block.as_sent = self.describe, self._as_sent
        decision = Decision(self._decider, self, block, self._promise)
        decision.two_phase = self._two_phase
        try:
            number, done = await self._run_undecided(block, decision, started)
        except BaseException:
            block.end_doubt()
            raise
        finally:
            self._preparing = block.preparing
        self.reach(Stage.DECIDING)
        try:
            # From here on the decision is carried out even if the client leaves.
            await self._decider.recovery.see_through(decision.decide(number))
        except CannotPrepare as refused:
            await self._take_id()
            self._two_phase = False
            raise RunAgain from refused
        if number is not None:
            done.history = decision.history(acknowledged=True)
        self.exec_us = done.exec_us = (perf_counter_ns() - started) // 1000
        if self._promise is not None and self._read_only:
            until = decision.settle_by()
            await self._decider.ledger.keep_promise(self.target.database, self._promise, done, until)
        return done

    async def _take_id(self) -> None:
        """Give it an id if it has none: a transaction that is committed in one phase needs one, whose record tells its
        outcome."""
        promise = self._promise
        if promise is None or promise.id is None:
            id = new_id()
            await self._decider.ledger.begin_id(self.target.database, id)
            self._promise = port.Promise(id, promise.keep if promise is not None else None)

    def _claim(self) -> Command | None:
        keep = None if self._promise is None or self._read_only else self._promise.keep
        if keep is None:
            return None
        return self._decider.ledger.records(self.target.database).claim(keep.route, keep.key)

    async def _run_undecided(
        self, block: Block, decision: Decision, started: int
    ) -> tuple[int | None, port.TransactionResult]:
        """Run everything before the decision. Return the engine's number for it, and the result."""
        try:
            block.take(self._statements, self._facts)
            number = await block.run_whole(self._claim(), numbered=self._promise is not None)
            decision.promise_id(number)
            results = await block.runner.results()
            commit = port.Commit.TWO_PHASE if decision.two_phase else port.Commit.ONE_PHASE
            way = port.Commit.READ_ONLY if number is None else commit
            done = port.TransactionResult(results, way, number, self.attempt, 0, block.runner.notices)
            done.exec_us = (perf_counter_ns() - started) // 1000
            if self.pool.primary.follows:
                done.id = decision.id
            await decision.record(done)
        except port.StatementFailed as failure:
            failure.exec_us = (perf_counter_ns() - started) // 1000
            failure.notices = block.runner.notices
            block.give_back(broken=is_internal(failure))
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
