"""Background tasks go on whatever they raise."""

import asyncio
import os
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import capture_logs

from tuplegate import background


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_PAUSE_S", 0.0)
    monkeypatch.setattr(background, "_log", structlog.get_logger())
    monkeypatch.setattr(background, "restarts", type(background.restarts)())


def test_a_task_that_fails_is_started_again() -> None:
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 4:
            raise [ValueError("odd"), RecursionError(), MemoryError()][begun - 1]

    async def run() -> None:
        await asyncio.wait_for(background.keep("work", work), 10)

    with capture_logs() as logs:
        asyncio.run(run())
    assert begun == 4
    assert background.restarts == {"work": 3}
    assert [(line["task"], line["exc_info"]) for line in logs] == [("work", True)] * 3


def test_a_task_that_is_cancelled_ends() -> None:
    async def run() -> None:
        task = background.keep("work", lambda: asyncio.sleep(3600))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert not background.restarts.total()


def test_a_wait_that_somebody_else_has_cancelled_does_not_end_it() -> None:
    begun = 0

    async def run() -> None:
        async def work() -> None:
            nonlocal begun
            begun += 1
            if begun == 1:
                waited_for = asyncio.get_running_loop().create_future()
                waited_for.cancel()
                await waited_for

        await asyncio.wait_for(background.keep("work", work), 10)

    asyncio.run(run())
    assert begun == 2
    assert background.restarts == {"work": 1}


def test_pauses_grow_while_it_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are short again for one that ran for long."""
    pauses: list[float] = []
    now = 0.0

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> None:
        async def work() -> None:
            nonlocal now
            now += 61.0 if len(pauses) == 8 else 0.0
            if len(pauses) < 10:
                raise ValueError

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: now)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await background._restart_on_failure("work", work)

    monkeypatch.setattr(background, "_PAUSE_S", 0.1)
    asyncio.run(run())
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.1, 0.2])


def test_a_step_that_fails_is_noted() -> None:
    async def work() -> None:
        raise ValueError("odd")

    asyncio.run(background.attempt("work", work))
    assert background.restarts == {"work": 1}


@pytest.mark.parametrize("now", [0.0, 0.0001, 0.1, 17.23, 17.2399, 17.249, 17.2999, 1e6 + 0.2])
def test_tasks_of_one_period_wake_at_the_same_moments(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    loop = SimpleNamespace(time=lambda: now)
    monkeypatch.setattr(background, "asyncio", SimpleNamespace(sleep=sleep, get_running_loop=lambda: loop))
    asyncio.run(background.tick(0.25))
    [seconds] = waited
    assert 0.25 / 4 < seconds <= 0.25 * 1.25
    beats = (now + seconds + os.getpid() / 37) / 0.25
    assert abs(beats - round(beats)) < 1e-6
