"""Runs a statement or a transaction until it is through: takes a connection, repeats what met a conflict, in turns."""

import asyncio
import random
import secrets
from functools import partial
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.libpq.failures import is_internal
from tuplegate.engine.libpq.leftovers import fold
from tuplegate.engine.libpq.parameters import wants_types
from tuplegate.engine.postgres.pool import Member, Pool
from tuplegate.engine.postgres.pools import Pools
from tuplegate.engine.postgres.query.execute import Execution, may_write, text_may_write, works_in_steps
from tuplegate.engine.postgres.query.measures import Measures
from tuplegate.engine.postgres.query.turns import pause_after
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.safety.watch import Watch
from tuplegate.engine.postgres.transaction.ledger import Ledger
from tuplegate.engine.postgres.transaction.recovery import Recovery
from tuplegate.engine.postgres.transaction.transaction import CannotPrepare, TransactionRun
from tuplegate.metrics.cells import observe

_TURN_S: Final = 0.1


class Attempts:
    """What it needs of the adapter's other parts, and how often it tries."""

    def __init__(
        self,
        pools: Pools,
        watch: Watch,
        guard: SerializableGuard,
        ledger: Ledger,
        recovery: Recovery,
        attempts_max: int,
    ) -> None:
        self._pools = pools
        self._watch = watch
        self._running = watch.running
        self._guard = guard
        self._ledger = ledger
        self._recovery = recovery
        self._attempts_max = attempts_max
        self._two_phase = pools.can.two_phase
        self._primary = pools.primary
        self._time = asyncio.get_running_loop().time
        self.queries = Measures("query")
        self.transactions = Measures("transaction")

    async def query(
        self, target: port.Target, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> port.Result:
        pool = self._pools.of(target)
        pool.check()
        if self._primary.refuses is not None and target.may_write and text_may_write(statement):
            pool.check_commits()
        now = self._time()
        deadline = now + bounds.timeout_ms / 1000
        describe = as_sent = anew = False
        attempt = 1
        measures = self.queries
        turns = pool.state.turns
        turn = turns.hot and may_write(target, statement, pool) and await turns.wait(self._moment())
        try:
            while True:
                member = None if anew else pool.take()
                if member is None:
                    member = await pool.wait(deadline)
                fresh = member.is_fresh
                if self._guard.must_wait:
                    await self.admitted(pool, member, deadline)
                execution = Execution(pool, member, target, statement, shape, bounds, deadline, describe, as_sent)
                execution.begun = self._guard.begun
                self._running[execution] = now
                measures.attempts += 1
                try:
                    result = await execution.run(now)
                    result.attempts = attempt
                    self._watch.served += 1
                    observe(measures.seconds, result.exec_us * 1000)
                    if turns.heat and may_write(target, statement, pool):
                        turns.note(conflict=False)
                    return result
                except port.Conflict as conflict:
                    measures.conflict(conflict.exec_us)
                    if execution.applied or not _repeatable(statement):
                        raise
                    turn = await self._next_try(pool, turn, attempt, deadline, conflict, measures)
                    attempt += 1
                except port.StatementFailed as failure:
                    observe(measures.seconds, failure.exec_us * 1000)
                    if execution.applied:
                        raise
                    if is_internal(failure) and not (fresh or anew or works_in_steps(statement)):
                        anew = True  # the cause may be what ran on the connection before
                    elif execution.prepared and failure.never_ran:
                        as_sent = True  # so that the error speaks of the text that its writer knows, or there is none
                    elif describe or not wants_types(failure, statement):
                        raise
                    else:
                        describe = True
                finally:
                    del self._running[execution]
                now = self._time()
        finally:
            if turn:
                turns.leave()

    async def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        shape: port.Shape,
        bounds: port.Bounds,
        *,
        read_only: bool,
        promise: port.Promise | None,
    ) -> port.TransactionResult:
        pool = self._pools.of(target)
        pool.check()
        if self._primary.refuses is not None and not read_only and target.may_write:
            self._check_commits(pool, statements)
        deadline = self._time() + bounds.timeout_ms / 1000
        describe, anew, two_phase = False, False, self._two_phase
        attempt = 1
        measures = self.transactions
        turns = pool.state.turns
        turn = turns.hot and not read_only and await turns.wait(self._moment())
        try:
            while True:
                member = None if anew else pool.take()
                if member is None:
                    member = await pool.wait(deadline)
                fresh = member.is_fresh
                if self._guard.must_wait:
                    await self.admitted(pool, member, deadline)
                run = TransactionRun(
                    pool,
                    member,
                    target,
                    statements,
                    shape,
                    bounds,
                    self._recovery,
                    self._guard,
                    self._ledger.records(target.database),
                    partial(self._is_committed, target.database),
                    deadline=deadline,
                    read_only=read_only,
                    promise=promise,
                    describe=describe,
                    two_phase=two_phase,
                    attempt=attempt,
                )
                self._running[run] = self._time()
                measures.attempts += 1
                try:
                    result = await run.run()
                    self._watch.served += 1
                    observe(measures.seconds, result.exec_us * 1000)
                    if turns.heat and not read_only:
                        turns.note(conflict=False)
                    if promise is not None and run.is_read_only:
                        await self._ledger.keep_promise(target.database, promise, result)
                    return result
                except CannotPrepare:
                    two_phase = False
                    promise = await self._with_id(target.database, promise)
                except port.Conflict as conflict:
                    conflict.attempts = attempt
                    measures.conflict(conflict.exec_us)
                    if (
                        promise is not None
                        and run.recording
                        and await self._ledger.is_settled(target.database, promise)
                    ):
                        raise port.Superseded("somebody else settled it first") from conflict
                    turn = await self._next_try(pool, turn, attempt, deadline, conflict, measures)
                    attempt += 1
                except port.EngineUnavailable as lost:
                    await self._pause_before(attempt, deadline, lost, measures)
                    attempt += 1
                except port.StatementFailed as failure:
                    failure.attempts = attempt
                    observe(measures.seconds, failure.exec_us * 1000)
                    if is_internal(failure) and not (fresh or anew):
                        anew = True
                    elif describe or not any(wants_types(failure, statement) for statement in statements):
                        raise
                    else:
                        describe = True
                finally:
                    del self._running[run]
        finally:
            if turn:
                turns.leave()

    @staticmethod
    def _check_commits(pool: Pool, statements: list[port.Statement]) -> None:
        for statement in statements:
            if text_may_write(statement):
                pool.check_commits()

    async def admitted(self, pool: Pool, member: Member, deadline: float) -> None:
        """Returns when this service may begin one more transaction; the connection is kept."""
        try:
            await self._guard.wait(deadline)
        except BaseException:
            pool.give_back_unclean(member)
            raise

    async def _with_id(self, database: str, promise: port.Promise | None) -> port.Promise:
        """What is committed in one phase needs an id, so that its record tells what became of it."""
        if promise is not None and promise.id is not None:
            return promise
        id = f"txn_{secrets.token_hex(16)}"
        await self._ledger.begin_id(database, id)
        return port.Promise(id, promise.keep if promise is not None else None)

    async def _is_committed(self, database: str, id: str) -> bool:
        return await self._ledger.verdict(database, id) is port.Outcome.COMMITTED

    async def _next_try(
        self, pool: Pool, turn: bool, attempt: int, deadline: float, conflict: port.Conflict, measures: Measures
    ) -> bool:
        """Waits until it is worth another try; whether that has the turn. Raises the conflict where there is none."""
        turns = pool.state.turns
        turns.note(conflict=True)
        if turn:
            await self._pause_before(attempt, deadline, conflict, measures)
            return True
        at_most = self._moment()
        if attempt >= self._attempts_max or self._time() + at_most > deadline:
            raise conflict
        measures.retries += 1
        return await turns.wait(at_most)

    @staticmethod
    def _moment() -> float:
        """How long to wait for a turn at most."""
        return random.uniform(_TURN_S / 2, _TURN_S)  # noqa: S311 - jitter

    async def _pause_before(
        self, attempt: int, deadline: float, failure: port.EngineFailure, measures: Measures
    ) -> None:
        """Raises the failure where there is no time or no try left."""
        pause = pause_after(attempt)
        if attempt >= self._attempts_max or self._time() + pause > deadline:
            raise failure
        measures.retries += 1
        if pause:
            await asyncio.sleep(pause)


def _repeatable(statement: port.Statement) -> bool:
    """A statement that commits in steps of its own cannot be started over."""
    return "concurrently" not in fold(statement.sql)
