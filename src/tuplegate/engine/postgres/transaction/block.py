"""A block on one connection: the statements that run in it, and their leftovers on the connection.

`Block` is the writer of its runner: it turns the steps of a script into commands for this connection's prepared
statements.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import IN_BLOCK, Command, ConnectionLost
from tuplegate.engine.libpq.connections.server_errors import find_error
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.libpq.statements.parameters import needs_describing, write_params
from tuplegate.engine.libpq.statements.rows import Budget, RowCollector
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.query.preparing import Preparing
from tuplegate.engine.postgres.rules.blocks import ENCODE, FORGET, Nature, close_block, open_block, run_all
from tuplegate.engine.postgres.rules.statements import chunk_rows
from tuplegate.engine.postgres.safety.sizes import SizeCheck, check_keyword
from tuplegate.engine.run.run import Run
from tuplegate.engine.run.runner import Answers, Runner
from tuplegate.engine.run.steps import Does, Script, Step
from tuplegate.engine.sql.facts import Facts, Leftovers

_LOST: Final = int(pq.TransactionStatus.UNKNOWN)
PREPARED_LENGTH_MAX: Final = 16 * 1024
"""The bound on all statements together: searching them for literals blocks the event loop for up to half a millisecond
per 1,000 characters."""
_NO_NEW_FILES: Final = b"4294967295"
"""The number after which files count as new, if it is unknown."""


# size: it carries the leftovers of its statements from each to the next.
class Block:
    """The block of a run, on the run's connection.

    `plain`, `left`, `changes_types` and `notifies` are about all statements so far. `describe`: ask for the types of
    parameters. `as_sent`: nothing runs prepared. `is_unsure`: a command that prepares has failed, and it is unknown
    whether its statement is prepared. `must_encode`: a stream may have changed the encoding. `has_written`: the engine
    has said so of a statement.
    """

    def __init__(self, run: Run[Pool], *, read_only: bool) -> None:
        self.run = run
        self.read_only = read_only
        self.runner = Runner(run.member)
        self.facts: Sequence[Facts] = ()
        self.plain = True
        self.left = Leftovers.NOTHING
        self.changes_types = False
        self.notifies = False
        self.describe = False
        self.as_sent = False
        self.is_unsure = False
        self.must_encode = False
        self.has_written = False
        self.preparing: Preparing | None = None
        self.size_check: SizeCheck | None = None
        self._statements: Sequence[port.Statement] = ()
        self._in_doubt = False

    @property
    def pool(self) -> Pool:
        return self.run.pool

    @property
    def member(self) -> Member:
        return self.run.member

    # -- what runs next -----------------------------------------------------------------------------------------

    def take(self, statements: Sequence[port.Statement], facts: Sequence[Facts], budget: Budget | None = None) -> None:
        """Run these statements next."""
        bounds, encoders = self.run.bounds, self.pool.encoders
        budget = budget or Budget(bounds.bytes_max)
        self._statements, self.facts = statements, facts
        self.runner.expect([RowCollector(encoders, self.member, s.shape, bounds, budget=budget) for s in statements])
        for each in facts:
            self._note(each)

    def _note(self, facts: Facts) -> None:
        """Note the leftovers of a statement. A savepoint leaves nothing."""
        if facts.is_savepoint:
            return
        if not facts.plain and self.plain:
            self.plain = False
            self._in_doubt = True
            self.pool.state.begin_doubt()
        if self.left is not Leftovers.ANYTHING and facts.leftovers is not Leftovers.NOTHING:
            self.left = facts.leftovers
        self.changes_types = self.changes_types or facts.changes_types
        self.notifies = self.notifies or facts.notifies

    @property
    def careful(self) -> bool:
        """Return whether its statements could have effects that their texts do not show."""
        return self.pool.state.has_code or not self.plain

    def end_doubt(self) -> None:
        """Let others see its definitions, if it was committed."""
        if self._in_doubt:
            self._in_doubt = False
            self.pool.state.end_doubt()

    def let_go(self) -> None:
        """Forget the statements that have ended: their rows would stay in memory until the next request."""
        self._statements = ()
        self.runner.expect([])

    # -- size ---------------------------------------------------------------------------------------------------

    @property
    def full_at(self) -> int | None:
        """Return the bound that its database has reached; None if the database may grow, or nothing is written."""
        return None if self.read_only else self.pool.state.full_at

    def refuse_growth(self) -> None:
        """Raise if a statement may not run in a full database."""
        full_at = self.full_at
        if full_at is None:
            return
        for number, facts in enumerate(self.facts):
            try:
                if not facts.is_savepoint:
                    check_keyword(full_at, facts.keyword, reads=facts.is_query)
            except port.StatementFailed as exc:
                exc.statement = number
                raise

    async def measure(self) -> None:
        """Prepare the size check before anything runs, if the database is full."""
        full_at = self.full_at
        if full_at is not None:
            self.size_check = await SizeCheck.before(self.member, self.pool.state, full_at)

    async def _check_size(self) -> None:
        full_at = self.full_at
        if self.size_check is None and full_at is not None:  # it was not full yet when this began
            self.size_check = SizeCheck(self.pool.state, full_at, _NO_NEW_FILES)
        if self.size_check is not None:
            await self.size_check.check(self.member)

    # -- running ------------------------------------------------------------------------------------------------

    def nature(self, *, numbered: bool = False) -> Nature:
        return Nature(
            read_only=self.read_only,
            on_replica=self.run.target.on_replica,
            plain=self.plain,
            has_code=self.pool.state.has_code,
            numbered=numbered or self.notifies,
        )

    def begin(self) -> None:
        """Send the pending reset ahead of everything."""
        self.runner.reset = self.pool.freshen_ahead(self.member)

    async def run_whole(self, claim: Command | None, *, numbered: bool) -> int | None:
        """Run the statements of a transaction from its beginning to its decision. Return the engine's number for it, or
        None if it has written nothing. `numbered`: it gets one in any case. `claim` comes before the statements."""
        if self.careful:
            self.member.hide_kept()
        self.begin()
        self.refuse_growth()
        await self.measure()
        nature = self.nature(numbered=numbered)
        script = close_block(nature, run_all(nature, self.facts))
        return await self.close([Step(Does.CLAIM, claim), *script] if claim is not None else script)

    @property
    def is_open(self) -> bool:
        return self.runner.sent > 0

    async def carry_out(self, script: Script) -> Answers:
        """Carry out steps inside of the block, after those that open it and those that remove prepared statements or
        set the encoding back. In a failed block the latter cannot run; they follow when it has gone back to a
        savepoint."""
        member, runner = self.member, self.runner
        takes = not self.is_open or member.pgconn.transaction_status == IN_BLOCK
        forgets, encodes = takes and self.careful and bool(member.kept), takes and self.must_encode
        script = [*([FORGET] if forgets else []), *([ENCODE] if encodes else []), *script]
        if not self.is_open:
            takes_snapshot = not all(facts.plain for facts in self.facts)
            script = open_block(self.nature(), script, takes_snapshot=takes_snapshot)
        sent = runner.sent
        try:
            return await runner.run(script, self)
        finally:
            if runner.sent > sent:
                self.must_encode = self.must_encode and not encodes
                if forgets and runner.failed is not FORGET:
                    member.kept.clear()

    async def send(self, script: Script) -> Answers:
        """Carry out steps after the block."""
        return await self.runner.run(script, self)

    async def close(self, script: Script) -> int | None:
        """Run a script that ends with the question for the number. Return the number, or None."""
        answers = await self.carry_out(script)
        status = self.member.pgconn.transaction_status
        if status == _LOST:
            raise ConnectionLost("the connection was lost right behind the answer")
        if status != IN_BLOCK:
            raise port.StatementFailed("a statement ended the transaction", sqlstate="25P01")
        await self._check_size()
        return read_number(answers)

    # -- the runner's writer ------------------------------------------------------------------------------------

    def must_ask(self, statement: int) -> bool:
        one = self._statements[statement]
        return bool(one.params) and (self.describe or needs_describing(one))

    async def write(self, statement: int) -> list[Step]:
        one = self._statements[statement]
        params = None
        try:
            if one.params or self.describe:
                params = await write_params(self.pool.encoders, self.member, one, self.run, describe=self.describe)
            self.run.check_ended()
        except port.StatementFailed as exc:
            exc.statement = statement
            raise
        rows_at_once = chunk_rows(self.facts[statement], self.run.bounds)
        commands = [Command(one.sql.encode(), params, rows_at_once, begins=False)]
        if self.may_prepare(statement) and self.preparing is not None and len(one.sql) <= PREPARED_LENGTH_MAX:
            commands = self.preparing.put(statement, one, params, rows_at_once, self.runner.rows[statement])
        *before, last = commands
        return [*(Step(Does.PREPARE, each) for each in before), Step(Does.RUN, last, statement=statement)]

    def write_own(self, step: Step) -> list[Step]:
        preparing = self._find_preparing()
        assert step.command is not None, "a step of the service's own has its text"
        if preparing is None:
            return [step]
        *before, last = preparing.put_own(step.command)
        own = Step(step.does, last, failed=step.failed, lost=step.lost)
        return [*(Step(Does.PREPARE, each) for each in before), own]

    def may_prepare(self, statement: int) -> bool:
        """Return whether the statement can run prepared."""
        if self.must_ask(statement) or self.facts[statement].is_savepoint:
            return False
        return self._find_preparing() is not None

    def _find_preparing(self) -> Preparing | None:
        """Return the preparer of statements, or None if none may be prepared: statements that are not plain could see
        them."""
        state = self.pool.state
        if self.as_sent or self.is_unsure or not self.plain or state.has_code or not state.may_keep:
            return None
        if self.preparing is None:
            if sum(len(statement.sql) for statement in self._statements) > PREPARED_LENGTH_MAX:
                return None
            self.preparing = Preparing(self.pool, self.member, asyncio.get_running_loop().time())
        return self.preparing

    def check(self, steps: Sequence[Step], results: Sequence[PGresult]) -> None:
        """If nothing has failed, the statements to prepare are prepared."""
        if self.preparing is not None and find_error(list(results)) is None:
            self.preparing.is_in_doubt = False

    # -- the end ------------------------------------------------------------------------------------------------

    async def judge(self) -> None:
        """Judge, after the commit, which statements may be prepared next time."""
        if self.preparing is None:
            return
        if self.runner.notices:
            self.preparing.note_noise()
        if self.preparing.has_unjudged:
            await self.preparing.judge()

    def give_back(self, *, broken: bool = False) -> None:
        """Give the connection back. Nothing may run on a `broken` one any more."""
        member, pool = self.member, self.pool
        member.on_closed = None
        if broken:
            pool.retire(member)
        elif self.run.ended is not None or member.closed:
            pool.abandon(member)
        elif self._must_inspect():
            pool.give_back_unclean(member, plain=self.plain)
        else:
            pool.give_back(member, self.left)
        if self.changes_types:
            pool.encoders.forget()

    def _must_inspect(self) -> bool:
        if self.runner.reset is not None or self.is_unsure:
            return True
        if self.preparing is not None and self.preparing.is_in_doubt:
            return True
        return self.pool.must_inspect(self.plain, asyncio.get_running_loop().time())


def read_number(answers: Answers) -> int | None:
    answer: PGresult = answers[Does.NUMBER]
    text = answer.get_value(0, answer.nfields - 1)
    return None if text is None else int(text)
