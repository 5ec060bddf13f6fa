"""Decides which cells are awake: pure rules, without clock, files or processes.

Contract: the caller reports events (a wish, a use, a server that is ready or has ended) and asks `decide` at every
moment what to do. `now` is an argument and never goes back. A cell has one state, which changes only as TRANSITIONS
says. At most `awake_max` cells are up, and a cell that a worker uses is not put to sleep.

A cell that nobody asks for costs nothing: `decide` looks at wanted cells and at those that are up.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
STABLE_S = 60.0
"""A server that was up for so long has nothing to do with the failures before it."""
SETTLED_S = 1.0
"""A cell makes room for another one after this time without a use, so that a new cell gets to its first use."""
REST_S_MAX = 2.0
"""The time that workers have to close their connections to a cell that is put to sleep."""
WAIT_S_MAX = 5.0
"""A waiter is told busy after this time if cells that were to make room for it are used again and again."""
STARTS_MAX = 2
"""The servers that one decision starts: each takes the supervisor some milliseconds."""


class CellState(Enum):
    """The state of a cell."""

    ASLEEP = "asleep"
    STARTING = "starting"
    AWAKE = "awake"
    ASKED_TO_REST = "asked_to_rest"
    """Workers are asked to close their connections, and may say that they need the cell."""
    STOPPING = "stopping"
    FAILED = "failed"
    REMOVING = "removing"


TRANSITIONS = {
    CellState.ASLEEP: {CellState.STARTING, CellState.REMOVING},
    CellState.STARTING: {CellState.AWAKE, CellState.STOPPING, CellState.FAILED},
    CellState.AWAKE: {CellState.ASKED_TO_REST, CellState.STOPPING, CellState.FAILED},
    CellState.ASKED_TO_REST: {CellState.AWAKE, CellState.STOPPING, CellState.FAILED},
    CellState.STOPPING: {CellState.ASLEEP},
    CellState.FAILED: {CellState.STARTING, CellState.REMOVING},
    CellState.REMOVING: set[CellState](),
}
UP = frozenset({CellState.STARTING, CellState.AWAKE, CellState.ASKED_TO_REST, CellState.STOPPING})
"""A cell in one of these states has a server, or will have one at once, and counts toward `awake_max`."""
LEAVING = frozenset({CellState.ASKED_TO_REST, CellState.STOPPING})


class WrongTransition(Exception):
    """An event does not fit the state of its cell: the caller has reported something that cannot be."""


@dataclass(slots=True)
class CellRecord:
    """All that the rules remember of a cell. `uses` maps each worker with connections to whether it uses them."""

    state: CellState = CellState.ASLEEP
    since: float = 0.0
    idle_since: float = 0.0
    awake_since: float | None = None
    uses: dict[int, bool] = field(default_factory=dict)
    pause_s: float = 0.0
    reason: str = ""

    def move(self, state: CellState, now: float) -> None:
        if state not in TRANSITIONS[self.state]:
            raise WrongTransition(f"a cell does not go from {self.state.value} to {state.value}")
        self.state, self.since = state, now

    @property
    def is_idle(self) -> bool:
        return self.state is CellState.AWAKE and not any(self.uses.values())


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything to do now, by ids of cells. Waiters of `busy` and `failed` cells are told so and wait no longer."""

    start: tuple[str, ...] = ()
    ask_to_rest: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The number of cells in each state, and the reason of each failed one."""

    counts: Mapping[CellState, int]
    failures: Mapping[str, str]


class Fleet:
    """The records of all cells, and the rules. `idle_s` 0 lets an idle cell stay awake while there is room."""

    def __init__(self, cell_ids: Iterable[str], awake_max: int, idle_s: float) -> None:
        self._records = {cell_id: CellRecord() for cell_id in cell_ids}
        self._awake_max = awake_max
        self._idle_s = idle_s
        self._wanted: dict[str, float] = {}
        """Cells that somebody waits for, in the order and with the time of their first waiter."""
        self._up: dict[str, CellRecord] = {}
        self._leaving: set[str] = set()

    def find_state(self, cell_id: str) -> CellState | None:
        """Return the state of a cell, or None for one that was never wanted and not there at the beginning."""
        record = self._records.get(cell_id)
        return None if record is None else record.state

    def want(self, cell_id: str, now: float) -> bool:
        """Note that somebody waits for the cell. Return whether it is awake, and keep it awake if so."""
        record = self._records.setdefault(cell_id, CellRecord())
        if record.state in (CellState.AWAKE, CellState.ASKED_TO_REST):
            self._keep_awake(record, now)
            return True
        if record.state is not CellState.STARTING:
            self._wanted.setdefault(cell_id, now)
        return False

    def note_use(self, cell_id: str, worker: int, now: float, *, in_use: bool) -> None:
        """Note that a worker has begun to use the cell, or has stopped but keeps its connections.

        A worker may report this late, when the server has ended or is about to. Then there is nothing to note.
        """
        record = self._up.get(cell_id)
        if record is None or record.state not in (CellState.AWAKE, CellState.ASKED_TO_REST):
            return
        record.uses[worker] = in_use
        if in_use:
            self._keep_awake(record, now)
        else:
            record.idle_since = now

    def note_rest(self, cell_id: str, worker: int) -> None:
        """Note that a worker has closed its connections to the cell."""
        if record := self._up.get(cell_id):
            record.uses.pop(worker, None)

    def forget_worker(self, worker: int, now: float) -> None:
        """Note that a worker has ended, and its uses of all cells with it."""
        for record in self._up.values():
            if record.uses.pop(worker, False):
                record.idle_since = now

    def note_ready(self, cell_id: str, now: float) -> None:
        """Note that the cell's server takes connections."""
        record = self._records[cell_id]
        record.move(CellState.AWAKE, now)
        record.awake_since = record.idle_since = now

    def note_ended(self, cell_id: str, now: float, reason: str) -> None:
        """Note that the server has ended, or could not be started. Unless it was stopped, that is a failure."""
        record = self._up.pop(cell_id)
        record.uses.clear()
        if record.awake_since is not None and now - record.awake_since >= STABLE_S:
            record.pause_s = 0.0
        if record.state is CellState.STOPPING:
            record.move(CellState.ASLEEP, now)
            return
        record.pause_s = max(PAUSE_S_MIN, min(PAUSE_S_MAX, 2 * record.pause_s))
        record.reason = reason
        record.move(CellState.FAILED, now)

    def remove(self, cell_id: str) -> None:
        """Stop the cell's server for good. Its directory can be removed once the cell's state is REMOVING."""
        record = self._records.setdefault(cell_id, CellRecord())
        if record.state is CellState.STARTING:
            self._wanted[cell_id] = record.since  # Its waiters must hear that it does not come.
        self._leaving.add(cell_id)

    def forget(self, cell_id: str) -> None:
        """Drop the record of a cell whose directory was removed."""
        if self._records[cell_id].state is not CellState.REMOVING:
            raise WrongTransition("only a cell that is being removed can be forgotten")
        del self._records[cell_id]
        self._wanted.pop(cell_id, None)

    def decide(self, now: float) -> Decision:
        """Return everything to do now, and count it as done: the caller starts, asks and stops as it says."""
        stop = (*self._stop_leaving(now), *self._stop_resting(now))
        rest = [
            cell_id
            for cell_id, record in self._up.items()
            if self._idle_s and record.is_idle and now - record.idle_since >= self._idle_s
        ]
        for cell_id in rest:
            self._up[cell_id].move(CellState.ASKED_TO_REST, now)
        start, busy, failed = self._serve_wanted(rest, now)
        return Decision(tuple(start), tuple(rest), stop, tuple(busy), tuple(failed))

    def report(self) -> FleetReport:
        failed = {cell_id: each.reason for cell_id, each in self._records.items() if each.state is CellState.FAILED}
        return FleetReport(Counter(record.state for record in self._records.values()), failed)

    def _keep_awake(self, record: CellRecord, now: float) -> None:
        if record.state is CellState.ASKED_TO_REST:
            record.move(CellState.AWAKE, now)
        record.idle_since = now

    def _stop_leaving(self, now: float) -> list[str]:
        """Move cells that are to be removed on, and return those whose servers must stop first."""
        stopped = []
        for cell_id in sorted(self._leaving):
            record = self._records[cell_id]
            if record.state in (CellState.ASLEEP, CellState.FAILED):
                record.move(CellState.REMOVING, now)
            elif record.state in UP and record.state is not CellState.STOPPING:
                record.move(CellState.STOPPING, now)
                stopped.append(cell_id)
            if record.state is CellState.REMOVING:
                self._leaving.remove(cell_id)
        return stopped

    def _stop_resting(self, now: float) -> list[str]:
        """Stop cells whose workers have all closed their connections, or had the time for it."""
        rested = [
            cell_id
            for cell_id, record in self._up.items()
            if record.state is CellState.ASKED_TO_REST and (not record.uses or now - record.since >= REST_S_MAX)
        ]
        for cell_id in rested:
            self._up[cell_id].move(CellState.STOPPING, now)
        return rested

    def _serve_wanted(self, rest: list[str], now: float) -> tuple[list[str], list[str], list[str]]:
        """Return the wanted cells to start, the busy and the failed ones; add the cells that make room to `rest`.

        Each wanted cell, the first one first, takes a free place, or the place of a cell that is about to leave it, or
        that of an idle cell. If there is none, the wanted cell is busy.
        """
        start: list[str] = []
        busy: list[str] = []
        failed: list[str] = []
        free = self._awake_max - len(self._up)
        about_to_leave = sum(record.state in LEAVING for record in self._up.values())
        idle = sorted((cell_id for cell_id in self._up if self._up[cell_id].is_idle), key=self._find_idle_since)[::-1]
        for cell_id, wanted_at in self._wanted.items():
            if self._is_refused(cell_id, now):
                failed.append(cell_id)
            elif free > 0:
                free -= 1
                if len(start) < STARTS_MAX and self._records[cell_id].state is not CellState.STOPPING:
                    start.append(cell_id)
            elif about_to_leave > 0:
                about_to_leave -= 1
            elif not idle or now - wanted_at >= WAIT_S_MAX:
                busy.append(cell_id)
            elif now - self._find_idle_since(longest_idle := idle.pop()) >= SETTLED_S:
                self._up[longest_idle].move(CellState.ASKED_TO_REST, now)
                rest.append(longest_idle)
        for cell_id in (*start, *busy, *failed):
            del self._wanted[cell_id]
        for cell_id in start:
            self._start(cell_id, now)
        return start, busy, failed

    def _find_idle_since(self, cell_id: str) -> float:
        return self._up[cell_id].idle_since

    def _is_refused(self, cell_id: str, now: float) -> bool:
        """Return whether the cell is being removed, or failed too short a time ago to be started again."""
        record = self._records[cell_id]
        is_paused = record.state is CellState.FAILED and now - record.since < record.pause_s
        return is_paused or cell_id in self._leaving or record.state is CellState.REMOVING

    def _start(self, cell_id: str, now: float) -> None:
        record = self._records[cell_id]
        record.move(CellState.STARTING, now)
        record.awake_since = None
        self._up[cell_id] = record
