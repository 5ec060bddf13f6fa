"""The run behind a stream. Only the engine's time counts, not the reader's, so it has no deadline on the loop's
clock."""

import asyncio
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeVar

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import ConnectionLost
from tuplegate.engine.libpq.pools.pool import ConnectionPool
from tuplegate.engine.run.ends import LOST, Why
from tuplegate.engine.run.run import Run

_P = TypeVar("_P", bound=ConnectionPool)


class StreamRun(Run[_P]):
    """The run of a stream, as a context manager: it counts the time within its blocks, and ends the statement at the
    limit.

    `inside` ends the transaction's statement if the stream is part of a transaction that continues after it.
    """

    def __init__(self, pool: _P, target: port.Target, statement: port.Statement, bounds: port.Bounds) -> None:
        super().__init__(pool, target, bounds, float("inf"))
        self.statement = statement
        self.elapsed_us = 0
        self.inside: Callable[[Why, int], None] | None = None
        self._started = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_inside(self) -> bool:
        return self.inside is not None

    @property
    def left_s(self) -> float:
        """Return the time that was left of its limit when its block was last entered."""
        return max(self.bounds.timeout_ms / 1000 - self.elapsed_us / 1e6, 0)

    def end(self, why: Why, full_at: int = 0) -> None:
        if self.inside is None:
            super().end(why, full_at)
        else:
            self.inside(why, full_at)

    def put_inside(self, transaction: Run[Any]) -> None:
        """Make it part of an open transaction, which cancels for it."""
        self.begin(transaction.member)
        self.access, self.inside = transaction.access, transaction.end

    def explain_loss(self, lost: ConnectionLost) -> port.EngineFailure:
        return super().explain_loss(lost) if self.inside is None else port.EngineUnavailable(LOST)

    def __enter__(self) -> None:
        self._started = perf_counter_ns()
        self._timer = asyncio.get_running_loop().call_later(self.left_s, self.end, Why.TIME)

    def __exit__(self, *exc: object) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self.elapsed_us += (perf_counter_ns() - self._started) // 1000
