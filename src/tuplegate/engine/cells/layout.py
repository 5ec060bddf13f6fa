"""Paths of cells, the account of each cell, and safe ways to open the files in a cell.

Contract: the service owns the data directory, `cells` and `prepared`, so it has chosen the names in them. A cell's
account owns everything below `cells/<id>`, and the catalog's account everything below `catalog`. The cell can put any
file there. So this module opens files through the descriptor of their directory, follows no link, and refuses a file
that has a second name.

Under root each cell has a user id of its own; the owner of the cell's directory is the only record of it. Otherwise all
cells run as the service's user. This module starts no process and writes no data.
"""

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tuplegate.engine.bundled.data_directory import (
    SOCKET_NAME,
    SOCKET_PATH_BYTES_MAX,
    UNUSABLE_IN_PATH,
    BundledEngineError,
)
from tuplegate.engine.bundled.sandbox.account import Account

FIRST_UID = 1_900_000_000
"""User ids from here up belong to cells: systems and containers give none so high to anybody else."""
UIDS = 200_000_000
"""The number of user ids for cells. A cell gets a random one, since another installation on the machine may have cells,
too, and all processes of a user can be killed."""

DATA = "data"
RUN = "run"
LOCK = "server.lock"
LOG = "server.log"

_ID = re.compile(r"[a-z0-9_]{1,40}", re.ASCII)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CellError(BundledEngineError):
    """A cell cannot be made, removed or run. The message names the cell's directory and the reason."""


@dataclass(frozen=True)
class CellsDirectory:
    """The part of the service's data directory that holds the cells."""

    path: Path

    @property
    def cells(self) -> Path:
        return self.path / "cells"

    @property
    def prepared(self) -> Path:
        return self.path / "prepared"

    @property
    def catalog(self) -> Path:
        """The catalog's cell. It is no database, so it has no id."""
        return self.path / "catalog"

    @property
    def catalog_password(self) -> Path:
        return self.path / "catalog.password"

    def make(self) -> None:
        """Make both directories if they are missing. Cells' accounts may pass through them but not list them."""
        for place in (self.cells, self.prepared):
            place.mkdir(mode=0o711, exist_ok=True)
            with open_directory(place) as fd:
                if os.fstat(fd).st_uid != os.geteuid():
                    raise CellError(f"{place} belongs to another user: give it to the user who runs the service")
                os.fchmod(fd, 0o711)

    def locate(self, cell_id: str) -> Path:
        """Return the path of a cell, which need not exist. Raises CellError for an invalid id."""
        if _ID.fullmatch(cell_id) is None:
            raise CellError(f"{cell_id!r} is no id of a cell: it has 1 to 40 of the characters a-z, 0-9 and _")
        path = self.cells / cell_id
        length = len(os.fsencode(path / RUN / SOCKET_NAME))
        if length > SOCKET_PATH_BYTES_MAX or UNUSABLE_IN_PATH.search(str(path)):
            raise CellError(f"{path} cannot hold a socket: choose a shorter --data-dir of ordinary characters")
        return path

    def list_cells(self) -> list[str]:
        """Return the ids of all complete cells. The names of unfinished ones are no ids."""
        return sorted(name for name in os.listdir(self.cells) if _ID.fullmatch(name))


def find_service(cell: Path) -> Path:
    """Return the service's data directory, given the path of a cell or of the catalog's cell."""
    return cell.parent if cell == CellsDirectory(cell.parent).catalog else cell.parent.parent


def find_free_account(directory: CellsDirectory) -> Account:
    """Return an account that no cell and no spare has. The caller holds a lock on the directory until the account owns
    an entry."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), switch=False)
    taken = set()
    for cell in (directory.catalog, *directory.cells.iterdir(), *directory.prepared.iterdir()):
        with suppress(FileNotFoundError):  # it is just removed, or not made yet
            taken.add(cell.lstat().st_uid)
    while (uid := FIRST_UID + secrets.randbelow(UIDS)) in taken:
        pass
    return Account(uid, uid, switch=True)


def find_account(cell: int) -> Account:
    """Return the account of a cell from the owner of its directory, never root."""
    status = os.fstat(cell)
    switch = os.geteuid() == 0
    if status.st_uid < FIRST_UID if switch else status.st_uid != os.geteuid():
        raise CellError(f"the cell's directory belongs to user {status.st_uid}, who is no cell's account")
    return Account(status.st_uid, status.st_gid, switch)


@contextmanager
def open_directory(name: Path | str, parent: int | None = None) -> Iterator[int]:
    """Open a directory, and close it afterwards. Refuse a symbolic link at its name."""
    fd = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def open_file(name: str, flags: int, parent: int) -> int:
    """Open a regular file that has no other name. Raises CellError for any other kind of file."""
    fd = os.open(name, flags | _FILE, 0o600, dir_fd=parent)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return fd
    os.close(fd)
    raise CellError(f"{name} is not an ordinary file with one name")


def make_file(name: str, flags: int, parent: int, account: Account) -> int:
    """Open a regular file of the account's; make it if it is missing."""
    fd = open_file(name, flags | os.O_CREAT, parent)
    give_to(fd, account)
    return fd


def make_directory(name: str, parent: int, account: Account) -> None:
    """Make a directory that belongs to the account alone."""
    os.mkdir(name, 0o700, dir_fd=parent)
    with open_directory(name, parent) as fd:
        give_to(fd, account)


def give_to(fd: int, account: Account) -> None:
    """Make the account the owner of an open file, unless all cells share the service's account."""
    if account.switch:
        os.fchown(fd, account.uid, account.gid)


def read_file(name: str, parent: int, bytes_max: int) -> bytes:
    """Return the beginning of a regular file, `bytes_max` bytes at most."""
    fd = open_file(name, os.O_RDONLY, parent)
    try:
        return os.pread(fd, bytes_max, 0)
    finally:
        os.close(fd)


def lock_server(cell: int, account: Account) -> int | None:
    """Return a descriptor that holds the lock of the cell's server, or None if a process of the cell holds it.

    The lock belongs to the descriptor and to all inherited copies of it, so it lasts as long as any of them.
    """
    fd = make_file(LOCK, os.O_RDWR, cell, account)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
