"""Produces the items of an iterator in a thread, a few ahead of the consumer."""

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_T = TypeVar("_T")


class _Finished:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


@contextmanager
def run_ahead(items: Iterable[_T], count: int = 2) -> Iterator[Iterator[_T]]:
    """Yield an iterator over the items; at most `count` wait. An error is raised in place of its item. The thread ends
    with the block."""
    made: queue.Queue[_T | _Finished] = queue.Queue(count)
    stopped = threading.Event()

    def make() -> None:
        end = _Finished(None)
        try:
            for item in items:
                made.put(item)
                if stopped.is_set():
                    return
        except BaseException as exc:  # noqa: BLE001 - it is raised by whoever takes the items
            end = _Finished(exc)
        made.put(end)

    def take() -> Iterator[_T]:
        while not isinstance(item := made.get(), _Finished):
            yield item
        if item.error is not None:
            raise item.error

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        yield take()
    finally:
        stopped.set()
        while thread.is_alive():  # it may be waiting for space in the queue
            try:
                made.get(timeout=0.01)
            except queue.Empty:
                pass
        thread.join()
