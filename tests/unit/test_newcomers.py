"""Tokens that were not seen before are looked up one address after the other."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tuplegate.admission.fair_use.newcomers import Newcomers

AT_ONCE = 2


class Desk:
    """Looks tokens up, when told, and notes whose."""

    def __init__(self) -> None:
        self._newcomers = Newcomers(AT_ONCE)
        self._ends: list[asyncio.Future[None]] = []
        self.begun: list[str] = []

    async def look_up(self, address: str) -> None:
        async with self._newcomers.take_turn(address):
            self.begun.append(address)
            self._ends.append(asyncio.get_running_loop().create_future())
            await self._ends[-1]

    async def come(self, address: str, count: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.look_up(address)) for _ in range(count)]
        await settle()
        return tasks

    def end_first(self) -> None:
        next(end for end in self._ends if not end.done()).set_result(None)

    async def end_one(self) -> None:
        self.end_first()
        await settle()

    @property
    def running(self) -> int:
        return sum(not end.done() for end in self._ends)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def with_desk() -> None:
        await test(Desk())

    asyncio.run(with_desk())


def test_a_crowd_waits_for_itself() -> None:
    """Whoever comes from elsewhere is next, and then the two take turns."""

    async def test(desk: Desk) -> None:
        await desk.come("crowd", 100)
        await desk.come("other", 2)
        assert desk.begun == ["crowd"] * AT_ONCE
        for _ in range(4):
            await desk.end_one()
        assert desk.begun[AT_ONCE:] == ["crowd", "other", "crowd", "other"]
        while desk.running:
            assert desk.running <= AT_ONCE
            await desk.end_one()
        assert len(desk.begun) == 102

    run(test)


def test_those_who_leave_take_no_turn() -> None:
    """Neither while they wait, nor when it was just given to them, nor in the middle."""

    async def test(desk: Desk) -> None:
        running = await desk.come("crowd", AT_ONCE)
        waiting = await desk.come("crowd", 3)
        waiting[0].cancel()
        running[0].cancel()
        await settle()
        assert (desk.running, len(desk.begun)) == (AT_ONCE, AT_ONCE + 1), "the one behind has the turn"
        desk.end_first()
        await asyncio.sleep(0)
        waiting[2].cancel()  # it was given the turn, and does not know it yet
        await settle()
        assert (desk.running, len(desk.begun)) == (AT_ONCE - 1, AT_ONCE + 1)
        await desk.come("other", 5)
        assert desk.running == AT_ONCE
        while desk.running:
            await desk.end_one()
        assert desk.begun.count("other") == 5

    run(test)
