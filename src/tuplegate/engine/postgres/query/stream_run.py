"""The run behind a stream. Its time is what the engine is waited for, so it has no deadline on the loop's clock."""

import asyncio
from time import perf_counter_ns

from tuplegate.engine import port
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.query.rules import may_write, text_may_write, works_in_steps
from tuplegate.engine.postgres.query.run import Run, Why


class StreamRun(Run):
    """A context manager: the time within its block is counted, and ends the statement when it is over the limit.

    The reader's time is not counted. `is_inside`: it is part of a transaction that goes on after it.
    """

    def __init__(self, pool: Pool, target: port.Target, statement: port.Statement, bounds: port.Bounds) -> None:
        super().__init__(pool, target, bounds, float("inf"))
        self.statement = statement
        self.elapsed_us = 0
        self.is_inside = False
        self._started = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def writes(self) -> bool:
        return may_write(self.target, self.statement, self.pool) and not works_in_steps(self.statement)

    @property
    def must_commit(self) -> bool:
        return self.target.may_write and text_may_write(self.statement)

    @property
    def may_grow(self) -> bool:
        return self.access is port.Access.WRITE

    @property
    def keywords(self) -> list[str]:
        return [self.statement.keyword]

    @property
    def left_s(self) -> float:
        """Return how much of its time limit was left when its block was last entered."""
        return max(self.bounds.timeout_ms / 1000 - self.elapsed_us / 1e6, 0)

    def __enter__(self) -> None:
        self._started = perf_counter_ns()
        self._timer = asyncio.get_running_loop().call_later(self.left_s, self.end, Why.TIME)

    def __exit__(self, *exc: object) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self.elapsed_us += (perf_counter_ns() - self._started) // 1000
