"""Pauses Python's cyclic garbage collector while a large answer is decoded.

Decoding makes many objects and no cycles. The collector would look through all of them again and again, which takes as
long as the decoding itself.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LARGE_BYTES = 256 * 1024
"""From this size on, an answer is worth a pause."""

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the collector; the last thread that leaves resumes it, if it was on before the first one entered."""
    global _pauses, _was_enabled  # noqa: PLW0603 - there is one collector
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()
