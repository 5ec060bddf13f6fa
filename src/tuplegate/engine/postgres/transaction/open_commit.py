"""Commits a transaction that was kept open.

It cannot be run again. So it is committed in two phases only if nothing ran that PREPARE refuses, or that could hide
such a thing in the tenant's code. In both cases a record of its id is committed with it, which tells its outcome.

If it is known to have written, and only this worker begins transactions on the engine, its last statement, the record
and PREPARE go in one write. Until that is answered it counts as a single writing statement: its time limit ends it, and
so does the guard of the engine's memory. If the connection is lost meanwhile, the name of the prepared transaction
settles it, like any other.
"""

from typing import TYPE_CHECKING

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import IN_BLOCK
from tuplegate.engine.postgres.rules.blocks import CHECK
from tuplegate.engine.postgres.transaction.deciding import DECIDE_LEAST_S, CannotPrepare
from tuplegate.engine.run.stages import Stage
from tuplegate.engine.run.steps import Does, Step
from tuplegate.engine.sql.facts import read_facts

if TYPE_CHECKING:
    from tuplegate.engine.postgres.transaction.open_transaction import OpenTransaction


async def commit(transaction: "OpenTransaction", last: port.Statement | None, started: int) -> port.TransactionResult:
    if _goes_at_once(transaction, last):
        return await _commit_at_once(transaction, last, started)
    return await _commit_in_steps(transaction, last, started)


# -- in one write -----------------------------------------------------------------------------------------------


def _goes_at_once(transaction: "OpenTransaction", last: port.Statement | None) -> bool:
    """Return whether the last statement and PREPARE can go in one write: nothing has to be checked in between.

    A statement that may give rows cannot: if they are too wide its connection is closed, and then nothing may have been
    applied.
    """
    block, decision = transaction.block, transaction.decision
    if not block.has_written or not decision.two_phase or block.careful or block.notifies:
        return False
    if block.size_check is not None or block.full_at is not None or not decision.is_alone:
        return False
    if transaction.member.pgconn.transaction_status != IN_BLOCK:
        return False
    if last is None:
        return True
    facts = read_facts(last.sql, last.keyword)
    return facts.gives_no_rows and facts.plain


async def _commit_at_once(
    transaction: "OpenTransaction", last: port.Statement | None, started: int
) -> port.TransactionResult:
    block, decision = transaction.block, transaction.decision
    try:
        with decision.in_hand() as gid, decision.giving_up_after(transaction.bounds.timeout_ms / 1000 + DECIDE_LEAST_S):
            done = await _prepare_at_once(transaction, gid, last)
            if done.number is not None:
                await decision.commit_prepared(gid, done.number)
        await block.judge()
        block.give_back()
        await decision.see_confirmed(done.number)
    except port.OutcomeUnknown as unknown:
        unknown.id = decision.id
        transaction.end_with(port.Outcome.IN_PROGRESS)
        raise
    except BaseException as exc:
        raise await transaction.see_failed_commit(exc, started) from exc
    transaction.end_with(port.Outcome.COMMITTED)
    return done


async def _prepare_at_once(
    transaction: "OpenTransaction", gid: str, last: port.Statement | None
) -> port.TransactionResult:
    """Prepare it. If it was found to be committed after its connection was lost, the result has no number, and no
    result of the last statement."""
    block, decision = transaction.block, transaction.decision
    decision.check_age()
    transaction.is_ahead = True
    try:
        closing = [CHECK, Step(Does.RECORD, decision.record_with_number(), is_own=True)]
        if last is not None:
            transaction.take(last)
            closing = [Step(Does.RUN, statement=0), *closing]
        try:
            answers = await decision.prepare(gid, closing)
        except CannotPrepare as refused:
            raise _explain_no_room() from refused
        except port.StatementFailed as failure:
            if last is not None:
                transaction.see_prepared_fail(last, failure)
            raise
    finally:
        transaction.is_ahead = False
    transaction.reach(Stage.DECIDED)
    # A cancel that came too late would hit the commit.
    await transaction.see_cancel_through()
    if answers is None:
        return port.TransactionResult([], port.Commit.TWO_PHASE, None, 1, 0, block.runner.notices)
    results = await block.runner.results()
    number = int(answers[Does.RECORD].get_value(0, 1) or 0)
    return port.TransactionResult(results, port.Commit.TWO_PHASE, number, 1, 0, block.runner.notices)


# -- step by step -----------------------------------------------------------------------------------------------


async def _commit_in_steps(
    transaction: "OpenTransaction", last: port.Statement | None, started: int
) -> port.TransactionResult:
    decision = transaction.decision
    try:
        number, done = await _run_last(transaction, last)
    except BaseException as exc:
        raise await transaction.see_failed_commit(exc, started) from exc
    transaction.reach(Stage.DECIDING)
    try:
        await decision.decide(number)
    except port.OutcomeUnknown as unknown:
        unknown.id = decision.id
        transaction.end_with(port.Outcome.IN_PROGRESS)
        raise
    except port.Superseded as superseded:
        transaction.end_with(port.EndReason.LOST)
        raise port.TransactionOver("the transaction was aborted") from superseded
    except CannotPrepare as refused:
        transaction.end_with(port.EndReason.CONFLICT)
        raise _explain_no_room() from refused
    except port.EngineFailure as failure:
        transaction.end_with(_find_reason(failure))
        raise
    transaction.end_with(port.Outcome.COMMITTED)
    return done


async def _run_last(
    transaction: "OpenTransaction", last: port.Statement | None
) -> tuple[int | None, port.TransactionResult]:
    """Run everything before the decision; return the engine's number of the transaction, and its result."""
    block, decision = transaction.block, transaction.decision
    transaction.check_not_failed()
    number = await transaction.close(last)
    results = await block.runner.results()
    way = port.Commit.READ_ONLY
    if number is not None:
        decision.two_phase = decision.two_phase and not block.careful
        way = port.Commit.TWO_PHASE if decision.two_phase else port.Commit.ONE_PHASE
    done = port.TransactionResult(results, way, number, 1, 0, block.runner.notices)
    if number is not None:
        await decision.record(done)
    transaction.check_ended()
    return number, done


def _find_reason(failure: port.EngineFailure) -> port.EndReason:
    """Return the reason for the end of a transaction whose commit has failed."""
    if isinstance(failure, port.Conflict):
        return port.EndReason.CONFLICT
    return port.EndReason.LOST if isinstance(failure, port.EngineUnavailable) else port.EndReason.ROLLBACK


def _explain_no_room() -> port.Conflict:
    return port.Conflict("the engine had no room to prepare one more transaction", sqlstate="40001")
