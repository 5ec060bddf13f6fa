"""Signals to the supervisor: SIGTERM and SIGINT stop it, and the end of a child wakes it."""

import contextlib
import os
import select
import signal
from collections.abc import Iterable, Iterator
from typing import Protocol

WATCH_S = 0.25


class Stopped(Protocol):
    """Waits until a signal comes or one of the files has something, but no longer. Returns whether to stop."""

    def __call__(self, files: Iterable[int] = (), seconds: float = WATCH_S) -> bool: ...


@contextlib.contextmanager
def watch_signals() -> Iterator["Stopped"]:
    """Give a function that waits a moment, or until a signal comes, and returns whether to stop."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    asked: list[int] = []
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: asked.append(received))
    signal.signal(signal.SIGCHLD, lambda *_: None)

    def stopped(files: Iterable[int] = (), seconds: float = WATCH_S) -> bool:
        poll = select.poll()
        for file in (read, *files):
            poll.register(file, select.POLLIN)
        if poll.poll(0 if asked else 1000 * seconds):
            with contextlib.suppress(BlockingIOError):
                os.read(read, 4096)
        return bool(asked)

    try:
        yield stopped
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read)
        os.close(write)
