"""The lanes of organizations."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from tuplegate.admission.fairness import Lane, Lanes
from tuplegate.eager import EagerRun
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError


class Connection:
    """Of one request, which does its `work` when it is begun."""

    def __init__(self, work: Callable[[Exchange], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self.begun = 0
        self.exchange = Exchange(cast(Any, self), b"")

    def begin(self, exchange: Exchange) -> None:
        self.begun += 1
        EagerRun(self._work(exchange), lambda _: None).resume()


def request() -> Exchange:
    """One that runs already."""
    return Exchange(cast(Any, None), b"")


def test_a_lane_is_not_forgotten_while_somebody_may_still_use_it() -> None:
    """An identity keeps its lane for seconds. Were it forgotten meanwhile, the organization would get a second one,
    with a share of its own, and nobody would turn away who waits in the first."""

    async def rest() -> None:
        lanes = Lanes(2, 2, 10, 1.0)
        lane = lanes.of("org")
        assert lane.enter(request())
        lane.leave()
        watching = asyncio.get_running_loop().create_task(lanes.watch())
        while lanes.tick < 5:
            await asyncio.sleep(0.01)
        watching.cancel()
        assert lanes.of("org") is lane

    asyncio.run(rest())


def test_many_that_leave_at_once_are_let_in_one_after_the_other() -> None:
    """Each goes on within the call that lets it in, and none inside of another: a thousand would be too deep."""
    depths: list[int] = []

    async def run() -> None:
        lanes = Lanes(1, 1, 10_000, 1.0)
        lane = lanes.of("org")
        assert lane.enter(request())
        depth = 0

        async def pass_through(lane: Lane) -> None:
            nonlocal depth
            await lane.wait(request())
            depth += 1
            depths.append(depth)
            lane.leave()
            depth -= 1

        for _ in range(5_000):
            EagerRun(pass_through(lane), lambda _: None).resume()
        lane.leave()
        assert (lane.running, lane.waiting) == (0, 0)

    asyncio.run(run())
    assert depths == [1] * 5_000


def test_many_detained_that_leave_at_once_are_begun_one_after_the_other() -> None:
    """Each ends within the call that begins it."""
    depths: list[int] = []

    async def run() -> None:
        lane = Lanes(1, 1, 10_000, 1.0).of("org")
        assert lane.enter(request())
        depth = 0

        async def pass_through(exchange: Exchange) -> None:
            nonlocal depth
            assert lane.enter(exchange)
            depth += 1
            depths.append(depth)
            lane.leave()
            depth -= 1

        connections = [Connection(pass_through) for _ in range(5_000)]
        assert all(lane.detain(connection.exchange) for connection in connections)
        assert (lane.running, lane.waiting) == (1, 5_000)
        lane.leave()
        assert (lane.running, lane.waiting) == (0, 0)
        assert all(connection.begun == 1 for connection in connections)

    asyncio.run(run())
    assert depths == [1] * 5_000


def test_many_detained_are_turned_away_one_after_the_other() -> None:
    """Each hears it through its own handler, and takes no place."""
    refused: list[str] = []

    async def run() -> None:
        lanes = Lanes(1, 1, 10_000, 0.0)
        lane = lanes.of("org")
        assert lane.enter(request())

        async def ask(exchange: Exchange) -> None:
            assert not lane.enter(exchange)
            with pytest.raises(ServiceError) as raised:
                await lane.wait(exchange)
            refused.append(raised.value.body.code)

        connections = [Connection(ask) for _ in range(5_000)]
        assert all(lane.detain(connection.exchange) for connection in connections)
        lanes.pass_tick()
        assert (lane.running, lane.waiting) == (1, 0)
        lane.leave()
        assert lane.running == 0
        assert all(connection.begun == 1 for connection in connections)

    asyncio.run(run())
    assert refused == ["busy"] * 5_000


def test_one_that_comes_while_another_is_begun_goes_behind_those_that_wait() -> None:
    order: list[str] = []

    async def run() -> None:
        lane = Lanes(1, 1, 10, 1.0).of("org")
        assert lane.enter(request())

        async def pass_through(name: str, exchange: Exchange) -> None:
            if not lane.enter(exchange):
                await lane.wait(exchange)
            order.append(name)
            lane.leave()

        async def bring_another(exchange: Exchange) -> None:
            EagerRun(pass_through("inside", request()), lambda _: None).resume()
            await pass_through("first", exchange)

        first = Connection(bring_another)
        second = Connection(lambda exchange: pass_through("second", exchange))
        assert lane.detain(first.exchange)
        assert lane.detain(second.exchange)
        lane.leave()
        assert (lane.running, lane.waiting) == (0, 0)

    asyncio.run(run())
    assert order == ["first", "second", "inside"]


def test_one_that_has_left_takes_no_place() -> None:
    async def run() -> None:
        lane = Lanes(1, 1, 10, 1.0).of("org")
        assert lane.enter(request())

        async def stay(exchange: Exchange) -> None:
            assert lane.enter(exchange)

        gone, there = Connection(stay), Connection(stay)
        assert lane.detain(gone.exchange)
        assert lane.detain(there.exchange)
        lane.forget(gone.exchange)
        assert lane.waiting == 1
        lane.leave()
        assert (gone.begun, there.begun, lane.running) == (0, 1, 1)

    asyncio.run(run())


def test_no_more_are_detained_than_may_wait() -> None:
    async def run() -> None:
        lane = Lanes(1, 1, 2, 1.0).of("org")
        assert not lane.detain(request()), "there is room"
        assert lane.enter(request())
        assert [lane.detain(request()) for _ in range(3)] == [True, True, False]
        assert lane.waiting == 2

    asyncio.run(run())


def test_one_is_detained_behind_those_that_wait_also_when_there_is_room() -> None:
    """As long as they have not been let in."""

    async def run() -> None:
        lanes = Lanes(2, 2, 10, 1.0)
        lane = lanes.of("org")
        assert lane.enter(request())
        assert lane.enter(request())
        assert lane.detain(request())
        lanes.share = 3
        assert not lane.enter(request())
        assert lane.detain(request())

    asyncio.run(run())


def test_an_organization_has_no_more_running_for_not_being_alone() -> None:
    """Two at the least, but not where one is all that it may have."""

    async def run() -> None:
        lanes = Lanes(1, 8, 10, 1.0)
        one, another = lanes.of("one"), lanes.of("another")
        assert one.enter(request())
        assert another.enter(request())
        assert not one.enter(request())
        assert not another.enter(request())

    asyncio.run(run())


def test_one_that_is_turned_away_and_cancelled_gives_no_place_back() -> None:
    async def run() -> None:
        lanes = Lanes(1, 1, 10, 0.0)
        lane = lanes.of("org")
        assert lane.enter(request())
        waiting = asyncio.create_task(lane.wait(request()))
        await asyncio.sleep(0)
        lanes.tick += 1
        lane.turn_away()
        waiting.cancel()
        with pytest.raises((asyncio.CancelledError, ServiceError)):
            await waiting
        assert lane.running == 1
        lane.leave()
        assert lane.running == 0

    asyncio.run(run())


def test_one_whose_turn_came_just_as_it_was_cancelled_passes_it_on() -> None:
    async def run() -> None:
        lane = Lanes(1, 1, 10, 1.0).of("org")
        assert lane.enter(request())
        first, second = (asyncio.create_task(lane.wait(request())) for _ in range(2))
        await asyncio.sleep(0)
        lane.leave()
        first.cancel()
        await second
        assert first.cancelled()
        assert lane.running == 1

    asyncio.run(run())
