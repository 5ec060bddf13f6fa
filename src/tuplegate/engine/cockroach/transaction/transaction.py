"""Runs several statements as one transaction, and commits it together with the row that tells its outcome."""

from time import perf_counter_ns

from tuplegate.engine import port
from tuplegate.engine.cockroach.failures import is_node_failure, refine
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.cockroach.query import rules
from tuplegate.engine.cockroach.query.refusals import check_statement
from tuplegate.engine.cockroach.query.run import UNREACHED, NodeLost, RepeatableNodeRun, explain_loss, give_up
from tuplegate.engine.cockroach.query.statements import Statements
from tuplegate.engine.cockroach.transaction import guard
from tuplegate.engine.cockroach.transaction.deciding import decide, see_through
from tuplegate.engine.cockroach.transaction.ledger import Ledger
from tuplegate.engine.cockroach.transaction.records import new_number, number_of
from tuplegate.engine.libpq.commands import ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.failures import explain_width
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.libpq.rows import Budget, RowCollector
from tuplegate.engine.run.runner import Runner
from tuplegate.engine.run.stages import Stage
from tuplegate.engine.run.steps import Does, Step
from tuplegate.engine.sql.facts import Leftovers, is_plain_tag, refuse_copy


class TransactionRun(RepeatableNodeRun[port.TransactionResult]):
    """One transaction. Its deadline holds until it is committed."""

    def __init__(
        self,
        pool: Pool,
        target: port.Target,
        statements: list[port.Statement],
        bounds: port.Bounds,
        deadline: float,
        ledger: Ledger,
        *,
        read_only: bool,
        promise: port.Promise | None,
    ) -> None:
        super().__init__(pool, target, statements, bounds, deadline)
        self._ledger = ledger
        self._promise = promise
        self._is_read_only = read_only or not target.may_write
        self._changes = not self._is_read_only and (
            pool.state.functions_write or any(rules.find_kind(s) is not rules.Kind.READS for s in statements)
        )
        left = {rules.find_leftovers(s, pool.state.changing) for s in statements}
        self._leaves = Leftovers.ANYTHING if Leftovers.ANYTHING in left else Leftovers.SEQUENCES

    def begin(self, member: Member) -> None:
        super().begin(member)
        self._runner = Runner(member)

    @property
    def contends(self) -> bool:
        return self._changes

    async def run(self, now: float) -> port.TransactionResult:
        """Make one attempt, and give the connection back in every case."""
        started = perf_counter_ns()
        runner = self._runner
        try:
            results = await self._run_statements()
            self.check_ended()
            number = self._choose_number()
            way = port.Commit.READ_ONLY if number is None else port.Commit.ENGINE
            done = port.TransactionResult(results, way, number, self.attempt, 0, runner.notices)
            done.exec_us = (perf_counter_ns() - started) // 1000
            # One that only reads is rolled back as its connection is given back: the engine lets a statement make it
            # one that writes, and nothing would tell the outcome of that.
            if not self._is_read_only:
                self.reach(Stage.DECIDING)
                await see_through(decide(self, self._ledger, number, self._promise, done))
        except port.StatementFailed as failure:
            # No frame that it passes keeps it by a name: it may be as large as the text, and refers to the frames.
            raise await self._see_failure(failure, started) from failure
        except RowsTooWide as wide:
            raise explain_width() from wide
        except ConnectionLost as lost:
            raise explain_loss(self) from lost
        except CopyStarted as copy:
            raise port.CopyRefused from copy
        except port.OutcomeUnknown:
            raise
        except (port.Superseded, port.CopyRefused):
            self.give_back(self._leaves)
            raise
        except BaseException:
            give_up(self)
            raise
        self.give_back(self._leaves)
        self.exec_us = done.exec_us = (perf_counter_ns() - started) // 1000
        if number is None and self._promise is not None:
            await self._ledger.keep_promise(self.target.database, self._promise, done)
        return done

    async def _see_failure(self, failure: port.StatementFailed, started: int) -> port.EngineFailure:
        """Give the connection back; return what is to be raised."""
        failed, sent = self._runner.failed, self._runner.sent > 0
        is_guarded = not self._is_read_only and sent and (failed is None or failed.does is not Does.OPEN)
        if is_guarded and self.ended is None and self.stage is Stage.RUNNING:
            try:
                await guard.check_same(self.member)
            except port.OutcomeUnknown as unknown:
                self.member.close("a statement ended its transaction")
                return unknown
            except ConnectionLost:
                pass  # the engine rolls back
        refined = refine(failure, self.statements[failure.statement or 0].sql)
        if self.was_cancelled(refined):
            refined = self.explain_cancel(refined)
        refined.exec_us, refined.notices = (perf_counter_ns() - started) // 1000, self._runner.notices
        self.give_back(self._leaves)
        return NodeLost(UNREACHED) if is_node_failure(refined) else refined

    def _choose_number(self) -> int | None:
        """Return the number under which its outcome is recorded; None where it has nothing to commit."""
        if not self._changes:
            return None
        promise = self._promise
        return number_of(promise.id) if promise is not None and promise.id is not None else new_number()

    async def _run_statements(self) -> list[port.Result]:
        """Run the statements, as many as possible in one write: those before one whose types must be asked for."""
        for index, statement in enumerate(self.statements):
            refuse_copy(statement)
            try:
                check_statement(self.pool.state, self.target, statement)
            except port.StatementFailed as refusal:
                refusal.statement = index
                raise
        budget, encoders = Budget(self.bounds.bytes_max), self.pool.state.encoders
        self._runner.expect(
            [RowCollector(encoders, self.member, s.shape, self.bounds, budget=budget) for s in self.statements]
        )
        opening = guard.READING if self._is_read_only else guard.WRITING
        script = [*opening, *(Step(Does.RUN, statement=n) for n in range(len(self.statements)))]
        await self._runner.run(script, Statements(self, self.statements, describe=self.describe))
        results = await self._runner.results()
        if not all(is_plain_tag(result.tag) for result in results):
            self._leaves = Leftovers.ANYTHING
        return results
