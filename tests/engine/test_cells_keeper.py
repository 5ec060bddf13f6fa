"""The keeper: real servers of several cells, started and stopped as the fleet's rules decide."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.cells import Cells
from tests.processes import alive
from tests.servers import needs_linux
from tests.waiting import eventually
from tuplegate.engine.cells.fleet import CellState, Fleet, Halt
from tuplegate.engine.cells.keeper import Keeper, Tidings
from tuplegate.engine.cells.making import copy_cell
from tuplegate.engine.cells.server import CellServer, CellSettings

pytestmark = needs_linux

WORKER = 1
HALT = Halt(2, 1, at_once=True)
Open = Callable[..., tuple[Keeper, Fleet]]


@pytest.fixture
def opened(cells: Cells) -> Iterator[Open]:
    keepers: list[Keeper] = []

    def open_keeper(awake_max: int, idle_s: float = 0.0, settings: CellSettings | None = None) -> tuple[Keeper, Fleet]:
        fleet = Fleet(cells.directory.list_cells(), awake_max, idle_s)
        keepers.append(Keeper(fleet, lambda cell_id: cells.server(cell_id, settings)))
        return keepers[-1], fleet

    yield open_keeper
    for keeper in keepers:
        keeper.close()


def tick_until(keeper: Keeper, is_told: Callable[[Tidings], object]) -> Tidings:
    """Tick until the tidings are as wanted."""

    def tick() -> Tidings | None:
        tidings = keeper.tick(time.monotonic())
        return tidings if is_told(tidings) else None

    return eventually(tick)


def wake(keeper: Keeper, cell_id: str) -> None:
    assert not keeper.fleet.want(cell_id, time.monotonic())
    tick_until(keeper, lambda tidings: cell_id in tidings.awake)


def test_a_wanted_cell_wakes_and_an_idle_one_makes_room(cells: Cells, opened: Open) -> None:
    """Cells wake when they are wanted; with one place the next one waits until the first has let go of it."""
    for cell_id in "ab":
        cells.make(cell_id)
    keeper, fleet = opened(awake_max=1)
    wake(keeper, "a")
    assert keeper.fleet.want("a", time.monotonic())
    stay = keeper.fleet.admit("a", WORKER, time.monotonic())
    with cells.connect("a") as connection:
        connection.execute("create table kept as select 7 as n")
        keeper.fleet.want("b", time.monotonic())
        tick_until(keeper, lambda tidings: tidings.busy == ("b",))
    keeper.fleet.note_use("a", WORKER, stay, time.monotonic(), in_use=False)
    keeper.fleet.want("b", time.monotonic())
    tick_until(keeper, lambda tidings: tidings.ask_to_rest == ("a",))
    first = keeper.find_pid("a")
    assert alive(first)
    keeper.fleet.note_rest("a", WORKER, stay)
    tick_until(keeper, lambda tidings: tidings.awake == ("b",))
    assert not alive(first)
    assert cells.ask("select 1", "b") == 1
    with pytest.raises(psycopg.OperationalError):
        cells.connect("a")
    keeper.fleet.want("a", time.monotonic())
    tick_until(keeper, lambda tidings: tidings.awake == ("a",))
    assert cells.ask("select n from kept", "a") == 7
    assert (fleet.find_state("a"), fleet.find_state("b")) == (CellState.AWAKE, CellState.ASLEEP)


def test_an_idle_cell_falls_asleep(cells: Cells, opened: Open) -> None:
    """A cell that nobody uses stops, by a clock that the test sets forward."""
    cells.make("a")
    keeper, fleet = opened(awake_max=1, idle_s=100)
    wake(keeper, "a")
    now = time.monotonic() + 100
    assert keeper.tick(now).ask_to_rest == ("a",)

    def is_asleep() -> bool | None:
        keeper.tick(now)
        return fleet.find_state("a") is CellState.ASLEEP or None

    eventually(is_asleep)
    assert keeper.find_pid("a") == 0


def test_a_cell_that_dies_is_told_and_starts_again(cells: Cells, opened: Open) -> None:
    """A killed server is told to workers with its reason; the cell starts again as soon as somebody wants it."""
    cells.make("a")
    keeper, fleet = opened(awake_max=1)
    wake(keeper, "a")
    os.kill(keeper.find_pid("a"), signal.SIGKILL)
    tick_until(keeper, lambda tidings: tidings.failed == ("a",))
    assert "status -9" in fleet.find_reason("a")
    wake(keeper, "a")


def test_a_cell_that_does_not_start_is_told(cells: Cells, opened: Open) -> None:
    """Both a server that ends at once and a cell that is not there are failures with a reason."""
    cells.make("a")
    keeper, fleet = opened(awake_max=2, settings=CellSettings(extra={"shared_preload_libraries": "no_such_library"}))
    keeper.fleet.want("a", time.monotonic())
    keeper.fleet.want("missing", time.monotonic())
    assert keeper.tick(time.monotonic()).failed == ("missing",)
    tick_until(keeper, lambda tidings: tidings.failed == ("a",))
    assert "no_such_library" in fleet.find_reason("a")
    assert "cannot be started" in fleet.find_reason("missing")


def test_a_halted_cell_stops(cells: Cells, opened: Open) -> None:
    """A cell that is halted at once stops although it is used, and those who use it are told; then its directory is the
    worker's alone until that gives it back."""
    cells.make("a")
    keeper, fleet = opened(awake_max=1)
    wake(keeper, "a")
    fleet.admit("a", WORKER, time.monotonic())
    with cells.connect("a") as connection:
        connection.execute("create table kept as select 7 as n")
        fleet.halt("a", HALT)
        assert keeper.tick(time.monotonic()) == Tidings(taken=("a",))
        tick_until(keeper, lambda tidings: tidings.halted == (("a", HALT),))
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert keeper.find_pid("a") == 0
    copy_cell(cells.directory, "a", "b")
    assert keeper.find_pid("a") == 0
    fleet.release("a", HALT, time.monotonic())
    wake(keeper, "a")
    assert cells.ask("select n from kept", "a") == 7


def test_a_cell_that_gets_ready_when_it_is_halted_is_withheld(cells: Cells, opened: Open) -> None:
    """Nobody is told that it is awake just before it stops."""
    cells.make("a")
    keeper, fleet = opened(awake_max=1)
    fleet.want("a", time.monotonic())
    keeper.tick(time.monotonic())
    pid_file = cells.directory.locate("a") / "data/postmaster.pid"
    eventually(lambda: pid_file.exists() and "ready" in pid_file.read_text())
    fleet.halt("a", HALT)
    assert keeper.tick(time.monotonic()) == Tidings(taken=("a",))
    tick_until(keeper, lambda tidings: tidings.halted == (("a", HALT),))


def test_a_held_cell_starts_later(cells: Cells, opened: Open) -> None:
    """A cell whose earlier server still runs starts when that has ended."""
    cells.make("a")
    earlier = cells.start("a")
    keeper, fleet = opened(awake_max=1)
    keeper.fleet.want("a", time.monotonic())
    for _ in range(3):
        assert keeper.tick(time.monotonic()) == Tidings()
    assert fleet.find_state("a") is CellState.STARTING
    assert keeper.find_pid("a") == 0
    earlier.kill()
    tick_until(keeper, lambda tidings: earlier.look(0) and tidings.awake == ("a",))


def test_all_servers_stop_at_once(cells: Cells, opened: Open) -> None:
    """Closing stops all servers, also one that takes no notice, and leaves no process."""
    for cell_id in "abc":
        cells.make(cell_id)
    keeper, _ = opened(awake_max=3)
    for cell_id in "abc":
        wake(keeper, cell_id)
    pids = [keeper.find_pid(cell_id) for cell_id in "abc"]
    keeper.close()
    assert not any(map(alive, pids))
    assert [keeper.find_pid(cell_id) for cell_id in "abc"] == [0, 0, 0]


def test_closing_is_bounded(cells: Cells, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not stop is killed when the time is over."""
    monkeypatch.setattr("tuplegate.engine.cells.keeper.CLOSE_S_MAX", 0.2)
    cells.make("a")
    keeper, _ = opened(awake_max=1)
    wake(keeper, "a")
    pid = keeper.find_pid("a")
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    keeper.close()
    assert time.monotonic() - started < 5
    assert not alive(pid)


def test_a_tick_looks_at_no_sleeping_cell() -> None:
    """Cells that sleep cost nothing: no server of theirs is made, and none is asked."""
    made: list[str] = []

    def make_server(cell_id: str) -> CellServer:
        made.append(cell_id)
        raise AssertionError

    keeper = Keeper(Fleet([f"cell_{number}" for number in range(1000)], awake_max=10, idle_s=60), make_server)
    for moment in range(100):
        assert keeper.tick(float(moment)) == Tidings()
    assert made == []
