"""Runs one statement for the port's `query`: writes its parameters, opens a block if needed, and collects its rows.

A statement runs at SERIALIZABLE, which is in the connection's start-up options, in a transaction of its own:

- plainly, so that VACUUM and the like work, with the connection's reset in the same write; prepared, if it is frequent;
- VACUUM and others that commit in steps at REPEATABLE READ: then their steps take no place in the engine's pool of
serializable transactions (see `guard`), however many there are;
- CALL and DO inside a block that the service opened, where the engine refuses COMMIT; in a full database (see `sizes`)
everything.
"""

from collections.abc import Sequence
from time import perf_counter_ns

from psycopg.pq.abc import PGresult

from tuplegate.direct_future import DirectFuture
from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.connections.server_errors import STREAM_IT, TOO_WIDE, check, explain_width, is_internal
from tuplegate.engine.libpq.pools.frequent_statements import LENGTH_MAX, KeptStatement, Key
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.libpq.statements.parameters import needs_describing, write_params, write_texts
from tuplegate.engine.libpq.statements.rows import RowCollector
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.query.preparing import find_prepared, judge, read_statement
from tuplegate.engine.postgres.replication.positions import read_answer
from tuplegate.engine.postgres.rules.blocks import COMMIT_BLINDLY, NUMBER, WAIT, open_for
from tuplegate.engine.postgres.rules.statements import (
    allow_steps,
    chunk_rows,
    find_size_check,
    lacks_disk,
    may_commit_lazily,
    may_write,
    must_only_read,
)
from tuplegate.engine.postgres.safety.sizes import DISK_LOW, SizeCheck, vacuum_runs_code
from tuplegate.engine.run.ends import explain_full
from tuplegate.engine.run.run import RepeatableRun
from tuplegate.engine.run.runner import Runner, check_tag
from tuplegate.engine.run.steps import Does, Step
from tuplegate.engine.sql.facts import Facts, Leftovers, is_plain_tag, read_facts
from tuplegate.engine.sql.templates import Form, find_template


# size: it carries what one attempt has found out from one exchange with the engine to the next.
class Execution(RepeatableRun[Pool, port.Result]):
    """One statement of the port's `query`. `as_sent` runs the very text, without a prepared statement.

    Of one attempt: `applied` means that it is committed, whatever fails from then on. `wrote`: it may have written.
    `lazy`: its commit may not have waited for the disk. `runs_code`: it is a VACUUM, and runs the tenant's code.
    `unjudged`: it is frequent, and is prepared from now on if its columns allow it. `asked` is the question for the
    engine's position, if that was sent along with the statement.
    """

    def __init__(
        self, pool: Pool, target: port.Target, statement: port.Statement, bounds: port.Bounds, deadline: float
    ) -> None:
        super().__init__(pool, target, bounds, deadline)
        self.statement = statement
        self.as_sent = False
        self._facts: Facts | None = None

    def begin(self, member: Member) -> None:
        super().begin(member)
        self.applied = False
        self.lazy = False
        self.wrote = True
        self.prepared = False
        self.runs_code = False
        self.unjudged: Form | None = None
        self.asked: DirectFuture[list[PGresult]] | None = None

    @property
    def facts(self) -> Facts:
        """Return the facts about the text. For a prepared statement they were read when it was prepared."""
        if self._facts is None:
            self._facts = read_facts(self.statement.sql, self.statement.keyword)
        return self._facts

    @property
    def writes(self) -> bool:
        return may_write(self.target, self.facts, self.pool) and not self.facts.works_in_steps

    @property
    def may_grow(self) -> bool:
        return self.access is port.Access.WRITE and (self.statement.keyword != "vacuum" or self.runs_code)

    @property
    def keywords(self) -> list[str]:
        return [self.statement.keyword]

    @property
    def contends(self) -> bool:
        return may_write(self.target, self.facts, self.pool)

    @property
    def must_commit(self) -> bool:
        return self.target.may_write and self.facts.may_write

    async def check_conflict(self, conflict: port.Conflict) -> None:
        # What commits in steps of its own cannot be started over.
        if self.applied or self.facts.is_concurrent:
            raise conflict

    def adapt(self, failure: port.StatementFailed, *, fresh: bool) -> bool:
        if self.applied:
            return False
        if not self.facts.works_in_steps and self.adapt_connection(failure, fresh=fresh):
            return True
        if self.prepared and failure.never_ran:
            self.as_sent = True  # so that the error speaks of the text that its writer knows, or there is none
            return True
        return self.adapt_types(failure, (self.statement,))

    async def run(self, now: float) -> port.Result:
        member, statement = self.member, self.statement
        state = self.pool.state
        started = perf_counter_ns()
        had_code = state.has_code
        # What is prepared could be seen by code.
        keeps = state.may_keep and not had_code and not self.as_sent
        template = find_template(statement.sql, statement.keyword) if keeps and not statement.params else None
        key: Key | None = None
        if template is not None:
            key = (template.text, template.types)
        elif keeps and len(statement.sql) <= LENGTH_MAX:
            key = (statement.sql, ())
        kept = None if key is None else member.kept.get(key)
        facts = self._facts = read_statement(statement, template) if kept is None else kept.facts
        self.lazy = may_commit_lazily(self.target, facts, self.pool)
        plain = facts.plain
        if not plain:
            state.begin_doubt()
        if member.kept and (state.has_code or not plain):
            member.hide_kept()
        try:
            values = None if not plain or self.describe else write_texts(statement, state.encoders.types)
            has_doubt = (state.has_code or self.lazy) and self._must_tell_writes()
            if values is None or state.full_at is not None or has_doubt:
                result = await self._run_carefully()
            else:
                rows = RowCollector(self.pool.encoders, self.member, self.statement.shape, self.bounds)
                first: list[Command] = []
                found = find_prepared(member, state, statement, key, template, kept, now, first)
                kept = found if isinstance(found, KeptStatement) else None
                if isinstance(found, Form):
                    self.unjudged = found
                if kept is not None and template is not None:
                    values = template.values
                results = await self._send(values, rows, kept, first)
                check(results)
                result = rows.finish(results[-1]) or await self._learn(results[-1], rows)
            if self.wrote and (self.lazy or self.pool.demands_standby):
                await self._see_final(facts)
        except port.StatementFailed as failure:
            failure.exec_us = (perf_counter_ns() - started) // 1000
            failure.notices, failure.statement = failure.notices + member.take_notices(), None
            self._give_back(None, broken=is_internal(failure), plain=plain)
            if self.was_cancelled(failure):
                raise self.explain_cancel(failure) from failure
            raise
        except RowsTooWide as wide:
            # What is known of code now is in doubt: a connection was cut off.
            raise self._explain_width(had_code, (perf_counter_ns() - started) // 1000) from wide
        except ConnectionLost as lost:
            raise self.explain_loss(lost) from lost
        except CopyStarted as copy:
            raise port.CopyRefused from copy
        except BaseException:
            self.pool.abandon(member)
            raise
        finally:
            if not plain:
                state.end_doubt()
        self.exec_us = result.exec_us = (perf_counter_ns() - started) // 1000
        result.attempts = self.attempt
        if member.has_notices:
            self._add_notices(result, key, kept)
        if self.unjudged is not None and key is not None:
            await judge(self.pool, member, self.unjudged, key, now, is_template=template is not None)
        if self.pool.position is not None:
            result.reached = await self._read_position(self.pool.position)
        self._give_back_used(result, now)
        return result

    async def _see_final(self, facts: Facts) -> None:
        """Return when what it may have written is so for good. Raises OutcomeUnknown."""
        if self.lazy:
            await self.pool.flush_commits(self.member, self.deadline)
        if self.pool.demands_standby and may_write(self.target, facts, self.pool):
            await self.pool.see_confirmed(self.member, self.deadline)

    def _give_back_used(self, result: port.Result, now: float) -> None:
        plain = self.facts.plain
        left = None if self.pool.must_inspect(plain, now) else self.facts.leftovers
        self._give_back(left, broken=plain and not is_plain_tag(result.tag), plain=plain)

    def _explain_width(self, had_code: bool, exec_us: int) -> port.EngineFailure:
        """Return the failure of a statement whose rows were too wide."""
        if self.access is port.Access.WRITE and (had_code or self.facts.may_write):
            return port.OutcomeUnknown(f"{TOO_WIDE}; what the statement wrote may or may not have been applied")
        return explain_width(STREAM_IT, exec_us)

    def _add_notices(self, result: port.Result, key: Key | None, kept: KeptStatement | None) -> None:
        """Add the notices. A statement that gave some is not kept prepared: it would give them only when it is
        planned."""
        result.notices = result.notices + self.member.take_notices()
        if key is not None:
            self.pool.state.often_seen.note_noise(key)
            if kept is not None:
                kept.runs = 0

    async def _read_position(self, question: list[Command]) -> bytes | None:
        """Return the engine's position after the statement's commit; None if the engine does not tell."""
        try:
            if self.asked is None:
                self.asked = self.member.send(question)
                self.member.flush()
            return read_answer(await self.asked)
        except ConnectionLost:
            return None
        except BaseException:
            self.pool.abandon(self.member)
            raise

    def _send(
        self, values: list[bytes | None] | None, rows: RowCollector, kept: KeptStatement | None, first: list[Command]
    ) -> DirectFuture[list[PGresult]]:
        """Send the statement, or its prepared form, behind the pending reset and the commands in `first`."""
        member = self.member
        reset = member.take_reset()
        commands = first if reset is None else [reset, *first]
        if kept is None:
            commands.append(Command(self.statement.sql.encode(), values or None, chunk_rows(self.facts, self.bounds)))
        else:
            self.prepared = True
            rows.expect(kept)
            commands.append(Command(b"", values, chunk_rows(self.facts, self.bounds), name=kept.name))
        answer = member.send(commands, rows.take)
        if self.pool.position is not None:
            self.asked = member.send(self.pool.position)  # on its own, so it is run after the commit
        member.flush()
        return answer

    async def _run_plainly(self, params: list[bytes | None] | None) -> port.Result:
        rows = RowCollector(self.pool.encoders, self.member, self.statement.shape, self.bounds)
        results = await self._send(params, rows, None, [])
        check(results)
        return rows.finish(results[-1]) or await self._learn(results[-1], rows)

    async def _run_carefully(self) -> port.Result:
        """Run a statement that needs more than one exchange with the engine."""
        await self.pool.freshen(self.member)
        size_check = await find_size_check(self.pool, self.member, self.target, self.facts)
        if must_only_read(self.facts, size_check):
            self.access = port.Access.READ
            return await self._run_reading(size_check)
        if self.statement.keyword in ("call", "do"):
            # They can make a trigger that runs at the commit, behind what makes that durable.
            self.lazy = self.target.may_write
            return await self._run_in_block(size_check)
        if self.statement.keyword == "vacuum" and self.pool.state.has_code:
            self.runs_code = await vacuum_runs_code(self.member)
        if size_check is not None:
            return await self._run_within(size_check)
        if self.must_ask(0) or self._must_tell_writes():
            return await self._run_in_block(None)
        await allow_steps(self.member, self.facts)
        return await self._run_plainly(await self._write_params())

    async def _write_params(self) -> list[bytes | None] | None:
        params = await write_params(self.pool.encoders, self.member, self.statement, self, describe=self.describe)
        self.check_ended()
        return params

    async def _run_reading(self, size_check: SizeCheck | None) -> port.Result:
        """Run the statement where nothing may be written."""
        try:
            return await self._run_in_block(None)
        except port.StatementFailed as failure:
            if lacks_disk(failure, size_check):
                raise explain_full(DISK_LOW) from failure
            raise

    async def _run_within(self, size_check: SizeCheck) -> port.Result:
        """Run the statement in a full database: in a block, so that its effect on the size is known before the
        commit."""
        try:
            return await self._run_in_block(size_check)
        except port.StatementFailed as failure:
            if failure.sqlstate == "25001" and failure.context is None:
                # What cannot run in a block cannot be looked at either.
                raise explain_full(size_check.bound) from failure
            raise

    def _must_tell_writes(self) -> bool:
        """Return whether to run in a block, where the engine tells before the commit whether the statement has written:
        its text does not tell, and a commit that wrote must be waited for. Code that could fill its session is checked
        there, too."""
        state = self.pool.state
        may_run = state.has_lasting_code or self.lazy or (state.has_code and self.pool.demands_standby)
        return may_run and self.target.may_write and (self.facts.is_reader or self.facts.is_change)

    async def _run_in_block(self, size_check: SizeCheck | None) -> port.Result:
        runner = Runner(self.member)
        rows = RowCollector(self.pool.encoders, self.member, self.statement.shape, self.bounds)
        runner.expect([rows])
        script = [*open_for(self.access, on_replica=self.target.on_replica), Step(Does.RUN, statement=0)]
        if size_check is not None:
            await runner.run(script, self)
            await size_check.check(self.member)
            script = []
        answers = await runner.run([*script, NUMBER, WAIT, COMMIT_BLINDLY], self)
        self.wrote = answers[Does.NUMBER].get_value(0, 0) is not None
        check_tag(answers, Does.COMMIT, b"COMMIT")
        self.applied = True
        [result] = await runner.results()
        result.notices += runner.notices
        return result

    # -- the runner's writer ------------------------------------------------------------------------------------

    def must_ask(self, statement: int) -> bool:
        """Return whether the parameters depend on types that the engine must be asked for. Then the statement runs in
        the same block as the question, which locks the tables as they were described."""
        return bool(self.statement.params) and (self.describe or needs_describing(self.statement))

    async def write(self, statement: int) -> list[Step]:
        params = await self._write_params()
        in_chunks = self.facts.keyword not in ("call", "do")
        rows_at_once = chunk_rows(self.facts, self.bounds) if in_chunks else 0
        return [Step(Does.RUN, Command(self.statement.sql.encode(), params, rows_at_once), statement=statement)]

    def write_own(self, step: Step) -> list[Step]:
        return [step]

    def check(self, steps: Sequence[Step], results: Sequence[PGresult]) -> None:
        pass

    async def _learn(self, last: PGresult, rows: RowCollector) -> port.Result:
        self.applied = True
        return await rows.learn(self.member, last)

    def _give_back(self, left: Leftovers | None, *, broken: bool = False, plain: bool = False) -> None:
        """Give the connection back. `left` is None if it must be inspected; a `broken` one is not used again."""
        if broken:
            self.pool.retire(self.member)
        elif self.ended is not None:
            self.pool.abandon(self.member)
        elif left is None:
            self.pool.give_back_unclean(self.member, plain=plain)
        else:
            self.pool.give_back(self.member, left)
        if self.facts.changes_types:
            self.pool.encoders.forget()
