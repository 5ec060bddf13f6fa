"""Produces the items of an iterator in a thread, a few ahead of the consumer."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_T = TypeVar("_T")


@contextmanager
def run_ahead(items: Iterable[_T], count: int = 2) -> Iterator[Iterator[_T]]:
    """Yield an iterator over the items; at most `count` wait. An error is raised in place of its item. The thread ends
    with the block."""
    source = iter(items)
    thread = ThreadPoolExecutor(1)

    def take() -> Iterator[_T]:
        ahead = deque(thread.submit(_take_one, source) for _ in range(count))
        while found := ahead.popleft().result():
            ahead.append(thread.submit(_take_one, source))
            yield found[0]

    try:
        yield take()
    finally:
        thread.shutdown(cancel_futures=True)


def _take_one(source: Iterator[_T]) -> tuple[_T, ...]:
    """Return the next item, or nothing at the end."""
    for item in source:
        return (item,)
    return ()
