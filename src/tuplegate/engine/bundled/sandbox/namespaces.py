"""Forks into new namespaces as far as the system permits, and tells which ones it refuses.

An ordinary user makes namespaces by way of a user namespace. Some systems forbid that, for everybody or in containers.
Others permit namespaces, but not to mount in them.

Contract: the process has one thread. Signals are blocked around `fork`. The child holds Python's own lock, and must not
return.
"""

import ctypes
import errno
import os
import select
import signal
import sys
from contextlib import suppress
from enum import IntFlag
from pathlib import Path
from typing import Final, NoReturn

from tuplegate.engine.bundled.sandbox import mounts
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.bundled.sandbox.kernel_files import write_text

_HOLDING = ctypes.PyDLL(None, use_errno=True)
"""Calls through this object keep Python's own lock, which the child must hold."""
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_REFUSALS: Final = frozenset({errno.EPERM, errno.EINVAL, errno.ENOSPC, errno.ENOSYS, errno.EUSERS})
_TRIAL_S_MAX: Final = 5.0
_HIDDEN_AND_KEPT: Final = ((Path("/usr"),), (Path("/usr/lib"),))
"""Directories to hide and to keep in a trial; every system has them."""


class Namespaces(IntFlag):
    """Kinds of namespaces. The numbers are the kernel's."""

    NONE = 0
    MOUNTS = 0x00020000
    IPC = 0x08000000
    USER = 0x10000000
    PROCESSES = 0x20000000


def fork(account: Account, *, mounts_too: bool) -> tuple[int, Namespaces]:
    """Fork into as many namespaces as the system permits. Return the result of fork, and the namespaces."""
    number = _CLONE.get(os.uname().machine)
    if number is None:
        return os.fork(), Namespaces.NONE
    fewest = Namespaces.PROCESSES | Namespaces.IPC | (Namespaces.NONE if account.switch else Namespaces.USER)
    for kinds in (fewest | Namespaces.MOUNTS, fewest) if mounts_too else (fewest,):
        pid = int(_HOLDING.syscall(number, ctypes.c_ulong(kinds | signal.SIGCHLD), None, None, None, None))
        if pid >= 0:
            return pid, kinds
        if ctypes.get_errno() not in _REFUSALS:
            raise OSError(ctypes.get_errno(), f"clone: {os.strerror(ctypes.get_errno())}")
    return os.fork(), Namespaces.NONE


def map_user(account: Account) -> None:
    """Give the account its own user id inside the user namespace, where it has none yet."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{account.uid} {account.uid} 1"),
        ("gid_map", f"{account.gid} {account.gid} 1"),
    ):
        write_text(Path("/proc/self", name), text)


def find_gaps() -> list[str]:
    """List the namespaces that the system refuses to this user, in words for an operator. A child tries them."""
    if sys.platform != "linux":
        return []
    given = _try_out(Account(os.geteuid(), os.getegid(), switch=os.geteuid() == 0))
    if Namespaces.MOUNTS in given:
        return []
    glances = "a database's server can ask for sizes and times of files outside, though not open them"
    if Namespaces.PROCESSES in given:
        return [f"no namespaces of mounts (the system refuses them to this user): {glances}"]
    return [
        "no namespaces (the system refuses them to this user): servers of databases share the keys of System V's"
        f" memory where they have one user, and {glances}"
    ]


def _try_out(account: Account) -> Namespaces:
    """Return the namespaces that a child was given; the mount namespace only if the child could hide a directory."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid, given = fork(account, mounts_too=True)
        if pid == 0:
            _hide_something(account, given)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    _await_end(pid)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return given if status == 0 else given & ~Namespaces.MOUNTS


def _hide_something(account: Account, given: Namespaces) -> NoReturn:
    status = 1
    try:
        if Namespaces.USER in given:
            map_user(account)
        if Namespaces.MOUNTS in given:
            mounts.hide(*_HIDDEN_AND_KEPT)
        status = 0
    finally:
        os._exit(status)


def _await_end(pid: int) -> None:
    """Wait for a child, and kill it if it does not end."""
    child = os.pidfd_open(pid)
    with suppress(ProcessLookupError):
        if not select.select([child], [], [], _TRIAL_S_MAX)[0]:
            os.kill(pid, signal.SIGKILL)
    os.close(child)
