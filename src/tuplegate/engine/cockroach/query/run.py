"""Something that runs on a connection to one of several nodes: another one may do it where that node is lost."""

from collections.abc import Sequence
from typing import Final, TypeVar

from tuplegate.engine import port
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.cockroach.query.rules import changes_types
from tuplegate.engine.libpq.parameters import write_params, write_texts
from tuplegate.engine.run.run import RepeatableRun, Run
from tuplegate.engine.run.stages import UNDECIDED
from tuplegate.engine.sql.facts import Leftovers

_T = TypeVar("_T")

_LOSSES_MAX: Final = 5
"""How often a connection may be lost before its request is told so."""
_LOSS_PAUSE_S: Final = 0.2
_NO_JSON: Final = "could not parse JSON"
"""What the engine says of a string that was sent as it is, and had to be JSON."""

UNREACHED: Final = "a node of the engine did not reach another one; nothing was applied"
UNKNOWN: Final = "the engine did not say what became of the statement; it may or may not have been applied"


class NodeLost(port.EngineUnavailable):
    """The connection was lost before anything can have been applied: it may be tried on another one."""


NodeRun = Run[Pool]
"""A statement or a transaction on a connection to a node."""


def give_up(run: NodeRun) -> None:
    """Let go of the connection, since nobody waits for what runs on it any longer."""
    if run.stage in UNDECIDED:
        run.pool.abandon(run.member)
    else:
        run.pool.leave(run.member)


async def write_values(run: NodeRun, statement: port.Statement, *, describe: bool) -> list[bytes | None] | None:
    """Write the parameters as text; the types of placeholders are asked for where that is wanted, or needed. Whether
    they fit is not checked."""
    state = run.pool.state
    values = None if describe else write_texts(statement, state.encoders.types)
    if values is None:
        types = state.untold.of(statement.sql)
        values = await write_params(state.encoders, run.member, statement, run, describe=describe, types=types)
        run.check_ended()
    return values


def explain_loss(run: NodeRun) -> port.EngineFailure:
    """Say what a lost connection means where nothing can have been applied."""
    return (
        NodeLost("the connection to the engine was lost; nothing was applied")
        if run.ended is None
        else run.explain_end()
    )


class RepeatableNodeRun(RepeatableRun[Pool, _T]):
    """Statements that may run on another node where one is lost."""

    def __init__(
        self,
        pool: Pool,
        target: port.Target,
        statements: Sequence[port.Statement],
        bounds: port.Bounds,
        deadline: float,
    ) -> None:
        super().__init__(pool, target, bounds, deadline)
        self.statements = statements
        self._losses = 0

    def note_loss(self, lost: port.EngineUnavailable, attempts_max: int) -> float | None:
        """Another node may answer. Where it is the only one, nobody gets a connection."""
        self._losses += 1
        may_help = isinstance(lost, NodeLost) and self._losses <= _LOSSES_MAX
        return _LOSS_PAUSE_S * (self._losses - 1) if may_help else None

    def adapt(self, failure: port.StatementFailed, *, fresh: bool) -> bool:
        """Return whether it is worth another attempt, with the types of its parameters told or asked for."""
        failed = self.statements[failure.statement or 0]
        if failed.params and self.pool.state.untold.learn(failed.sql, failure):
            return True
        if self.describe or _NO_JSON not in failure.message:
            return False
        self.describe = any(statement.params and not statement.is_untyped for statement in self.statements)
        return self.describe

    def give_back(self, left: Leftovers) -> None:
        if self.ended is not None:
            self.pool.abandon(self.member)
        else:
            self.pool.give_back(self.member, left)
        if any(map(changes_types, self.statements)):
            self.pool.state.note_change()
