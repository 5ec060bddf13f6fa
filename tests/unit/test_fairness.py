"""The lanes of organizations."""

import asyncio

from querygate.admission.fairness import Lanes


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
