"""Decides which cells are awake, and who has their directories: pure rules, without clock, files or processes.

Contract: the caller reports events (a wish, a use, a server that is ready or has ended) and asks `decide` at every
moment what to do. `now` is an argument and never goes back. A cell has one state, which changes only as TRANSITIONS
says. At most `awake_max` cells are up, and a cell that a worker uses is not put to sleep. A directory has one user at a
time: the server of its cell, or the halt that owns it.

A sleeping cell that nobody asks for costs nothing: `decide` looks only at wanted cells and at those that are up.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
"""The pause between failures. After the first failure of a server that was ready, the next server starts at once."""
LIVED_S = 0.25
"""A server that was up for this long has usually been used. If it dies then, the next one is started at once."""
STABLE_S = 60.0
"""If a server was up for this long before it is killed for what it does, earlier failures count no more."""
SETTLED_S = 1.0
"""A cell makes room for another one after this time without a use, so that a new cell gets to its first use."""
WAIT_S_MAX = 5.0
"""A waiter is told busy after this time if cells that were to make room for it are used again and again."""
STARTS_MAX = 2
"""The number of servers that one decision starts: each takes the supervisor some milliseconds."""
LEAVE_AGAIN_S = 0.05
"""The pause before workers are asked again to leave a cell that one of them needed."""
START_S = 0.3
"""A server that takes longer to start no longer delays others."""


class CellState(Enum):
    """The state of a cell."""

    ASLEEP = "asleep"
    STARTING = "starting"
    AWAKE = "awake"
    ASKED_TO_REST = "asked_to_rest"
    """Workers are asked to close their connections, and may answer that they need the cell."""
    STOPPING = "stopping"
    FAILED = "failed"
    HALTED = "halted"
    """The server is down and may not be started: somebody copies or removes the cell's directory."""


TRANSITIONS = {
    CellState.ASLEEP: {CellState.STARTING, CellState.HALTED},
    CellState.STARTING: {CellState.AWAKE, CellState.STOPPING, CellState.FAILED},
    CellState.AWAKE: {CellState.ASKED_TO_REST, CellState.STOPPING, CellState.FAILED},
    CellState.ASKED_TO_REST: {CellState.AWAKE, CellState.STOPPING, CellState.FAILED},
    CellState.STOPPING: {CellState.ASLEEP},
    CellState.FAILED: {CellState.STARTING, CellState.HALTED},
    CellState.HALTED: {CellState.ASLEEP},
}
UP = frozenset({CellState.STARTING, CellState.AWAKE, CellState.ASKED_TO_REST, CellState.STOPPING})
"""A cell in one of these states has a server, or will have one at once, and counts toward `awake_max`."""
LEAVING = frozenset({CellState.ASKED_TO_REST, CellState.STOPPING})


class WrongTransition(Exception):
    """An event does not fit the state of its cell: the caller has reported something that cannot be."""


@dataclass(frozen=True, slots=True)
class Halt:
    """A worker's wish to have the directory of a cell alone, by a number that this worker gives to no other one. It
    waits for statements in the cell to end, unless it is `at_once`."""

    worker: int
    number: int
    at_once: bool = field(default=False, compare=False)


@dataclass(slots=True)
class Halts:
    """The halts of one cell: the one that has the directory, and those that wait for it, in their order."""

    owner: Halt | None = None
    waiting: list[Halt] = field(default_factory=list)


@dataclass(slots=True)
class Stay:
    """The time that a worker has connections to a cell. No two have the same number."""

    number: int
    in_use: bool = True


@dataclass(slots=True)
class CellRecord:
    """All that the rules remember of a cell."""

    state: CellState = CellState.ASLEEP
    since: float = 0.0
    idle_since: float = 0.0
    awake_since: float | None = None
    stays: dict[int, Stay] = field(default_factory=dict)
    """Of each worker that has connections."""
    failures: int = 0
    """The number of times in a row that the server ended too early."""
    reason: str = ""

    @property
    def pause_s(self) -> float:
        """Return the pause after a failure before the next server is started."""
        return 0.0 if self.failures < 2 else min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(self.failures - 2, 10))

    def move(self, state: CellState, now: float) -> None:
        if state not in TRANSITIONS[self.state]:
            raise WrongTransition(f"a cell does not go from {self.state.value} to {state.value}")
        self.state, self.since = state, now

    @property
    def is_idle(self) -> bool:
        return self.state is CellState.AWAKE and not any(stay.in_use for stay in self.stays.values())


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything to do now, by ids of cells. Waiters of `busy`, `failed`, `withheld` and `taken` cells are told so and
    wait no longer; nobody uses a `taken` cell any more. Who is asked to leave a cell may stay only while a statement
    runs there. `halted` are cells with the halt that owns each of them now."""

    start: tuple[str, ...] = ()
    ask_to_rest: tuple[str, ...] = ()
    ask_to_leave: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    halted: tuple[tuple[str, Halt], ...] = ()


class Fleet:
    """The records of all cells, and the rules. With `idle_s` 0, an idle cell stays awake while there is room.

    At most `starting_max` servers start at a time: more would take the processors from cells that are awake, and would
    not be ready sooner.
    """

    def __init__(self, cell_ids: Iterable[str], awake_max: int, idle_s: float, starting_max: int = 1000) -> None:
        self._records = {cell_id: CellRecord() for cell_id in cell_ids}
        self._awake_max = awake_max
        self._idle_s = idle_s
        self._starting_max = starting_max
        self._wanted: dict[str, float] = {}
        """Cells that somebody waits for, in the order and with the time of their first waiter."""
        self._up: dict[str, CellRecord] = {}
        self._halts: dict[str, Halts] = {}
        self._stays_begun = 0

    def find_reason(self, cell_id: str) -> str:
        """Return why the cell failed last."""
        record = self._records.get(cell_id)
        return "" if record is None else record.reason

    def list_stays(self, cell_id: str) -> dict[int, int]:
        """Return the workers that have connections to the cell, with the numbers of their stays."""
        record = self._up.get(cell_id)
        return {} if record is None else {worker: stay.number for worker, stay in record.stays.items()}

    @property
    def awake_count(self) -> int:
        """Return the number of cells that have a server, or have one at once."""
        return len(self._up)

    @property
    def is_moving(self) -> bool:
        """Return whether a cell is between two states, so that there is something to do soon."""
        passing = (CellState.AWAKE, CellState.ASKED_TO_REST)
        is_awaited = bool(self._wanted) or any(halts.owner is None for halts in self._halts.values())
        return is_awaited or any(record.state not in passing for record in self._up.values())

    def find_state(self, cell_id: str) -> CellState | None:
        """Return the state of a cell, or None for one that was never wanted and not there at the beginning."""
        record = self._records.get(cell_id)
        return None if record is None else record.state

    def is_withheld(self, cell_id: str) -> bool:
        """Return whether somebody has the cell halted, or waits for that."""
        return cell_id in self._halts

    def want(self, cell_id: str, now: float) -> bool:
        """Note that somebody waits for a cell that is not withheld. Return whether it is awake, and keep it awake if
        so."""
        record = self._records.setdefault(cell_id, CellRecord())
        if record.state in (CellState.AWAKE, CellState.ASKED_TO_REST):
            self._keep_awake(record, now)
            return True
        if record.state is not CellState.STARTING:
            self._wanted.setdefault(cell_id, now)
        return False

    def admit(self, cell_id: str, worker: int, now: float) -> int:
        """Begin a stay of a worker, which uses the awake cell from now on. Return its number."""
        record = self._up[cell_id]
        self._stays_begun += 1
        record.stays[worker] = Stay(self._stays_begun)
        self._keep_awake(record, now)
        return self._stays_begun

    def note_use(self, cell_id: str, worker: int, number: int, now: float, *, in_use: bool) -> None:
        """Note that a worker has begun to use the cell, or has stopped but keeps its connections.

        A worker may report this late, when the stay has ended or the server is about to. Then there is nothing to note.
        """
        record = self._up.get(cell_id)
        stay = None if record is None else record.stays.get(worker)
        if record is None or stay is None or stay.number != number or record.state is CellState.STOPPING:
            return
        stay.in_use = in_use
        if in_use:
            self._keep_awake(record, now)
        else:
            record.idle_since = now

    def note_rest(self, cell_id: str, worker: int, number: int) -> None:
        """Note that a worker has closed its connections to the cell. The next stay can have begun before that."""
        if self.list_stays(cell_id).get(worker) == number:
            del self._up[cell_id].stays[worker]

    def forget_worker(self, worker: int, now: float) -> None:
        """Note that a worker has ended, and its stays and halts with it."""
        for record in self._up.values():
            stay = record.stays.pop(worker, None)
            if stay is not None and stay.in_use:
                record.idle_since = now
        for cell_id, halts in list(self._halts.items()):
            for halt in [halts.owner, *halts.waiting]:
                if halt is not None and halt.worker == worker:
                    self.release(cell_id, halt, now)

    def note_ready(self, cell_id: str, now: float) -> None:
        """Note that the cell's server takes connections."""
        record = self._records[cell_id]
        record.move(CellState.AWAKE, now)
        record.awake_since = record.idle_since = now

    def note_ended(self, cell_id: str, now: float, reason: str, *, is_killed: bool = False) -> None:
        """Note that the server has ended, or could not be started. Unless it was stopped, that is a failure.

        `is_killed`: a worker had it killed for what it did.
        """
        record = self._up.pop(cell_id)
        record.stays.clear()
        up_s = -1.0 if record.awake_since is None else now - record.awake_since
        if up_s >= (STABLE_S if is_killed else LIVED_S):
            record.failures = 0
        if record.state is CellState.STOPPING:
            record.move(CellState.ASLEEP, now)
            return
        if up_s < 0 and not record.failures:
            record.failures = 2
        else:
            record.failures += 1
        record.reason = reason
        record.move(CellState.FAILED, now)

    def halt(self, cell_id: str, halt: Halt) -> None:
        """Let nobody else in, stop the cell's server once workers have left it, and start it no more until all halts
        have ended. A decision says when each of them has the directory, one after the other."""
        self._records.setdefault(cell_id, CellRecord())
        self._halts.setdefault(cell_id, Halts()).waiting.append(halt)

    def release(self, cell_id: str, halt: Halt, now: float, *, is_gone: bool = False) -> None:
        """End a halt, whether it has the directory or waits for it. `is_gone`: it has removed the directory."""
        halts, record = self._halts[cell_id], self._records[cell_id]
        if halts.owner == halt:
            halts.owner = None
        else:
            halts.waiting.remove(halt)
        if halts.owner is not None or halts.waiting:
            return
        del self._halts[cell_id]
        if record.state is CellState.HALTED:
            record.move(CellState.ASLEEP, now)
            if is_gone and cell_id not in self._wanted:  # who waits for it hears that it does not start
                del self._records[cell_id]

    def decide(self, now: float) -> Decision:
        """Return everything to do now, and record it as done: the caller must do it."""
        taken, leave, halted = self._halt(now)
        stop = (*taken, *self._stop_resting(now))
        rest = [
            cell_id
            for cell_id, record in self._up.items()
            if self._idle_s and record.is_idle and now - record.idle_since >= self._idle_s
        ]
        for cell_id in rest:
            self._up[cell_id].move(CellState.ASKED_TO_REST, now)
        start, busy, failed, withheld = self._serve_wanted(rest, now)
        return Decision(
            start=tuple(start),
            ask_to_rest=tuple(rest),
            ask_to_leave=tuple(leave),
            stop=stop,
            taken=tuple(taken),
            busy=tuple(busy),
            failed=tuple(failed),
            withheld=tuple(withheld),
            halted=tuple(halted),
        )

    def _keep_awake(self, record: CellRecord, now: float) -> None:
        if record.state is CellState.ASKED_TO_REST:
            record.move(CellState.AWAKE, now)
        record.idle_since = now

    def _halt(self, now: float) -> tuple[list[str], list[str], list[tuple[str, Halt]]]:
        """Move halts on whose cells nobody owns. Return the cells whose servers must stop first, those that workers
        must leave before, and the new owners."""
        stopped, leave, halted = [], [], []
        for cell_id, halts in sorted(self._halts.items()):
            record = self._records[cell_id]
            if halts.owner is not None:
                continue
            if record.state in (CellState.ASLEEP, CellState.FAILED):
                record.move(CellState.HALTED, now)
            elif record.state in (CellState.STARTING, CellState.AWAKE, CellState.ASKED_TO_REST):
                if not record.stays or any(halt.at_once for halt in halts.waiting):
                    record.move(CellState.STOPPING, now)
                    stopped.append(cell_id)
                elif record.state is CellState.AWAKE and now - record.since >= LEAVE_AGAIN_S:
                    record.move(CellState.ASKED_TO_REST, now)
                    leave.append(cell_id)
            if record.state is CellState.HALTED:
                halts.owner = halts.waiting.pop(0)
                halted.append((cell_id, halts.owner))
        return stopped, leave, halted

    def _stop_resting(self, now: float) -> list[str]:
        """Stop cells whose workers have all closed their connections. A worker that does not answer has a standstill,
        and is killed for that."""
        rested = [
            cell_id
            for cell_id, record in self._up.items()
            if record.state is CellState.ASKED_TO_REST and not record.stays
        ]
        for cell_id in rested:
            self._up[cell_id].move(CellState.STOPPING, now)
        return rested

    def _serve_wanted(self, rest: list[str], now: float) -> tuple[list[str], list[str], list[str], list[str]]:
        """Return the wanted cells to start, the busy, the failed and the withheld ones. Add cells that must make room
        to `rest`.

        Wanted cells are served in order. Each takes a free place, or that of a cell about to leave, or that of an idle
        cell. If there is none, the wanted cell is busy.
        """
        start: list[str] = []
        busy: list[str] = []
        failed: list[str] = []
        withheld: list[str] = []
        free = self._awake_max - len(self._up)
        starts_max = min(STARTS_MAX, self._starting_max - self._count_starting(now))
        about_to_leave = sum(record.state in LEAVING for record in self._up.values())
        idle = sorted((cell_id for cell_id in self._up if self._up[cell_id].is_idle), key=self._find_idle_since)[::-1]
        for cell_id, wanted_at in self._wanted.items():
            if cell_id in self._halts:
                withheld.append(cell_id)
            elif self._is_paused(cell_id, now):
                failed.append(cell_id)
            elif free > 0:
                free -= 1
                if len(start) < starts_max and self._records[cell_id].state is not CellState.STOPPING:
                    start.append(cell_id)
            elif about_to_leave > 0:
                about_to_leave -= 1
            elif not idle or now - wanted_at >= WAIT_S_MAX:
                busy.append(cell_id)
            elif now - self._find_idle_since(longest_idle := idle.pop()) >= SETTLED_S:
                self._up[longest_idle].move(CellState.ASKED_TO_REST, now)
                rest.append(longest_idle)
        for cell_id in (*start, *busy, *failed, *withheld):
            del self._wanted[cell_id]
        for cell_id in start:
            self._start(cell_id, now)
        return start, busy, failed, withheld

    def _count_starting(self, now: float) -> int:
        return sum(r.state is CellState.STARTING and now - r.since < START_S for r in self._up.values())

    def _find_idle_since(self, cell_id: str) -> float:
        return self._up[cell_id].idle_since

    def _is_paused(self, cell_id: str, now: float) -> bool:
        """Return whether the cell failed too short a time ago to be started again."""
        record = self._records[cell_id]
        return record.state is CellState.FAILED and now - record.since < record.pause_s

    def _start(self, cell_id: str, now: float) -> None:
        record = self._records[cell_id]
        record.move(CellState.STARTING, now)
        record.awake_since = None
        self._up[cell_id] = record
