"""Tells every worker that the definitions of a database have changed, before the change is answered.

A worker caches facts about a database: prepared statements, the types of their parameters, or that the database has no
code. They hold for the definitions that they were made from. So all workers share, in memory, a version of these
definitions: a number that is used only once. A worker that may change a definition writes another number before the
engine hears of the change, and again when the engine has finished. A cached fact is used only while the version is the
one from before the engine was asked. Since each number is used only once, no lock is needed: whichever of two writers
is last, the version is new.

Service processes that do not share this memory change definitions unseen. While there may be some (`lease.py` tells),
nothing is cached.
"""

import mmap
import secrets
from array import array
from typing import Final
from zlib import crc32

_PLACES: Final = 1 << 14
"""The number of versions. Databases that share one see each other's changes as their own, which only costs time."""


class Versions:
    """The version of each database's definitions, the number of changes that each worker has under way there, and
    whether other processes may change definitions. Made before workers are forked."""

    def __init__(self, workers: int, *, is_alone: bool) -> None:
        self._workers = workers
        self._alone = _PLACES * (1 + workers)
        self.numbers = memoryview(mmap.mmap(-1, 8 * (self._alone + 1))).cast("Q")
        self.numbers[self._alone] = is_alone

    @property
    def is_alone(self) -> bool:
        return bool(self.numbers[self._alone])

    def note_others(self, *, are_there: bool) -> None:
        """Note whether other processes change definitions. Facts cached before they came are not used any more."""
        was_alone, self.numbers[self._alone] = self.is_alone, not are_there
        if was_alone and are_there:
            self.change_all()

    def find_place(self, database: str) -> int:
        return crc32(database.encode()) % _PLACES

    def find_doubts(self, place: int) -> list[int]:
        """Return the indexes at which workers count their changes under way, one for each worker."""
        return [place + _PLACES * (1 + worker) for worker in range(self._workers)]

    def change_all(self) -> None:
        """Give every database a new version."""
        self.numbers[:_PLACES] = memoryview(array("Q", [secrets.randbits(64)]) * _PLACES)

    def take_over(self, worker: int) -> None:
        """End the changes that a worker's predecessor had under way when it died."""
        first = _PLACES * (1 + worker)
        if any(self.numbers[first : first + _PLACES]):
            self.change_all()
            self.numbers[first : first + _PLACES] = memoryview(array("Q", bytes(8 * _PLACES)))


class Definitions:
    """The version of one database's definitions, for one worker. `are_replayed`: the engine is a standby, which learns
    of changes later than the version shows."""

    def __init__(self, versions: Versions, worker: int, database: str, *, are_replayed: bool = False) -> None:
        self._versions = versions
        self._are_replayed = are_replayed
        self._numbers = versions.numbers
        place = versions.find_place(database)
        self._doubts = versions.find_doubts(place)
        self._own = self._doubts[worker]
        self.current = versions.numbers[place : place + 1]
        """The version, as a view of one number: every statement looks at it, without a call."""

    @property
    def version(self) -> int:
        return self.current[0]

    @property
    def are_known(self) -> bool:
        """Return whether every change gives the definitions another version before it is answered."""
        return self._versions.is_alone and not self._are_replayed

    @property
    def is_in_doubt(self) -> bool:
        """Return whether a change is under way, in any worker."""
        return any(self._numbers[place] for place in self._doubts)

    def note_change(self) -> None:
        self.current[0] = secrets.randbits(64)

    def begin_doubt(self) -> None:
        self._numbers[self._own] += 1
        self.note_change()

    def end_doubt(self) -> None:
        self.note_change()  # an answer from before it does not count, whoever sees that nothing is under way any more
        self._numbers[self._own] -= 1
