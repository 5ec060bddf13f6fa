"""A transaction that stays open between requests: its block carries the state from each statement to the next, and
`open_commit` commits it."""

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from tuplegate.direct_future import DirectFuture
from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import IN_BLOCK, Command, ConnectionLost
from tuplegate.engine.libpq.connections.server_errors import is_internal
from tuplegate.engine.libpq.pools.measures import Measures
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.libpq.statements.arriving_rows import StreamedRows
from tuplegate.engine.libpq.statements.parameters import write_all_params
from tuplegate.engine.libpq.statements.rows import Budget
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.query.preparing import measure_common
from tuplegate.engine.postgres.query.stream import Stream, begin_stream
from tuplegate.engine.postgres.query.stream_run import StreamRun
from tuplegate.engine.postgres.rules.blocks import ENCODE, close_block, run_all
from tuplegate.engine.postgres.rules.statements import chunk_rows
from tuplegate.engine.postgres.transaction import open_commit
from tuplegate.engine.postgres.transaction.block import Block
from tuplegate.engine.postgres.transaction.deciding import Decider, Decision
from tuplegate.engine.run import open_transaction, stream_run
from tuplegate.engine.run.run import Running
from tuplegate.engine.run.steps import Does, Script, Step
from tuplegate.engine.sql.facts import read_facts, refuse_copy

_T = TypeVar("_T")


# size: most of it fills what any open transaction has.
class OpenTransaction(open_transaction.OpenTransaction[Pool]):
    """An open transaction of PostgreSQL. `is_ahead`: PREPARE is under way behind the last statement."""

    def __init__(
        self,
        pool: Pool,
        target: port.Target,
        member: Member,
        decider: Decider,
        running: Running,
        id: str,
        *,
        read_only: bool,
    ) -> None:
        super().__init__(pool, target, member, running)
        self.is_ahead = False
        self.block = Block(self, read_only=read_only or not target.may_write)
        self.decision = Decision(decider, self, self.block, port.Promise(id))

    async def open(self) -> None:
        """Begin. The block opens with the first statement."""
        self.access = port.Access.READ if self.block.read_only else port.Access.WRITE
        self._enter()
        try:
            self.block.begin()
            await self.block.measure()
        except BaseException as exc:
            self.pool.abandon(self.member)
            self.end_with(port.EndReason.LOST)
            if isinstance(exc, ConnectionLost):
                raise port.EngineUnavailable("the connection to the engine was lost") from exc
            raise

    # -- for the watches ----------------------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """Return whether PREPARE is under way. Before that, the guard is asked when PREPARE is to be sent."""
        return self.is_ahead

    @property
    def may_grow(self) -> bool:
        return not self.block.read_only

    @property
    def keywords(self) -> list[str]:
        return [facts.keyword for facts in self.block.facts]

    # -- statements ---------------------------------------------------------------------------------------------

    @property
    def notices(self) -> list[port.Notice]:
        return self.block.runner.notices

    @property
    def is_begun(self) -> bool:
        return self.block.is_open

    def take(self, statement: port.Statement) -> None:
        """Note the leftovers of the statement. Raise if it may not be sent."""
        refuse_copy(statement)
        self.block.take([statement], [read_facts(statement.sql, statement.keyword)])
        self.block.describe = any(bytes(param)[:1] == b'"' for param in statement.params or ())
        self.block.refuse_growth()

    async def _run(self, statement: port.Statement) -> port.Result:
        self.take(statement)
        try:
            await self.block.carry_out(run_all(self.block.nature(), self.block.facts))
        except port.StatementFailed as failure:
            self.see_prepared_fail(statement, failure)
            raise
        [result] = await self.block.runner.results()
        return result

    async def _run_each(self, statement: port.Statement, lists: list[list[msgspec.Raw]]) -> Sequence[port.Result]:
        block, count = self.block, len(lists)
        self.take(statement)
        await block.carry_out([])
        written = await write_all_params(self.pool.encoders, self.member, statement.sql, lists, self)
        self.check_ended()
        block.take([statement] * count, [*block.facts] * count, Budget(self.bounds.bytes_max))
        sql, rows_at_once = statement.sql.encode(), chunk_rows(block.facts[0], self.bounds)
        script: Script = []
        for number, params in enumerate(written):
            script.append(Step(Does.RUN, Command(sql, params, rows_at_once, begins=False), statement=number))
            if block.careful:
                script.append(ENCODE)
        await block.carry_out(script)
        return await block.runner.results()

    def _begin_stream(self, statement: port.Statement) -> StreamRun:
        self.take(statement)
        run = StreamRun(self.pool, self.target, statement, self.bounds)
        run.put_inside(self)
        return run

    async def _open_stream(self, run: stream_run.StreamRun[Pool]) -> StreamedRows:
        assert isinstance(run, StreamRun)
        await self.block.carry_out([])
        stream = await begin_stream(run)
        stream.measures = Measures("stream")
        return stream

    async def _cut_stream(self, stream: StreamedRows) -> None:
        assert isinstance(stream, Stream)
        await self.pool.expire(self.member)
        if self.member.pgconn.transaction_status == IN_BLOCK:
            await stream.close()

    async def close(self, last: port.Statement | None) -> int | None:
        """Run the last statement, if there is one, and the steps that close the block. Return the engine's number."""
        block = self.block
        if last is not None:
            self.take(last)
        nature = block.nature()
        try:
            return await block.close(close_block(nature, [] if last is None else run_all(nature, block.facts)))
        except port.StatementFailed as failure:
            if last is not None:
                self.see_prepared_fail(last, failure)
            raise

    def see_prepared_fail(self, statement: port.Statement, failure: port.StatementFailed) -> None:
        """Make the error one of the statement as it was sent: it cannot run again to find out its own error. Raises a
        conflict if it failed only because it was prepared: then some table has changed since."""
        preparing = self.block.preparing
        if preparing is None:
            return
        could_run_prepared = self.block.may_prepare(0)
        self.block.is_unsure = self.block.is_unsure or preparing.is_in_doubt
        if not could_run_prepared or not preparing.may_be_cause(failure):
            return
        if isinstance(failure, port.ParameterMismatch):
            return
        preparing.prepare_anew()
        only_prepared = failure.statement == 0 and failure.position is None
        failure.statement = 0
        if only_prepared:
            raise port.Conflict("a table was changed meanwhile", sqlstate="40001") from failure
        if failure.position is not None and failure.position > measure_common(statement):
            failure.position = None

    # -- the end ------------------------------------------------------------------------------------------------

    def _let_go(self, result: port.Result | None) -> None:
        block = self.block
        preparing = block.preparing
        if result is not None:
            if self.notices and preparing is not None:
                preparing.note_noise()
            block.has_written = block.has_written or bool(result.affected_rows and block.facts[0].is_change)
        elif self._stream is not None and self.member.pgconn.transaction_status == IN_BLOCK:
            # A failed transaction gets its encoding back with a savepoint.
            block.must_encode = block.must_encode or block.careful
        block.let_go()
        if preparing is not None and not (preparing.is_in_doubt or preparing.has_unjudged):
            block.preparing = None

    def _see_failed(self, failure: port.StatementFailed) -> tuple[port.EngineFailure, port.EndReason | None]:
        if is_internal(failure):
            self.pool.retire(self.member)
            self.end_with(port.EndReason.LOST)
        return failure, port.EndReason.CONFLICT if isinstance(failure, port.Conflict) else None

    async def _commit(self, last: port.Statement | None, started: int) -> port.TransactionResult:
        with self.decision.holding():
            return await open_commit.commit(self, last, started)

    def _give_back(self) -> None:
        self.block.give_back()

    def _leave(self) -> None:
        self.block.end_doubt()

    def see_through(self, work: Coroutine[Any, Any, _T]) -> DirectFuture[_T]:
        return self.decision.see_through(work)
