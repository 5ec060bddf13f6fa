"""The lanes of organizations."""

import asyncio

import pytest

from querygate.admission.fairness import Lane, Lanes
from querygate.eager import EagerRun
from querygate.protocol.errors import ServiceError


def test_a_lane_is_not_forgotten_while_somebody_may_still_use_it() -> None:
    """An identity keeps its lane for seconds. Were it forgotten meanwhile, the organization would get a second one,
    with a share of its own, and nobody would turn away who waits in the first."""

    async def rest() -> None:
        lanes = Lanes(2, 2, 10, 1.0)
        lane = lanes.of("org")
        assert lane.enter()
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
            EagerRun(pass_through(lane), lambda _: None).resume()
        lane.leave()
        assert (lane.running, lane.waiting) == (0, 0)

    asyncio.run(run())
    assert depths == [1] * 5_000


def test_one_that_is_turned_away_and_cancelled_gives_no_place_back() -> None:
    async def run() -> None:
        lanes = Lanes(1, 1, 10, 0.0)
        lane = lanes.of("org")
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
        lane = Lanes(1, 1, 10, 1.0).of("org")
        assert lane.enter()
        first, second = (asyncio.create_task(lane.wait()) for _ in range(2))
        await asyncio.sleep(0)
        lane.leave()
        first.cancel()
        await second
        assert first.cancelled()
        assert lane.running == 1

    asyncio.run(run())
