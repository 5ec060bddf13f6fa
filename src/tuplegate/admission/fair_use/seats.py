"""Seats, of which every organization has a limited number on a machine, over all workers.

The supervisor makes the shared memory before it forks. A worker writes only to its own part: for each seat that it has
given out, a mark that stands for the organization. It writes the mark first and counts the marks of all workers
afterwards. So if two workers want the last seat at once, both may be refused it, but they never both get it. A worker
that was killed leaves its marks behind, and its successor wipes them off.
"""

import hashlib
import mmap
from collections.abc import Callable
from functools import partial

from tuplegate.protocol.errors import ServiceError

_MARK_BYTES = 16
_WORKER_SEATS = 1024
"""Seats that one worker can give out. Each needs a connection to the engine, which has far fewer."""
_PART_BYTES = _MARK_BYTES * _WORKER_SEATS


class Seats:
    """The seats for one kind of thing, `what` in messages. Every organization has `most` of them."""

    def __init__(self, workers: int, most: int, what: str) -> None:
        self.most = most
        self.what = what
        self.marks = mmap.mmap(-1, _PART_BYTES * workers)


class WorkerSeats:
    """The seats that one worker gives out."""

    def __init__(self, seats: Seats, worker: int) -> None:
        self._seats = seats
        self._start = _PART_BYTES * worker
        self._free = list(range(_WORKER_SEATS))
        self._own: dict[bytes, int] = {}
        """The number of seats of each organization that this worker has given out."""
        self._marks = memoryview(seats.marks)
        self._counted = bytearray(len(seats.marks) - _PART_BYTES)
        """The parts of the other workers, as they were last seen."""
        self._to_count = memoryview(self._counted)
        seats.marks[self._start : self._start + _PART_BYTES] = bytes(_PART_BYTES)

    def take(self, organization: str) -> Callable[[], None]:
        """Take a seat, and return what gives it back. Raises busy if there is none."""
        seats = self._seats
        mark = hashlib.blake2b(organization.encode(), digest_size=_MARK_BYTES).digest()
        if not self._free:
            raise ServiceError("busy", f"{_WORKER_SEATS} {seats.what} are open in this worker, which is the most")
        seat = self._free.pop()
        self._write(seat, mark)
        own = self._own[mark] = self._own.get(mark, 0) + 1
        if own + self._count_of_others(mark) > seats.most:
            self._leave(seat, mark)
            raise ServiceError("busy", f"{seats.most} {seats.what} of the organization are open, which is the most")
        return partial(self._leave, seat, mark)

    def _count_of_others(self, mark: bytes) -> int:
        """Return the number of seats of the organization that the other workers have given out."""
        if not self._counted:
            return 0
        # Into memory that is kept: a copy made anew would leave as much behind it, touched, for whatever comes next.
        self._to_count[: self._start] = self._marks[: self._start]
        self._to_count[self._start :] = self._marks[self._start + _PART_BYTES :]
        return self._counted.count(mark)

    def _leave(self, seat: int, mark: bytes) -> None:
        self._write(seat, bytes(_MARK_BYTES))
        self._free.append(seat)
        self._own[mark] -= 1
        if not self._own[mark]:
            del self._own[mark]

    def _write(self, seat: int, mark: bytes) -> None:
        at = self._start + seat * _MARK_BYTES
        self._seats.marks[at : at + _MARK_BYTES] = mark
