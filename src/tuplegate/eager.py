"""Runs a handler's coroutine at once, up to its first real wait, and resumes it when that wait is over.

An asyncio task would first queue the coroutine for the loop's next pass and register it in a weak set: about a tenth of
the cost of a whole request. The price: inside a handler `asyncio.current_task()` is None, or the task that has just
resumed it, so `asyncio.timeout` must not be used there. Cancelling works as with a task.

Only one run is active at a time. A run that is resumed continues as soon as the active one waits or ends, however many
resume each other. An exception of one run is reported and reaches no other.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from itertools import repeat
from typing import Any, Final, TypeVar

from tuplegate.direct_future import DirectFuture, Waiter

_T = TypeVar("_T")

_OVER: Final = object()
_FOREVER: Final = repeat(_OVER)


class _Over:
    """Awaited by a coroutine that has finished, and never resumed."""

    def __await__(self) -> Generator[Any, None, None]:
        return _FOREVER  # type: ignore[return-value]  # any iterator will do; one serves all


_IS_OVER: Final = _Over()


class _RunQueue:
    """Knows whether a run is active, and which runs continue after it."""

    def __init__(self) -> None:
        self.is_running = False
        self.next: deque[EagerRun] = deque()


class EagerRun(Waiter):
    """One running coroutine. `on_done` is called when it has ended, with True if it was cancelled."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], on_done: Callable[[bool], None]) -> None:
        self._steps: Coroutine[Any, Any, None] | None = self._run(coroutine)
        self._on_done = on_done
        self._waiting_for: asyncio.Future[Any] | None = None
        self._cancelled = False
        self.done = False

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine and end in a wait: a return would raise an exception, which costs a thirtieth of a
        request."""
        try:
            await coroutine
        except asyncio.CancelledError:
            self._end(cancelled=True)
        except Exception as exc:  # noqa: BLE001 - reported to the loop, as for a task that failed
            self._end()
            asyncio.get_running_loop().call_exception_handler({"message": "a handler failed", "exception": exc})
        except BaseException:
            self._end()
            raise
        else:
            self._end()
        await _IS_OVER

    def resume(self) -> None:
        """Continue the coroutine; the future that it waited for returns or raises its result there."""
        queue = _queue
        if queue.is_running:
            queue.next.append(self)
            return
        queue.is_running = True
        try:
            self._step()
            while queue.next:
                queue.next.popleft()._step()
        finally:
            queue.is_running = False
            if queue.next:  # the process is about to end; if it does not, the others continue
                asyncio.get_running_loop().call_soon(queue.next.popleft().resume)

    def _step(self) -> None:
        steps = self._steps
        assert steps is not None, "a run that has ended is not resumed"
        try:
            future = steps.send(None)
        except Exception as exc:  # noqa: BLE001 - raised by `on_done`
            self._steps = None
            asyncio.get_running_loop().call_exception_handler({"message": "a handler's end failed", "exception": exc})
            return
        if future is _OVER:
            self._steps = None
        elif future is None:  # a bare yield, as of asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(self.resume)
        else:
            self._waiting_for = future
            if isinstance(future, DirectFuture):
                future.set_waiter(self)
            else:
                future._asyncio_future_blocking = False
                future.add_done_callback(self._on_future_done)
            if self._cancelled:
                self._cancelled = False
                future.cancel()

    def _on_future_done(self, _future: "asyncio.Future[Any]") -> None:
        self.resume()

    def cancel(self) -> None:
        """Raise CancelledError in the coroutine, where it waits now."""
        if self.done:
            return
        if self._waiting_for is None or not self._waiting_for.cancel():
            self._cancelled = True

    def _end(self, *, cancelled: bool = False) -> None:
        self.done = True
        self._waiting_for = None
        self._on_done(cancelled)


_queue: Final = _RunQueue()


def see_through(work: Coroutine[Any, Any, _T], on_done: Callable[[bool], None]) -> DirectFuture[_T]:
    """Begin work that continues even if its caller is cancelled. Nothing cancels it."""
    future: DirectFuture[_T] = DirectFuture(asyncio.get_running_loop())
    EagerRun(_settle(work, future), on_done).resume()
    return future


async def _settle(work: Coroutine[Any, Any, _T], future: DirectFuture[_T]) -> None:
    try:
        result = await work
    except BaseException as exc:  # noqa: BLE001 - it is raised where the work is waited for
        if not future.done():
            future.hand_over_failure(exc)
    else:
        if not future.done():
            future.hand_over(result)
