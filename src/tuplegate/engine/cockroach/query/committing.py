"""Commits the transaction of a connection. A commit is never cancelled; the clock gives up one without an answer."""

import asyncio
from collections.abc import Sequence
from typing import Final

from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.cockroach.dialect.cluster_errors import (
    AMBIGUOUS,
    CANCELLED,
    HALF_APPLIED,
    is_node_failure,
    refine,
)
from tuplegate.engine.cockroach.query.rules import undoes_cancelled
from tuplegate.engine.cockroach.query.run import UNKNOWN, NodeRun
from tuplegate.engine.libpq.connections.commands import COMMIT, Command, ConnectionLost
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.run.stages import Stage

_DECIDE_S: Final = 5.0
"""The time beyond its limit that a commit may take before its connection is given up for lost."""
_DECIDE_S_MAX: Final = 25.0


async def commit(run: NodeRun, *before: Command) -> None:
    """Commit, after a few commands in the same write. Raises OutcomeUnknown if the engine does not tell the outcome."""
    if run.stage is not Stage.DECIDING:
        run.reach(Stage.DECIDING)
    member, loop = run.member, asyncio.get_running_loop()
    limit_s = min(max(0.0, run.deadline - loop.time()) + _DECIDE_S, _DECIDE_S_MAX)
    late = loop.call_later(limit_s, member.close, f"no answer within {limit_s:g} s")
    try:
        results = await member.run(*before, COMMIT)
    except ConnectionLost as lost:
        raise port.OutcomeUnknown(UNKNOWN) from lost
    finally:
        late.cancel()
    try:
        check(results)
    except port.StatementFailed as failure:
        raise explain_commit(refine(failure)) from failure
    if results[-1].command_status != b"COMMIT":
        raise port.StatementFailed("the engine rolled the transaction back", sqlstate="40000")


def may_be_applied(
    run: NodeRun, definition: port.Statement, failure: port.StatementFailed, results: Sequence[PGresult]
) -> bool:
    """Return whether a definition without a block may have been applied although it failed. `results` are its answer,
    followed by the failure of its commit."""
    if failure.sqlstate not in (CANCELLED, AMBIGUOUS) and not is_node_failure(failure):
        return False
    return len(results) != 1 or not run.was_cancelled(failure) or not undoes_cancelled(definition)


def explain_commit(failure: port.StatementFailed) -> port.EngineFailure:
    """Return the failure that a failed commit means."""
    if failure.sqlstate in (AMBIGUOUS, CANCELLED) or is_node_failure(failure):
        return port.OutcomeUnknown(UNKNOWN)
    if failure.sqlstate == HALF_APPLIED:
        failure.message = f"the rows were stored, but a change of definitions failed: {failure.message}"
        failure.args = (failure.message,)
    return failure
