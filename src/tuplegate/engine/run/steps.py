"""A script: the steps that carry out a client's request, one after the other. Pure.

Rules make scripts, and the runner drives them. A step knows the meaning of its failure, and of a connection that is
lost before its answer: so the runner needs no special cases, and a test can try every loss at every step without an
engine. Steps behind a failed one are not carried out.
"""

from collections.abc import Sequence
from enum import Enum, IntEnum, auto

from tuplegate.engine.libpq.connections.commands import Command


class Does(Enum):
    """The purpose of a step."""

    OPEN = auto()
    """Opens a block."""
    CLAIM = auto()
    """Makes others with the same key wait until this transaction is decided."""
    PREPARE = auto()
    """Prepares a frequent statement, or forgets a prepared one."""
    ASK = auto()
    """Asks for the types of a statement's parameters."""
    RUN = auto()
    """Runs a statement of the client's."""
    ENCODING = auto()
    """Sets back the encoding, which a statement may have changed."""
    CHECK = auto()
    """Runs deferred checks now, while a time limit still holds."""
    WAIT = auto()
    """Makes the commit wait for the disk, whatever was set before."""
    NUMBER = auto()
    """Asks for the engine's number of the transaction."""
    SEAL = auto()
    """Fails if the engine gets it too late for the guard's last look to be valid."""
    RECORD = auto()
    """Writes a record that is committed together with the transaction."""
    PREPARE_TRANSACTION = auto()
    STANDBYS = auto()
    """Asks for the standbys that commits wait for."""
    COMMIT = auto()
    COMMIT_PREPARED = auto()
    TIDY = auto()
    """Removes leftovers of the statements, if that can be done right behind the commit."""


class Meaning(IntEnum):
    """The meaning of a failure or a loss. If two are possible, the greater one counts."""

    HARMLESS = 0
    """Nothing was applied."""
    ASK = 1
    """It may have been applied, and the engine can tell."""
    UNKNOWN = 2
    """It may have been applied, and nobody can tell."""


class Step:
    """One command of a script.

    `statement` is the number of the client's statement that it runs; without a command its parameters are still to be
    written. `is_own`: its text is always the same, so that it may be prepared. `lost` and `failed` are meanings.
    """

    def __init__(
        self,
        does: Does,
        command: Command | None = None,
        *,
        statement: int | None = None,
        is_own: bool = False,
        failed: Meaning = Meaning.HARMLESS,
        lost: Meaning = Meaning.HARMLESS,
    ) -> None:
        self.does = does
        self.command = command
        self.statement = statement
        self.is_own = is_own
        self.failed = failed
        self.lost = lost


Script = list[Step]


def list_commands(script: Sequence[Step]) -> list[Command]:
    return [step.command for step in script if step.command is not None]


def find_meaning(script: Sequence[Step], failed: int | None = None) -> Meaning:
    """Return the meaning of a connection that was lost while these steps were under way.

    Any of them may have been carried out, even if its answer came: steps without a commit among them are committed
    after the last one. `failed` is the number of a step that the engine has reported as failed. Later steps were not
    carried out. The failed step's own meaning is ASK if the engine can be asked about it.
    """
    reached = script if failed is None else script[:failed]
    meanings = [step.lost for step in reached]
    if failed is not None:
        step = script[failed]
        meanings.append(Meaning.ASK if step.lost is Meaning.ASK else step.failed)
    return max(meanings, default=Meaning.HARMLESS)
