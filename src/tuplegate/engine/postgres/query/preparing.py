"""Prepares statements that are frequent and mean the same when prepared (see `kept` and `plans`).

A statement is prepared in the write that first runs it so. The question whether it may be prepared is put to the engine
after an earlier run.
"""

from functools import lru_cache
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.libpq.commands import Command, ConnectionLost
from tuplegate.engine.libpq.failures import check
from tuplegate.engine.libpq.kept import KEPT_MAX, LENGTH_MAX, KeptStatement, Key
from tuplegate.engine.libpq.plans import (
    ANY_NUMBER,
    CUSTOM_PLANS,
    Verdict,
    ask_for_columns,
    judge_template,
    judge_text,
    read_columns,
)
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.libpq.rows import RowCollector
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.safety.database_state import DatabaseState
from tuplegate.engine.sql.facts import Facts, Leftovers, read_facts
from tuplegate.engine.sql.templates import Form, Template, find_form, find_template, is_lasting

_NO_PARAMETERS: Final = Verdict(ANY_NUMBER)
_OF_TEMPLATES: Final = {
    "select": Facts("select", plain=True, leftovers=Leftovers.NOTHING, may_write=False),
    **{
        keyword: Facts(keyword, plain=True, leftovers=Leftovers.SEQUENCES, may_write=True)
        for keyword in ("insert", "update", "delete")
    },
}

_OWN: Final = _OF_TEMPLATES["select"]
"""The service's own statements leave nothing behind."""


def read_statement(statement: port.Statement, template: Template | None) -> Facts:
    """Return the facts of a statement; those of a template do not depend on its literals."""
    return read_facts(statement.sql, statement.keyword) if template is None else _OF_TEMPLATES[statement.keyword]


def drop_stale(member: Member, state: DatabaseState, key: Key, kept: KeptStatement, now: float) -> list[Command]:
    """Forget a prepared statement that is stale; return the command that removes it, if it is."""
    if kept.runs and kept.until > now and kept.version == state.version:
        return []
    del member.kept[key]
    return [Command(b"DEALLOCATE " + kept.name, begins=False)]


def prepare(
    member: Member,
    state: DatabaseState,
    statement: port.Statement,
    key: Key,
    template: Template | None,
    facts: Facts,
    now: float,
) -> KeptStatement | Form | None:
    """Note a statement to prepare. Return a form if its columns must be judged first, and None if it is not frequent,
    or may not mean the same later."""
    often, version = state.often_seen, state.version
    if not often.note(key) or not is_lasting(key[0]):
        return None
    verdict = often.recall(key, now, version) if template is not None or statement.params else _NO_PARAMETERS
    if verdict is None:
        form = find_form(key[0], statement.keyword)
        if form is not None:
            return form
        verdict = Verdict(CUSTOM_PLANS)
        often.note_verdict(key, verdict, now, version)
    if not verdict.runs:
        return None
    kept = member.kept[key] = KeptStatement(facts, now, version, verdict)
    return kept


def measure_common(statement: port.Statement) -> int:
    """Return the length of the common start of the prepared and the sent text: an error's position means the same
    there."""
    template = None if statement.params else find_template(statement.sql, statement.keyword)
    if template is None:
        return len(statement.sql)
    same = 0
    for sent, prepared in zip(statement.sql, template.text, strict=False):
        if sent != prepared:
            break
        same += 1
    return same


def prepares(command: Command) -> bool:
    """Return whether the command prepares a statement; if such a command fails, nothing has run."""
    return bool(command.name and command.sql)


async def judge(pool: Pool, member: Member, form: Form, key: Key, now: float, *, is_template: bool) -> None:
    """Ask for the columns after the statement has run, and judge it. If the engine does not answer, a later run tries
    again."""
    version = pool.state.version
    try:
        results = await member.run(ask_for_columns(form))
        check(results)
    except (ConnectionLost, port.EngineFailure):
        return
    except BaseException:
        pool.abandon(member)
        raise
    columns = read_columns(results[-1])
    verdict = judge_template(form, key[1], columns) if is_template else judge_text(form, columns)
    pool.state.often_seen.note_verdict(key, verdict, now, version)


class Preparing:
    """The statements of a transaction that are prepared on its connection. All of them must be plain, in a database
    without code.

    `is_in_doubt`: the next write prepares or forgets one; if that fails, nobody knows whether it did.
    """

    def __init__(self, pool: Pool, member: Member, now: float) -> None:
        self._pool = pool
        self._member = member
        self._now = now
        self._kept: list[tuple[Key, KeptStatement]] = []
        self._unjudged: dict[Key, tuple[Form, bool]] = {}
        self._prepared: set[int | None] = {None}
        self.is_in_doubt = False

    def put(
        self,
        index: int,
        statement: port.Statement,
        params: list[bytes | None] | None,
        chunk_rows: int,
        rows: RowCollector,
    ) -> list[Command]:
        """Return the commands that run the statement with that index; the last one is the run."""
        as_sent = Command(statement.sql.encode(), params, chunk_rows, begins=False)
        template = None if statement.params else find_template(statement.sql, statement.keyword)
        if template is None and len(statement.sql) > LENGTH_MAX:
            return [as_sent]
        key: Key = (statement.sql, ()) if template is None else (template.text, template.types)
        commands: list[Command] = []
        kept = self._find_fresh(key, commands)
        if kept is None and len(self._member.kept) <= KEPT_MAX:
            kept = self._prepare(statement, key, template, commands)
        if kept is None or (template is not None and not kept.verdict.takes(template.values)):
            return [*commands, as_sent]
        kept.runs -= 1
        self._kept.append((key, kept))
        self._prepared.add(index)
        rows.expect(kept)
        values = params if template is None else template.values
        return [*commands, Command(b"", values, chunk_rows, name=kept.name, begins=False)]

    def put_own(self, command: Command) -> list[Command]:
        """Return the commands that run a command of the service's own, whose text is always the same; the last one is
        the run."""
        key = _own_key(command.sql)
        commands: list[Command] = []
        kept = self._find_fresh(key, commands)
        if kept is None:
            kept = self._member.kept[key] = KeptStatement(
                _OF_TEMPLATES["select"], self._now, self._pool.state.version, _NO_PARAMETERS
            )
            self._name(key, kept, commands)
        return [*commands, Command(b"", command.params, name=kept.name, begins=command.begins)]

    def may_be_cause(self, failure: port.StatementFailed) -> bool:
        """Return whether the failure may come from the preparation, not from the text; or the other way round."""
        return failure.never_ran and failure.statement in self._prepared

    def _find_fresh(self, key: Key, commands: list[Command]) -> KeptStatement | None:
        """Return the prepared statement, if it is fresh; forget a stale one."""
        kept = self._member.kept.get(key)
        if kept is None:
            return None
        stale = drop_stale(self._member, self._pool.state, key, kept, self._now)
        if not stale:
            return kept
        self.is_in_doubt = True
        commands += stale
        return None

    def _prepare(
        self, statement: port.Statement, key: Key, template: Template | None, commands: list[Command]
    ) -> KeptStatement | None:
        facts = read_statement(statement, template)
        found = prepare(self._member, self._pool.state, statement, key, template, facts, self._now)
        if isinstance(found, Form):
            self._unjudged[key] = (found, template is not None)
            return None
        if found is not None:
            self._name(key, found, commands)
        return found

    def _name(self, key: Key, kept: KeptStatement, commands: list[Command]) -> None:
        self.is_in_doubt = True
        commands.append(Command(key[0].encode(), name=kept.name, types=key[1], begins=False))

    @property
    def has_unjudged(self) -> bool:
        return bool(self._unjudged)

    def prepare_anew(self) -> None:
        """Have the prepared statements prepared anew before they run again."""
        for _, kept in self._kept:
            kept.runs = 0

    def note_noise(self) -> None:
        """Do not keep statements prepared that gave notices: they would give them only when they are planned."""
        for key, _ in self._kept:
            self._pool.state.often_seen.note_noise(key)
        self.prepare_anew()

    async def judge(self) -> None:
        """Judge the frequent statements, after the transaction."""
        for key, (form, is_template) in self._unjudged.items():
            if self._member.closed:
                return
            await judge(self._pool, self._member, form, key, self._now, is_template=is_template)


@lru_cache(maxsize=100)
def _own_key(sql: bytes) -> Key:
    """Return the same key object each time: connections share it."""
    return sql.decode(), ()
