"""Runs a statement or a transaction until it is through: takes a connection, repeats what met a conflict, in turns."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tuplegate.engine import port
from tuplegate.engine.libpq.measures import Measures
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.libpq.turns import choose_pause_s, choose_turn_s
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.pools import Pools
from tuplegate.engine.postgres.query.execute import Execution
from tuplegate.engine.postgres.query.run import RepeatableRun, RunAgain, Running
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.transaction.open_transaction import OpenTransaction
from tuplegate.engine.postgres.transaction.two_phase import Decider, TransactionRun
from tuplegate.metrics.cells import observe

_T = TypeVar("_T")

Check = Callable[[], None]
"""Raises where a connection that was just taken is of no use after all."""


class Attempts:
    """Runs what is asked of one server, `attempts_max` times at most."""

    def __init__(self, running: Running, guard: SerializableGuard, attempts_max: int) -> None:
        self._running = running
        self._runs = running.runs
        self._guard = guard
        self._attempts_max = attempts_max
        self._time = asyncio.get_running_loop().time

    async def carry_out(self, run: RepeatableRun[_T], measures: Measures, now: float, check: Check | None = None) -> _T:
        pool = run.pool
        run.check_start()
        turns = pool.state.turns
        turn = turns.hot and run.contends and await turns.wait(choose_turn_s())
        try:
            while True:
                member = None
                if check is None and not run.anew and not self._guard.must_wait:
                    member = pool.take()
                if member is None:
                    member = await self.take(pool, run.deadline, check, anew=run.anew)
                fresh = member.is_fresh
                run.begin(member)
                self._running.enter(run, now)
                measures.attempts += 1
                try:
                    result = await run.run(now)
                    observe(measures.seconds, run.exec_us * 1000)
                    if turns.heat and run.contends:
                        turns.note(conflict=False)
                    return result
                except RunAgain:
                    pass
                except port.Conflict as conflict:
                    conflict.attempts = run.attempt
                    measures.conflict(conflict.exec_us)
                    await run.check_conflict(conflict)
                    turn = await self._wait_for_turn(run, turn, conflict, measures)
                    run.attempt += 1
                except port.EngineUnavailable as lost:
                    if not run.survives_loss:
                        raise
                    await self._pause_before_next(run, lost, measures)
                    run.attempt += 1
                except port.StatementFailed as failure:
                    failure.attempts = run.attempt
                    observe(measures.seconds, failure.exec_us * 1000)
                    if not run.adapt(failure, fresh=fresh):
                        raise
                finally:
                    del self._runs[run]
                now = self._time()
        finally:
            if turn:
                turns.leave()

    async def take(self, pool: Pool, deadline: float, check: Check | None = None, *, anew: bool = False) -> Member:
        """Return a connection, when one more transaction may begin on it."""
        member = None if anew else pool.take()
        if member is None:
            member = await pool.wait(deadline)
        try:
            if check is not None:
                check()
            elif self._guard.must_wait:
                await self._guard.wait(deadline)
        except BaseException:
            pool.give_back_unclean(member)
            raise
        return member

    async def _wait_for_turn(
        self, run: RepeatableRun[Any], turn: bool, conflict: port.Conflict, measures: Measures
    ) -> bool:
        """Wait until it is worth another attempt, and return whether that has the turn. Raise the conflict where there
        is no time or no attempt left."""
        turns = run.pool.state.turns
        turns.note(conflict=True)
        if turn:
            await self._pause_before_next(run, conflict, measures)
            return True
        at_most = choose_turn_s()
        if run.attempt >= self._attempts_max or self._time() + at_most > run.deadline:
            raise conflict
        measures.retries += 1
        return await turns.wait(at_most)

    async def _pause_before_next(
        self, run: RepeatableRun[Any], failure: port.EngineFailure, measures: Measures
    ) -> None:
        """Raise the failure where there is no time or no attempt left."""
        pause = choose_pause_s(run.attempt)
        if run.attempt >= self._attempts_max or self._time() + pause > run.deadline:
            raise failure
        measures.retries += 1
        if pause:
            await asyncio.sleep(pause)


class Requests(Attempts):
    """Runs what is asked of the primary, and counts it."""

    def __init__(
        self, pools: Pools, running: Running, decider: Decider, attempts_max: int, connections_max: int
    ) -> None:
        super().__init__(running, decider.guard, attempts_max)
        self._held_max = max(1, connections_max // 2)
        self._pools = pools
        self._decider = decider
        self._two_phase = pools.can.two_phase
        self.queries = Measures("query")
        self.transactions = Measures("transaction")

    def query(
        self, target: port.Target, statement: port.Statement, bounds: port.Bounds
    ) -> Coroutine[Any, Any, port.Result]:
        now = self._time()
        deadline = now + bounds.timeout_ms / 1000
        execution = Execution(self._pools.find_pool(target), target, statement, bounds, deadline)
        return self.carry_out(execution, self.queries, now)

    def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        bounds: port.Bounds,
        *,
        read_only: bool = False,
        promise: port.Promise | None = None,
    ) -> Coroutine[Any, Any, port.TransactionResult]:
        now = self._time()
        deadline = now + bounds.timeout_ms / 1000
        run = TransactionRun(self._pools.find_pool(target), target, statements, bounds, deadline, self._decider)
        run.promise = promise
        run.two_phase = self._two_phase
        if read_only:
            run.is_read_only = True
        return self.carry_out(run, self.transactions, now)

    async def begin(self, target: port.Target, id: str, timeout_ms: int, *, read_only: bool) -> port.OpenTransaction:
        """Begin a transaction that stays open.

        All of them together hold half of the worker's connections at most. A database that has some open gets one more
        only while more than a quarter as many are left, so that there are some for the next.
        """
        pool = self._pools.find_pool(target)
        pool.check()
        if target.may_write and not read_only:
            pool.check_commits()
        held = self._pools.held
        left = self._held_max - held.total
        if left <= held.of(target.database) // 4:
            raise port.EngineBusy(f"{self._held_max - left} transactions are open in this worker already")
        now = self._time()
        transaction = OpenTransaction(pool, target, self._decider, self._running, id, read_only=read_only)
        transaction.two_phase = self._two_phase
        await transaction.open(await self.take(pool, now + timeout_ms / 1000), now)
        return transaction

    def abort_open(self, databases: frozenset[str]) -> None:
        """Roll back the open transactions of databases that must be let go of."""
        for run in list(self._runs):
            if isinstance(run, OpenTransaction) and run.target.database in databases:
                run.abort(port.EndReason.LOST)
