"""Runs one statement for the port's `query`: writes its parameters, runs it in a block if needed, and collects its
rows."""

from time import perf_counter_ns

from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.cockroach.dialect.cluster_errors import READ_ONLY, is_node_failure, refine
from tuplegate.engine.cockroach.pools.pool import Pool
from tuplegate.engine.cockroach.query import rules
from tuplegate.engine.cockroach.query.committing import commit, may_be_applied
from tuplegate.engine.cockroach.query.described import check_described, check_first, make_commands
from tuplegate.engine.cockroach.query.refusals import check_statement
from tuplegate.engine.cockroach.query.run import (
    UNKNOWN,
    UNREACHED,
    NodeLost,
    RepeatableNodeRun,
    explain_loss,
    give_up,
    write_values,
)
from tuplegate.engine.libpq.connections.commands import ROLLBACK, Command, ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.connections.server_errors import check, explain_width
from tuplegate.engine.libpq.statements.rows import RowCollector
from tuplegate.engine.sql.facts import Leftovers, is_plain_tag, refuse_copy


class Execution(RepeatableNodeRun[port.Result]):
    """One statement of the port's `query`, run until it succeeds or may not be tried again."""

    def __init__(
        self, pool: Pool, target: port.Target, statement: port.Statement, bounds: port.Bounds, deadline: float
    ) -> None:
        super().__init__(pool, target, [statement], bounds, deadline)
        self.statement = statement
        self._kind = rules.find_kind(statement)
        self._answers: list[PGresult] | None = None
        """The engine's answers; None until the statement is sent."""

    @property
    def contends(self) -> bool:
        return self._kind is rules.Kind.WRITES and self.target.may_write

    async def run(self, now: float) -> port.Result:
        """Make one attempt, and give the connection back in every case."""
        started = perf_counter_ns()
        self._answers = None
        member, pool, statement = self.member, self.pool, self.statement
        leftovers = rules.find_leftovers(statement, pool.state.changing)
        try:
            refuse_copy(statement)
            check_statement(pool.state, self.target, statement)
            if self.contends:
                result = await self._run_in_block()
            elif self._kind is rules.Kind.READS and pool.state.functions_write:
                result = await self._run_reading()
            else:
                result = await self._send([])
        except port.StatementFailed as failure:
            # No frame that it passes keeps it by a name: it may be as large as the text, and refers to the frames.
            raise self._see_failure(failure, started, leftovers) from failure
        except RowsTooWide as wide:
            raise explain_width() from wide
        except ConnectionLost as lost:
            if self._kind is rules.Kind.DEFINES and self.target.may_write:
                raise port.OutcomeUnknown(UNKNOWN) from lost
            raise explain_loss(self) from lost
        except port.CopyRefused:
            self.give_back(leftovers)
            raise
        except CopyStarted as copy:
            raise port.CopyRefused from copy
        except port.OutcomeUnknown:
            member.close("the engine did not answer its commit")
            raise
        except BaseException:
            give_up(self)
            raise
        self.exec_us = result.exec_us = (perf_counter_ns() - started) // 1000
        result.attempts = self.attempt
        result.notices += member.take_notices()
        # Where the engine ran something else than its first word says, anything may be left.
        self.give_back(leftovers if is_plain_tag(result.tag) else Leftovers.ANYTHING)
        return result

    def _see_failure(self, failure: port.StatementFailed, started: int, leftovers: Leftovers) -> port.EngineFailure:
        """Give the connection back; return the failure to raise."""
        refined = self._explain(refine(failure, self.statement.sql))
        if isinstance(refined, port.StatementFailed):
            refined.exec_us = (perf_counter_ns() - started) // 1000
            refined.notices = self.member.take_notices()
        self.give_back(leftovers)
        return refined

    def _explain(self, failure: port.StatementFailed) -> port.EngineFailure:
        """Return the failure, or OutcomeUnknown if it does not tell whether the statement was applied."""
        is_applying = self._kind is rules.Kind.DEFINES and self.target.may_write and self._answers is not None
        if is_applying and may_be_applied(self, self.statement, failure, self._answers or ()):
            return port.OutcomeUnknown(UNKNOWN)
        if self.was_cancelled(failure):
            return self.explain_cancel(failure)
        return NodeLost(UNREACHED) if is_node_failure(failure) else failure

    async def _run_reading(self) -> port.Result:
        """Read in a block that is rolled back, so that the read can be repeated. If the engine refuses it because a
        function writes, run it in a block that is committed."""
        try:
            return await self._send([rules.BEGIN_READING])
        except port.StatementFailed as failure:
            if failure.sqlstate != READ_ONLY or not self.target.may_write:
                raise
            self._kind = rules.Kind.WRITES
        await self.member.run(ROLLBACK)
        self.check_ended()
        return await self._run_in_block()

    async def _run_in_block(self) -> port.Result:
        result = await self._send([rules.BEGIN_WRITING])
        self.check_ended()
        await commit(self)
        return result

    async def _send(self, first: list[Command]) -> port.Result:
        """Run the statement behind these commands."""
        asks = self._kind is not rules.Kind.DEFINES
        values = await write_values(self, self.statement, describe=self.describe)
        if not asks:
            await check_first(self, self.statement, values)
        rows = RowCollector(self.pool.state.encoders, self.member, self.statement.shape, self.bounds)
        types = self.pool.state.untold.of_each(self.statement.sql, values)
        rows_at_once = rules.chunk_rows(self.statement, self.bounds)
        commands = [*first, *make_commands(self.statement, values, rows_at_once, types, asks=asks)]
        answer = self.member.send(commands, rows.take)
        self.member.flush()
        self._answers = []
        results = self._answers = await answer
        check_described(commands, results)
        check(results)
        return rows.finish(results[-1]) or await rows.learn(self.member, results[-1])
