"""Confines a process to its sandbox: to the paths that a server needs, and to the calls that it makes."""

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tuplegate.engine.bundled.sandbox import landlock, system_calls
from tuplegate.engine.bundled.sandbox.landlock import DATA, DEVICE, READ, RUN, SOCKETS, Right

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS, _PR_AMBIENT, _PR_AMBIENT_CLEAR = 38, 47, 4
_CAPABILITIES_VERSION: Final = 0x20080522
_NO_CAPABILITIES: Final = bytes(24)
"""The effective, permitted and inherited capabilities, in two halves."""

_LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store")
"""Programs may be run from here, since the loader of programs is one of these files. No shell is."""
_READABLE: Final = (
    "/usr/share",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/ssl/openssl.cnf",
)
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The paths that a process keeps: it writes in `data` and `sockets`, runs `programs`, and reads `readable`.

    If it has a mount namespace, the directories `hidden` do not exist for it, except for the paths above.
    """

    data: tuple[Path, ...]
    sockets: tuple[Path, ...]
    programs: tuple[Path, ...]
    readable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()

    def list_kept(self) -> tuple[Path, ...]:
        return (*self.data, *self.sockets, *self.programs, *self.readable)

    def list_rules(self) -> Iterator[tuple[Path, Right]]:
        for paths, rights in (
            (self.data, DATA),
            (self.sockets, SOCKETS),
            (self.programs, RUN),
            (self.readable, READ),
            (map(Path, _LIBRARIES), RUN),
            (map(Path, _READABLE), READ),
            (map(Path, _DEVICES), DEVICE),
        ):
            for path in paths:
                yield path, rights


def confine(sandbox: Sandbox, *, in_namespace: bool = False) -> None:
    """Confine this process, and every process that it starts, as far as the kernel can. Raises OSError.

    Call it in a child before exec, in a process with one thread. `in_namespace`: the process is the first one of a
    process namespace.
    """
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    _give_up_capabilities()
    if landlock.find_version():
        landlock.restrict(sandbox.list_rules())
    if system_calls.is_known():
        system_calls.install(keeps_death_signal=in_namespace)


def _give_up_capabilities() -> None:
    """Give up all capabilities: programs must not inherit, for example, the service's right to bind a low port."""
    # An old kernel has no ambient capabilities; then there are none to clear.
    _LIBC.prctl(_PR_AMBIENT, _PR_AMBIENT_CLEAR, 0, 0, 0)
    if _LIBC.capset(struct.pack("Ii", _CAPABILITIES_VERSION, 0), _NO_CAPABILITIES):
        raise OSError(ctypes.get_errno(), f"capabilities: {os.strerror(ctypes.get_errno())}")


def find_gaps() -> list[str]:
    """List the parts of a whole sandbox that the system lacks, in words for an operator.

    Each of them lets a database's server reach others. `bounds` lists what else is missing.
    """
    if sys.platform != "linux":
        return [f"{sys.platform} has no sandbox for the engine: only Linux has"]
    gaps = []
    version = landlock.find_version()
    if not version:
        gaps.append("no Landlock (Linux 5.13 and newer have it): the engine reaches all files of its user")
    elif version < landlock.SCOPES_SINCE:
        gaps.append(
            f"Landlock {version} without scopes (Linux 6.12 has them): the engine can signal its user's processes"
        )
    if not system_calls.is_known():
        gaps.append("no filter of system calls for this machine: the engine can connect to sockets")
    return gaps
