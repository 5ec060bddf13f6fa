"""A transaction that stays open between requests, and is committed together with the row that tells its outcome."""

from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from tuplegate.engine import port
from tuplegate.engine.cockroach.dialect.cluster_errors import is_node_failure, refine
from tuplegate.engine.cockroach.dialect.narrow_numbers import check_numbers, may_be_cut
from tuplegate.engine.cockroach.pools.pool import Pool
from tuplegate.engine.cockroach.query import rules
from tuplegate.engine.cockroach.query.described import check_first, find_types
from tuplegate.engine.cockroach.query.refusals import check_statement
from tuplegate.engine.cockroach.query.run import write_values
from tuplegate.engine.cockroach.query.statements import Statements
from tuplegate.engine.cockroach.query.stream import Stream, prepare_stream
from tuplegate.engine.cockroach.query.stream_run import StreamRun
from tuplegate.engine.cockroach.transaction import guard
from tuplegate.engine.cockroach.transaction.deciding import decide, see_through
from tuplegate.engine.cockroach.transaction.ledger import Ledger
from tuplegate.engine.cockroach.transaction.records import number_of
from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.libpq.statements.arriving_rows import StreamedRows
from tuplegate.engine.libpq.statements.parameters import write_all_params
from tuplegate.engine.libpq.statements.rows import Budget, RowCollector
from tuplegate.engine.run import open_transaction, stream_run
from tuplegate.engine.run.ends import LOST
from tuplegate.engine.run.run import Running
from tuplegate.engine.run.runner import Runner
from tuplegate.engine.run.stages import Stage
from tuplegate.engine.run.steps import Does, Script, Step
from tuplegate.engine.sql.facts import SAVEPOINTS, Leftovers, refuse_copy

_T = TypeVar("_T")


# size: most of it fills what any open transaction has.
class OpenTransaction(open_transaction.OpenTransaction[Pool]):
    """An open transaction of CockroachDB. `_changes`: it may have something to commit."""

    def __init__(
        self,
        pool: Pool,
        target: port.Target,
        member: Member,
        ledger: Ledger,
        running: Running,
        id: str,
        *,
        read_only: bool,
    ) -> None:
        super().__init__(pool, target, member, running)
        self._runner = Runner(member)
        self._ledger = ledger
        self._id = id
        self._is_read_only = read_only or not target.may_write
        self._changes = False
        self._changes_types = False
        self._sql = ""
        self._enter()

    @property
    def notices(self) -> list[port.Notice]:
        return self._runner.notices

    @property
    def is_begun(self) -> bool:
        return self._runner.sent > 0

    # -- statements ---------------------------------------------------------------------------------------------

    async def _begin_with(self, statement: port.Statement) -> None:
        """Open the block before the first statement. Raise if the statement may not be sent."""
        self._sql = statement.sql
        refuse_copy(statement)
        check_statement(self.pool.state, self.target, statement, full=not self._is_read_only)
        if statement.keyword not in SAVEPOINTS:
            changes = self.pool.state.functions_write or rules.find_kind(statement) is not rules.Kind.READS
            self._changes = self._changes or (changes and not self._is_read_only)
            self._changes_types = self._changes_types or rules.changes_types(statement)
        if not self.is_begun:
            await self._send(guard.READING if self._is_read_only else guard.WRITING)

    async def _run(self, statement: port.Statement) -> port.Result:
        await self._begin_with(statement)
        state = self.pool.state
        describe = any(bytes(param)[:1] == b'"' for param in statement.params or ())
        while True:
            try:
                values = await write_values(self, statement, describe=describe)
                await check_first(self, statement, values)
                break
            except port.StatementFailed as failure:
                if self.is_failed or not state.untold.learn(statement.sql, failure):
                    raise
        types = state.untold.of_each(statement.sql, values)
        command = Command(statement.sql.encode(), values or None, rules.chunk_rows(statement, self.bounds), types=types)
        [result] = await self._run_commands(statement, [command])
        self.check_ended()
        return result

    async def _run_each(self, statement: port.Statement, lists: list[list[msgspec.Raw]]) -> Sequence[port.Result]:
        await self._begin_with(statement)
        written = await write_all_params(self.pool.state.encoders, self.member, statement.sql, lists, self)
        self.check_ended()
        suspects = [index for index, params in enumerate(lists) if may_be_cut(params)]
        types = await find_types(self, statement.sql) if suspects else []
        for index in suspects:
            try:
                check_numbers(types, written[index])
            except port.StatementFailed as failure:
                failure.statement = index
                raise
        sql, rows_at_once = statement.sql.encode(), rules.chunk_rows(statement, self.bounds)
        return await self._run_commands(statement, [Command(sql, values, rows_at_once) for values in written])

    async def _send(self, script: Script) -> None:
        await self._runner.run(script, Statements(self, (), describe=False))

    async def _run_commands(self, statement: port.Statement, commands: Sequence[Command]) -> list[port.Result]:
        """Run the statement once for each command."""
        budget, encoders = Budget(self.bounds.bytes_max), self.pool.state.encoders
        self._runner.expect(
            [RowCollector(encoders, self.member, statement.shape, self.bounds, budget=budget) for _ in commands]
        )
        script: Script = [Step(Does.RUN, command, statement=number) for number, command in enumerate(commands)]
        await self._send(script)
        return await self._runner.results()

    def _begin_stream(self, statement: port.Statement) -> StreamRun:
        run = StreamRun(self.pool, self.target, statement, self.bounds)
        run.put_inside(self)
        return run

    async def _open_stream(self, run: stream_run.StreamRun[Pool]) -> StreamedRows:
        assert isinstance(run, StreamRun)
        await self._begin_with(run.statement)
        return await prepare_stream(run)

    async def _cut_stream(self, stream: StreamedRows) -> None:
        """Cancel the statement: it then counts as failed, and with it the transaction."""
        assert isinstance(stream, Stream)
        stream.leave()
        self.cancelling = self.pool.expire(self.member)
        await self.see_cancel_through()

    # -- the end ------------------------------------------------------------------------------------------------

    def _let_go(self, result: port.Result | None) -> None:
        self._runner.expect([])

    def _see_failed(self, failure: port.StatementFailed) -> tuple[port.EngineFailure, port.EndReason | None]:
        refined = refine(failure, self._sql)
        if is_node_failure(refined) and not self.was_cancelled(refined):
            return port.EngineUnavailable(LOST), port.EndReason.LOST
        return refined, port.EndReason.CONFLICT if isinstance(refined, port.Conflict) else None

    async def _commit(self, last: port.Statement | None, started: int) -> port.TransactionResult:
        try:
            self.check_not_failed()
            results = [] if last is None else [await self._run(last)]
            self.check_ended()
            number = number_of(self._id) if self._changes else None
            way = port.Commit.READ_ONLY if number is None else port.Commit.ENGINE
            done = port.TransactionResult(results, way, number, 1, 0, self.notices)
        except BaseException as exc:
            raise await self.see_failed_commit(exc, started) from exc
        # From here on the decision is carried out even if the client leaves.
        self.reach(Stage.DECIDING)
        await self.see_through(self._decide(number, done, started))
        return done

    async def _decide(self, number: int | None, done: port.TransactionResult, started: int) -> None:
        try:
            # One that only reads is rolled back as its connection is given back (see TransactionRun).
            if self.is_begun and not self._is_read_only:
                await decide(self, self._ledger, number, port.Promise(self._id), done)
        except port.OutcomeUnknown as unknown:
            unknown.id = self._id
            self.end_with(port.Outcome.IN_PROGRESS)
            raise
        except port.Superseded as superseded:
            self.is_busy = False
            await self.roll_back_for(port.EndReason.LOST)
            raise port.TransactionOver("the transaction was aborted") from superseded
        except BaseException as exc:
            raise await self.see_failed_commit(exc, started) from exc
        self.member.on_closed = None
        self._give_back()
        self.end_with(port.Outcome.COMMITTED)

    def _give_back(self) -> None:
        self.pool.give_back(self.member, Leftovers.ANYTHING)
        if self._changes_types:
            self.pool.state.note_change()

    def see_through(self, work: Coroutine[Any, Any, _T]) -> Awaitable[_T]:
        return see_through(work)
