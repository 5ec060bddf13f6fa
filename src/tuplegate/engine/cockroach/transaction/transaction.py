"""Runs several statements as one transaction, and commits it together with the row that tells its outcome."""

from time import perf_counter_ns
from typing import Final

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.cockroach.failures import is_node_failure, refine
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.cockroach.query import rules
from tuplegate.engine.cockroach.query.described import check_described, make_commands
from tuplegate.engine.cockroach.query.refusals import check_statement
from tuplegate.engine.cockroach.query.run import UNREACHED, NodeLost, Run
from tuplegate.engine.cockroach.transaction import guard
from tuplegate.engine.cockroach.transaction.deciding import decide, see_through
from tuplegate.engine.cockroach.transaction.ledger import Ledger
from tuplegate.engine.cockroach.transaction.records import new_number, number_of
from tuplegate.engine.libpq.commands import Command, ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.connection import explain_width
from tuplegate.engine.libpq.failures import find_error, to_failure
from tuplegate.engine.libpq.leftovers import Leftovers, is_plain_tag, refuse_copy
from tuplegate.engine.libpq.parameters import needs_describing
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.libpq.rows import Budget, RowCollector

_EMPTY: Final = int(pq.ExecStatus.EMPTY_QUERY)


class TransactionRun(Run):
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
        super().__init__(pool, target, bounds, deadline)
        self.statements = statements
        self.describe = False
        self.exec_us = 0
        self._ledger = ledger
        self._promise = promise
        self._is_read_only = read_only or not target.may_write
        self.contends = not self._is_read_only and (
            pool.state.functions_write or any(rules.find_kind(s) is not rules.Kind.READS for s in statements)
        )
        left = {rules.find_leftovers(s, pool.state.changing) for s in statements}
        self._leaves_first = Leftovers.ANYTHING if Leftovers.ANYTHING in left else Leftovers.SEQUENCES

    def begin(self, member: Member) -> None:
        super().begin(member)
        self._notices: list[port.Notice] = []
        self._leaves = self._leaves_first
        self._is_guarded = False

    async def run(self) -> port.TransactionResult:
        """Make one attempt, and give the connection back in every case."""
        started = perf_counter_ns()
        try:
            results = await self._run_statements()
            self.check_ended()
            number = self._choose_number()
            way = port.Commit.READ_ONLY if number is None else port.Commit.ENGINE
            done = port.TransactionResult(results, way, number, 1, 0, self._notices)
            done.exec_us = (perf_counter_ns() - started) // 1000
            # One that only reads is rolled back as its connection is given back: the engine lets a statement make it
            # one that writes, and nothing would tell the outcome of that.
            if not self._is_read_only:
                self.decides = True
                await see_through(decide(self, self._ledger, number, self._promise, done))
        except port.StatementFailed as failure:
            # No frame that it passes keeps it by a name: it may be as large as the text, and refers to the frames.
            raise await self._see_failure(failure, started) from failure
        except RowsTooWide as wide:
            raise explain_width() from wide
        except ConnectionLost as lost:
            raise self.explain_harmless_loss() from lost
        except CopyStarted as copy:
            raise port.CopyRefused from copy
        except port.OutcomeUnknown:
            raise
        except (port.Superseded, port.CopyRefused):
            self._give_back()
            raise
        except BaseException:
            self.give_up()
            raise
        self._give_back()
        self.exec_us = done.exec_us = (perf_counter_ns() - started) // 1000
        if number is None and self._promise is not None:
            await self._ledger.keep_promise(self.target.database, self._promise, done)
        return done

    async def _see_failure(self, failure: port.StatementFailed, started: int) -> port.EngineFailure:
        """Give the connection back; return what is to be raised."""
        if self._is_guarded and self.ended is None and not self.decides:
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
        refined.exec_us, refined.notices = (perf_counter_ns() - started) // 1000, self._notices
        self._give_back()
        return NodeLost(UNREACHED) if is_node_failure(refined) else refined

    def _choose_number(self) -> int | None:
        """Return the number under which its outcome is recorded; None where it has nothing to commit."""
        if not self.contends:
            return None
        promise = self._promise
        return number_of(promise.id) if promise is not None and promise.id is not None else new_number()

    # -- the statements -----------------------------------------------------------------------------------------

    async def _run_statements(self) -> list[port.Result]:
        """Run the statements, as many as possible in one write: those before one whose types must be asked for."""
        for index, statement in enumerate(self.statements):
            refuse_copy(statement)
            try:
                check_statement(self.pool.state, self.target, statement)
            except port.StatementFailed as refusal:
                refusal.statement = index
                raise
        waiting = [rules.BEGIN_READING] if self._is_read_only else [rules.BEGIN_WRITING, guard.SET]
        owners: list[int | None] = [None] * len(waiting)
        budget = Budget(self.bounds.bytes_max)
        collectors: list[RowCollector] = []
        closing: dict[int, PGresult] = {}
        for index, statement in enumerate(self.statements):
            encoders = self.pool.state.encoders
            collectors.append(RowCollector(encoders, self.member, statement.shape, self.bounds, budget=budget))
            if statement.params and (self.describe or needs_describing(statement)):
                await self._send(waiting, owners, collectors, closing)
                waiting, owners = [], []
            try:
                values = await self.write_values(statement, describe=self.describe and bool(statement.params))
            except port.StatementFailed as failure:
                failure.statement = index
                raise
            types = self.pool.state.untold.of_each(statement.sql, values)
            commands = make_commands(statement, values, rules.chunk_rows(statement, self.bounds), types)
            waiting += commands
            owners += [index] * len(commands)
        await self._send(waiting, owners, collectors, closing)
        each = [(rows, closing[index]) for index, rows in enumerate(collectors)]
        results = [rows.finish(last) or await rows.learn(self.member, last) for rows, last in each]
        if not all(is_plain_tag(result.tag) for result in results):
            self._leaves = Leftovers.ANYTHING
        return results

    async def _send(
        self,
        commands: list[Command],
        owners: list[int | None],
        collectors: list[RowCollector],
        closing: dict[int, PGresult],
    ) -> None:
        def take(chunk: PGresult, number: int) -> None:
            owner = owners[number]
            if owner is not None:
                collectors[owner].take(chunk)

        answer = self.member.send(commands, take)
        self.member.flush()
        results = await answer
        self._notices += self.member.take_notices()
        if guard.SET in commands:
            self._is_guarded = any(result.command_status == b"SAVEPOINT" for result in results)
        check_described(commands, results, owners)
        error = find_error(results)
        if error is not None:
            failure = to_failure(error)
            if isinstance(failure, port.StatementFailed):
                failure.statement = owners[results.index(error)]
            raise failure
        for result, owner in zip(results, owners, strict=True):
            if owner is None:
                continue
            if result.status == _EMPTY:
                empty = port.EmptyStatement("there is no SQL statement in the text", sqlstate=None)
                empty.statement = owner
                raise empty
            closing[owner] = result

    def _give_back(self) -> None:
        if self.ended is not None:
            self.pool.abandon(self.member)
        else:
            self.pool.give_back(self.member, self._leaves)
        if any(map(rules.changes_types, self.statements)):
            self.pool.state.note_change()
