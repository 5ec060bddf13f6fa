"""A future that resumes its waiter at once. Answers of the engine, connections and turns are awaited with it.

An asyncio future queues its callbacks for the loop's next pass, with a handle and a context for each: a few per cent of
a whole request. This one offers what tasks and the eager runner need of a future, and calls them directly. So the code
that resolves it must have finished its own work: the waiter runs inside that call.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_Callback = Callable[[Any], object]


class Waiter:
    """Waits for one thing at a time and is resumed when that is done."""

    def resume(self) -> None:
        raise NotImplementedError


class DirectFuture(Generic[_T]):
    """A future that calls its waiter directly; see the module's docstring."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done = False
        self._cancelled = False
        self._result: _T | None = None
        self._exception: BaseException | None = None
        self._raised = False
        self._waiter: Waiter | None = None
        self._callback: _Callback | None = None
        self._context: Context | None = None
        self._further: list[tuple[_Callback, Context | None]] | None = None
        """The callbacks after the first; there is hardly ever more than one."""
        self._asyncio_future_blocking = False

    def __await__(self) -> Generator[Any, None, _T]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def done(self) -> bool:
        return self._done

    def cancelled(self) -> bool:
        return self._cancelled

    def result(self) -> _T:
        """Return the result, or raise the exception, once: an exception must not be stored by an object that it refers
        to."""
        exception, self._exception = self._exception, None
        if exception is not None:
            self._raised = True
            try:
                raise exception
            finally:
                exception = None
        if self._raised:
            raise _already_raised()
        if not self._done:
            raise asyncio.InvalidStateError("there is no result yet")
        return self._result  # type: ignore[return-value]  # it is set when done

    def exception(self) -> BaseException | None:
        if self._cancelled:
            raise asyncio.CancelledError
        if not self._done:
            raise asyncio.InvalidStateError("there is no result yet")
        return _already_raised() if self._raised else self._exception

    def set_waiter(self, waiter: Waiter) -> None:
        """Resume this waiter when done: a callback without an object for it. For one waiter, while not done."""
        assert self._waiter is None, "only one may wait"
        self._waiter = waiter

    def add_done_callback(self, callback: _Callback, *, context: Context | None = None) -> None:
        if self._done:
            self._loop.call_soon(callback, self)
        elif self._callback is None:
            self._callback, self._context = callback, context
        else:
            self._further = [*(self._further or []), (callback, context)]

    def remove_done_callback(self, callback: _Callback) -> int:
        entries = [] if self._callback is None else [(self._callback, self._context), *(self._further or [])]
        left = [entry for entry in entries if entry[0] != callback]
        self._callback, self._context = left[0] if left else (None, None)
        self._further = left[1:] or None
        return len(entries) - len(left)

    def set_result(self, result: _T) -> None:
        self._result = result
        self._resolve()

    def set_exception(self, exception: BaseException) -> None:
        self._exception = exception
        self._resolve()

    def hand_over(self, result: _T) -> None:
        """Set the result now, or in the loop's next pass if a task waits: a task has its own context, and no task may
        run inside another."""
        if self._context is None:
            self.set_result(result)
        else:
            self.set_result_soon(result)

    def hand_over_failure(self, exception: BaseException) -> None:
        """Set the exception in the same way as `hand_over`."""
        if self._context is None:
            self.set_exception(exception)
        else:
            self.set_exception_soon(exception)

    def set_result_soon(self, result: _T) -> None:
        """Set the result now and resume the waiter in the loop's next pass, as an asyncio future does."""
        self._result = result
        self._done = True
        self._loop.call_soon(self._resolve)

    def set_exception_soon(self, exception: BaseException) -> None:
        self._exception = exception
        self._done = True
        self._loop.call_soon(self._resolve)

    def cancel(self, msg: object = None) -> bool:
        """Cancel, and resume the waiter in the loop's next pass, as an asyncio future does."""
        if self._done:
            return False
        self._cancelled = self._done = True
        self._exception = asyncio.CancelledError()
        self._loop.call_soon(self._resolve)
        return True

    def _resolve(self) -> None:
        self._done = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.resume()
        callback, self._callback = self._callback, None
        context, self._context = self._context, None
        further, self._further = self._further, None
        while callback is not None:
            if context is None:
                callback(self)
            else:
                context.run(callback, self)
            callback = context = None  # a failure may refer to this frame, and must not be kept by the frame in turn
            if further:
                callback, context = further.pop(0)


def _already_raised() -> asyncio.InvalidStateError:
    return asyncio.InvalidStateError("its exception was raised already")


class Wakeup:
    """Lets one coroutine wait until it is woken."""

    def __init__(self) -> None:
        self._future: DirectFuture[None] | None = None

    async def wait(self) -> None:
        self._future = DirectFuture(asyncio.get_running_loop())
        await self._future

    def wake(self) -> None:
        """Resume the coroutine, if one waits."""
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(None)


async def yield_to_loop() -> None:
    """Wait for the loop's next pass. Unlike `asyncio.sleep(0)` it can be cancelled in the eager runner."""
    loop = asyncio.get_running_loop()
    reply: DirectFuture[None] = DirectFuture(loop)
    loop.call_soon(_go_on, reply)
    await reply


def _go_on(reply: DirectFuture[None]) -> None:
    if not reply.done():
        reply.set_result(None)
