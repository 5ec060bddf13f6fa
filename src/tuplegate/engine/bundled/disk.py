"""The free room on the disk of the bundled engine, and a reserve file that keeps some of it.

PostgreSQL ends when it cannot write its log, and does not start until it can. So the room is watched: when little is
left, statements that take more are refused while those that free some continue (`postgres/safety/disk_watch.py`). Other
programs can still fill the disk. Then the reserve is removed, so that the engine can start and tenants can delete.
"""

import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

RESERVE_NAME = "reserve"
RESERVE_BYTES = 64 * 2**20
"""Sixteen segments of a server's log: recovery ends with a checkpoint, which may begin new ones."""

_NOTHING_LEFT_BYTES = RESERVE_BYTES // 16
_CALM_SHARE = 16
"""A shortage is over once the free room exceeds its threshold by a sixteenth."""


class Shortage(IntEnum):
    """The degree of a shortage of room: below the minimum, below half of it, or below a quarter."""

    NONE = 0
    SHORT = 1
    LOW = 2
    LAST = 3


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of a data directory; `bytes_min` are to stay free. The caller must be able to read the directory."""

    directory: Path
    bytes_min: int

    def free(self) -> int:
        """Return the free bytes without the reserve. The reserve counts as taken even while its file is removed."""
        return _free(self.directory) + self.reserved() - RESERVE_BYTES

    def reserved(self) -> int:
        try:
            return min(RESERVE_BYTES, os.lstat(self.directory / RESERVE_NAME).st_blocks * 512)
        except FileNotFoundError:
            return 0

    def judge(self, free: int, before: Shortage) -> Shortage:
        for level, least in (
            (Shortage.LAST, self.bytes_min // 4),
            (Shortage.LOW, self.bytes_min // 2),
            (Shortage.SHORT, self.bytes_min),
        ):
            if free < (least + least // _CALM_SHARE if level <= before else least):
                return level
        return Shortage.NONE


class Reserve:
    """The reserve file. Only the process that has taken the data directory uses it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._path = disk.directory / RESERVE_NAME

    def keep(self) -> bool | None:
        """Remove the file if the disk has almost no room left, and make it again once there is room.

        Return True if the file was made, False if it was removed, and None if nothing changed.
        """
        if self._disk.reserved():
            return False if _free(self._disk.directory) < _NOTHING_LEFT_BYTES and self._give_up() else None
        if self._disk.free() >= self._disk.bytes_min:
            return True if self._make() else None
        return None

    def give_up_for_start(self) -> bool:
        """Remove the file if the engine would hardly start without its room; return whether it was removed."""
        return bool(self._disk.reserved()) and _free(self._disk.directory) < RESERVE_BYTES // 2 and self._give_up()

    def _give_up(self) -> bool:
        self._path.unlink(missing_ok=True)
        return True

    def _make(self) -> bool:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError:
            self._give_up()
            return False
        finally:
            os.close(fd)
        return True


def _free(place: Path) -> int:
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize
