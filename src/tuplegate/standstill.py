"""Notices a worker that stands still, and finds the place.

The event loop of every worker advances a number several times a second, in memory that is shared before the fork. The
supervisor reads the numbers: one that stays the same for too long belongs to a worker whose loop stands still. The
supervisor then asks that worker for its stacks by a signal, which is answered without the loop and without the
interpreter. A process that is stopped, or waits inside the kernel, returns no stacks.
"""

import asyncio
import faulthandler
import mmap
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_BEAT_S = 0.25
_LOOK_S_MAX = 1.0
"""The bound on the time between two looks that counts. A longer one means that the supervisor could not run either: the
machine was suspended or all processes were stopped, and the workers had no chance to move."""

_STACKS_SIGNAL = signal.SIGUSR2
_STACKS_WITHIN_S = 0.5
_STACKS_SILENCE_S = 0.1
_STACKS_BYTES_MAX = 64 * 1024


class Beats:
    """A number for each worker, which its event loop advances. `replaced` counts the workers that were killed for
    standing still; only the supervisor writes it."""

    def __init__(self, workers: int) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 8 * (workers + 1))).cast("Q")

    def start(self, worker: int, compute_pause_s: Callable[[float], float]) -> None:
        """Advance the worker's number as long as the running event loop turns, even while the worker stops.

        `compute_pause_s` tells when the process wakes next anyway, for a pause of so many seconds.
        """
        loop, numbers, place = asyncio.get_running_loop(), self._numbers, worker + 1

        def beat() -> None:
            numbers[place] += 1
            loop.call_later(compute_pause_s(_BEAT_S), beat)

        beat()

    def read(self, worker: int) -> int:
        return self._numbers[worker + 1]

    @property
    def replaced(self) -> int:
        return self._numbers[0]

    def count_replaced(self) -> None:
        self._numbers[0] += 1


class StandstillClock:
    """Measures how long a process has stood still, for a caller that looks often."""

    def __init__(self, now: float) -> None:
        self.still_s = 0.0
        self._sign: object = None
        self._looked_at = now

    def look(self, sign: object, now: float) -> float:
        """Return for how many seconds `sign` has been the same."""
        passed, self._looked_at = min(now - self._looked_at, _LOOK_S_MAX), now
        self.still_s = self.still_s + passed if sign == self._sign else 0.0
        self._sign = sign
        return self.still_s


def offer_stacks(descriptor: int) -> None:
    """Let this process write the stacks of its threads to the descriptor when `read_stacks` asks for them."""
    faulthandler.register(_STACKS_SIGNAL, file=descriptor, all_threads=True)


def read_stacks(pid: int, descriptor: int) -> str:
    """Return the stacks of a process that has called `offer_stacks`, or the kernel's word for its state."""
    with suppress(ProcessLookupError):
        os.kill(pid, _STACKS_SIGNAL)
    read = b""
    patience = _STACKS_WITHIN_S
    looked_at = select.poll()  # `select` takes no descriptor beyond 1,023
    looked_at.register(descriptor, select.POLLIN)
    while len(read) < _STACKS_BYTES_MAX and looked_at.poll(patience * 1000):
        part = os.read(descriptor, _STACKS_BYTES_MAX)
        if not part:
            break
        read += part
        patience = _STACKS_SILENCE_S
    return read.decode("utf-8", "replace") or _read_state(pid)


def _read_state(pid: int) -> str:
    """Return the kernel's word for the state of a process, such as `T (stopped)` or `D (disk sleep)`."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition("\t")[2] for line in lines if line.startswith("State:")), "unknown")
