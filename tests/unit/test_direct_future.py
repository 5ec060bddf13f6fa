"""What is waited for without a task: that whoever waits goes on at once, and that tasks can wait for it too."""

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.unit.stage import without_collector
from tuplegate.direct_future import DirectFuture
from tuplegate.eager import EagerRun


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def new_reply() -> DirectFuture[int]:
    return DirectFuture(asyncio.get_running_loop())


@on_a_loop
async def test_every_callback_is_called_once_in_order() -> None:
    reply = new_reply()
    called: list[int] = []
    callbacks = [lambda _, number=number: called.append(number) for number in range(4)]
    for callback in callbacks:
        reply.add_done_callback(callback)
    assert reply.remove_done_callback(callbacks[0]) == 1
    assert reply.remove_done_callback(callbacks[2]) == 1
    assert reply.remove_done_callback(callbacks[2]) == 0
    reply.set_result(7)
    assert called == [1, 3]
    assert reply.result() == 7
    reply.add_done_callback(callbacks[2])
    assert called == [1, 3]
    await asyncio.sleep(0)
    assert called == [1, 3, 2]


@on_a_loop
async def test_a_run_goes_on_within_the_call() -> None:
    reply = new_reply()
    got: list[int] = []

    async def wait() -> None:
        got.append(await reply)

    EagerRun(wait(), lambda _: got.append(-1)).resume()
    assert got == []
    reply.hand_over(7)
    assert got == [7, -1]


@on_a_loop
async def test_a_task_goes_on_in_its_own_turn() -> None:
    """It is handed over inside another task, and none can run inside another."""
    reply = new_reply()
    others: list[object] = []

    async def wait() -> int:
        got = await reply
        others.append(asyncio.current_task())
        return got

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    reply.hand_over(7)
    assert others == []
    assert await task == 7
    assert others == [task]


@on_a_loop
async def test_a_failure_is_raised_where_it_is_waited_for() -> None:
    reply = new_reply()

    async def wait() -> int:
        return await reply

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    reply.hand_over_failure(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await task


@on_a_loop
async def test_a_run_that_is_cancelled_says_so() -> None:
    reply = new_reply()
    cleaned: list[str] = []
    ended: list[bool] = []

    async def wait() -> None:
        try:
            await reply
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    run = EagerRun(wait(), ended.append)
    run.resume()
    run.cancel()
    assert ended == []
    for _ in range(5):
        await asyncio.sleep(0)
    assert (cleaned, ended) == (["up"], [True])
    assert reply.cancelled()
    run.cancel()


@on_a_loop
async def test_a_run_that_fails_ends_and_is_told_to_the_loop() -> None:
    told: list[object] = []
    ended: list[bool] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    failure = ValueError("no")

    async def fail() -> None:
        raise failure

    EagerRun(fail(), ended.append).resume()
    assert (told, ended) == ([failure], [False])


@on_a_loop
async def test_what_ends_the_process_goes_through() -> None:
    ended: list[bool] = []

    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        EagerRun(leave(), ended.append).resume()
    assert ended == [False]


@on_a_loop
async def test_a_failure_is_freed_when_it_was_dealt_with() -> None:
    """With what its traceback holds: a large request, as a rule."""

    class Failure(Exception):
        pass

    async def wait_for(reply: DirectFuture[int]) -> None:
        await reply

    with without_collector():
        reply = new_reply()
        failure = Failure()
        freed = weakref.ref(failure)
        reply.set_exception(failure)
        del failure
        with contextlib.suppress(Failure):
            await wait_for(reply)
        assert freed() is None
        with pytest.raises(asyncio.InvalidStateError):
            reply.result()
