"""Landlock: a process gives up all paths but a few, for itself and for every process that it starts (Linux 5.13).

Contract: `restrict` is called in a child before exec, after `no_new_privs` was set. A path that does not exist is left
out. Newer kernels restrict more: TCP (ABI 4), ioctls on devices (5), signals and abstract sockets (6).
"""

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from enum import IntFlag
from pathlib import Path
from typing import Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The numbers of the system calls, which all processors share."""
_VERSION: Final = 1
_BENEATH: Final = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class Right(IntFlag):
    """Rights to the files below a path. The numbers are the kernel's."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


READ: Final = Right.READ_FILE | Right.READ_DIR
RUN: Final = READ | Right.EXECUTE
DEVICE: Final = Right.READ_FILE | Right.WRITE_FILE
DATA: Final = (
    READ
    | Right.WRITE_FILE
    | Right.REMOVE_DIR
    | Right.REMOVE_FILE
    | Right.MAKE_DIR
    | Right.MAKE_REG
    | Right.REFER
    | Right.TRUNCATE
)
"""Ordinary files and directories. No links, sockets or devices can be made, and no program can be run."""
SOCKETS: Final = READ | Right.WRITE_FILE | Right.REMOVE_FILE | Right.MAKE_REG | Right.MAKE_SOCK | Right.TRUNCATE
"""Sockets, and files beside them."""

_OF_FILES: Final = Right.EXECUTE | Right.WRITE_FILE | Right.READ_FILE | Right.TRUNCATE | Right.IOCTL_DEV
"""The rights that a rule for a single file may name."""
_SINCE: Final = ((1, Right.REFER - 1), (2, Right.REFER), (3, Right.TRUNCATE), (5, Right.IOCTL_DEV))
_TCP_SINCE: Final = 4
SCOPES_SINCE: Final = 6
"""The version that restricts signals: from it on, the walls of files, TCP and signals are complete."""
_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def find_version() -> int:
    """Return the version of Landlock that the kernel has; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def restrict(rules: Iterable[tuple[Path, Right]]) -> None:
    """Give up all paths but these. Raises OSError."""
    version = find_version()
    known = Right(0)
    for since, rights in _SINCE:
        known |= Right(rights) if version >= since else Right(0)
    tcp = _BIND_AND_CONNECT if version >= _TCP_SINCE else 0
    scopes = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= SCOPES_SINCE else 0
    handled = struct.pack("QQQ", known, tcp, scopes)
    ruleset = _call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    for path, rights in rules:
        _add_rule(ruleset, path, rights & known)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _add_rule(ruleset: int, path: Path, rights: Right) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    allowed = rights if path.is_dir() else rights & _OF_FILES
    _call(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", allowed, place), 0)
    os.close(place)


def _call(number: int, *arguments: object) -> int:
    result = int(_LIBC.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
