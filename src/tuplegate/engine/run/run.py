"""A run in the engine: a statement, a transaction, a stream, or a session of the service's own.

The service can end each of them early. `Run.ended` has the reason, and so has the failure that the client gets. A run
that may be tried several times is a `RepeatableRun`; `attempts` runs it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from psycopg import pq

from tuplegate.background import tick
from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import ConnectionLost
from tuplegate.engine.libpq.connections.server_errors import find_error, is_internal, is_panic
from tuplegate.engine.libpq.pools.pool import ConnectionPool, Member
from tuplegate.engine.libpq.statements.parameters import wants_types
from tuplegate.engine.port import EndReason
from tuplegate.engine.run.ends import CANCELLED, Why, explain
from tuplegate.engine.run.stages import TRANSITIONS, Stage, may_end

_P = TypeVar("_P", bound=ConnectionPool)
_T = TypeVar("_T")

_TICK_S: Final = 0.02

_TUPLES: Final = int(pq.ExecStatus.TUPLES_OK)
_COMMAND: Final = int(pq.ExecStatus.COMMAND_OK)

_BEFORE: Final = {b"DISCARD ALL", b"DISCARD SEQUENCES", b"DEALLOCATE", b"", None}
"""Command tags that a reset, PREPARE and DEALLOCATE produce."""


class RunAgain(Exception):
    """The run has changed its way of working, and must run once more. Nothing was applied."""


class Run(Generic[_P]):
    """A run in the engine. `deadline` is on the loop's clock. `begun` is the number of transactions that had begun when
    this one did.

    `ended` is set when the service has cancelled it; `full_at` is the bound that its database or disk had reached then.
    `cancelling` is the cancel that is or was under way. `access` is READ if it may only read, whatever its target
    allows.
    """

    member: Member

    def __init__(self, pool: _P, target: port.Target, bounds: port.Bounds, deadline: float) -> None:
        self.pool = pool
        self.target = target
        self.bounds = bounds
        self.deadline = deadline
        self.access = target.access
        self.begun = 0
        self.ended: Why | None = None
        self.full_at = 0
        self.stage = Stage.RUNNING
        self.cancelling: asyncio.Task[None] | None = None

    def begin(self, member: Member) -> None:
        """Begin an attempt on a connection, and reset the state of an earlier one."""
        self.member = member
        self.pool.refresh()
        self.begun = member.meter.begun
        self.access = self.target.access
        self.ended = None
        self.stage = Stage.RUNNING

    @property
    def left_s(self) -> float:
        """Return the seconds until its deadline, or none."""
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    @property
    def is_own(self) -> bool:
        """Return whether it carries statements of the service's own, which only their deadline ends."""
        return False

    @property
    def writes(self) -> bool:
        """Return whether it may have written, so that it must end once it has outlived the engine's memory."""
        return False

    @property
    def may_grow(self) -> bool:
        """Return whether it may make its database larger."""
        return False

    @property
    def must_commit(self) -> bool:
        """Return whether it is pointless to run it while nothing can be committed."""
        return False

    @property
    def keywords(self) -> list[str]:
        """Return the first words of its statements."""
        return []

    def check_start(self) -> None:
        """Raise if it may not begin just now."""
        pool = self.pool
        pool.check()
        if pool.refuses is not None and self.must_commit:
            pool.check_commits()

    def reach(self, stage: Stage) -> None:
        assert stage in TRANSITIONS[self.stage], f"nothing goes from {self.stage} to {stage}"
        self.stage = stage

    def end(self, why: Why, full_at: int = 0) -> None:
        """Cancel it in the engine, if it may still be."""
        if self.ended is None and may_end(self.stage, why):
            self.ended = why
            self.full_at = full_at
            self.cancelling = self.pool.expire(self.member)

    def abort(self, reason: EndReason) -> None:
        """Roll it back if it is a transaction that stays open between requests."""

    def check_ended(self) -> None:
        """Raise if it was ended: later commands would not be cancelled any more."""
        if self.ended is not None:
            raise self.explain_end()

    def was_cancelled(self, failure: port.StatementFailed) -> bool:
        """Return whether it failed because the service cancelled it."""
        return self.ended is not None and failure.sqlstate == CANCELLED

    def explain_cancel(self, failure: port.StatementFailed) -> port.StatementFailed:
        """Return a failure that says why the service cancelled it."""
        late = self.explain_end()
        late.exec_us, late.notices, late.statement = failure.exec_us, failure.notices, failure.statement
        return late

    def explain_end(self) -> port.StatementFailed:
        return explain(self.ended, self.bounds, self.full_at)

    def explain_loss(self, lost: ConnectionLost) -> port.EngineFailure:
        """Return the failure for a lost connection: definite if the engine said that it gave up, or if nothing could
        have been written; otherwise the outcome is unknown."""
        error = find_error(list(lost.results))
        gave_up = error is not None and not is_panic(error)
        tags = {r.command_status for r in lost.results if r.status in (_TUPLES, _COMMAND)} - _BEFORE
        done = b"COMMIT" in tags if b"BEGIN" in tags else bool(tags)
        if self.access is port.Access.READ or (gave_up and not done):
            return self.explain_harmless_loss()
        return port.OutcomeUnknown(
            "the connection to the engine was lost after the statement was sent; it may or may not have been applied"
        )

    def explain_harmless_loss(self) -> port.EngineFailure:
        """Return the failure for a lost connection when nothing can have been applied."""
        if self.ended is not None:
            return self.explain_end()
        return port.EngineUnavailable("the connection to the engine was lost; nothing was applied")


class RepeatableRun(Run[_P], Generic[_P, _T]):
    """A run that `Attempts` may repeat. `attempt` counts from 1.

    `describe`: ask for the types of parameters first. `anew`: run on a connection that was never used before.
    """

    def __init__(self, pool: _P, target: port.Target, bounds: port.Bounds, deadline: float) -> None:
        super().__init__(pool, target, bounds, deadline)
        self.attempt = 1
        self.describe = False
        self.anew = False
        self.exec_us = 0

    async def run(self, now: float) -> _T:
        """Make one attempt, and give the connection back in every case. Raises the port's failures, and RunAgain."""
        raise NotImplementedError

    @property
    def contends(self) -> bool:
        """Return whether it may conflict with other runs, and so takes turns with them."""
        raise NotImplementedError

    def note_loss(self, lost: port.EngineUnavailable, attempts_max: int) -> float | None:
        """Note that its connection was lost, and nothing was applied. Return the pause before another try; None if
        there is none."""
        return None

    async def check_conflict(self, conflict: port.Conflict) -> None:
        """Raise if no further attempt can succeed after the conflict."""

    def adapt(self, failure: port.StatementFailed, *, fresh: bool) -> bool:
        """Return whether another attempt is worthwhile, and prepare it. `fresh`: the last connection was new."""
        raise NotImplementedError

    def adapt_connection(self, failure: port.StatementFailed, *, fresh: bool) -> bool:
        """Ask for a new connection if the cause may be an earlier statement on this one."""
        if not is_internal(failure) or fresh or self.anew:
            return False
        self.anew = True
        return True

    def adapt_types(self, failure: port.StatementFailed, statements: Sequence[port.Statement]) -> bool:
        """Ask for the types of parameters if a string should have been sent as JSON."""
        if self.describe or not any(wants_types(failure, statement) for statement in statements):
            return False
        self.describe = True
        return True


class Running:
    """The current runs."""

    def __init__(self) -> None:
        self.runs: set[Run[Any]] = set()
        self._entered = asyncio.Event()
        self._is_awaited = False

    def enter(self, run: Run[Any]) -> None:
        """Add a run; the caller removes it from `runs` again."""
        self.runs.add(run)
        if self._is_awaited:
            self._is_awaited = False
            self._entered.set()

    async def wait_for_some(self) -> None:
        """Return when there is a run."""
        while not self.runs:
            self._is_awaited = True
            self._entered.clear()
            await self._entered.wait()

    def find_late(self, now: float) -> list[Run[Any]]:
        return [run for run in self.runs if run.ended is None and run.deadline < now]

    def find_writing(self) -> list[Run[Any]]:
        return [run for run in self.runs if run.ended is None and run.writes]

    def abort_open(self, databases: frozenset[str]) -> None:
        """Roll back the open transactions of databases that must be released."""
        for run in [run for run in self.runs if run.target.database in databases]:
            run.abort(EndReason.LOST)

    def stop(self) -> None:
        """Cancel all runs, except those that are being committed."""
        for run in [run for run in self.runs if run.ended is None]:
            run.end(Why.STOPPING)


async def end_late(running: Running) -> None:
    """End runs whose time is over, until cancelled. One look at all costs less than a timer for each."""
    loop = asyncio.get_running_loop()
    while True:
        await running.wait_for_some()
        await tick(_TICK_S)
        for run in running.find_late(loop.time()):
            run.end(Why.TIME)
