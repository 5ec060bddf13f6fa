"""Runs one statement for the port's `query`: parameters, the block it needs, rows within bounds, what went wrong.

A statement runs at SERIALIZABLE, which is in the connection's start-up options, in a transaction of its own:

- plainly, so that VACUUM and the like work, with its reset in the same write; prepared, where it comes often;
- VACUUM and what else commits in steps of its own at REPEATABLE READ: its steps take no place in the engine's pool of
  serializable transactions (see `guard`), however many there are;
- CALL and DO inside a block that the service opened, where COMMIT is refused by the engine; in a database that is full
  (see `sizes`) everything.
"""

from time import perf_counter_ns
from typing import Final, Protocol

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.direct_future import DirectFuture
from tuplegate.engine import port
from tuplegate.engine.libpq.connection import (
    CHUNK_ROWS,
    TOO_WIDE,
    Command,
    ConnectionLost,
    CopyStarted,
    RowsTooWide,
)
from tuplegate.engine.libpq.failures import check, find_error, is_internal, is_panic
from tuplegate.engine.libpq.kept import LENGTH_MAX, Kept, Key, is_lasting
from tuplegate.engine.libpq.leftovers import WRITES, Leftovers, Reading, fold, read_text
from tuplegate.engine.libpq.parameters import texts_of, write_params
from tuplegate.engine.libpq.plans import (
    ANY_NUMBER,
    CUSTOM_PLANS,
    Verdict,
    ask_for_columns,
    judge_template,
    judge_text,
    read_columns,
)
from tuplegate.engine.libpq.rows import RowCollector, affected_rows
from tuplegate.engine.libpq.templates import Form, Template, find_form, find_template
from tuplegate.engine.postgres.pool import Member, Pool
from tuplegate.engine.postgres.replication.positions import read_answer
from tuplegate.engine.postgres.safety.sizes import CODE_IN_VACUUM, DISK_LOW, Room, check_keyword, full, vacuum_runs_code

_TUPLES: Final = int(pq.ExecStatus.TUPLES_OK)
_COMMAND: Final = int(pq.ExecStatus.COMMAND_OK)

# A template calls nothing.
_TEMPLATE_READ: Final = Reading(plain=True, names_settings=False, leftovers=Leftovers.NOTHING)
_TEMPLATE_WRITTEN: Final = Reading(plain=True, names_settings=False, leftovers=Leftovers.SEQUENCES)

_NO_PARAMETERS: Final = Verdict(ANY_NUMBER)

# In a block the snapshot is taken at once, so that neither isolation nor read-only can be changed after it.
_BEGIN: Final = {
    port.Access.WRITE: Command(b"BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE"),
    port.Access.READ: Command(b"BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY"),
}
_BEGIN_ON_REPLICA: Final = Command(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", begins=False)
_SNAPSHOT: Final = Command(b"SELECT 1", begins=False)
_COMMIT: Final = Command(b"COMMIT", begins=False)
NUMBER: Final = Command(b"SELECT pg_catalog.pg_current_xact_id_if_assigned()", begins=False)
"""The engine's for the transaction, if that has written anything."""
CURSORS: Final = frozenset({"select", "with", "values", "table", ""})
"""First words of what can be a cursor; "" is an opening parenthesis. The engine has the last word."""

_IN_STEPS: Final = frozenset({"vacuum", "analyze", "analyse", "reindex", "cluster", "repack"})
"""First words of statements that begin a transaction for every table they work on."""
_STEPS_MAX: Final = 8
"""Transactions that any other statement can begin, at most: CREATE INDEX CONCURRENTLY begins four."""
_LEAVE_SERIALIZABLE: Final = Command(b"SET default_transaction_isolation = 'repeatable read'", begins=False)

ENCODING_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
}
"""The settings under which the server writes the text that this service promises."""


def begin(access: port.Access, *, on_replica: bool) -> list[Command]:
    """Opens a block whose isolation and rights no statement in it can change. A replica cannot be serializable."""
    return [_BEGIN_ON_REPLICA if on_replica else _BEGIN[access], _SNAPSHOT]


def works_in_steps(statement: port.Statement) -> bool:
    """Return whether the statement may begin any number of transactions, one after the other."""
    return statement.keyword in _IN_STEPS


async def allow_steps(member: Member, statement: port.Statement) -> None:
    """Make sure that the steps of a statement that runs outside of a block do not outrun the guard's count.

    The level of the session holds until its reset. Text that only looks like steps is counted too high, which does no
    harm.
    """
    if works_in_steps(statement):
        check(await member.run(_LEAVE_SERIALIZABLE))
    elif "concurrently" in statement.sql.lower():
        member.meter.count(_STEPS_MAX)


class Execution:
    """One try of one statement on one connection. `deadline` is on the loop's clock.

    `describe` asks for the types of its parameters first; `as_sent` runs the very text, whatever was prepared.
    """

    __slots__ = (
        "applied", "as_sent", "asked", "begun", "bounds", "crowding", "deadline", "describe", "filling", "lazy",
        "member", "outlived", "pool", "prepared", "runs_code", "shape", "statement", "stopping", "target", "timed_out",
        "unjudged",
    )  # fmt: skip

    def __init__(
        self,
        pool: Pool,
        member: Member,
        target: port.Target,
        statement: port.Statement,
        shape: port.Shape,
        bounds: port.Bounds,
        deadline: float,
        describe: bool,
        as_sent: bool,
    ) -> None:
        self.pool = pool
        self.member = member
        self.target = target
        self.statement = statement
        self.shape = shape
        self.bounds = bounds
        self.deadline = deadline
        self.describe = describe
        self.as_sent = as_sent
        self.applied = False
        """It is committed, whatever fails from then on."""
        self.lazy = False
        self.prepared = False
        self.runs_code = False
        """It is a VACUUM, and runs code of the tenant's own."""
        self.unjudged: Form | None = None
        """It comes often, and is prepared from now on if its columns allow it."""
        self.timed_out = False
        self.stopping = False
        self.outlived = False
        self.crowding = False
        self.filling: int | None = None
        self.begun = 0
        self.asked: DirectFuture[list[PGresult]] | None = None
        """The question for the engine's position, where it went along with the statement."""

    @property
    def writes(self) -> bool:
        return may_write(self.target, self.statement, self.pool) and not works_in_steps(self.statement)

    async def run(self, now: float) -> port.Result:
        """Runs it and gives the connection back, whatever happens."""
        member = self.member
        statement = self.statement
        state = self.pool.state
        started = perf_counter_ns()
        had_code = state.has_code
        # What is prepared could be seen by code.
        keeps = not had_code and not self.as_sent
        template = find_template(statement.sql, statement.keyword) if keeps and not statement.params else None
        key: Key | None = None
        if template is not None:
            key = (template.text, template.types)
        elif keeps and len(statement.sql) <= LENGTH_MAX:
            key = (statement.sql, ())
        kept = None if key is None else member.kept.get(key)
        if kept is not None:
            reading = kept.reading
        elif template is not None:
            reading = _TEMPLATE_READ if statement.keyword == "select" else _TEMPLATE_WRITTEN
        else:
            reading = read_text(statement.sql, statement.keyword)
        self.lazy = may_commit_lazily(self.target, reading, self.pool)
        plain = reading.plain
        if not plain:
            state.begin_doubt()
        if member.kept and (state.has_code or not plain):
            member.hide_kept()
        try:
            values = None if not plain or self.describe else texts_of(statement, state.encoders.types)
            # What runs code that could fill its session is looked at before it is committed.
            looked_at = state.full_at is not None or (state.has_lasting_code and self.target.may_write)
            if values is None or looked_at:
                result = await self._run_carefully()
            else:
                rows = RowCollector(self.pool, self.member, self.shape, self.bounds)
                first: list[Command] = []
                if key is not None:
                    kept = self._prepared(key, template, kept, reading, now, first)
                if kept is not None and template is not None:
                    values = template.values
                results = await self._send(values, rows, kept, first)
                result = self._read(results, rows) or await self._learned(results[-1], rows)
            if self.lazy:
                await self.pool.flush_commits()
            if self.pool.demands and may_write(self.target, statement, self.pool):
                await self.pool.see_confirmed()
        except port.StatementFailed as failure:
            failure.exec_us = (perf_counter_ns() - started) // 1000
            failure.notices = member.take_notices()
            self._give_back(None, broken=is_internal(failure), plain=plain)
            if was_ended(failure, self):
                raise ended(failure, self) from failure
            raise
        except RowsTooWide as wide:
            # What is known of code now is in doubt: a connection was cut off.
            if self.target.may_write and (had_code or text_may_write(statement)):
                raise _unknown_and_too_wide() from wide
            raise too_wide(STREAM_IT, (perf_counter_ns() - started) // 1000) from wide
        except ConnectionLost as lost:
            raise what_lost_means(lost, self.target.access, self) from lost
        except CopyStarted as copy:
            raise port.CopyRefused from copy
        except BaseException:
            self.pool.abandon(member)
            raise
        finally:
            if not plain:
                state.end_doubt()
        result.exec_us = (perf_counter_ns() - started) // 1000
        if member.has_notices:
            result.notices = result.notices + member.take_notices()
            if key is not None:
                state.often_seen.note_noise(key)
                if kept is not None:
                    kept.runs = 0
        if self.unjudged is not None and key is not None:
            await self._judge(self.unjudged, key, template, now)
        if self.pool.position is not None:
            result.reached = await self._position(self.pool.position)
        self._give_back(None if self.pool.inspects(plain, now) else reading.leftovers, plain=plain)
        return result

    def _prepared(
        self, key: Key, template: Template | None, kept: Kept | None, reading: Reading, now: float, first: list[Command]
    ) -> Kept | None:
        """What is prepared for the key, or will be by what comes `first`; None where the text runs as it was sent."""
        if kept is not None and (not kept.runs or kept.until <= now or kept.changes != self.pool.state.changes):
            first.append(Command(b"DEALLOCATE " + kept.name, begins=False))
            del self.member.kept[key]
            kept = None
        if kept is None:
            kept = self._prepare(key, template, reading, now, first)
        if kept is None or (template is not None and not kept.verdict.takes(template.values)):
            return None
        kept.runs -= 1
        return kept

    def _prepare(
        self, key: Key, template: Template | None, reading: Reading, now: float, first: list[Command]
    ) -> Kept | None:
        """None where it does not come often, where it would mean something else, or where that is not known yet."""
        often, changes = self.pool.state.often_seen, self.pool.state.changes
        if not often.note(key) or not is_lasting(key[0]):
            return None
        verdict = often.verdict(key, now, changes) if template is not None or self.statement.params else _NO_PARAMETERS
        if verdict is None:
            self.unjudged = find_form(key[0], self.statement.keyword)
            if self.unjudged is not None:
                return None
            verdict = Verdict(CUSTOM_PLANS)
            often.found(key, verdict, now, changes)
        if not verdict.runs:
            return None
        kept = self.member.kept[key] = Kept(reading, now, changes, verdict)
        first.append(Command(key[0].encode(), name=kept.name, types=key[1], begins=False))
        return kept

    async def _judge(self, form: Form, key: Key, template: Template | None, now: float) -> None:
        """Asks what the columns are, once the statement is through; another time, where the engine does not say."""
        changes = self.pool.state.changes
        try:
            results = await self.member.run(ask_for_columns(form))
            check(results)
        except (ConnectionLost, port.EngineFailure):
            return
        except BaseException:
            self.pool.abandon(self.member)
            raise
        columns = read_columns(results[-1])
        verdict = judge_text(form, columns) if template is None else judge_template(form, template.types, columns)
        self.pool.state.often_seen.found(key, verdict, now, changes)

    async def _position(self, question: list[Command]) -> bytes | None:
        """Where the engine is, now that the statement is committed; None where it does not say."""
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
        self, values: list[bytes | None] | None, rows: RowCollector, kept: Kept | None, first: list[Command]
    ) -> DirectFuture[list[PGresult]]:
        """Puts the statement, or what is kept of it, on the wire, behind the reset that is due and what is `first`."""
        member = self.member
        reset = member.take_reset()
        commands = first if reset is None else [reset, *first]
        if kept is None:
            commands.append(
                Command(self.statement.sql.encode(), values or None, chunk_rows(self.statement, self.bounds))
            )
        else:
            self.prepared = True
            rows.rows_of(kept)
            commands.append(Command(b"", values, chunk_rows(self.statement, self.bounds), name=kept.name))
        answer = member.send(commands, rows.take)
        if self.pool.position is not None:
            self.asked = member.send(self.pool.position)  # on its own, so it is run after the commit
        member.flush()
        return answer

    def _read(self, results: list[PGresult], rows: RowCollector) -> port.Result | None:
        """What came of it; None while a type of its rows is unknown."""
        check(results)
        last = results[-1]
        if not last.nfields and last.status != _TUPLES:
            return port.Result(b"[]", b"[]", b"[]", affected_rows(last))
        return rows.finished(last)

    async def _run_plainly(self, params: list[bytes | None] | None) -> port.Result:
        rows = RowCollector(self.pool, self.member, self.shape, self.bounds)
        results = await self._send(params, rows, None, [])
        return self._read(results, rows) or await self._learned(results[-1], rows)

    async def _run_carefully(self) -> port.Result:
        """Run what needs more than one exchange with the engine."""
        await self.pool.freshen(self.member)
        params = await write_params(self.pool, self.member, self.statement, self, describe=self.describe)
        if self.timed_out:  # what is sent from now on would not be cancelled any more
            raise why_ended(self)
        room = await find_room(self.pool, self.member, self.target, self.statement)
        reader = as_reader(self.target, self.statement, room)
        if reader is not self.target:
            self.target = reader
            return await self._run_reading(room, params)
        if self.statement.keyword in ("call", "do"):
            # They can make a trigger that runs at the commit, behind what makes that durable.
            self.lazy = self.target.may_write
            return await self._run_in_block(params, room)
        if self.statement.keyword == "vacuum" and self.pool.state.has_code:
            self.runs_code = await vacuum_runs_code(self.member)
        if room is not None:
            return await self._run_within(room, params)
        if self.statement.keyword in CURSORS | WRITES and self.pool.state.has_lasting_code and self.target.may_write:
            return await self._run_in_block(params, None)
        await allow_steps(self.member, self.statement)
        return await self._run_plainly(params)

    async def _run_reading(self, room: Room | None, params: list[bytes | None] | None) -> port.Result:
        """Run it where nothing may be written."""
        try:
            return await self._run_in_block(params, None)
        except port.StatementFailed as failure:
            if lacks_disk(failure, room):
                raise full(DISK_LOW) from failure
            raise

    async def _run_within(self, room: Room, params: list[bytes | None] | None) -> port.Result:
        """Run it in a database that is full: in a block, so that what it did is known before it is committed."""
        try:
            return await self._run_in_block(params, room)
        except port.StatementFailed as failure:
            if failure.sqlstate == "25001" and failure.context is None:
                raise full(room.bound) from failure  # what cannot run in a block cannot be looked at either
            raise

    async def _run_in_block(self, params: list[bytes | None] | None, room: Room | None) -> port.Result:
        rows = RowCollector(self.pool, self.member, self.shape, self.bounds)
        in_chunks = self.statement.keyword not in ("call", "do")
        rows_at_once = chunk_rows(self.statement, self.bounds) if in_chunks else 0
        statement = Command(self.statement.sql.encode(), params, rows_at_once)
        commit = [NUMBER, self.pool.state.ready_to_commit, _COMMIT]
        ending = commit if room is None else []
        answer = self.member.send(
            [*begin(self.target.access, on_replica=self.target.on_replica), statement, *ending], rows.take
        )
        self.member.flush()
        results = await answer
        check(results)
        notices: list[port.Notice] = []
        if room is not None:
            notices = self.member.take_notices()
            await room.check(self.member)
            results += await self.member.run(*commit)
            check(results)
        if results[-3].get_value(0, 0) is None:
            self.lazy = False  # it wrote nothing
        if results[-1].command_status != b"COMMIT":
            raise port.StatementFailed("the engine rolled the transaction back", sqlstate="40000")
        if not in_chunks and results[2].nfields:
            rows.take(results[2])
        result = self._read(results[2:3], rows) or await self._learned(results[2], rows)
        result.notices += notices
        return result

    async def _learned(self, last: PGresult, rows: RowCollector) -> port.Result:
        self.applied = True
        await rows.learn(self.member, last)
        result = rows.finished(last)
        assert result is not None, "the types were asked for"
        return result

    @property
    def may_grow(self) -> bool:
        return self.target.may_write and (self.statement.keyword != "vacuum" or self.runs_code)

    def expire(self) -> None:
        self.timed_out = True
        self.pool.expire(self.member)

    def _give_back(self, left: Leftovers | None, *, broken: bool = False, plain: bool = False) -> None:
        """`left` is None where the connection has to be inspected; one that is `broken` is not used again."""
        if broken:
            self.pool.retire(self.member)
        elif self.timed_out:
            self.pool.abandon(self.member)
        elif left is None:
            self.pool.give_back_unclean(self.member, plain=plain)
        else:
            self.pool.give_back(self.member, left)
        if changes_types(self.statement.keyword):
            self.pool.encoders.forget()


_READERS: Final = CURSORS | {"explain", "show"}
"""First words of what can run read-only, as a rule."""

_BEFORE: Final = {b"DISCARD ALL", b"DISCARD SEQUENCES", b"DEALLOCATE", b"", None}
"""What the engine says to a reset, and to what is prepared or no more."""


async def find_room(pool: Pool, member: Member, target: port.Target, statement: port.Statement) -> Room | None:
    """What a statement must be held to; None where its database is not full, or where it can only free room."""
    bound = pool.state.full_at
    if bound is None or not target.may_write:
        return None
    if statement.keyword == "vacuum":
        if pool.state.has_code and await vacuum_runs_code(member):
            raise full(bound, CODE_IN_VACUUM)
        return None
    check_keyword(bound, statement.keyword, reads=statement.keyword in _READERS)
    return await Room.before(member, bound)


def as_reader(target: port.Target, statement: port.Statement, room: Room | None) -> port.Target:
    """The target with the right to read alone, for a query where hardly any room is left on the disk."""
    if room is None or room.bound != DISK_LOW or statement.keyword not in _READERS:
        return target
    return port.Target(target.database, port.Access.READ, target.id)


def lacks_disk(failure: port.StatementFailed, room: Room | None) -> bool:
    """Whether it failed because it could only read, for lack of room on the disk."""
    return room is not None and room.bound == DISK_LOW and failure.sqlstate == "25006"


def what_lost_means(lost: ConnectionLost, access: port.Access, of: "Cancellable | None" = None) -> port.EngineFailure:
    """Definite where the engine said that it gave up, or where nothing could have been written; unknown otherwise."""
    error = find_error(list(lost.results))
    gave_up = error is not None and not is_panic(error)
    tags = {r.command_status for r in lost.results if r.status in (_TUPLES, _COMMAND)} - _BEFORE
    done = b"COMMIT" in tags if b"BEGIN" in tags else bool(tags)
    if access is port.Access.READ or (gave_up and not done):
        if of is not None and of.timed_out:
            return why_ended(of)
        return port.EngineUnavailable("the connection to the engine was lost; nothing was applied")
    return port.OutcomeUnknown(
        "the connection to the engine was lost after the statement was sent; it may or may not have been applied"
    )


def chunk_rows(statement: port.Statement, bounds: port.Bounds) -> int:
    """How many of its rows libpq gathers before anybody sees how large they are.

    A connection whose rows are too large together is closed, and the outcome must not be unknown for that: what writes
    hands over each row alone.
    """
    if statement.keyword in WRITES:
        return 1
    return CHUNK_ROWS if bounds.rows_max is None else min(CHUNK_ROWS, bounds.rows_max + 1)


STREAM_IT: Final = "Ask for fewer rows at a time (LIMIT), for parts of their values, or stream them."


def too_wide(hint: str, exec_us: int) -> port.StatementFailed:
    failure = port.StatementFailed(f"{TOO_WIDE}; nothing was applied", sqlstate="54000", hint=hint)
    failure.exec_us = exec_us
    return failure


def _unknown_and_too_wide() -> port.OutcomeUnknown:
    return port.OutcomeUnknown(f"{TOO_WIDE}; what the statement wrote may or may not have been applied")


def outlived() -> port.Conflict:
    message = "the statement ran while so many others began that the engine could not check it against them all"
    return port.Conflict(message, sqlstate="40001")


class Cancellable(Protocol):
    """What the service ends before its time, and why: `outlived`, `crowding`, `filling`, `stopping`, or its time."""

    bounds: port.Bounds
    timed_out: bool
    stopping: bool
    outlived: bool
    crowding: bool
    filling: int | None
    """What its database is full at."""


def may_write(target: port.Target, statement: port.Statement, pool: Pool) -> bool:
    """Whether the statement can have written anything.

    A query can only by INTO, through functions for large objects, or through code of the tenant's own.
    """
    return target.may_write and (pool.state.has_code or text_may_write(statement))


def text_may_write(statement: port.Statement) -> bool:
    """The same by its text alone: where there is code of the tenant's, any query may call it."""
    if statement.keyword not in CURSORS or statement.keyword == "with":
        return True
    folded = fold(statement.sql)
    return "into" in folded or "lo_" in folded or "lowrite" in folded


def may_commit_lazily(target: port.Target, reading: Reading, pool: Pool) -> bool:
    """Whether it could set, by its text or through code, that its commit does not wait for the disk."""
    return target.may_write and (pool.state.has_lasting_code or reading.names_settings)


def was_ended(failure: port.StatementFailed, of: Cancellable) -> bool:
    """Whether it failed because the service cancelled it."""
    return of.timed_out and failure.sqlstate == "57014"


def ended(failure: port.StatementFailed, of: Cancellable) -> port.StatementFailed:
    """The failure of a statement that the service cancelled, which says why."""
    late = why_ended(of)
    late.exec_us, late.notices, late.statement = failure.exec_us, failure.notices, failure.statement
    return late


def why_ended(of: Cancellable) -> port.StatementFailed:
    if of.stopping:
        return port.Stopped("the service is stopping; the statement was cancelled", sqlstate="57014")
    if of.crowding:
        message = "the statement was ended because it held too many locks, or one on what all databases share"
        return port.StatementFailed(message, sqlstate="53200", hint="Use fewer tables in one transaction.")
    if of.filling is not None:
        return full(of.filling)
    if of.outlived:
        return outlived()
    limit = f"the statement was cancelled after {of.bounds.timeout_ms} ms, its time limit"
    return port.TimedOut(limit, sqlstate="57014")


_KEEP_TYPES: Final = CURSORS | WRITES | {"show", "explain"}


def changes_types(keyword: str) -> bool:
    """Whether a statement with this first word may have changed a type that the service remembers."""
    return keyword not in _KEEP_TYPES
