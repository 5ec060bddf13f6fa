"""The rules of which cells are awake, without servers: by example, and against arbitrary events."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplegate.engine.cells import fleet as rules
from tuplegate.engine.cells.fleet import (
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
    WrongTransition,
)

WORKER, OTHER = 1, 2


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
    fleet.note_use("b", WORKER, 1, in_use=True)
    fleet.note_use("b", WORKER, 2, in_use=False)
    fleet.note_use("a", WORKER, 3, in_use=True)
    fleet.note_use("a", WORKER, 4, in_use=False)
    fleet.want("c", 10)
    assert fleet.decide(10) == Decision(ask_to_rest=("b",))
    assert fleet.decide(10) == Decision(), "worker 1 has not let go"
    fleet.note_rest("b", WORKER)
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
        fleet.note_use("a", worker, 0, in_use=True)
        fleet.note_use("a", worker, 0, in_use=False)
    assert fleet.decide(10) == Decision(ask_to_rest=("a",))
    assert fleet.list_users("a") == [WORKER, OTHER]
    fleet.note_rest("a", WORKER)
    assert fleet.decide(10_000) == Decision()
    fleet.forget_worker(OTHER, 10_000)
    assert fleet.decide(10_000) == Decision(stop=("a",))


def test_a_cell_without_room_is_busy() -> None:
    """Where all cells are in use or start, a waiter is told so at once, and each wish anew."""
    fleet = Fleet([], awake_max=2, idle_s=0)
    wake(fleet, "a", 0)
    fleet.note_use("a", WORKER, 0, in_use=True)
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
    fleet.note_use("b", WORKER, 0, in_use=True)
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
        fleet.note_use("a", WORKER, tenths / 10, in_use=True)
        fleet.note_use("a", WORKER, tenths / 10, in_use=False)
        assert fleet.decide(tenths / 10) == Decision()
    assert fleet.decide(WAIT_S_MAX) == Decision(busy=("b",))


@pytest.mark.parametrize("event", ["use", "want"])
def test_a_cell_that_is_needed_again_does_not_rest(event: str) -> None:
    """A use or a wish while a cell is asked to rest keeps it awake, and counts as a use."""
    fleet = Fleet([], awake_max=1, idle_s=10)
    wake(fleet, "a", 0)
    assert fleet.decide(10) == Decision(ask_to_rest=("a",))
    if event == "use":
        fleet.note_use("a", WORKER, 10, in_use=True)
        fleet.note_use("a", WORKER, 10, in_use=False)
    else:
        assert fleet.want("a", 10)
    assert fleet.decide(19) == Decision()
    assert fleet.decide(20) == Decision(ask_to_rest=("a",))


def test_an_idle_cell_sleeps() -> None:
    """A cell without uses sleeps after idle_s; one in use does not, until the worker that uses it has ended."""
    fleet = Fleet([], awake_max=2, idle_s=10)
    wake(fleet, "a", 0)
    fleet.note_use("a", WORKER, 5, in_use=True)
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
    fleet.note_use("a", OTHER, 0, in_use=True)
    fleet.halt("a", WORKER)
    assert fleet.decide(0) == Decision(stop=("a",), withheld=("a",))
    assert fleet.list_users("a") == [OTHER], "it is told"
    fleet.want("a", 0)
    assert fleet.decide(0) == Decision(withheld=("a",))
    fleet.note_ended("a", 0, "")
    assert fleet.decide(0) == Decision(halted=(("a", WORKER),))
    assert fleet.find_state("a") is CellState.HALTED
    fleet.want("a", 1000)
    assert fleet.decide(1000) == Decision(withheld=("a",))
    fleet.release("a", WORKER, 1000)
    assert fleet.decide(1000) == Decision()
    fleet.want("a", 1000)
    assert fleet.decide(1000) == Decision(start=("a",))


def test_a_sleeping_or_failed_cell_is_halted_at_once() -> None:
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    fail(fleet, "b", 0)
    fleet.halt("a", WORKER)
    fleet.halt("b", WORKER)
    assert fleet.decide(0) == Decision(halted=(("a", WORKER), ("b", WORKER)))


def test_a_starting_cell_is_withheld_from_those_who_wait() -> None:
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    fleet.want("a", 0)
    assert fleet.decide(0) == Decision(start=("a",))
    fleet.halt("a", WORKER)
    assert fleet.decide(0) == Decision(stop=("a",), withheld=("a",))


@pytest.mark.parametrize("state", [CellState.STARTING, CellState.AWAKE])
def test_a_cell_that_is_given_back_at_once_goes_on(state: CellState) -> None:
    """As if nobody had wanted it to halt."""
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    fleet.want("a", 0)
    assert fleet.decide(0) == Decision(start=("a",))
    if state is CellState.AWAKE:
        fleet.note_ready("a", 0)
    fleet.halt("a", WORKER)
    fleet.want("a", 0)
    fleet.release("a", WORKER, 0)
    assert fleet.decide(0) == Decision()
    assert fleet.find_state("a") is state


@pytest.mark.parametrize("way", ["release", "end"])
def test_a_halted_cell_goes_from_one_worker_to_the_next(way: str) -> None:
    """In the order of their wishes, without a start between; one that does not want it any more is passed over."""
    fleet = Fleet(["a"], awake_max=1, idle_s=0)
    for worker in (WORKER, OTHER, 3):
        fleet.halt("a", worker)
    assert fleet.decide(0) == Decision(halted=(("a", WORKER),))
    fleet.want("a", 0)
    assert fleet.decide(0) == Decision(withheld=("a",))

    def leave(worker: int) -> None:
        if way == "release":
            fleet.release("a", worker, 0)
        else:
            fleet.forget_worker(worker, 0)

    leave(OTHER)
    assert fleet.decide(0) == Decision(), "another worker has it"
    leave(WORKER)
    assert fleet.decide(0) == Decision(halted=(("a", 3),))
    leave(3)
    assert fleet.find_state("a") is CellState.ASLEEP


def test_a_removed_cell_is_forgotten() -> None:
    """Unless somebody wants it: who waits for it hears that it does not start, who wants to halt it gets it."""
    fleet = Fleet(["a", "b", "c"], awake_max=2, idle_s=0)
    for cell_id in "abc":
        fleet.halt(cell_id, WORKER)
    fleet.decide(0)
    fleet.want("b", 0)
    fleet.halt("c", OTHER)
    for cell_id in "abc":
        fleet.release(cell_id, WORKER, 0)
        fleet.forget(cell_id)
    assert [fleet.find_state(cell_id) for cell_id in "abc"] == [None, CellState.ASLEEP, CellState.HALTED]
    assert fleet.decide(0) == Decision(start=("b",), halted=(("c", OTHER),))
    with pytest.raises(WrongTransition):
        fleet.forget("b")


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


CELLS = ("a", "b", "c", "d", "e")
AWAKE_MAX = 2
Event = tuple[str, str, int, float]
KINDS = (
    "want", "use", "unuse", "let_go", "ready", "end", "halt", "release", "remove", "worker_ends", "pass", "decide",
)  # fmt: skip
EVENTS = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from(CELLS),
    st.integers(1, 2),
    st.sampled_from([0.0, 0.3, 1.0, 5.0, 70.0]),
)


@dataclass
class World:
    """A fleet, and the servers, waiters and workers that its caller would have."""

    fleet: Fleet
    now: float = 0.0
    servers: set[str] = field(default_factory=set)
    stopping: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    used: set[tuple[str, int]] = field(default_factory=set)
    connected: set[tuple[str, int]] = field(default_factory=set)
    halting: dict[str, list[int]] = field(default_factory=dict)
    """The workers that want each cell to themselves, in their order."""
    owned: dict[str, int] = field(default_factory=dict)
    """The worker that was told that it has the cell."""

    def happen(self, event: Event) -> None:
        kind, cell_id, worker, wait_s = event
        if kind == "want" and not self.fleet.want(cell_id, self.now):
            self.waiting.add(cell_id)
        elif kind == "use" and self.fleet.find_state(cell_id) in (CellState.AWAKE, CellState.ASKED_TO_REST):
            self.fleet.note_use(cell_id, worker, self.now, in_use=True)
            self.used.add((cell_id, worker))
            self.connected.add((cell_id, worker))
        elif kind == "unuse" and (cell_id, worker) in self.used:
            self.fleet.note_use(cell_id, worker, self.now, in_use=False)
            self.used.discard((cell_id, worker))
        elif kind == "let_go" and (cell_id, worker) not in self.used:
            self.fleet.note_rest(cell_id, worker)
            self.connected.discard((cell_id, worker))
        elif kind == "worker_ends":
            self.end_worker(worker)
        elif kind == "ready" and self.fleet.find_state(cell_id) is CellState.STARTING:
            self.fleet.note_ready(cell_id, self.now)
            self.waiting.discard(cell_id)
        elif kind == "end" and cell_id in self.servers:
            self.end(cell_id)
        elif kind == "halt" and worker not in self.halting.get(cell_id, ()):
            self.fleet.halt(cell_id, worker)
            self.halting.setdefault(cell_id, []).append(worker)
        elif kind == "release" and worker in self.halting.get(cell_id, ()):
            self.fleet.release(cell_id, worker, self.now)
            self.forget_halt(cell_id, worker)
        elif kind == "remove" and self.owned.get(cell_id) == worker:
            self.fleet.release(cell_id, worker, self.now)
            self.fleet.forget(cell_id)
            self.forget_halt(cell_id, worker)
        elif kind == "pass":
            self.now += wait_s
        elif kind == "decide":
            self.decide()

    def end(self, cell_id: str) -> None:
        self.fleet.note_ended(cell_id, self.now, "killed")
        self.servers.remove(cell_id)
        self.used = {use for use in self.used if use[0] != cell_id}
        self.connected = {use for use in self.connected if use[0] != cell_id}
        if cell_id not in self.stopping:
            self.waiting.discard(cell_id)
        self.stopping.discard(cell_id)

    def end_worker(self, worker: int) -> None:
        self.fleet.forget_worker(worker, self.now)
        self.used = {use for use in self.used if use[1] != worker}
        self.connected = {use for use in self.connected if use[1] != worker}
        for cell_id in [cell_id for cell_id, workers in self.halting.items() if worker in workers]:
            self.forget_halt(cell_id, worker)

    def forget_halt(self, cell_id: str, worker: int) -> None:
        self.halting[cell_id].remove(worker)
        if not self.halting[cell_id]:
            del self.halting[cell_id]
        if self.owned.get(cell_id) == worker:
            del self.owned[cell_id]

    def decide(self) -> Decision:
        decision = self.fleet.decide(self.now)
        assert not set(decision.start) & (self.servers | set(self.halting))
        self.servers |= set(decision.start)
        assert len(self.servers) <= AWAKE_MAX
        freely = {*decision.stop} - set(self.halting)
        assert not {cell_id for cell_id, _ in self.used} & set(decision.ask_to_rest)
        assert not {cell_id for cell_id, _ in self.connected} & freely
        assert set(decision.stop) <= self.servers - self.stopping
        assert {cell_id for cell_id, _ in self.connected} & {*decision.stop} <= {*decision.withheld}
        self.stopping |= set(decision.stop)
        assert set(decision.withheld) <= set(self.halting)
        told = {*decision.busy, *decision.failed, *decision.withheld}
        assert told - set(decision.stop) <= self.waiting
        self.waiting -= told
        for cell_id, worker in decision.halted:
            assert cell_id not in self.servers | set(self.owned)
            assert self.halting[cell_id][0] == worker
            self.owned[cell_id] = worker
        assert self.servers == {cell_id for cell_id in CELLS if self.fleet.find_state(cell_id) in UP}
        return decision

    def settle(self) -> None:
        """Let servers get ready and end, workers let go of what they do not use, and time pass, as long as a waiter can
        need."""
        for _ in range(60):
            decision = self.decide()
            for cell_id, worker in sorted(self.connected):
                if cell_id in decision.ask_to_rest:
                    self.happen(("let_go", cell_id, worker, 0))
            for cell_id in sorted(self.servers):
                if cell_id in self.stopping:
                    self.end(cell_id)
                else:
                    self.happen(("ready", cell_id, WORKER, 0))
            for cell_id, worker in list(self.owned.items()):
                self.happen(("release", cell_id, worker, 0))
            self.now += 0.5


@given(st.lists(EVENTS, max_size=80), st.sampled_from([0.0, 3.0]))
def test_the_rules_hold_whatever_happens(events: list[Event], idle_s: float) -> None:
    """Never more cells than places, none stopped in use unless it is halted, and none started while it is. Whoever
    wants to halt one gets it, one after the other, and everybody who waits or whose cell is taken hears of it."""
    seen: list[tuple[CellState, CellState]] = []
    world = World(Fleet(CELLS[:2], AWAKE_MAX, idle_s))
    for event in events:
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
