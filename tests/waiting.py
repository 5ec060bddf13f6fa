"""Waits until something is so: asks, pauses and asks again, and fails when it takes too long."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

WAIT_S = 60.0
"""Says nothing about how long anything may take: it is for a machine that does many other things."""
_PAUSE_S = 0.01
_T = TypeVar("_T")


def eventually(ask: Callable[[], _T | None], seconds: float = WAIT_S, *, last: Callable[[], object] = str) -> _T:
    """Return the first true answer. `last` is asked at the end for what the failure is to show."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"it was not so within {seconds:g} s {last()}"
        time.sleep(_PAUSE_S)
    return answer


async def eventually_async(ask: Callable[[], bool | Awaitable[bool]], seconds: float = WAIT_S) -> None:
    """Wait, while other tasks run, until the answer is true."""
    async with asyncio.timeout(seconds):
        while not (held if isinstance(held := ask(), bool) else await held):
            await asyncio.sleep(_PAUSE_S)
