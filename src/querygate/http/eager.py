"""Runs a handler's coroutine at once, up to its first real wait, and goes on with it when that wait is over.

An asyncio task would first queue the coroutine for the next turn of the loop and register it in a weak set: about a
tenth of the cost of a whole request. What a handler gives up for it: `asyncio.current_task()` is None inside it, so
`asyncio.timeout` must not be used there, which fails loudly. Cancelling works as with a task.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class EagerRun:
    """One coroutine on its way. `on_done` is called when it has ended, and told whether it was cancelled."""

    __slots__ = ("_cancelled", "_coroutine", "_on_done", "_waiting_for", "done")

    def __init__(self, coroutine: Coroutine[Any, Any, None], on_done: Callable[[bool], None]) -> None:
        self._coroutine = coroutine
        self._on_done = on_done
        self._waiting_for: asyncio.Future[Any] | None = None
        self._cancelled = False
        self.done = False

    def step(self, _over: "asyncio.Future[Any] | None" = None) -> None:
        """Resumes the coroutine; the future it waited for raises or gives its result inside it."""
        try:
            future = self._coroutine.send(None)
        except StopIteration:
            self._end()
        except asyncio.CancelledError:
            self._end(cancelled=True)
        except BaseException as exc:
            self._end()
            if not isinstance(exc, Exception):
                raise
            asyncio.get_running_loop().call_exception_handler({"message": "a handler failed", "exception": exc})
        else:
            if future is None:  # a bare yield, as asyncio.sleep(0) makes
                asyncio.get_running_loop().call_soon(self.step)
                return
            future._asyncio_future_blocking = False
            self._waiting_for = future
            future.add_done_callback(self.step)
            if self._cancelled:
                self._cancelled = False
                future.cancel()

    def cancel(self) -> None:
        """Raises CancelledError inside the coroutine, where it waits now."""
        if self.done:
            return
        if self._waiting_for is None or not self._waiting_for.cancel():
            self._cancelled = True

    def _end(self, *, cancelled: bool = False) -> None:
        self.done = True
        self._waiting_for = None
        self._on_done(cancelled)
