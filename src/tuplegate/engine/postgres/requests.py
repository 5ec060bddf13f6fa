"""Runs what is asked of the primary, and counts it."""

from collections.abc import Coroutine
from typing import Any

from tuplegate.engine import port
from tuplegate.engine.libpq.measures import Measures
from tuplegate.engine.postgres.pools import Pools
from tuplegate.engine.postgres.query.execute import Execution
from tuplegate.engine.postgres.transaction.deciding import Decider
from tuplegate.engine.postgres.transaction.open_transaction import OpenTransaction
from tuplegate.engine.postgres.transaction.transaction import TransactionRun
from tuplegate.engine.run.attempts import Attempts
from tuplegate.engine.run.run import Running


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
        run = TransactionRun(
            self._pools.find_pool(target),
            target,
            statements,
            bounds,
            deadline,
            self._decider,
            read_only=read_only,
            two_phase=self._two_phase,
            promise=promise,
        )
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
        deadline = self._time() + timeout_ms / 1000
        member = await self.take(pool, deadline)
        transaction = OpenTransaction(pool, target, member, self._decider, self.running, id, read_only=read_only)
        transaction.decision.two_phase = self._two_phase
        await transaction.open()
        return transaction
