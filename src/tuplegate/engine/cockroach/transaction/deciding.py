"""Commits a transaction together with the row that tells its outcome.

That row settles a commit without an answer: anyone who needs the outcome tries to write that the transaction was
aborted. This fails if it was committed, waits while it is being committed, and keeps it from being committed later.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from tuplegate.engine import port
from tuplegate.engine.cockroach.dialect.cluster_errors import DUPLICATE
from tuplegate.engine.cockroach.query.committing import commit
from tuplegate.engine.cockroach.query.run import UNKNOWN, NodeLost, NodeRun
from tuplegate.engine.cockroach.transaction import guard
from tuplegate.engine.cockroach.transaction.ledger import Ledger

_T = TypeVar("_T")
_SETTLE_S: Final = 10.0
"""How long after its time limit the service asks for the outcome of a commit without an answer."""
_SETTLE_S_MAX: Final = 25.0
_TO_SETTLE: Final = "unsettled0"
"""The text of every ticket. It makes the engine settle the outcome; the number alone identifies the transaction."""
_OF_RECORDS: Final = frozenset({"outcome_pkey", "answer_pkey"})
"""The constraints that fail when two decide the same transaction or key."""


async def decide(
    run: NodeRun, ledger: Ledger, number: int | None, promise: port.Promise | None, done: port.TransactionResult
) -> None:
    """Commit the transaction under its number; without one it has written nothing. Raises OutcomeUnknown and
    Superseded."""
    database = run.target.database
    records = [] if number is None else ledger.records(database).write(number, promise, done)
    try:
        await commit(run, guard.RELEASE, *records)
    except port.StatementFailed as failure:
        if guard.is_missing(failure):
            run.member.close("a statement ended its transaction")
            raise port.OutcomeUnknown(guard.ENDED) from failure
        if failure.sqlstate == DUPLICATE and failure.fields is not None and failure.fields.constraint in _OF_RECORDS:
            raise port.Superseded("somebody else settled it first") from failure
        raise
    except port.OutcomeUnknown as unknown:
        run.member.close("the engine did not answer its commit")
        if number is None:
            raise NodeLost("the connection to the engine was lost; nothing was applied") from unknown
        outcome = await ledger.settle(database, number, min(run.left_s + _SETTLE_S, _SETTLE_S_MAX))
        if outcome is port.Outcome.COMMITTED:
            return
        if outcome is port.Outcome.ABORTED:
            raise port.EngineUnavailable("the connection to the engine was lost; nothing was applied") from unknown
        id = None if promise is None else promise.id
        raise port.OutcomeUnknown(UNKNOWN, id, port.Ticket(number, _TO_SETTLE)) from unknown


_seen_through: set["asyncio.Task[Any]"] = set()


def see_through(work: Coroutine[Any, Any, _T]) -> "asyncio.Future[_T]":
    """Run the work to its end, even if its caller leaves."""
    task = asyncio.get_running_loop().create_task(work)
    _seen_through.add(task)
    task.add_done_callback(_seen_through.discard)
    return asyncio.shield(task)
