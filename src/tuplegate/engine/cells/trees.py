"""Copies and removes directories whose files a tenant may have chosen.

Contract: a copy holds regular files and directories, owned by one account, and nothing else; any other kind of file in
the source makes it fail. No link is followed. Removal needs the same few descriptors and the same memory for every
tree, however deep a tenant nested it.
"""

import ctypes
import errno
import fcntl
import os
import secrets
import stat
from enum import Enum
from pathlib import Path

from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.cells.layout import CellError, make_directory, make_file, open_directory, open_file

DEPTH_MAX = 16
"""PostgreSQL nests its directories three deep. A copy holds two descriptors for each level."""

_FICLONE = 0x40049409
_READ_BYTES = 2**20
_CANNOT = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM}
"""Errors by which file systems and sandboxes say that they do not support this way to copy."""

_LIBC = ctypes.CDLL(None, use_errno=True)


class CopyMethod(Enum):
    """REFLINK shares the blocks of all files with the source; COPY takes room of its own for at least one."""

    REFLINK = "reflink"
    COPY = "copy"


class TreeCopy:
    """One copy of a directory for an account, by the cheapest method that the file system offers."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._can_reflink = True
        self._can_copy_range = True

    def copy(self, source: int, target: int, skipped: tuple[str, ...] = ()) -> CopyMethod:
        """Copy all entries of the source except the skipped ones. Raises CellError, and OSError."""
        self._copy_directory(source, target, skipped, depth=0)
        return CopyMethod.REFLINK if self._can_reflink else CopyMethod.COPY

    def _copy_directory(self, source: int, target: int, skipped: tuple[str, ...], depth: int) -> None:
        if depth > DEPTH_MAX:
            raise CellError(f"its directories are nested deeper than {DEPTH_MAX}")
        for name in os.listdir(source):
            if name in skipped:
                continue
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                make_directory(name, target, self._account)
                with open_directory(name, source) as below, open_directory(name, target) as copy:
                    self._copy_directory(below, copy, (), depth + 1)
            elif stat.S_ISREG(status.st_mode):
                self._copy_file(name, source, target)
            else:
                raise CellError(f"{name} is neither a file nor a directory")

    def _copy_file(self, name: str, source: int, target: int) -> None:
        reading = open_file(name, os.O_RDONLY, source)
        try:
            writing = make_file(name, os.O_WRONLY | os.O_EXCL, target, self._account)
            try:
                self._copy_content(reading, writing)
            finally:
                os.close(writing)
        finally:
            os.close(reading)

    def _copy_content(self, reading: int, writing: int) -> None:
        size = os.fstat(reading).st_size
        if size == 0 or (self._can_reflink and self._reflink(reading, writing)):
            return
        position = 0
        while self._can_copy_range and position < size:
            try:
                copied = os.copy_file_range(reading, writing, size - position)
            except OSError as exc:
                if exc.errno not in _CANNOT:
                    raise
                self._can_copy_range = False
            else:
                if copied == 0:
                    return
                position += copied
        while position < size and (content := os.pread(reading, min(_READ_BYTES, size - position), position)):
            position += os.pwrite(writing, content, position)

    def _reflink(self, reading: int, writing: int) -> bool:
        try:
            fcntl.ioctl(writing, _FICLONE, reading)
        except OSError as exc:
            if exc.errno not in _CANNOT:
                raise
            self._can_reflink = False
        return self._can_reflink


def remove_tree(top: Path) -> None:
    """Remove a directory and all that it holds.

    Each directory found below the top is moved up into the top, so nothing is ever more than one level away.
    """
    with open_directory(top) as fd:
        found = True
        while found:
            found = False
            with os.scandir(fd) as entries:
                for entry in entries:
                    found = True
                    if entry.is_dir(follow_symlinks=False):
                        _dissolve(entry.name, fd)
                    else:
                        os.unlink(entry.name, dir_fd=fd)
    top.rmdir()


def _dissolve(name: str, parent: int) -> None:
    """Remove a directory after its own directories have been moved to its parent."""
    _make_passable(name, parent)
    with open_directory(name, parent) as fd, os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _make_passable(entry.name, fd)
                os.rename(entry.name, f"moved-{secrets.token_hex(8)}", src_dir_fd=fd, dst_dir_fd=parent)
            else:
                os.unlink(entry.name, dir_fd=fd)
    os.rmdir(name, dir_fd=parent)


def _make_passable(name: str, parent: int) -> None:
    """Give ourselves access to a directory that its mode keeps closed. Root needs none."""
    if os.geteuid() != 0:
        os.chmod(name, 0o700, dir_fd=parent)


def sync_file_system(fd: int) -> None:
    """Write all changes of the file system that holds the file to its disk: one call for all files of a cell."""
    if _LIBC.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
