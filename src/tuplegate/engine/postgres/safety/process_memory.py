"""Ends a client's session whose server process takes so much memory that a commit might find none.

The service asks the engine for this before its own commits (`commit_room`). In front of a commit that a client sends by
itself nothing can be put. So the memory of its server process is looked at again and again while statements come and
run. This is a watch and not a wall: between two looks a session can go from half of its memory to all of it.
"""

import asyncio
import math
import os
from collections.abc import Callable
from typing import Final

_TICK_S: Final = 0.02
_DATA_FIELD: Final = 5
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def read_memory(process: int) -> int | None:
    """Return the bytes of a process that RLIMIT_DATA bounds; None where that cannot be told, or it has ended."""
    try:
        fd = os.open(f"/proc/{process}/statm", os.O_RDONLY)
    except OSError:
        return None
    try:
        return int(os.read(fd, 200).split()[_DATA_FIELD]) * _PAGE_BYTES
    except (OSError, IndexError):
        return None
    finally:
        os.close(fd)


class MemoryWatch:
    """Looks at one server process. `process_bytes_max` is what it may take, None where nobody bounds it. `end` is
    called with a reason when it takes more than half of that."""

    def __init__(
        self,
        process: int,
        process_bytes_max: int | None,
        is_running: Callable[[], bool],
        end: Callable[[str], None],
    ) -> None:
        self._process = process
        self._bytes_max = None if process_bytes_max is None else process_bytes_max // 2
        self._is_running = is_running
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._looked_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def look_before(self) -> None:
        """Look before a statement, unless somebody has just looked."""
        if self._loop.time() - self._looked_at > _TICK_S:
            self.look()

    def look(self) -> None:
        self._looked_at = self._loop.time()
        if self._bytes_max is not None and (read_memory(self._process) or 0) > self._bytes_max:
            self._end(
                f"the session took more than {self._bytes_max // 2**20} MB of memory, half of what there is for it;"
                " what needs more can be sent to POST /v1/query"
            )

    def follow(self) -> None:
        """Look again and again while something runs, and once after it."""
        if self._timer is None and self._bytes_max is not None:
            self._timer = self._loop.call_later(_TICK_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.look()
        if self._is_running():
            self.follow()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
