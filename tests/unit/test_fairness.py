"""The lanes of organizations."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tuplegate.admission.fair_use import fairness
from tuplegate.admission.fair_use.fairness import Lane, Lanes
from tuplegate.eager import EagerRun
from tuplegate.protocol.errors import ServiceError


def begin(work: Coroutine[Any, Any, None]) -> EagerRun:
    run = EagerRun(work, lambda _: None)
    run.resume()
    return run


def test_a_lane_is_not_forgotten_while_somebody_may_still_use_it() -> None:
    """An identity keeps its lane for seconds. Were it forgotten meanwhile, the organization would get a second one,
    with a share of its own, and nobody would turn away who waits in the first."""

    async def rest() -> None:
        lanes = Lanes(2, 2, 10, 1.0)
        lane = lanes.find_lane("org")
        assert lane.enter()
        lane.leave()
        for _ in range(5):
            lanes.pass_tick()
        assert lanes.find_lane("org") is lane

    asyncio.run(rest())


def test_a_lane_that_nobody_uses_is_forgotten() -> None:
    async def rest() -> None:
        lanes = Lanes(2, 2, 10, 1.0)
        lane = lanes.find_lane("org")
        for _ in range(101):
            lanes.pass_tick()
        assert lanes.find_lane("org") is not lane

    asyncio.run(rest())


async def nobody_waits(lane: Lane) -> None:
    """Those who wait are let in by the loop."""
    while lane.waiting:
        await asyncio.sleep(0)


def test_many_that_leave_at_once_are_let_in_one_after_the_other() -> None:
    """None goes on inside of another: a thousand would be too deep."""
    depths: list[int] = []

    async def run() -> None:
        lanes = Lanes(1, 1, 10_000, 1.0)
        lane = lanes.find_lane("org")
        assert lane.enter()
        depth = 0

        async def pass_through(lane: Lane) -> None:
            nonlocal depth
            await lane.wait()
            depth += 1
            depths.append(depth)
            lane.leave()
            depth -= 1

        for _ in range(5_000):
            begin(pass_through(lane))
        lane.leave()
        await nobody_waits(lane)
        assert lane.running == 0

    asyncio.run(run())
    assert depths == [1] * 5_000


def test_many_are_turned_away_one_after_the_other() -> None:
    """And take no place."""
    refused: list[str] = []

    async def run() -> None:
        lanes = Lanes(1, 1, 10_000, 0.0)
        lane = lanes.find_lane("org")
        assert lane.enter()

        async def ask() -> None:
            assert not lane.enter()
            with pytest.raises(ServiceError) as raised:
                await lane.wait()
            refused.append(raised.value.body.code)

        for _ in range(5_000):
            begin(ask())
        lanes.pass_tick()
        await asyncio.sleep(0)
        assert (lane.running, lane.waiting) == (1, 0)
        lane.leave()
        assert lane.running == 0

    asyncio.run(run())
    assert refused == ["busy"] * 5_000


def test_one_that_comes_while_another_is_let_in_goes_behind_those_that_wait() -> None:
    order: list[str] = []

    async def run() -> None:
        lane = Lanes(1, 1, 10, 1.0).find_lane("org")
        assert lane.enter()

        async def pass_through(name: str) -> None:
            if not lane.enter():
                await lane.wait()
            order.append(name)
            lane.leave()

        async def bring_another() -> None:
            assert not lane.enter()
            await lane.wait()
            begin(pass_through("inside"))
            order.append("first")
            lane.leave()

        begin(bring_another())
        begin(pass_through("second"))
        lane.leave()
        await nobody_waits(lane)
        assert lane.running == 0

    asyncio.run(run())
    assert order == ["first", "second", "inside"]


def test_one_that_has_left_takes_no_place() -> None:
    entered: list[str] = []

    async def run() -> None:
        lane = Lanes(1, 1, 10, 1.0).find_lane("org")
        assert lane.enter()

        async def stay(name: str) -> None:
            await lane.wait()
            entered.append(name)

        gone = begin(stay("gone"))
        begin(stay("there"))
        gone.cancel()
        await asyncio.sleep(0)
        assert lane.waiting == 1
        lane.leave()
        await nobody_waits(lane)
        assert lane.running == 1

    asyncio.run(run())
    assert entered == ["there"]


def test_no_more_wait_than_may() -> None:
    async def run() -> None:
        lane = Lanes(1, 1, 2, 1.0).find_lane("org")
        assert lane.enter()
        waiting = [asyncio.create_task(lane.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert lane.waiting == 2
        with pytest.raises(ServiceError, match="waiting already"):
            await waiting[2]
        for task in waiting:
            task.cancel()

    asyncio.run(run())


def test_nobody_passes_those_who_wait_also_when_there_is_room() -> None:
    """As long as they have not been let in."""

    async def run() -> None:
        lanes = Lanes(2, 2, 10, 1.0)
        lane = lanes.find_lane("org")
        assert lane.enter()
        assert lane.enter()
        begin(lane.wait())
        lanes.share = 3
        assert not lane.enter()

    asyncio.run(run())


def test_whoever_waits_when_the_service_stops_hears_it() -> None:
    async def run() -> None:
        lanes = Lanes(1, 1, 10, 1.0)
        lane = lanes.find_lane("org")
        assert lane.enter()
        waiting = asyncio.create_task(lane.wait())
        await asyncio.sleep(0)
        lanes.end()
        with pytest.raises(ServiceError) as raised:
            await waiting
        assert raised.value.body.code == "shutting_down"
        lane.leave()
        assert lane.running == 0

    asyncio.run(run())


def test_an_organization_has_no_more_running_for_not_being_alone() -> None:
    """Two at the least, but not where one is all that it may have."""

    async def run() -> None:
        lanes = Lanes(1, 8, 10, 1.0)
        one, another = lanes.find_lane("one"), lanes.find_lane("another")
        assert one.enter()
        assert another.enter()
        assert not one.enter()
        assert not another.enter()

    asyncio.run(run())


def test_one_that_is_turned_away_and_cancelled_gives_no_place_back() -> None:
    async def run() -> None:
        lanes = Lanes(1, 1, 10, 0.0)
        lane = lanes.find_lane("org")
        assert lane.enter()
        waiting = asyncio.create_task(lane.wait())
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
        lane = Lanes(1, 1, 10, 1.0).find_lane("org")
        assert lane.enter()
        first, second = (asyncio.create_task(lane.wait()) for _ in range(2))
        await asyncio.sleep(0)
        lane.leave()
        first.cancel()
        await second
        assert first.cancelled()
        assert lane.running == 1

    asyncio.run(run())


def test_nothing_ticks_while_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pass_on(_: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(fairness, "tick", pass_on)

    async def let_time_pass(lanes: Lanes) -> int:
        before = lanes.tick
        for _ in range(2000):
            await asyncio.sleep(0)
        return lanes.tick - before

    async def run() -> None:
        lanes = Lanes(2, 2, 10, 1.0)
        watching = asyncio.create_task(lanes.watch())
        assert await let_time_pass(lanes) == 0
        for _ in range(2):
            lane = lanes.find_lane("org")
            assert lane.enter()
            assert await let_time_pass(lanes) > 1000
            lane.leave()
            assert lanes.find_lane("org") is lane  # so it is kept
            assert await let_time_pass(lanes) < 5
            assert await let_time_pass(lanes) == 0
        watching.cancel()

    asyncio.run(run())
