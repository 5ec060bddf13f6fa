"""The lines between workers and the supervisor: a cell's directory never has two users, whatever crosses on a line.

Workers and the supervisor are real, in one event loop; servers are made of paper.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest

from tuplegate.engine import port
from tuplegate.engine.cells.databases import work_in_thread
from tuplegate.engine.cells.desk import Desk
from tuplegate.engine.cells.fleet import CellState, Fleet
from tuplegate.engine.cells.keeper import Keeper
from tuplegate.engine.cells.line import CellLine
from tuplegate.engine.cells.server import ServerReport, ServerState

CELL = "a"
WORKERS = 2
WAIT_S = 20.0

pytestmark = pytest.mark.timeout(60)


@dataclass
class PaperServer:
    """A server that is ready at its second look, and has ended at the look after it was stopped."""

    world: "World"
    cell: str
    pid: int = 0
    state: ServerState = ServerState.DOWN

    def start(self, now: float) -> ServerState:
        assert self.cell not in self.world.users, f"a server starts beside {self.world.users[self.cell]}"
        self.world.users[self.cell] = "its server"
        self.pid, self.state = 1, ServerState.STARTING
        return self.state

    def look(self, now: float) -> ServerReport:
        if self.state is ServerState.STOPPING:
            self.die()
        elif self.state is ServerState.STARTING:
            self.state = ServerState.READY
            return ServerReport(ServerState.STARTING)
        return ServerReport(self.state)

    def stop(self, now: float) -> None:
        self.kill()

    def kill(self) -> None:
        if self.pid:
            self.state = ServerState.STOPPING

    def die(self) -> None:
        if self.pid:
            self.pid, self.state = 0, ServerState.ENDED
            del self.world.users[self.cell]


@dataclass
class World:
    """A supervisor and its workers. `users` says who has each directory: the server of the cell, or a worker."""

    users: dict[str, str] = field(default_factory=dict)
    servers: dict[str, PaperServer] = field(default_factory=dict)
    lines: list[CellLine] = field(default_factory=list)
    tasks: dict[int, list["asyncio.Task[None]"]] = field(default_factory=dict)
    """The work of each worker."""
    now: float = 0.0

    def __post_init__(self) -> None:
        self.fleet = Fleet([CELL], awake_max=1, idle_s=60)
        self.desk = Desk(Keeper(self.fleet, cast("Any", self.make_server)))

    def make_server(self, cell: str) -> PaperServer:
        self.servers[cell] = PaperServer(self, cell)
        return self.servers[cell]

    def attend(self) -> None:
        """Let the supervisor read what has come, and act."""
        self.now += 0.3
        self.desk.attend(self.now)

    def begin(self, worker: int, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Let a worker do something."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.setdefault(worker, []).append(task)
        return task

    async def open_worker(self, number: int) -> None:
        self.lines[number:] = [CellLine(self.desk.open_line(number, self.now), WAIT_S), *self.lines[number + 1 :]]
        await self.lines[number].__aenter__()

    async def replace_worker(self, number: int) -> None:
        """Kill a worker, with all that runs there, and start it again."""
        self.desk.drop_line(number, self.now)
        for task in self.tasks.pop(number, []):
            task.cancel()
        await settle()
        await self.lines[number].__aexit__()
        await self.open_worker(number)

    async def deliver(self) -> None:
        """Let messages pass in both directions until nothing changes any more."""
        for _ in range(10):
            await settle()
            self.attend()
        await settle()

    async def until(self, is_true: Callable[[], object]) -> None:
        """Let messages pass until something is true."""
        async with asyncio.timeout(WAIT_S):
            while not is_true():
                await self.deliver()
                await asyncio.sleep(0.001)

    async def finish(self, work: Awaitable[Any]) -> Any:
        """Let messages pass until some work is done, and return its result."""
        task = asyncio.ensure_future(work)
        await self.until(task.done)
        return task.result()

    @asynccontextmanager
    async def have(self, line: CellLine, name: str, *, at_once: bool = False) -> AsyncIterator[None]:
        """Have the directory of the cell alone."""
        async with line.halt(CELL, let_end_s=0 if at_once else WAIT_S):
            assert CELL not in self.users, f"{name} has the directory beside {self.users[CELL]}"
            self.users[CELL] = name
            try:
                yield
            finally:
                del self.users[CELL]


def in_a_world(test: Callable[["World"], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test with a supervisor and two workers."""

    async def run_in_world() -> None:
        world = World()
        for number in range(WORKERS):
            await world.open_worker(number)
        try:
            await test(world)
        finally:
            for number, line in enumerate(world.lines):
                await line.__aexit__()
                world.desk.drop_line(number, world.now)

    def run() -> None:
        asyncio.run(run_in_world())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def settle() -> None:
    """Let everything run that is ready to."""
    for _ in range(5):
        await asyncio.sleep(0)


@dataclass
class Holders:
    """Pieces of work that each want the directory, in the order in which they get it, until they may end."""

    world: World
    got: list[str] = field(default_factory=list)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, name: str, worker: int = 0, *, at_once: bool = False) -> "asyncio.Task[None]":
        return self.world.begin(worker, self._hold(name, worker, at_once))

    async def _hold(self, name: str, worker: int, at_once: bool) -> None:
        async with self.world.have(self.world.lines[worker], name, at_once=at_once):
            self.got.append(name)
            await self.may_end.wait()

    async def end(self, *tasks: "asyncio.Task[None]") -> None:
        self.may_end.set()
        await self.world.finish(asyncio.gather(*tasks))


@in_a_world
async def test_who_is_cancelled_while_another_has_the_directory_hands_on_nothing(world: World) -> None:
    """Three halts of one worker: the first has the cell, the second is cancelled, the third goes on waiting."""
    holders = Holders(world)
    first, second, third = map(holders.begin, ("first", "second", "third"))
    await world.until(lambda: holders.got)
    second.cancel()
    await world.deliver()
    assert holders.got == ["first"]
    await holders.end(first, third)
    assert holders.got == ["first", "third"]


@in_a_world
async def test_who_is_cancelled_as_the_cell_is_given_to_it_hands_it_on_once(world: World) -> None:
    """The supervisor's word is under way when the wish is withdrawn: it is meant for nobody else."""
    holders = Holders(world)
    first, second, third = map(holders.begin, ("first", "second", "third"))
    await settle()
    world.attend()  # the first has it, and does not know
    first.cancel()
    await world.deliver()
    assert holders.got == ["second"]
    await holders.end(second, third)
    assert holders.got == ["second", "third"]
    assert world.fleet.find_state(CELL) is CellState.ASLEEP


@in_a_world
async def test_who_is_cancelled_before_it_asks_keeps_nobody_waiting(world: World) -> None:
    """A halt first closes the worker's connections. Cancelled meanwhile, it leaves nothing behind."""
    closing = asyncio.Event()
    stay = await world.finish(world.lines[0].stay(CELL))
    stay.on_end.append(closing.wait)
    holders = Holders(world)
    first = holders.begin("first")
    await world.deliver()
    first.cancel()
    await world.deliver()
    closing.set()
    second = holders.begin("second")
    await world.until(lambda: holders.got)
    await holders.end(second)
    assert world.fleet.find_state(CELL) is CellState.ASLEEP


@in_a_world
async def test_who_comes_while_a_halt_closes_connections_hears_of_the_halt(world: World) -> None:
    """Else its requests would go to a server that was stopped."""
    closing = asyncio.Event()
    line = world.lines[0]
    stay = await world.finish(line.stay(CELL))
    stay.on_end.append(closing.wait)
    holders = Holders(world)
    first = holders.begin("first", at_once=True)
    await settle()
    late = asyncio.ensure_future(line.stay(CELL))
    await world.deliver()
    closing.set()
    await world.until(lambda: holders.got)
    assert not late.done() or late.result().has_ended
    await holders.end(first)
    assert not (await world.finish(late)).has_ended
    assert world.users[CELL] == "its server"


@in_a_world
async def test_a_halt_waits_for_a_statement_and_lets_nobody_in(world: World) -> None:
    """However late the worker is told: it is the one that leaves, and not while something runs."""
    running, idle = world.lines
    stays = [await world.finish(line.stay(CELL)) for line in (running, idle)]
    running.let_go = lambda cell: False
    holders = Holders(world)
    copy = holders.begin("copy")
    await world.deliver()
    assert [stay.has_ended for stay in stays] == [False, True]
    late = asyncio.ensure_future(idle.stay(CELL))
    await world.deliver()
    assert not late.done()
    assert world.users[CELL] == "its server"
    running.let_go = lambda cell: True
    await world.until(lambda: holders.got)
    await holders.end(copy)
    assert not (await world.finish(late)).has_ended


@in_a_world
async def test_a_halt_does_not_wait_for_ever(world: World) -> None:
    """It gives up, and those who waited for its end get in."""
    running, idle = world.lines
    stay = await world.finish(running.stay(CELL))
    running.let_go = lambda cell: False

    async def halt() -> None:
        with pytest.raises(port.EngineBusy, match="have not ended in time"):
            async with idle.halt(CELL, let_end_s=0.01):
                pytest.fail("something still runs there")

    await world.finish(halt())
    assert not (await world.finish(idle.stay(CELL))).has_ended
    assert not stay.has_ended


@in_a_world
async def test_a_worker_that_is_killed_gives_the_directory_back(world: World) -> None:
    """Also while it waits for one, and while the supervisor's word to it is under way."""
    holders = Holders(world)
    first, second = holders.begin("first", 0), holders.begin("second", 0)
    third = holders.begin("third", 1)
    await world.until(lambda: holders.got)
    await world.replace_worker(0)
    assert first.cancelled()
    assert second.cancelled()
    await world.until(lambda: len(holders.got) == 2)
    assert holders.got == ["first", "third"]
    await holders.end(third)
    assert world.fleet.find_state(CELL) is CellState.ASLEEP


@in_a_world
async def test_a_directory_is_kept_until_work_there_is_done(world: World) -> None:
    """A thread goes on when its request is cancelled, also one that is cancelled again."""
    may_end = threading.Event()

    async def work() -> None:
        async with world.have(world.lines[0], "work"):
            await work_in_thread(partial(may_end.wait, WAIT_S))

    working = world.begin(0, work())
    await world.until(lambda: CELL in world.users)
    holders = Holders(world)
    holders.may_end.set()
    second = holders.begin("second")
    for _ in range(3):
        working.cancel()
        await world.deliver()
        assert holders.got == []
    may_end.set()
    await world.until(working.cancelled)
    await holders.end(second)
    assert holders.got == ["second"]


@in_a_world
async def test_every_worker_knows_how_many_cells_are_awake(world: World) -> None:
    """Also one that was started later."""
    await world.finish(world.lines[0].stay(CELL))
    await world.replace_worker(1)
    await world.deliver()
    assert [line.awake_count for line in world.lines] == [1, 1]
    holders = Holders(world)
    await holders.end(holders.begin("somebody"))
    assert [line.awake_count for line in world.lines] == [0, 0]


async def use_or_have(world: World, line: CellLine, chance: random.Random) -> None:
    """Do one thing that requests do with a cell, for a while; it may fail."""
    with suppress(port.EngineUnavailable):
        if chance.random() < 0.4:
            async with world.have(line, "somebody", at_once=chance.random() < 0.5):
                await asyncio.sleep(chance.random() * 0.004)
        else:
            async with line.use(CELL) as stay:
                if not stay.on_end:
                    stay.on_end.append(partial(asyncio.sleep, chance.random() * 0.004))
                await asyncio.sleep(chance.random() * 0.004)


@pytest.mark.parametrize("seed", range(20))
def test_a_directory_has_one_user_whatever_crosses(seed: int) -> None:
    """Requests that use the cell or have it alone, are cancelled at any moment, on workers that are killed, while its
    server dies. In the end the workers and the supervisor agree on who uses it, and everybody gets it."""
    chance = random.Random(seed)

    @in_a_world
    async def run(world: World) -> None:
        done: list[asyncio.Task[None]] = []
        for _ in range(150):
            worker = chance.randrange(WORKERS)
            done.append(world.begin(worker, use_or_have(world, world.lines[worker], chance)))
            if chance.random() < 0.3:
                chance.choice(done).cancel()
            if chance.random() < 0.03:
                await world.replace_worker(worker)
            if chance.random() < 0.03 and CELL in world.servers:
                world.servers[CELL].die()
            if chance.random() < 0.5:
                world.attend()
            await asyncio.sleep(chance.random() * 0.002)
        for failure in await world.finish(asyncio.gather(*done, return_exceptions=True)):
            assert failure is None or isinstance(failure, asyncio.CancelledError), failure
        for line in world.lines:
            await world.finish(line.stay(CELL))
            assert world.users[CELL] == "its server"
        assert sorted(world.fleet.list_stays(CELL)) == [*range(WORKERS)]
        holders = Holders(world)
        await holders.end(*(holders.begin(str(number), number % WORKERS) for number in range(4)))
        assert len(holders.got) == 4
        assert world.users == {}

    run()
