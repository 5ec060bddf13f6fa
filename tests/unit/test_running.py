"""Whoever watches what runs rests while nothing does."""

import asyncio
from typing import Any, cast

from tuplegate.engine.run.run import Run, Running


def test_all_who_wait_for_something_that_runs_are_woken_by_the_first() -> None:
    async def run() -> None:
        running, run = Running(), cast("Run[Any]", object())
        for _ in range(2):
            waiting = [asyncio.create_task(running.wait_for_some()) for _ in range(2)]
            await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            running.enter(run)
            await asyncio.gather(*waiting)
            await running.wait_for_some()  # something runs already
            running.runs.remove(run)

    asyncio.run(run())


def test_what_has_ended_at_once_wakes_nobody_for_nothing() -> None:
    async def run() -> None:
        running, run = Running(), cast("Run[Any]", object())
        waiting = asyncio.create_task(running.wait_for_some())
        await asyncio.sleep(0)
        running.enter(run)
        running.runs.remove(run)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        running.enter(run)
        await waiting

    asyncio.run(run())
