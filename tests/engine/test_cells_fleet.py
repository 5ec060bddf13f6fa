"""The rules of which cells are awake, without servers: by example, and against arbitrary events."""

import random
from dataclasses import dataclass, field

import pytest

from tuplegate.engine.cells import fleet as rules
from tuplegate.engine.cells.fleet import (
    LEAVE_AGAIN_S,
    LIVED_S,
    SETTLED_S,
    STABLE_S,
    START_S,
    TRANSITIONS,
    UP,
    WAIT_S_MAX,
    CellState,
    Decision,
    Fleet,
    Halt,
    WrongTransition,
)

WORKER, OTHER = 1, 2
FIRST, SECOND, THIRD = (Halt(worker, 1, at_once=True) for worker in (WORKER, OTHER, 3))


def wake(fleet: Fleet, cell_id: str, now: float) -> None:
    """Bring a cell up."""
    assert not fleet.want(cell_id, now)
    assert fleet.decide(now).start == (cell_id,)
    fleet.note_ready(cell_id, now)


def fail(fleet: Fleet, cell_id: str, now: float) -> None:
    """Start a cell that ends at once."""
    fleet.want(cell_id, now)
    assert fleet.decide(now).start == (cell_id,)
    fleet.note_ended(cell_id, now, "no such file")


def idle(fleet: Fleet, cell_id: str, worker: int, now: float) -> None:
    """Let a worker keep its connections without a use."""
    fleet.note_use(cell_id, worker, fleet.list_stays(cell_id)[worker], now, in_use=False)


def rest(fleet: Fleet, cell_id: str, worker: int) -> None:
    """Let a worker close its connections."""
    fleet.note_rest(cell_id, worker, fleet.list_stays(cell_id)[worker])


def test_a_wanted_cell_is_started_once() -> None:
    """A cell is started when somebody wants it, and no more while it starts or is awake."""
    fleet = Fleet(["a", "b"], awake_max=2, idle_s=0)
    assert fleet.decide(0) == Decision()
    assert not fleet.want("a", 0)
    assert fleet.decide(0) == Decision(start=("a",))
    assert not fleet.want("a", 0)
    assert fleet.decide(0) == Decision()
    fleet.note_ready("a", 0)
    assert fleet.want("a", 0)
    assert fleet.decide(1000) == Decision()
    assert fleet.find_state("a") is CellState.AWAKE
    assert fleet.find_state("b") is CellState.ASLEEP
    assert fleet.find_state("c") is None


def test_one_decision_starts_few_cells() -> None:
    """Starts are spread over decisions, in the order of the wishes."""
    fleet = Fleet([], awake_max=5, idle_s=0)
    for cell_id in "abcde":
        fleet.want(cell_id, 0)
    assert [fleet.decide(0).start for _ in range(4)] == [("a", "b"), ("c", "d"), ("e",), ()]


def test_so_many_servers_start_at_a_time() -> None:
    """The next one starts when one is ready or has failed, or takes too long: a slow one holds up nobody."""
    fleet = Fleet([], awake_max=5, idle_s=0, starting_max=1)
    for cell_id in "abcd":
        fleet.want(cell_id, 0)
    assert [fleet.decide(0).start for _ in range(2)] == [("a",), ()]
    fleet.note_ready("a", 0.1)
    assert [fleet.decide(0.1).start for _ in range(2)] == [("b",), ()]
    fleet.note_ended("b", 0.2, "no such file")
    assert [fleet.decide(0.2).start for _ in range(2)] == [("c",), ()]
    assert fleet.decide(0.2 + START_S / 2).start == ()
    assert fleet.decide(0.2 + START_S).start == ("d",)


def test_the_longest_idle_cell_makes_room() -> None:
    """Without room the cell that was idle for longest is asked to rest, stopped when all let go, and replaced."""
    fleet = Fleet([], awake_max=2, idle_s=0)
    wake(fleet, "a", 0)
    wake(fleet, "b", 0)
    fleet.admit("b", WORKER, 1)
    idle(fleet, "b", WORKER, 2)
    fleet.admit("a", WORKER, 3)
    idle(fleet, "a", WORKER, 4)
    fleet.want("c", 10)
    assert fleet.decide(10) == Decision(ask_to_rest=("b",))
    assert fleet.decide(10) == Decision(), "worker 1 has not let go"
    rest(fleet, "b", WORKER)
    assert fleet.decide(10) == Decision(stop=("b",))
    assert fleet.decide(10) == Decision()
    fleet.note_ended("b", 10, "")
    assert fleet.find_state("b") is CellState.ASLEEP
    assert fleet.decide(10) == Decision(start=("c",))


def test_a_cell_stops_when_all_workers_have_let_go() -> None:
    """However long that takes; a worker that has ended has let go, too."""
    fleet = Fleet([], awake_max=1, idle_s=10)
    wake(fleet, "a", 0)
    for worker in (WORKER, OTHER):
        fleet.admit("a", worker, 0)
        idle(fleet, "a", worker, 0)
    assert fleet.decide(10) == Decision(ask_to_rest=("a",))
    assert [*fleet.list_stays("a")] == [WORKER, OTHER]
    rest(fleet, "a", WORKER)
    assert fleet.decide(10_000) == Decision()
    fleet.forget_worker(OTHER, 10_000)
    assert fleet.decide(10_000) == Decision(stop=("a",))


def test_a_cell_without_room_is_busy() -> None:
    """Where all cells are in use or start, a waiter is told so at once, and each wish anew."""
    fleet = Fleet([], awake_max=2, idle_s=0)
    wake(fleet, "a", 0)
    fleet.admit("a", WORKER, 0)
    fleet.want("b", 0)
    fleet.decide(0)
    fleet.want("c", 100)
    assert fleet.decide(100) == Decision(busy=("c",))
    assert fleet.decide(100) == Decision()
    fleet.want("c", 100)
    assert fleet.decide(100) == Decision(busy=("c",))


def test_one_leaving_cell_makes_room_for_one() -> None:
    """A second waiter is not promised the place that the first one waits for."""
    fleet = Fleet([], awake_max=2, idle_s=0)
    wake(fleet, "a", 0)
    wake(fleet, "b", 0)
    fleet.admit("b", WORKER, 0)
    fleet.want("c", 10)
    fleet.want("d", 10)
    assert fleet.decide(10) == Decision(ask_to_rest=("a",), busy=("d",))


def test_a_new_cell_comes_to_its_first_use() -> None:
    """A cell that has just come up is not put to sleep for the next waiter, who waits until it has settled."""
    fleet = Fleet([], awake_max=1, idle_s=0)
    wake(fleet, "a", 10)
    fleet.want("b", 10)
    assert fleet.decide(10) == Decision()
    assert fleet.decide(10 + SETTLED_S) == Decision(ask_to_rest=("a",))


def test_a_waiter_is_told_busy_in_the_end() -> None:
    """A cell that is used again and again never makes room; its waiter is told so after a while."""
    fleet = Fleet([], awake_max=1, idle_s=0)
    wake(fleet, "a", 0)
    fleet.want("b", 0)
    for tenths in range(round(WAIT_S_MAX * 10)):
        fleet.admit("a", WORKER, tenths / 10)
        idle(fleet, "a", WORKER, tenths / 10)
        assert fleet.decide(tenths / 10) == Decision()
    assert fleet.decide(WAIT_S_MAX) == Decision(busy=("b",))


@pytest.mark.parametrize("event", ["use", "want"])
def test_a_cell_that_is_needed_again_does_not_rest(event: str) -> None:
    """A use or a wish while a cell is asked to rest keeps it awake, and counts as a use."""
    fleet = Fleet([], awake_max=1, idle_s=10)
    wake(fleet, "a", 0)
    assert fleet.decide(10) == Decision(ask_to_rest=("a",))
    if event == "use":
        fleet.admit("a", WORKER, 10)
        idle(fleet, "a", WORKER, 10)
    else:
        assert fleet.want("a", 10)
    assert fleet.decide(19) == Decision()
    assert fleet.decide(20) == Decision(ask_to_rest=("a",))


def test_an_idle_cell_sleeps() -> None:
    """A cell without uses sleeps after idle_s; one in use does not, until the worker that uses it has ended."""
    fleet = Fleet([], awake_max=2, idle_s=10)
    wake(fleet, "a", 0)
    fleet.admit("a", WORKER, 5)
    assert fleet.decide(1000) == Decision()
    fleet.forget_worker(WORKER, 1000)
    assert fleet.decide(1009) == Decision()
    assert fleet.decide(1010) == Decision(ask_to_rest=("a",))


def test_the_pause_grows() -> None:
    """A cell that fails again and again is started after 1, 2, 4 … 60 s; wishes before that are told so at once."""
    fleet = Fleet([], awake_max=1, idle_s=0)
    now = 0.0
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        fail(fleet, "a", now)
        now += pause_s - 0.5
        fleet.want("a", now)
        assert fleet.decide(now) == Decision(failed=("a",))
        now += 0.5
    assert fleet.find_state("a") is CellState.FAILED
    assert fleet.find_reason("a") == "no such file"


def test_a_server_that_dies_for_once_is_followed_at_once() -> None:
    """However often. One that dies before it can have been used is followed after a pause, the second time."""
    fleet = Fleet([], awake_max=1, idle_s=0)
    for now in range(10):
        wake(fleet, "a", now)
        fleet.note_ended("a", now + LIVED_S, "it crashed")
    wake(fleet, "a", 10)
    fleet.note_ended("a", 10 + LIVED_S / 2, "it crashed")
    fleet.want("a", 11)
    assert fleet.decide(11) == Decision(failed=("a",))
    fleet.want("a", 12)
    assert fleet.decide(12) == Decision(start=("a",))


@pytest.mark.parametrize(("up_s", "pause_s"), [(STABLE_S - 1, 2), (STABLE_S, 0)])
def test_the_pause_begins_anew_after_a_stable_minute(up_s: float, pause_s: float) -> None:
    fleet = Fleet([], awake_max=1, idle_s=0)
    fail(fleet, "a", 0)
    wake(fleet, "a", 1)
    fleet.note_ended("a", 1 + up_s, "killed", is_killed=True)
    if pause_s:
        fleet.want("a", up_s + pause_s)
        assert fleet.decide(up_s + pause_s) == Decision(failed=("a",))
    fleet.want("a", 1 + up_s + pause_s)
    assert fleet.decide(1 + up_s + pause_s) == Decision(start=("a",))


def test_a_halted_cell_stops_and_is_not_started() -> None:
    """It stops although it is used, and whoever uses or wants it is told; its worker has it once it is down."""
    fleet = Fleet(["a"], awake_max=2, idle_s=0)
    wake(fleet, "a", 0)
    fleet.admit("a", OTHER, 0)
    fleet.halt("a", FIRST)
    assert fleet.decide(0) == Decision(stop=("a",), taken=("a",))
    assert [*fleet.list_stays("a")] == [OTHER], "it is told"
    assert fleet.is_withheld("a")
    fleet.note_ended("a", 0, "")
    assert fleet.decide(0) == Decision(halted=(("a", FIRST),))
    assert fleet.find_state("a") is CellState.HALTED
    assert fleet.is_withheld("a")
    fleet.release("a", FIRST, 1000)
    assert fleet.decide(1000) == Decision()
    assert not fleet.is_withheld("a")
    fleet.want("a", 1000)
    assert fleet.decide(1000) == Decision(start=("a",))


def test_a_sleeping_or_failed_cell_is_halted_at_once() -> None:
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    fail(fleet, "b", 0)
    fleet.halt("a", FIRST)
    fleet.halt("b", FIRST)
    assert fleet.decide(0) == Decision(halted=(("a", FIRST), ("b", FIRST)))


def test_a_starting_cell_is_withheld_from_those_who_wait() -> None:
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    fleet.want("a", 0)
    assert fleet.decide(0) == Decision(start=("a",))
    fleet.halt("a", FIRST)
    assert fleet.decide(0) == Decision(stop=("a",), taken=("a",))


def test_a_cell_that_waits_for_a_place_is_withheld_from_those_who_wait() -> None:
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    wake(fleet, "b", 0)
    fleet.want("a", 0)
    fleet.halt("a", FIRST)
    assert fleet.decide(0) == Decision(halted=(("a", FIRST),), withheld=("a",))


def test_workers_leave_a_cell_that_is_halted_without_haste() -> None:
    """They are asked again as long as one of them has a statement there, and it does not stop before."""
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    wake(fleet, "a", 0)
    stays = {worker: fleet.admit("a", worker, 0) for worker in (WORKER, OTHER)}
    fleet.halt("a", Halt(3, 1))
    assert fleet.decide(1) == Decision(ask_to_leave=("a",))
    assert fleet.decide(1) == Decision()
    fleet.note_rest("a", WORKER, stays[WORKER])
    fleet.note_use("a", OTHER, stays[OTHER], 2, in_use=True)
    assert fleet.decide(2 + 0.5 * LEAVE_AGAIN_S) == Decision()
    assert fleet.decide(2 + 1.5 * LEAVE_AGAIN_S) == Decision(ask_to_leave=("a",))
    fleet.note_rest("a", OTHER, stays[OTHER])
    assert fleet.decide(3) == Decision(stop=("a",), taken=("a",))
    fleet.note_ended("a", 3, "")
    assert fleet.decide(3) == Decision(halted=(("a", Halt(3, 1)),))


@pytest.mark.parametrize("state", [CellState.STARTING, CellState.AWAKE])
def test_a_cell_that_is_given_back_at_once_goes_on(state: CellState) -> None:
    """As if nobody had wanted it to halt."""
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    fleet.want("a", 0)
    assert fleet.decide(0) == Decision(start=("a",))
    if state is CellState.AWAKE:
        fleet.note_ready("a", 0)
    fleet.halt("a", FIRST)
    fleet.release("a", FIRST, 0)
    assert fleet.decide(0) == Decision()
    assert fleet.find_state("a") is state


@pytest.mark.parametrize("way", ["release", "end"])
def test_a_halted_cell_goes_from_one_worker_to_the_next(way: str) -> None:
    """In the order of their wishes, without a start between; one that does not want it any more is passed over."""
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    for halt in (FIRST, SECOND, THIRD):
        fleet.halt("a", halt)
    assert fleet.decide(0) == Decision(halted=(("a", FIRST),))
    assert fleet.is_withheld("a")

    def leave(halt: Halt) -> None:
        if way == "release":
            fleet.release("a", halt, 0)
        else:
            fleet.forget_worker(halt.worker, 0)

    leave(SECOND)
    assert fleet.decide(0) == Decision(), "another worker has it"
    leave(FIRST)
    assert fleet.decide(0) == Decision(halted=(("a", THIRD),))
    leave(THIRD)
    assert fleet.find_state("a") is CellState.ASLEEP


def test_a_halt_is_ended_by_itself_alone() -> None:
    """One worker can have several halts of a cell; with the worker all of them end."""
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    second, third = Halt(WORKER, 2), Halt(WORKER, 3)
    for halt in (FIRST, second, third, SECOND):
        fleet.halt("a", halt)
    assert fleet.decide(0) == Decision(halted=(("a", FIRST),))
    fleet.release("a", second, 0)
    assert fleet.decide(0) == Decision(), "the first still has it"
    fleet.release("a", FIRST, 0)
    assert fleet.decide(0) == Decision(halted=(("a", third),))
    fleet.halt("a", Halt(WORKER, 4))
    fleet.forget_worker(WORKER, 0)
    assert fleet.decide(0) == Decision(halted=(("a", SECOND),))


def test_what_comes_late_about_a_stay_changes_nothing() -> None:
    """Neither does it end the next stay, nor does it keep the next server awake."""
    fleet = Fleet(["a"], awake_max=1, idle_s=10)
    wake(fleet, "a", 0)
    first = fleet.admit("a", WORKER, 0)
    second = fleet.admit("a", WORKER, 0)
    fleet.note_rest("a", WORKER, first)
    assert fleet.list_stays("a") == {WORKER: second}
    fleet.note_ended("a", 0, "it crashed")
    wake(fleet, "a", 1)
    fleet.note_use("a", WORKER, second, 1, in_use=True)
    assert fleet.list_stays("a") == {}
    assert fleet.decide(11) == Decision(ask_to_rest=("a",))


def test_a_removed_cell_is_forgotten() -> None:
    """Unless somebody wants it: who waits for it hears that it does not start, who wants to halt it gets it."""
    fleet = Fleet(["a", "b", "c"], awake_max=2, idle_s=0)
    for cell_id in "abc":
        fleet.halt(cell_id, FIRST)
    fleet.decide(0)
    fleet.want("b", 0)
    fleet.halt("c", SECOND)
    for cell_id in "abc":
        fleet.release(cell_id, FIRST, 0, is_gone=True)
    assert [fleet.find_state(cell_id) for cell_id in "abc"] == [None, CellState.ASLEEP, CellState.HALTED]
    assert fleet.decide(0) == Decision(start=("b",), halted=(("c", SECOND),))


def test_what_cannot_be_is_refused() -> None:
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    with pytest.raises(WrongTransition, match="from asleep to awake"):
        fleet.note_ready("a", 0)


def test_each_state_is_in_the_table() -> None:
    """A place is given back only by an end, and every state can be left. A halted cell is not started."""
    assert set(TRANSITIONS) == set(CellState)
    assert all(TRANSITIONS.values())
    assert not TRANSITIONS[CellState.HALTED] & UP
    for state in UP:
        assert TRANSITIONS[state] - UP <= {CellState.ASLEEP, CellState.FAILED}


CELLS = ("a", "b", "c")
AWAKE_MAX = 2
Event = tuple[str, str, int, float]
WEIGHTS = {
    "want": 6, "use": 6, "unuse": 4, "let_go": 4, "ready": 8, "end": 2, "halt": 1, "release": 2, "remove": 0.3,
    "worker_ends": 0.5, "pass": 3, "decide": 20,
}  # fmt: skip
"""How often each kind of event comes: a deed needs several before it, so what leads on comes more often."""


@dataclass
class World:
    """A fleet, and the servers, waiters and workers that its caller would have."""

    fleet: Fleet
    now: float = 0.0
    servers: set[str] = field(default_factory=set)
    stopping: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    used: set[tuple[str, int]] = field(default_factory=set)
    connected: dict[tuple[str, int], int] = field(default_factory=dict)
    """The number of the stay of each worker in a cell."""
    halting: dict[str, list[Halt]] = field(default_factory=dict)
    """The halts of each cell, in their order."""
    owned: dict[str, Halt] = field(default_factory=dict)
    """The halt that was told that it has the cell."""
    halts: int = 0

    def happen(self, event: Event) -> None:
        kind, cell_id, worker, wait_s = event
        if kind == "want" and not self.fleet.is_withheld(cell_id) and not self.fleet.want(cell_id, self.now):
            self.waiting.add(cell_id)
        elif (
            kind == "use"
            and cell_id not in self.halting
            and self.fleet.find_state(cell_id) in (CellState.AWAKE, CellState.ASKED_TO_REST)
        ):
            self.used.add((cell_id, worker))
            self.connected[(cell_id, worker)] = self.fleet.admit(cell_id, worker, self.now)
        elif kind == "unuse" and (cell_id, worker) in self.used:
            idle(self.fleet, cell_id, worker, self.now)
            self.used.discard((cell_id, worker))
        elif kind == "let_go" and (cell_id, worker) in self.connected and (cell_id, worker) not in self.used:
            self.fleet.note_rest(cell_id, worker, self.connected.pop((cell_id, worker)))
        elif kind == "worker_ends":
            self.end_worker(worker)
        elif kind == "ready" and self.fleet.find_state(cell_id) is CellState.STARTING:
            self.fleet.note_ready(cell_id, self.now)
            self.waiting.discard(cell_id)
        elif kind == "end" and cell_id in self.servers:
            self.end(cell_id)
        elif kind == "halt":
            self.halts += 1
            halt = Halt(worker, self.halts, at_once=self.halts % 2 == 0)
            self.fleet.halt(cell_id, halt)
            self.halting.setdefault(cell_id, []).append(halt)
        elif kind == "release" and (last := self.halting.get(cell_id, [])[-1:]):
            self.release(cell_id, last[0])
        elif kind == "remove" and cell_id in self.owned:
            self.release(cell_id, self.owned[cell_id], is_gone=True)
        elif kind == "pass":
            self.now += wait_s
        elif kind == "decide":
            self.decide()

    def end(self, cell_id: str) -> None:
        self.fleet.note_ended(cell_id, self.now, "killed")
        self.servers.remove(cell_id)
        self.used = {use for use in self.used if use[0] != cell_id}
        self.connected = {use: number for use, number in self.connected.items() if use[0] != cell_id}
        if cell_id not in self.stopping:
            self.waiting.discard(cell_id)
        self.stopping.discard(cell_id)

    def end_worker(self, worker: int) -> None:
        self.fleet.forget_worker(worker, self.now)
        self.used = {use for use in self.used if use[1] != worker}
        self.connected = {use: number for use, number in self.connected.items() if use[1] != worker}
        for cell_id, halts in list(self.halting.items()):
            for halt in [halt for halt in halts if halt.worker == worker]:
                self.forget_halt(cell_id, halt)

    def release(self, cell_id: str, halt: Halt, *, is_gone: bool = False) -> None:
        self.fleet.release(cell_id, halt, self.now, is_gone=is_gone)
        self.forget_halt(cell_id, halt)

    def forget_halt(self, cell_id: str, halt: Halt) -> None:
        self.halting[cell_id].remove(halt)
        if not self.halting[cell_id]:
            del self.halting[cell_id]
        if self.owned.get(cell_id) == halt:
            del self.owned[cell_id]

    def decide(self) -> Decision:
        decision = self.fleet.decide(self.now)
        assert not set(decision.start) & (self.servers | set(self.halting))
        self.servers |= set(decision.start)
        assert len(self.servers) <= AWAKE_MAX
        freely = {
            cell_id for cell_id in decision.stop if not any(halt.at_once for halt in self.halting.get(cell_id, ()))
        }
        assert not {cell_id for cell_id, _ in self.used} & set(decision.ask_to_rest)
        assert not {cell_id for cell_id, _ in self.connected} & freely
        assert set(decision.stop) <= self.servers - self.stopping
        assert {cell_id for cell_id, _ in self.connected} & {*decision.stop} <= {*decision.taken}
        self.stopping |= set(decision.stop)
        assert {*decision.withheld, *decision.taken, *decision.ask_to_leave} <= set(self.halting)
        told = {*decision.busy, *decision.failed, *decision.withheld, *decision.taken}
        assert told - set(decision.stop) <= self.waiting
        self.waiting -= told
        for cell_id, halt in decision.halted:
            assert cell_id not in self.servers | set(self.owned)
            assert self.halting[cell_id][0] == halt
            self.owned[cell_id] = halt
        assert self.servers == {cell_id for cell_id in CELLS if self.fleet.find_state(cell_id) in UP}
        return decision

    def settle(self) -> None:
        """Let servers get ready and end, workers let go of what they do not use, and time pass, as long as a waiter can
        need."""
        for _ in range(80):
            self.decide()
            for cell_id, worker in sorted(self.connected):
                if self.fleet.find_state(cell_id) is CellState.ASKED_TO_REST:
                    if cell_id in self.halting:
                        self.happen(("unuse", cell_id, worker, 0))
                    self.happen(("let_go", cell_id, worker, 0))
            for cell_id in sorted(self.servers):
                if cell_id in self.stopping:
                    self.end(cell_id)
                else:
                    self.happen(("ready", cell_id, WORKER, 0))
            for cell_id, halt in list(self.owned.items()):
                self.release(cell_id, halt)
            self.now += 0.5


def list_events(seed: int, count: int) -> list[Event]:
    chance = random.Random(seed)
    kinds = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    return [(kind, chance.choice(CELLS), chance.choice((1, 2)), chance.choice((0.0, 0.3, 1.0, 5.0))) for kind in kinds]


@pytest.mark.parametrize("idle_s", [0.0, 3.0])
@pytest.mark.parametrize("seed", range(25))
def test_the_rules_hold_whatever_happens(seed: int, idle_s: float) -> None:
    """Never more cells than places, none stopped in use unless it is halted at once, and none started while it is.
    Whoever wants to halt one gets it, one after the other; everybody who waits or whose cell is taken hears of it."""
    seen: list[tuple[CellState, CellState]] = []
    world = World(Fleet(CELLS[:1], AWAKE_MAX, idle_s))
    for event in list_events(seed, 400):
        before = {cell_id: world.fleet.find_state(cell_id) for cell_id in CELLS}
        world.happen(event)
        if event[0] not in ("decide", "remove"):  # these may take two steps at once
            seen += [
                (state, after)
                for cell_id, state in before.items()
                if state is not None and (after := world.fleet.find_state(cell_id)) is not None and after is not state
            ]
    assert all(after in TRANSITIONS[state] for state, after in seen)
    world.settle()
    assert world.waiting == set()
    assert world.halting == {}


def test_every_move_is_checked_against_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a table that lacks a transition the rules do not take it."""
    monkeypatch.setitem(rules.TRANSITIONS, CellState.ASLEEP, {CellState.HALTED})
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    fleet.want("a", 0)
    with pytest.raises(WrongTransition, match="from asleep to starting"):
        fleet.decide(0)
