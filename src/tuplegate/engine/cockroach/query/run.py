"""A statement or transaction on a connection to one of several nodes: another node may run it if that node is lost."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from tuplegate.engine import port
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.libpq.parameters import write_params, write_texts
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.run.ends import Why
from tuplegate.engine.run.run import RepeatableRun
from tuplegate.engine.run.stages import UNDECIDED, Stage

_LOSSES_MAX: Final = 5
"""The number of lost connections after which the request fails."""
_LOSS_PAUSE_S: Final = 0.2
_NO_JSON: Final = "could not parse JSON"
"""The engine's error for a string that was sent as it is, but had to be JSON."""

UNREACHED: Final = "a node of the engine did not reach another one; nothing was applied"
UNKNOWN: Final = "the engine did not say what became of the statement; it may or may not have been applied"


class NodeLost(port.EngineUnavailable):
    """The connection was lost before anything can have been applied: another node may try again."""


class NodeRun(Protocol):
    """A statement or a transaction on a connection to a node."""

    pool: Pool
    member: Member
    target: port.Target
    bounds: port.Bounds
    deadline: float
    stage: Stage
    ended: Why | None

    @property
    def left_s(self) -> float: ...

    def reach(self, stage: Stage) -> None: ...

    def check_ended(self) -> None: ...

    def was_cancelled(self, failure: port.StatementFailed) -> bool: ...

    def explain_end(self) -> port.StatementFailed: ...


def give_up(run: NodeRun) -> None:
    """Release the connection after its caller has gone: cancel an undecided run, and let a commit finish."""
    if run.stage in UNDECIDED:
        run.pool.abandon(run.member)
    else:
        run.pool.leave(run.member)


async def write_values(run: NodeRun, statement: port.Statement, *, describe: bool) -> list[bytes | None] | None:
    """Write the parameters as text, without checking their range. Ask the engine for the placeholders' types if
    `describe` is set or the parameters need it."""
    state = run.pool.state
    values = None if describe else write_texts(statement, state.encoders.types)
    if values is None:
        types = state.untold.of(statement.sql)
        values = await write_params(state.encoders, run.member, statement, run, describe=describe, types=types)
        run.check_ended()
    return values


def explain_loss(run: NodeRun) -> port.EngineFailure:
    """Return the failure for a connection that was lost before anything can have been applied."""
    return (
        NodeLost("the connection to the engine was lost; nothing was applied")
        if run.ended is None
        else run.explain_end()
    )


def pause_after_loss(lost: port.EngineUnavailable, losses: int) -> float | None:
    """Return the pause before another node is tried; None if the failure is final. `losses` counts the connections lost
    so far."""
    return _LOSS_PAUSE_S * (losses - 1) if isinstance(lost, NodeLost) and losses <= _LOSSES_MAX else None


def adapt(
    run: RepeatableRun[Pool, Any], pool: Pool, statements: Sequence[port.Statement], failure: port.StatementFailed
) -> bool:
    """Return whether another attempt is worthwhile, with the parameters' types told or asked for."""
    failed = statements[failure.statement or 0]
    if failed.params and pool.state.untold.learn(failed.sql, failure):
        return True
    if run.describe or _NO_JSON not in failure.message:
        return False
    run.describe = any(statement.params and not statement.is_untyped for statement in statements)
    return run.describe
