"""Keeps background tasks running: one that fails is logged, counted, and started again after a pause.

Such a task looks after something for as long as the process lives, so nobody waits for its result. Without this an
exception would end it for good, and nobody would hear of it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

_log = structlog.get_logger()
_T = TypeVar("_T")

_PAUSE_S = 0.1
_PAUSE_S_MAX = 5.0
_LASTED_S = 60.0
"""A task that ran for longer before it failed is started again as soon as after its first failure."""

Work = Callable[[], Coroutine[Any, Any, None]]
"""Makes the coroutine of a task, a new one for each start."""

restarts: Counter[str] = Counter()
"""How often each task of this process was started again, by its name."""


def keep(name: str, work: Work) -> asyncio.Task[None]:
    """Run the work as a task until it returns or the task is cancelled, however often it fails."""
    restarts[name] += 0  # it is there to be shown
    return asyncio.get_running_loop().create_task(_keep(name, work), name=name)


async def attempt(name: str, work: Work) -> None:
    """Run the work once; a failure is logged and counted, and nothing else depends on it."""
    try:
        await work()
    except Exception:  # noqa: BLE001 - whatever it is, the caller has more to do
        _note(name, "a step of a background task failed")


async def within(seconds: float, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of the work. Raises TimeoutError where it does not come in time; the work is cancelled then.

    For those who run outside of a task, which `asyncio.timeout` needs.
    """
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_hear)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise TimeoutError
    return task.result()


def _hear(task: "asyncio.Task[Any]") -> None:
    """What it raises when nobody waits for it any more is no news."""
    if not task.cancelled():
        task.exception()


async def _keep(name: str, work: Work) -> None:
    loop = asyncio.get_running_loop()
    pause_s = 0.0
    while True:
        started_at = loop.time()
        try:
            await work()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something that it waited for was cancelled, not the task itself.
            _note(name, "a background task was interrupted and is started again")
        except Exception:  # noqa: BLE001 - whatever it is, the task has to go on
            _note(name, "a background task failed and is started again")
        else:
            return
        lasted = loop.time() - started_at > _LASTED_S
        pause_s = _PAUSE_S if lasted else min(max(_PAUSE_S, 2 * pause_s), _PAUSE_S_MAX)
        await asyncio.sleep(pause_s)


def _note(name: str, event: str) -> None:
    restarts[name] += 1
    _log.error(event, task=name, exc_info=True)
