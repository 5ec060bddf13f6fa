"""Coroutines that run without a task: one at a time, never inside of another, and nobody's fault is another's."""

import asyncio
import sys
from typing import Any

from tuplegate.direct_future import DirectFuture
from tuplegate.eager import EagerRun


def begin(work: Any) -> EagerRun:
    run = EagerRun(work, lambda _: None)
    run.resume()
    return run


def test_a_chain_of_any_length_needs_no_stack() -> None:
    """Each resumes the next: as many as would be ten times too deep."""
    count = 10 * sys.getrecursionlimit()
    order: list[int] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        replies = [DirectFuture[None](loop) for _ in range(count)]

        async def one(number: int) -> None:
            await replies[number]
            order.append(number)
            if number + 1 < count:
                replies[number + 1].set_result(None)

        for number in range(count):
            begin(one(number))
        replies[0].set_result(None)

    asyncio.run(play())
    assert order == list(range(count))


def test_what_is_begun_inside_of_another_runs_behind_it() -> None:
    said: list[str] = []

    async def play() -> None:
        async def inner() -> None:
            said.append("inner")

        async def outer() -> None:
            begin(inner())
            said.append("outer")

        begin(outer())

    asyncio.run(play())
    assert said == ["outer", "inner"]


def test_what_one_raises_reaches_neither_whoever_woke_it_nor_the_others() -> None:
    """In its coroutine, and where somebody is told of its end."""
    went_on: list[str] = []
    reported: list[str] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, failure: reported.append(str(failure["exception"])))
        waited_for = [DirectFuture[None](loop) for _ in range(3)]

        async def fail() -> None:
            await waited_for[0]
            raise RuntimeError("in the middle")

        async def succeed(number: int) -> None:
            await waited_for[number]
            went_on.append("told" if number == 1 else "last")

        def told(_: bool) -> None:
            raise RuntimeError("at the end")

        begin(fail())
        EagerRun(succeed(1), told).resume()
        begin(succeed(2))

        async def wake() -> None:
            for reply in waited_for:
                reply.set_result(None)
            went_on.append("woke all")

        begin(wake())

    asyncio.run(play())
    assert went_on == ["woke all", "told", "last"]
    assert reported == ["in the middle", "at the end"]
