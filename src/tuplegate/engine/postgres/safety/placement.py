"""Keeps the engine's processes off the worker's core while the worker is what everybody waits for.

On a machine of few cores the kernel likes to wake a server process on the core of whoever wrote to it, which is the
worker; there it waits, or the worker does. While many short statements are served, the processes of this worker's own
connections are told to use the other cores; as soon as there are fewer, they may use all of them again, because then
it is the statements that need the cores. Other connections to the engine, and its own background work, are untouched.
"""

import os
from collections.abc import Iterable

_CORES_MAX = 4
"""With more cores the scheduler finds an idle one by itself."""

_BUSY_PER_SECOND = 1500
"""Statements in a second from which on the worker counts as busy; none of them can have been a long one."""


class Placement:
    """`update` is called a few times a second."""

    def __init__(self, enabled: bool) -> None:
        self._cores = os.sched_getaffinity(0) if enabled and hasattr(os, "sched_getaffinity") else set()
        self._kept_off: set[int] = set()
        self.active = 1 < len(self._cores) <= _CORES_MAX

    def update(self, served: int, seconds: float, processes: Iterable[int]) -> bool:
        """Take a new count; return whether the processes are kept off now."""
        if not self.active:
            return False
        wanted = set(processes) if served / seconds > _BUSY_PER_SECOND else set()
        others = self._cores - {min(self._cores)}
        for process in wanted - self._kept_off:
            self._allow(process, others)
        for process in self._kept_off - wanted:
            self._allow(process, self._cores)
        self._kept_off = wanted
        return bool(wanted)

    def _allow(self, process: int, cores: set[int]) -> None:
        try:
            os.sched_setaffinity(process, cores)
        except ProcessLookupError:
            pass  # its connection was closed meanwhile
        except PermissionError:
            self.active = False  # the engine runs as somebody else; it is left to the scheduler
