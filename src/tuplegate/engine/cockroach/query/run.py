"""Something that runs on a connection: its time limit, and how it is ended."""

import asyncio
from enum import Enum
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.failures import CANCELLED
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.libpq.parameters import write_params, write_texts
from tuplegate.engine.libpq.pool import Member


class Why(Enum):
    """The reason why the service ends a run."""

    TIME = "its time is over"
    STOPPING = "the service is stopping"
    OVER = "the transaction that it is part of was ended"
    LEFT = "its client has left"


class NodeLost(port.EngineUnavailable):
    """The connection was lost before anything can have been applied: it may be tried on another one."""


class Run:
    """A statement or a transaction on a connection. `deadline` is on the loop's clock.

    `decides`: it is being committed, and a commit is never cancelled. `ended` is why the service has cancelled it.
    """

    def __init__(self, pool: Pool, target: port.Target, bounds: port.Bounds, deadline: float) -> None:
        self.pool = pool
        self.target = target
        self.bounds = bounds
        self.deadline = deadline
        self.member: Member
        self.ended: Why | None = None
        self.decides = False
        self._timer: asyncio.TimerHandle | None = None
        self.cancelling: asyncio.Task[None] | None = None

    def begin(self, member: Member) -> None:
        """Begin on a connection, whatever became of an earlier attempt."""
        self.member = member
        self.pool.state.refresh()
        self.ended = None
        self.decides = False
        self._timer = asyncio.get_running_loop().call_at(self.deadline, self.end, Why.TIME)

    @property
    def left_s(self) -> float:
        """Return the seconds until its deadline, or none."""
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self, why: Why) -> None:
        """Cancel it in the engine, unless it is being committed."""
        if self.ended is None and not self.decides:
            self.ended = why
            self.cancelling = self.pool.expire(self.member)

    def give_up(self) -> None:
        """Let go of the connection, since nobody waits for what runs on it any longer."""
        if self.decides:
            self.pool.leave(self.member)
        else:
            self.pool.abandon(self.member)

    def check_ended(self) -> None:
        """Raise where it was ended: what is sent from now on would not be cancelled any more."""
        if self.ended is not None:
            raise self.explain_end()

    async def write_values(self, statement: port.Statement, *, describe: bool) -> list[bytes | None] | None:
        """Write the parameters as text; the types of placeholders are asked for where that is wanted, or needed.
        Whether they fit is not checked."""
        state = self.pool.state
        values = None if describe else write_texts(statement, state.encoders.types)
        if values is None:
            types = state.untold.of(statement.sql)
            values = await write_params(state.encoders, self.member, statement, self, describe=describe, types=types)
            self.check_ended()
        return values

    def was_cancelled(self, failure: port.StatementFailed) -> bool:
        return self.ended is not None and failure.sqlstate == CANCELLED

    def explain_end(self) -> port.StatementFailed:
        if self.ended is Why.STOPPING:
            return port.Stopped("the service is stopping; the statement was cancelled", sqlstate=CANCELLED)
        if self.ended in (Why.OVER, Why.LEFT):
            return port.StatementFailed(f"the statement was cancelled: {self.ended.value}", sqlstate=CANCELLED)
        return port.TimedOut(self.bounds)

    def explain_cancel(self, failure: port.StatementFailed) -> port.StatementFailed:
        late = self.explain_end()
        late.exec_us, late.notices, late.statement = failure.exec_us, failure.notices, failure.statement
        return late

    def explain_harmless_loss(self) -> port.EngineFailure:
        """Say what a lost connection means where nothing can have been applied."""
        if self.ended is not None:
            return self.explain_end()
        return NodeLost("the connection to the engine was lost; nothing was applied")


UNREACHED: Final = "a node of the engine did not reach another one; nothing was applied"
UNKNOWN: Final = "the engine did not say what became of the statement; it may or may not have been applied"
