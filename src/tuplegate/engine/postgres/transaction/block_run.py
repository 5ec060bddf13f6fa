"""Runs the statements of a transaction in a block, up to where it is decided."""

import asyncio
from typing import Final

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.direct_future import DirectFuture
from tuplegate.engine import port
from tuplegate.engine.libpq.commands import Command, ConnectionLost
from tuplegate.engine.libpq.failures import check, to_failure
from tuplegate.engine.libpq.leftovers import Leftovers, read_text
from tuplegate.engine.libpq.parameters import needs_describing, write_params
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.libpq.rows import Budget, RowCollector
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.query.preparing import Preparing, prepares
from tuplegate.engine.postgres.query.rules import CURSORS, NUMBER, begin, changes_types, chunk_rows
from tuplegate.engine.postgres.query.run import RepeatableRun
from tuplegate.engine.postgres.safety.sizes import SizeCheck, check_keyword

_NOTICES_MAX: Final = 100
_ERROR: Final = int(pq.ExecStatus.FATAL_ERROR)
_IN_BLOCK: Final = int(pq.TransactionStatus.INTRANS)
_LOST: Final = int(pq.TransactionStatus.UNKNOWN)
PREPARED_LENGTH_MAX: Final = 16 * 1024
"""Of all statements together. To look for literals takes the event loop up to half a millisecond for 1,000
characters."""

# The query of a cursor WITH HOLD runs at the commit, and can write there.
_NUMBER_OF_HELD: Final = Command(
    b"SELECT CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_cursors c WHERE c.is_holdable)"
    b" THEN pg_catalog.pg_current_xact_id() ELSE pg_catalog.pg_current_xact_id_if_assigned() END",
    begins=False,
)
CHECK_NOW: Final = Command(b"SET CONSTRAINTS ALL IMMEDIATE", begins=False)
_NEW_NUMBER: Final = Command(b"SELECT pg_catalog.pg_current_xact_id()", begins=False)
# Statements, parameters and records are sent in UTF-8, whatever the statement before them has set.
SPEAK_UTF8: Final = Command(b"SET LOCAL client_encoding = 'UTF8'", begins=False)


class BlockRun(RepeatableRun[port.TransactionResult]):
    """The statements of one transaction, and what came of them.

    `_is_clean`: what its statements left on the connection was removed together with the commit. `_as_sent`: nothing of
    it runs prepared. `_claim` comes before the statements.
    """

    def __init__(
        self, pool: Pool, target: port.Target, statements: list[port.Statement], bounds: port.Bounds, deadline: float
    ) -> None:
        super().__init__(pool, target, bounds, deadline)
        self.statements = statements
        self.is_read_only = not target.may_write
        self._as_sent = False
        self._readings = [read_text(statement.sql, statement.keyword) for statement in statements]
        self.is_plain = all(reading.plain for reading in self._readings)

    def begin(self, member: Member) -> None:
        super().begin(member)
        self._reset: DirectFuture[list[PGresult]] | None = None
        self._is_clean = False
        self._rows: list[RowCollector] = []
        self._closing: list[PGresult] = []
        self._notices: list[port.Notice] = []
        self._preparing: Preparing | None = None
        self._claim: Command | None = None

    # `writes` is False: it asks the guard itself before it prepares, when it is known whether it has written.

    @property
    def may_grow(self) -> bool:
        return not self.is_read_only

    @property
    def keywords(self) -> list[str]:
        return [statement.keyword for statement in self.statements]

    @property
    def contends(self) -> bool:
        return not self.is_read_only

    async def _run_block(self, *, numbered: bool) -> int | None:
        """Run the statements. Return the engine's number for the transaction, or None if it has written nothing.
        `numbered`: it gets one all the same."""
        state = self.pool.state
        has_code = state.has_code
        if has_code or not self.is_plain:
            self.member.hide_kept()
        self._reset = self.pool.freshen_ahead(self.member)
        full_at = None if self.is_read_only else state.full_at
        size_check = None if full_at is None else await self._make_size_check(full_at)
        access = port.Access.READ if self.is_read_only else port.Access.WRITE
        budget = Budget(self.bounds.bytes_max)
        length = sum(len(statement.sql) for statement in self.statements)
        keeps = state.may_keep and not has_code and not self._as_sent
        if self.is_plain and keeps and length <= PREPARED_LENGTH_MAX:
            self._preparing = Preparing(self.pool, self.member, asyncio.get_running_loop().time())
        waiting: list[Command] = begin(access, on_replica=self.target.on_replica)
        if self.is_plain:
            # What is plain cannot change the isolation, and takes its snapshot with its first statement.
            waiting = self._put_own(waiting[0])
        if self._claim is not None:
            waiting.append(self._claim)
        owners: list[int | None] = [None] * len(waiting)
        for index, statement in enumerate(self.statements):
            rows = RowCollector(self.pool.encoders, self.member, statement.shape, self.bounds, budget=budget)
            self._rows.append(rows)
            is_described = bool(statement.params) and (self.describe or needs_describing(statement))
            if is_described:
                await self._send(waiting, owners)
                waiting, owners = [], []
            params = await self._params(index, statement) if self._must_write_params(statement) else None
            rows_at_once = chunk_rows(statement, self.bounds)
            if self._preparing is None or is_described:
                waiting.append(Command(statement.sql.encode(), params, rows_at_once, begins=False))
            else:
                waiting += self._preparing.put(index, statement, params, rows_at_once, rows)
                owners += [None] * (len(waiting) - len(owners) - 1)
            owners.append(index)
            if has_code or not self._readings[index].plain:
                waiting.append(SPEAK_UTF8)
                owners.append(None)
        # Deferred checks run now, while the time limit still holds.
        waiting += self._put_own(CHECK_NOW)
        owners += [None] * (len(waiting) - len(owners))
        if not self.is_read_only and (has_code or not self.is_plain):
            waiting.append(state.ready_to_commit)
            owners.append(None)
        # A notification is something to commit, though the engine gives it no number before.
        numbered = numbered or any("notify" in statement.sql.lower() for statement in self.statements)
        waiting += self._ask_number(numbered=numbered, careful=has_code or not self.is_plain)
        owners += [None] * (len(waiting) - len(owners))
        results = await self._send(waiting, owners)
        status = self.member.pgconn.transaction_status
        if status == _LOST:
            raise ConnectionLost("the connection was lost right behind the answer")
        if status != _IN_BLOCK:
            raise port.StatementFailed("a statement ended the transaction", sqlstate="25P01")
        if size_check is not None:
            await size_check.check(self.member)
        number = results[-1].get_value(0, 0)
        return int(number) if number is not None else None

    def _ask_number(self, *, numbered: bool, careful: bool) -> list[Command]:
        """Return what asks for the engine's number; the last command does. `numbered`: it gets one even if it wrote
        nothing."""
        if numbered and not self.is_read_only:
            return [_NEW_NUMBER]
        if careful:
            return [NUMBER] if self.is_read_only else [_NUMBER_OF_HELD]
        return self._put_own(NUMBER)

    def _put_own(self, command: Command) -> list[Command]:
        """Return what runs a command of the service's own: prepared, where statements may be."""
        return [command] if self._preparing is None else self._preparing.put_own(command)

    async def _make_size_check(self, full_at: int) -> SizeCheck:
        """Return the check that a transaction in a full database must pass."""
        for index, statement in enumerate(self.statements):
            try:
                check_keyword(full_at, statement.keyword, reads=statement.keyword in CURSORS)
            except port.StatementFailed as exc:
                exc.statement = index
                raise
        return await SizeCheck.before(self.member, self.pool.state, full_at)

    def _must_write_params(self, statement: port.Statement) -> bool:
        """Return whether `_params` has something to do, or to say."""
        return bool(statement.params) or self.describe or self.ended is not None

    async def _params(self, index: int, statement: port.Statement) -> list[bytes | None] | None:
        try:
            params = await write_params(self.pool.encoders, self.member, statement, self, describe=self.describe)
            self.check_ended()
        except port.StatementFailed as exc:
            exc.statement = index
            raise
        return params

    async def _send(self, commands: list[Command], owners: list[int | None]) -> list[PGresult]:
        """Send one segment inside the block and return its results. `owners` has the statement's index for each
        command, and None for those of the service."""
        if not commands:
            return []
        first = len(self._closing)

        def take(chunk: PGresult, command: int) -> None:
            owner = owners[command]
            if owner is not None:
                self._rows[owner].take(chunk)

        answer = self.member.send(commands, take)
        self.member.flush()
        results = await answer
        if self._reset is not None:
            check(self._reset.result())
            self._reset = None  # it has been seen to be good
        self._notices = (self._notices + self.member.take_notices())[:_NOTICES_MAX]
        for position, result in enumerate(results):
            if result.status == _ERROR:
                raise _failure_of(result, commands, owners, position)
        check(results)
        if self._preparing is not None:
            self._preparing.is_in_doubt = False
        self._closing += [r for r, owner in zip(results, owners, strict=False) if owner is not None]
        assert len(self._closing) - first == sum(owner is not None for owner in owners)
        return results

    def _find_result(self, index: int) -> port.Result | None:
        """Return the result of a statement; None where the types of its columns must be asked for first."""
        return self._rows[index].finish(self._closing[index])

    async def _learn_result(self, index: int) -> port.Result:
        """Ask for the types, and return the result."""
        return await self._rows[index].learn(self.member, self._closing[index])

    def _find_left(self) -> Leftovers:
        """Return the most that a statement has left on the connection."""
        left = [reading.leftovers for reading in self._readings]
        if Leftovers.ANYTHING in left:
            return Leftovers.ANYTHING
        return Leftovers.SEQUENCES if Leftovers.SEQUENCES in left else Leftovers.NOTHING

    def _may_change_types(self) -> bool:
        return any(changes_types(statement.keyword) for statement in self.statements)

    def _give_back(self, *, broken: bool = False) -> None:
        plain = self.is_plain
        if broken:
            self.pool.retire(self.member)
        elif self.ended is not None or self.member.closed:
            self.pool.abandon(self.member)
        elif (
            self._reset is not None
            or (self._preparing is not None and self._preparing.is_in_doubt)
            or self.pool.must_inspect(plain, asyncio.get_running_loop().time())
        ):
            self.pool.give_back_unclean(self.member, plain=plain)
        else:
            self.pool.give_back(self.member, Leftovers.NOTHING if self._is_clean else self._find_left())
        if self._may_change_types():
            self.pool.encoders.forget()


def _failure_of(result: PGresult, commands: list[Command], owners: list[int | None], position: int) -> Exception:
    failure = to_failure(result)
    if isinstance(failure, port.StatementFailed) and position < len(owners):
        failure.statement = owners[position]
        failure.never_ran = failure.never_ran or prepares(commands[position])
    return failure
