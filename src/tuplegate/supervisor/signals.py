"""Signals to the supervisor: SIGTERM and SIGINT stop it, and the end of a child wakes it."""

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Iterator

_WATCH_S = 0.25


@contextlib.contextmanager
def watch_signals() -> Iterator[Callable[[], bool]]:
    """Give a function that waits a moment, or until a signal comes, and returns whether to stop."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    asked: list[int] = []
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: asked.append(received))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(read, selectors.EVENT_READ)

    def stopped() -> bool:
        if selector.select(0 if asked else _WATCH_S):
            with contextlib.suppress(BlockingIOError):
                os.read(read, 4096)
        return bool(asked)

    try:
        yield stopped
    finally:
        signal.set_wakeup_fd(-1)
        selector.close()
        os.close(read)
        os.close(write)
