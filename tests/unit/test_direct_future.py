"""Futures without a task: a waiter goes on at once, and tasks can wait for them too."""

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.unit.stage import without_collector
from tuplegate.direct_future import DirectFuture, Wakeup
from tuplegate.eager import EagerRun


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def new_future() -> DirectFuture[int]:
    return DirectFuture(asyncio.get_running_loop())


@on_a_loop
async def test_every_callback_is_called_once_in_order() -> None:
    future = new_future()
    called: list[int] = []
    callbacks = [lambda _, number=number: called.append(number) for number in range(4)]
    for callback in callbacks:
        future.add_done_callback(callback)
    assert future.remove_done_callback(callbacks[0]) == 1
    assert future.remove_done_callback(callbacks[2]) == 1
    assert future.remove_done_callback(callbacks[2]) == 0
    future.set_result(7)
    assert called == [1, 3]
    assert future.result() == 7
    future.add_done_callback(callbacks[2])
    assert called == [1, 3]
    await asyncio.sleep(0)
    assert called == [1, 3, 2]


@on_a_loop
async def test_a_run_goes_on_within_the_call() -> None:
    future = new_future()
    got: list[int] = []

    async def wait() -> None:
        got.append(await future)

    EagerRun(wait(), lambda _: got.append(-1)).resume()
    assert got == []
    future.hand_over(7)
    assert got == [7, -1]


@on_a_loop
async def test_a_task_goes_on_in_its_own_turn() -> None:
    """It is handed over inside another task, and none can run inside another."""
    future = new_future()
    others: list[object] = []

    async def wait() -> int:
        got = await future
        others.append(asyncio.current_task())
        return got

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    future.hand_over(7)
    assert others == []
    assert await task == 7
    assert others == [task]


@on_a_loop
async def test_a_failure_is_raised_where_it_is_waited_for() -> None:
    future = new_future()

    async def wait() -> int:
        return await future

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    future.hand_over_failure(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await task


@on_a_loop
async def test_a_run_that_is_cancelled_says_so() -> None:
    future = new_future()
    cleaned: list[str] = []
    ended: list[bool] = []

    async def wait() -> None:
        try:
            await future
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
    assert future.cancelled()
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

    async def wait_for(future: DirectFuture[int]) -> None:
        await future

    with without_collector():
        future = new_future()
        failure = Failure()
        freed = weakref.ref(failure)
        future.set_exception(failure)
        del failure
        with contextlib.suppress(Failure):
            await wait_for(future)
        assert freed() is None
        with pytest.raises(asyncio.InvalidStateError):
            future.result()


@on_a_loop
async def test_who_waits_is_woken_once_and_may_wait_again() -> None:
    wakeup = Wakeup()
    woken: list[int] = []

    async def wait_twice() -> None:
        for number in range(2):
            await wakeup.wait()
            woken.append(number)

    wakeup.wake()  # nobody waits, and nothing is kept for later
    EagerRun(wait_twice(), lambda _: None).resume()
    assert woken == []
    wakeup.wake()
    assert woken == [0]
    wakeup.wake()
    assert woken == [0, 1]
    wakeup.wake()


@on_a_loop
async def test_who_was_cancelled_is_not_woken() -> None:
    wakeup = Wakeup()
    ended: list[bool] = []
    run = EagerRun(wakeup.wait(), ended.append)
    run.resume()
    run.cancel()
    wakeup.wake()
    assert ended == [], "it hears of its end in the loop's next pass"
    await asyncio.sleep(0)
    assert ended == [True]
