"""The service's data directory: who owns it, the lock that says who uses it, and safe ways to make files in it.

Contract: one process at a time has taken a directory, by a lock that dies with the process. Taking it makes it belong
to the user the engine runs as: ourselves, or for root an unprivileged user. A directory that is neither ours nor empty
is left as it is, and no mode and no owner changes outside it.

As root we work inside a directory that the engine's user owns: so no link is followed there when something is written.
This module knows no program of PostgreSQL's and starts no process.
"""

import fcntl
import os
import pwd
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

SOCKET_NAME = ".s.PGSQL.5432"
ENGINE_USERS = ("tuplegate", "postgres", "nobody")
SOCKET_PATH_BYTES_MAX = 107 if sys.platform == "linux" else 103
# These separate or quote in libpq's conninfo, unix_socket_directories or extension_control_path.
UNUSABLE_IN_PATH = re.compile(r"""[\x00-\x1f\x7f,:;'"\\]""")


class BundledEngineError(Exception):
    """The bundled engine cannot be used; the message says what was wrong, where, and what to do."""


@dataclass(frozen=True)
class Account:
    """The user the engine runs as; `switch` when that is not the user we are."""

    uid: int
    gid: int
    switch: bool

    @property
    def name(self) -> str:
        return _user_name(self.uid)

    def may(self, status: os.stat_result, wanted: int) -> bool:
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid == self.gid else 0
        return (status.st_mode >> shift) & wanted == wanted

    def blocked_by(self, path: Path) -> Path | None:
        """Return the first existing directory above a resolved path that the account may not pass through."""
        for directory in reversed(path.parents):
            if self.switch and directory.exists() and not self.may(directory.stat(), 0o1):
                return directory
        return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _choose_account(wanted: str | None, pgdata: Path) -> Account:
    """Return who runs the engine: ourselves, or for root the named user, the data's owner, or one of ENGINE_USERS."""
    owner = pgdata.lstat() if pgdata.exists() else None
    if os.geteuid() != 0:
        account = Account(os.geteuid(), os.getegid(), switch=False)
    elif wanted is None and owner is not None:
        account = Account(owner.st_uid, owner.st_gid, switch=True)
    else:
        account = _find_account(ENGINE_USERS if wanted is None else (wanted,))
    if account.uid == 0:
        raise BundledEngineError(
            f"PostgreSQL refuses to run as root: name another user for it, who also owns {pgdata} if that exists"
        )
    if wanted is not None and wanted != account.name:
        raise BundledEngineError(f"only root can run the engine as {wanted}, and this is {account.name}: name no user")
    if owner is not None and owner.st_uid != account.uid:
        raise BundledEngineError(
            f"{pgdata} belongs to {_user_name(owner.st_uid)}, but the engine would run as {account.name}: "
            "run it as its owner, or choose another --data-dir"
        )
    return account


def _find_account(names: tuple[str, ...]) -> Account:
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, switch=True)
    raise BundledEngineError(
        f"no user {' or '.join(names)} exists on this machine, and PostgreSQL refuses to run as root: "
        "make one (useradd --system tuplegate)"
    )


class DataDirectory:
    """The service's directory: who owns it, its lock, and safe ways to make files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.account = Account(-1, -1, switch=False)
        self._lock_fd: int | None = None

    @property
    def taken(self) -> bool:
        return self._lock_fd is not None

    @property
    def pgdata(self) -> Path:
        return self.path / "postgres"

    @property
    def run(self) -> Path:
        return self.path / "run"

    def take(self, user: str | None) -> None:
        """Lock the directory and make it ours; one that is neither ours nor empty is left as it is."""
        self.path = self.path.resolve()
        self._check_path()
        ours = (self.path / "tuplegate.lock").exists()
        if not ours and self.path.exists():
            self._check_free()
        self.account = _choose_account(user, self.pgdata)
        self._check_reach()
        if not self.path.exists():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_reach()
        fd = self.open("tuplegate.lock", os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise BundledEngineError(
                f"another tuplegate (pid {holder}) is using {self.path}; stop it or choose another --data-dir"
            ) from None
        self._lock_fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self.own(self.path)

    def release(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def open(self, name: str, flags: int) -> int:
        """Open or make a file of ours where the engine's user could have laid a link to another."""
        path = self.path / name
        fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(fd)
            raise BundledEngineError(f"{path} is not an ordinary file: move it away")
        if self.account.switch:
            os.fchown(fd, self.account.uid, self.account.gid)
        return fd

    def replace(self, name: str, content: bytes) -> None:
        (self.path / name).unlink(missing_ok=True)
        with open(self.open(name, os.O_WRONLY | os.O_EXCL), "wb") as file:
            file.write(content)

    def own(self, path: Path) -> None:
        """Make a directory that belongs to the engine's user alone, or make it so again."""
        path.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if self.account.switch:
                os.fchown(fd, self.account.uid, self.account.gid)
            os.fchmod(fd, 0o700)
        finally:
            os.close(fd)

    def _check_path(self) -> None:
        if UNUSABLE_IN_PATH.search(str(self.path)):
            raise BundledEngineError(
                f"{str(self.path)!r} has a comma, colon, semicolon, quote, backslash or control character, which "
                "PostgreSQL does not take in the path of a socket: choose another --data-dir"
            )
        length = len(os.fsencode(self.run / SOCKET_NAME))
        if length > SOCKET_PATH_BYTES_MAX:
            raise BundledEngineError(
                f"the socket's path in {self.path} would have {length} bytes and the system allows "
                f"{SOCKET_PATH_BYTES_MAX}: choose a shorter --data-dir"
            )

    def _check_reach(self) -> None:
        if blocking := self.account.blocked_by(self.path):
            raise BundledEngineError(
                f"the engine runs as {self.account.name}, who may not enter {blocking}: choose another --data-dir"
            )

    def _check_free(self) -> None:
        if any(self.path.iterdir()):
            raise BundledEngineError(
                f"{self.path} is not empty and was not made by tuplegate (it has no tuplegate.lock): "
                "choose another --data-dir"
            )
        status = self.path.stat()
        if status.st_mode & (stat.S_ISVTX | stat.S_IWOTH) or os.geteuid() not in (0, status.st_uid):
            raise BundledEngineError(f"{self.path} is another user's or shared: choose a --data-dir of its own")
