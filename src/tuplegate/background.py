"""Restarts background tasks: one that fails is logged, counted, and started again after a pause.

Such a task runs for as long as the process lives, so nothing awaits its result. Without this, an exception would end it
unnoticed. Most of them look at something again and again; they wait with `tick`.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

_log = structlog.get_logger()
_T = TypeVar("_T")

_PAUSE_S = 0.1
_PAUSE_S_MAX = 5.0
_LASTED_S = 60.0
"""After a task ran longer than this, a failure counts as its first: the restart comes soon."""

_SPREAD = 37.0

Work = Callable[[], Coroutine[Any, Any, None]]
"""Returns a new coroutine for each start of a task."""

restarts: Counter[str] = Counter()
"""How often each task of this process failed and was restarted, by name."""


def keep(name: str, work: Work) -> asyncio.Task[None]:
    """Run the work as a task until it returns or is cancelled; restart it after every failure."""
    restarts[name] += 0  # so that the metric shows it
    return asyncio.get_running_loop().create_task(_restart_on_failure(name, work), name=name)


async def tick(every_s: float) -> None:
    """Wait until the clock passes a multiple of `every_s`: tasks wake together, so a quiet process wakes seldom.

    The clock of each process is shifted, so that the processes of one machine do not all wake at once.
    """
    await asyncio.sleep(compute_pause_s(every_s))


def compute_pause_s(every_s: float) -> float:
    """Return the time that `tick` waits."""
    left_s = every_s - (asyncio.get_running_loop().time() + os.getpid() / _SPREAD) % every_s
    return left_s if left_s > every_s / 4 else left_s + every_s


async def attempt(name: str, work: Work) -> None:
    """Run the work once. A failure is logged and counted, and then ignored."""
    try:
        await work()
    except Exception:  # noqa: BLE001 - whatever it is, the caller has more to do
        _note_failure(name, "a step of a background task failed")


async def within(seconds: float, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of the work. Raise TimeoutError and cancel the work if it takes too long.

    For code that runs outside of a task, where `asyncio.timeout` does not work.
    """
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_discard_exception)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise TimeoutError
    return task.result()


def _discard_exception(task: "asyncio.Task[Any]") -> None:
    """Retrieve the exception of a task that nothing awaits any more, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


async def _restart_on_failure(name: str, work: Work) -> None:
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
            # Something that the task awaited was cancelled, not the task itself.
            _note_failure(name, "a background task was interrupted and is started again")
        except Exception:  # noqa: BLE001 - whatever it is, the task has to go on
            _note_failure(name, "a background task failed and is started again")
        else:
            return
        lasted = loop.time() - started_at > _LASTED_S
        pause_s = _PAUSE_S if lasted else min(max(_PAUSE_S, 2 * pause_s), _PAUSE_S_MAX)
        await asyncio.sleep(pause_s)


def _note_failure(name: str, event: str) -> None:
    restarts[name] += 1
    _log.error(event, task=name, exc_info=True)
