"""Runs a statement or a transaction until it is through: takes a connection, repeats what met a conflict, in turns."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from tuplegate.engine import port
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.cockroach.query.run import NodeLost, Run, Why
from tuplegate.engine.libpq.measures import Measures
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.libpq.turns import choose_pause_s, choose_turn_s
from tuplegate.metrics.cells import observe

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_LOSSES_MAX: Final = 5
"""How often a connection may be lost before its request is told so."""
_LOSS_PAUSE_S: Final = 0.2
_NO_JSON: Final = "could not parse JSON"
"""What the engine says of a string that was sent as it is, and had to be JSON."""


class Repeatable(Protocol[_T_co]):
    """A run that may be repeated."""

    pool: Pool
    deadline: float
    describe: bool
    exec_us: int

    @property
    def statements(self) -> Sequence[port.Statement]: ...

    @property
    def contends(self) -> bool: ...

    def begin(self, member: Member) -> None: ...

    def close(self) -> None: ...

    def end(self, why: Why) -> None: ...

    async def run(self) -> _T_co: ...


class Attempts:
    """Runs what is asked of the engine, `attempts_max` times at most. `running` is what can be stopped."""

    def __init__(self, attempts_max: int) -> None:
        self._attempts_max = attempts_max
        self._time = asyncio.get_running_loop().time
        self.running: set[Run | Repeatable[object]] = set()

    async def carry_out(self, run: Repeatable[_T], measures: Measures) -> tuple[_T, int]:
        """Return the result, and how many attempts it took."""
        turns, attempt, turn, losses = run.pool.state.turns, 1, False, 0
        try:
            turn = turns.hot and run.contends and await turns.wait(choose_turn_s())
            while True:
                run.begin(run.pool.take() or await run.pool.wait(run.deadline))
                self.running.add(run)
                measures.attempts += 1
                try:
                    result = await run.run()
                    observe(measures.seconds, run.exec_us * 1000)
                    if turns.heat and run.contends:
                        turns.note(conflict=False)
                    return result, attempt
                except port.Conflict as conflict:
                    conflict.attempts = attempt
                    measures.conflict(conflict.exec_us)
                    turns.note(conflict=True)
                    pause = choose_pause_s(attempt)
                    if attempt >= self._attempts_max or self._time() + pause > run.deadline:
                        raise
                    measures.retries += 1
                    turn = turn or await turns.wait(choose_turn_s())
                    if pause:
                        await asyncio.sleep(pause)
                    attempt += 1
                except NodeLost:
                    # Another node may answer. Where it is the only one, nobody gets a connection.
                    losses += 1
                    pause = _LOSS_PAUSE_S * (losses - 1)
                    if losses > _LOSSES_MAX or self._time() + pause > run.deadline:
                        raise
                    if pause:
                        await asyncio.sleep(pause)
                except port.StatementFailed as failure:
                    failure.attempts = attempt
                    observe(measures.seconds, failure.exec_us * 1000)
                    if not _adapt(run, failure):
                        raise
                finally:
                    run.close()
                    self.running.discard(run)
        finally:
            if turn:
                turns.leave()

    def stop(self) -> None:
        """Cancel everything, but for what is being committed."""
        for run in list(self.running):
            run.end(Why.STOPPING)


def _adapt(run: Repeatable[object], failure: port.StatementFailed) -> bool:
    """Return whether it is worth another attempt, with the types of its parameters told or asked for."""
    failed = run.statements[failure.statement or 0]
    if failed.params and run.pool.state.untold.learn(failed.sql, failure):
        return True
    if run.describe or _NO_JSON not in failure.message:
        return False
    run.describe = any(statement.params and not statement.is_untyped for statement in run.statements)
    return run.describe
