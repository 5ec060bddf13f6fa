"""The service's data directory: its owner, the lock that says who uses it, and the account of PostgreSQL's programs.

Contract: one process at a time takes a directory, by a lock that dies with the process. The directory belongs to the
user that the service runs as. If that is root, programs that refuse root run as an unprivileged user. A directory that
is neither ours nor empty is left as it is, and no mode or owner changes outside it.

This module knows no program of PostgreSQL's and starts no process.
"""

import fcntl
import os
import pwd
import re
import stat
from pathlib import Path

from tuplegate.engine.bundled.sandbox.account import Account, user_name

SOCKET_NAME = ".s.PGSQL.5432"
LOCK_NAME = "tuplegate.lock"
MAKING = "making-"
"""The prefix of unfinished directories."""
ENGINE_USERS = ("tuplegate", "postgres", "nobody")
SOCKET_PATH_BYTES_MAX = 107
_LONGEST_SOCKET = f"cells/tg_{'i' * 12}/run/{SOCKET_NAME}"
# These separate or quote in libpq's conninfo, unix_socket_directories or extension_control_path.
UNUSABLE_IN_PATH = re.compile(r"""[\x00-\x1f\x7f,:;'"\\]""")


class BundledEngineError(Exception):
    """The bundled engine cannot be used; the message says what was wrong, where, and what to do."""


def _choose_account(wanted: str | None) -> Account:
    """Return the account that runs programs: our own, or under root the named user or the first of ENGINE_USERS that
    exists."""
    if os.geteuid() != 0:
        account = Account(os.geteuid(), os.getegid(), switch=False)
    else:
        account = _find_account(ENGINE_USERS if wanted is None else (wanted,))
    if account.uid == 0:
        raise BundledEngineError("PostgreSQL refuses to run as root: name another user for it")
    if wanted is not None and wanted != account.name:
        raise BundledEngineError(f"only root can run the engine as {wanted}, and this is {account.name}: name no user")
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
    """The service's directory: its lock, and the account that programs run as."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.account = Account(-1, -1, switch=False)
        self._lock_fd: int | None = None

    def take(self, user: str | None) -> None:
        """Lock the directory and make it ours; one that is neither ours nor empty is left as it is."""
        self.path = self.path.resolve()
        self._check_path()
        if self._is_used():
            self._check_own()
        elif self.path.exists():
            self._check_free()
        self.account = _choose_account(user)
        self._check_reach()
        if not self.path.exists():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_reach()
        fd = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
        os.chown(self.path, os.geteuid(), -1)
        # For root, programs and cells have users of their own, who must pass through it.
        self.path.chmod(0o711 if self.account.switch else 0o700)

    def release(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _is_used(self) -> bool:
        return (self.path / LOCK_NAME).exists()

    def _check_path(self) -> None:
        if UNUSABLE_IN_PATH.search(str(self.path)):
            raise BundledEngineError(
                f"{str(self.path)!r} has a comma, colon, semicolon, quote, backslash or control character, which "
                "PostgreSQL does not take in the path of a socket: choose another --data-dir"
            )
        length = len(os.fsencode(self.path / _LONGEST_SOCKET))
        if length > SOCKET_PATH_BYTES_MAX:
            raise BundledEngineError(
                f"a socket's path in {self.path} would have {length} bytes and the system allows "
                f"{SOCKET_PATH_BYTES_MAX}: choose a shorter --data-dir"
            )

    def _check_reach(self) -> None:
        if blocking := self.account.blocked_by(self.path):
            raise BundledEngineError(
                f"the engine runs as {self.account.name}, who may not enter {blocking}: choose another --data-dir"
            )

    def _check_own(self) -> None:
        owner = self.path.stat().st_uid
        if owner != os.geteuid():
            raise BundledEngineError(
                f"{self.path} belongs to {user_name(owner)}, and this is {user_name(os.geteuid())}: run the service"
                " as its owner, or choose another --data-dir"
            )
        if (self.path / "postgres").exists():
            raise BundledEngineError(
                f"{self.path} has databases from before each had a server of its own, which this version cannot serve:"
                " dump them (tuplegate dump) with Tuplegate of the commit 437ac0e7, and restore them with another"
                " --data-dir"
            )

    def _check_free(self) -> None:
        if any(self.path.iterdir()):
            raise BundledEngineError(
                f"{self.path} is not empty and was not made by tuplegate (it has no {LOCK_NAME}): "
                "choose another --data-dir"
            )
        status = self.path.stat()
        if status.st_mode & (stat.S_ISVTX | stat.S_IWOTH) or os.geteuid() not in (0, status.st_uid):
            raise BundledEngineError(f"{self.path} is another user's or shared: choose a --data-dir of its own")
