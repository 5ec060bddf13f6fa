"""Hides directories from a process: in its mount namespace, an empty directory that holds only the kept paths covers
each.

A kept path has the same name and content inside and outside: sockets, files and locks. Nothing else below the directory
exists for the process. Landlock alone refuses to open a neighbour's files, but permits to ask for their sizes and times
and to enter a neighbour's directory.

Contract: `hide` is called in a child that has a mount namespace of its own and the right to mount, before it enters its
working directory: a directory that was entered before stays reachable.
"""

import ctypes
import os
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

_LIBC = ctypes.CDLL(None, use_errno=True)
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_PROGRAMS, _REMOUNT = 1, 2, 4, 8, 32
_BIND, _RECURSIVE, _SLAVE = 4096, 16384, 1 << 19
_DETACH: Final = 2
_PLAIN: Final = _NO_SUID | _NO_DEVICES | _NO_PROGRAMS
_EMPTY: Final = b"mode=0711,size=256k,nr_inodes=256"
"""Room for directories and nothing more. Under root, other users can pass through."""
_PASS_THROUGH_MASK: Final = 0o066


def hide(hidden: Iterable[Path], kept: Iterable[Path]) -> None:
    """Hide the directories, except for the kept paths below them. Raises OSError if the system forbids it."""
    # Mounts made here are not seen outside. Unmounts outside apply here, too: otherwise a disk would stay in use.
    _mount(None, Path("/"), _RECURSIVE | _SLAVE)
    paths = [path for path in kept if path.exists()]
    for directory in hidden:
        _cover(directory.resolve(), _find_places(directory, paths))


def _find_places(directory: Path, paths: list[Path]) -> list[Path]:
    """Return the locations of the paths below the directory, named and resolved; omit a path inside another one."""
    real = directory.resolve()
    named = {real / path.relative_to(directory) for path in paths if directory in path.parents}
    places = named | {path.resolve() for path in paths if real in path.resolve().parents}
    return sorted(place for place in places if places.isdisjoint(place.parents))


def _cover(directory: Path, places: list[Path]) -> None:
    with ExitStack() as stack:
        opened = [os.open(place, os.O_PATH | os.O_CLOEXEC) for place in places]
        for descriptor in opened:
            stack.callback(os.close, descriptor)
        stack.callback(os.umask, os.umask(_PASS_THROUGH_MASK))
        _mount("tmpfs", directory, _PLAIN, "tmpfs", _EMPTY)
        try:
            for descriptor, place in zip(opened, places, strict=True):
                source = Path(f"/proc/self/fd/{descriptor}")
                _make_place(place, is_directory=source.is_dir())
                _mount(str(source), place, _BIND | _RECURSIVE)
            _mount(None, directory, _REMOUNT | _BIND | _READ_ONLY | _PLAIN)
        except OSError:
            with suppress(OSError):
                _check(_LIBC.umount2(os.fsencode(directory), _DETACH), directory)
            raise


def _make_place(place: Path, *, is_directory: bool) -> None:
    """Make the target of a mount: a directory or an empty file."""
    if is_directory:
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def _mount(source: str | None, target: Path, flags: int, kind: str | None = None, options: bytes | None = None) -> None:
    names = [None if name is None else os.fsencode(name) for name in (source, target, kind)]
    _check(_LIBC.mount(*names, ctypes.c_ulong(flags), options), target)


def _check(result: int, target: Path) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{target} cannot be hidden: {os.strerror(ctypes.get_errno())}")
