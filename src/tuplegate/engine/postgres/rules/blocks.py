"""Rules for a transaction's block: each adds the steps for one concern to a script. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.pools.pool import DISCARD_SEQUENCES
from tuplegate.engine.run.steps import Does, Meaning, Script, Step
from tuplegate.engine.sql.facts import Facts

# In a block the snapshot is taken at once, so that neither isolation nor read-only can be changed after it.
_BEGIN: Final = {
    port.Access.WRITE: Command(b"BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE"),
    port.Access.READ: Command(b"BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY"),
}
_BEGIN_ON_REPLICA: Final = Command(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", begins=False)
_SNAPSHOT: Final = Command(b"SELECT 1", begins=False)
_CHECK: Final = Command(b"SET CONSTRAINTS ALL IMMEDIATE", begins=False)
# Statements, parameters and records are sent in UTF-8, whatever an earlier statement has set.
_ENCODING: Final = Command(b"SET LOCAL client_encoding = 'UTF8'", begins=False)
_WAIT: Final = Command(b"SET LOCAL synchronous_commit = on", begins=False)
_NUMBER: Final = Command(b"SELECT pg_catalog.pg_current_xact_id_if_assigned()", begins=False)
# The query of a cursor WITH HOLD runs at the commit, and can write there.
_NUMBER_OF_HELD: Final = Command(
    b"SELECT CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_cursors c WHERE c.is_holdable)"
    b" THEN pg_catalog.pg_current_xact_id() ELSE pg_catalog.pg_current_xact_id_if_assigned() END",
    begins=False,
)
_NEW_NUMBER: Final = Command(b"SELECT pg_catalog.pg_current_xact_id()", begins=False)
_STANDBYS: Final = Command(b"SHOW synchronous_standby_names", begins=False)
_COMMIT: Final = Command(b"COMMIT", begins=False)

OPENING: Final = {
    (access, plain): Step(Does.OPEN, command, is_own=plain)
    for access, command in _BEGIN.items()
    for plain in (False, True)
}
_OPENING_ON_REPLICA: Final = Step(Does.OPEN, _BEGIN_ON_REPLICA)
_TAKE_SNAPSHOT: Final = Step(Does.OPEN, _SNAPSHOT)
ENCODE: Final = Step(Does.ENCODING, _ENCODING)
CHECK: Final = Step(Does.CHECK, _CHECK, is_own=True)
WAIT: Final = Step(Does.WAIT, _WAIT)
"""Comes before a COMMIT that may follow code of the tenant's: makes it wait for the disk, whatever was set before."""
NUMBER: Final = Step(Does.NUMBER, _NUMBER)
"""Asks for the engine's number of the transaction, which exists once the transaction has written."""
_OWN_NUMBER: Final = Step(Does.NUMBER, _NUMBER, is_own=True)
_HELD_NUMBER: Final = Step(Does.NUMBER, _NUMBER_OF_HELD)
_NEW: Final = Step(Does.NUMBER, _NEW_NUMBER)
COMMIT: Final = Step(Does.COMMIT, _COMMIT)
COMMIT_RECORDED: Final = Step(Does.COMMIT, _COMMIT, lost=Meaning.ASK)
COMMIT_BLINDLY: Final = Step(Does.COMMIT, _COMMIT, lost=Meaning.UNKNOWN)
"""The commit of a single statement, which is neither prepared nor recorded."""
FORGET: Final = Step(Does.PREPARE, Command(b"DEALLOCATE ALL", begins=False))
TIDY: Final = Step(Does.TIDY, DISCARD_SEQUENCES, is_own=True)


class Nature(NamedTuple):
    """The facts about a block that are known before it runs.

    `plain`: all its texts are. `has_code`: they could run code of the tenant's. `numbered`: it gets a number even if it
    writes nothing, since it has records to commit.
    """

    read_only: bool
    on_replica: bool
    plain: bool
    has_code: bool
    numbered: bool

    @property
    def careful(self) -> bool:
        """Return whether its statements could have effects that their texts do not show."""
        return self.has_code or not self.plain


def run_all(nature: Nature, texts: Sequence[Facts]) -> Script:
    """Run the statements. After each one that could have changed the encoding, set it back."""
    script: Script = []
    for number, facts in enumerate(texts):
        script.append(Step(Does.RUN, statement=number))
        if nature.careful and not facts.is_savepoint:
            script.append(ENCODE)
    return script


def open_block(nature: Nature, script: Script, *, takes_snapshot: bool) -> Script:
    """Open a block whose isolation and rights no statement in it can change: a plain first statement cannot do so
    before it takes its snapshot, and for any other the snapshot is taken first. A replica cannot be serializable."""
    access = port.Access.READ if nature.read_only else port.Access.WRITE
    return [*open_for(access, on_replica=nature.on_replica, takes_snapshot=takes_snapshot), *script]


def open_for(access: port.Access, *, on_replica: bool, takes_snapshot: bool = True) -> Script:
    first = _OPENING_ON_REPLICA if on_replica else OPENING[access, not takes_snapshot]
    return [first, _TAKE_SNAPSHOT] if takes_snapshot else [first]


def check_constraints(nature: Nature, script: Script) -> Script:
    """Run deferred checks now, while the time limit still holds."""
    return [*script, CHECK]


def wait_for_disk(nature: Nature, script: Script) -> Script:
    return [*script, WAIT] if nature.careful and not nature.read_only else script


def ask_number(nature: Nature, script: Script) -> Script:
    if nature.numbered and not nature.read_only:
        return [*script, _NEW]
    if nature.careful:
        return [*script, NUMBER if nature.read_only else _HELD_NUMBER]
    return [*script, _OWN_NUMBER]


def close_block(nature: Nature, script: Script) -> Script:
    """Add everything that follows the statements, up to the decision."""
    return ask_number(nature, wait_for_disk(nature, check_constraints(nature, script)))


def prepare(gid: str, records: Script, *, has_standbys: bool = False) -> Script:
    """Phase one: from then on the transaction is listed until it is committed or rolled back, so it can always be found
    out whether it was prepared. If there can be standbys, the server then tells whether it waited for any: if it has
    stopped waiting meanwhile, it says so."""
    command = Command(f"PREPARE TRANSACTION '{gid}'".encode(), begins=False)
    script = [*records, Step(Does.PREPARE_TRANSACTION, command, lost=Meaning.ASK)]
    return [*script, Step(Does.STANDBYS, _STANDBYS, failed=Meaning.ASK, lost=Meaning.ASK)] if has_standbys else script


def commit_prepared(gid: str, *, tidy: bool) -> Script:
    """Phase two: the transaction is decided, so a failure only means that it is not committed yet."""
    command = Command(f"COMMIT PREPARED '{gid}'".encode(), begins=False)
    script = [Step(Does.COMMIT_PREPARED, command, failed=Meaning.ASK, lost=Meaning.ASK)]
    return [*script, TIDY] if tidy else script
