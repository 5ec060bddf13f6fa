"""Puts statements to the engine prepared, where they come often (see `frequent_statements`) and mean the same that way
(see `plans`).

A statement that is to be prepared is prepared in the write that runs it first. Whether it may be is asked of the engine
once it is through.
"""

from functools import lru_cache
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.pools.frequent_statements import KEPT_MAX, LENGTH_MAX, KeptStatement, Key
from tuplegate.engine.libpq.pools.plans import (
    ANY_NUMBER,
    CUSTOM_PLANS,
    Verdict,
    ask_for_columns,
    judge_template,
    judge_text,
    read_columns,
)
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.libpq.statements.rows import RowCollector
from tuplegate.engine.postgres.pools.pool import Pool
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


def read_statement(statement: port.Statement, template: Template | None) -> Facts:
    """Return the facts of a statement; those of a template do not depend on its literals."""
    return read_facts(statement.sql, statement.keyword) if template is None else _OF_TEMPLATES[statement.keyword]


def find_prepared(
    member: Member,
    state: DatabaseState,
    statement: port.Statement,
    key: Key | None,
    template: Template | None,
    kept: KeptStatement | None,
    now: float,
    first: list[Command],
) -> KeptStatement | Form | None:
    """Return the statement that is prepared for the key, or that the commands added to `first` prepare.

    Return None if the text runs as it was sent, as it does without a key, and a form if its columns must be judged
    before. `kept` is what the connection has for the key."""
    if key is None:
        return None
    kept = _drop_stale(member, state, key, kept, now, first)
    if kept is None:
        found = _choose_to_prepare(member, state, statement, key, template, now)
        if not isinstance(found, KeptStatement):
            return found
        kept = found
        first.append(_prepare(key, kept))
    if template is not None and not kept.verdict.takes(template.values):
        return None
    kept.runs -= 1
    return kept


def _drop_stale(
    member: Member, state: DatabaseState, key: Key, kept: KeptStatement | None, now: float, first: list[Command]
) -> KeptStatement | None:
    """Return the kept form. One that must be prepared anew is forgotten instead, also by `first`."""
    if kept is None or (kept.runs and kept.until > now and kept.version == state.version):
        return kept
    del member.kept[key]
    first.append(Command(b"DEALLOCATE " + kept.name, begins=False))
    return None


def _prepare(key: Key, kept: KeptStatement) -> Command:
    return Command(key[0].encode(), name=kept.name, types=key[1], begins=False)


def _choose_to_prepare(
    member: Member, state: DatabaseState, statement: port.Statement, key: Key, template: Template | None, now: float
) -> KeptStatement | Form | None:
    """Note a statement to prepare. Return a form if its columns must be judged first, and None if it is not frequent,
    or may not mean the same later."""
    often, version = state.often_seen, state.version
    if len(member.kept) > KEPT_MAX or not often.note(key) or not is_lasting(key[0]):
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
    kept = member.kept[key] = KeptStatement(read_statement(statement, template), now, version, verdict)
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
        state, known = self._pool.state, self._member.kept.get(key)
        kept = find_prepared(self._member, state, statement, key, template, known, self._now, commands)
        self.is_in_doubt = self.is_in_doubt or bool(commands)
        if isinstance(kept, Form):
            self._unjudged[key] = (kept, template is not None)
            kept = None
        if kept is None:
            return [*commands, as_sent]
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
        member, state = self._member, self._pool.state
        kept = _drop_stale(member, state, key, member.kept.get(key), self._now, commands)
        if kept is None:
            kept = member.kept[key] = KeptStatement(_OF_TEMPLATES["select"], self._now, state.version, _NO_PARAMETERS)
            commands.append(_prepare(key, kept))
            self.is_in_doubt = True
        return [*commands, Command(b"", command.params, name=kept.name, begins=command.begins)]

    def may_be_cause(self, failure: port.StatementFailed) -> bool:
        """Return whether the failure may come from the preparation, not from the text; or the other way round."""
        return failure.never_ran and failure.statement in self._prepared

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
