"""Runs a statement or a transaction until it is through: takes a connection, repeats what met a conflict, in turns."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tuplegate.engine import port
from tuplegate.engine.libpq.measures import Measures
from tuplegate.engine.libpq.pool import ConnectionPool, Member
from tuplegate.engine.libpq.turns import Turns, choose_pause_s, choose_turn_s
from tuplegate.engine.run.run import RepeatableRun, RunAgain, Running
from tuplegate.metrics.cells import observe

_T = TypeVar("_T")

Check = Callable[[], None]
"""Raises where a connection that was just taken is of no use after all."""


class Gate(Protocol):
    """Says when one more transaction may begin on the engine."""

    @property
    def must_wait(self) -> bool: ...

    async def wait(self, deadline: float) -> None:
        """Wait until something may begin. `deadline` is on the loop's clock."""


class OpenGate:
    """Lets everything begin."""

    must_wait = False

    async def wait(self, deadline: float) -> None: ...


class Attempts:
    """Runs what is asked of one server, `attempts_max` times at most."""

    def __init__(self, running: Running, gate: Gate, attempts_max: int) -> None:
        self.running = running
        self._runs = running.runs
        self._gate = gate
        self._attempts_max = attempts_max
        self._time = asyncio.get_running_loop().time

    async def carry_out(
        self, run: RepeatableRun[Any, _T], measures: Measures, now: float, check: Check | None = None
    ) -> _T:
        pool: ConnectionPool = run.pool
        run.check_start()
        turns = pool.turns
        turn = turns.hot and run.contends and await turns.wait(choose_turn_s())
        try:
            while True:
                member = None
                if check is None and not run.anew and not self._gate.must_wait:
                    member = pool.take()
                if member is None:
                    member = await self.take(pool, run.deadline, check, anew=run.anew)
                fresh = member.is_fresh
                run.begin(member)
                self.running.enter(run)
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
                    pause = run.note_loss(lost, self._attempts_max)
                    if pause is None or self._time() + pause > run.deadline:
                        raise
                    measures.retries += 1
                    if pause:
                        await asyncio.sleep(pause)
                except port.StatementFailed as failure:
                    failure.attempts = run.attempt
                    observe(measures.seconds, failure.exec_us * 1000)
                    if not run.adapt(failure, fresh=fresh):
                        raise
                finally:
                    self._runs.remove(run)
                now = self._time()
        finally:
            if turn:
                turns.leave()

    async def take(
        self, pool: ConnectionPool, deadline: float, check: Check | None = None, *, anew: bool = False
    ) -> Member:
        """Return a connection, when one more transaction may begin on it."""
        member = None if anew else pool.take()
        if member is None:
            member = await pool.wait(deadline)
        try:
            if check is not None:
                check()
            elif self._gate.must_wait:
                await self._gate.wait(deadline)
        except BaseException:
            pool.give_back_unclean(member)
            raise
        return member

    async def _wait_for_turn(
        self, run: RepeatableRun[Any, Any], turn: bool, conflict: port.Conflict, measures: Measures
    ) -> bool:
        """Wait until it is worth another attempt, and return whether that has the turn. Raise the conflict where there
        is no time or no attempt left."""
        turns: Turns = run.pool.turns
        turns.note(conflict=True)
        if turn:
            pause = choose_pause_s(run.attempt)
            if run.attempt >= self._attempts_max or self._time() + pause > run.deadline:
                raise conflict
            measures.retries += 1
            if pause:
                await asyncio.sleep(pause)
            return True
        at_most = choose_turn_s()
        if run.attempt >= self._attempts_max or self._time() + at_most > run.deadline:
            raise conflict
        measures.retries += 1
        return await turns.wait(at_most)
