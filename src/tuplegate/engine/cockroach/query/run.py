"""Something that runs on a connection to one of several nodes: another one may do it where that node is lost."""

from collections.abc import Sequence
from typing import Any, Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.libpq.parameters import write_params, write_texts
from tuplegate.engine.run.run import RepeatableRun, Run
from tuplegate.engine.run.stages import UNDECIDED

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


def pause_after_loss(lost: port.EngineUnavailable, losses: int) -> float | None:
    """Another node may answer. Where it is the only one, nobody gets a connection. `losses` are those so far."""
    return _LOSS_PAUSE_S * (losses - 1) if isinstance(lost, NodeLost) and losses <= _LOSSES_MAX else None


def adapt(
    run: RepeatableRun[Pool, Any], pool: Pool, statements: Sequence[port.Statement], failure: port.StatementFailed
) -> bool:
    """Return whether it is worth another attempt, with the types of its parameters told or asked for."""
    failed = statements[failure.statement or 0]
    if failed.params and pool.state.untold.learn(failed.sql, failure):
        return True
    if run.describe or _NO_JSON not in failure.message:
        return False
    run.describe = any(statement.params and not statement.is_untyped for statement in statements)
    return run.describe
