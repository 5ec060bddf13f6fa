"""Where tests keep their data: in memory where there is room for it, since nothing of it has to last.

The engine writes and flushes there as it does on a disk, and is done at once.
"""

import atexit
import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

VARIABLE = "TUPLEGATE_TEST_DIR"
"""Names the directory to use. Without it, as in a benchmark, the data is on the disk; tests/conftest.py sets it."""

SHARED = "TUPLEGATE_TEST_SHARED"
"""Names the directory of what all test processes copy. tests/conftest.py makes it, and removes it in the end."""

DISK = Path("/tmp")
MEMORY = Path("/dev/shm")
ROOM_BYTES = 8 * 2**30
"""Enough for all services of a run, and for what the machine does beside it."""


def choose_place() -> Path:
    """Return the directory in memory, or the one on the disk: where there is no room, or no program may run there."""
    try:
        status = os.statvfs(MEMORY)
        available = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return DISK
    if available is None or status.f_flag & os.ST_NOEXEC:
        return DISK
    room = min(status.f_bavail * status.f_frsize, int(available[1]) * 1024)
    return MEMORY if room >= ROOM_BYTES else DISK


MADE = ("tuplegate.lock", "catalog", "catalog.password", "extensions", "cells", "prepared")
"""What a data directory has while no service uses it, but for its log."""


def copy_data(made: Path, data_dir: Path) -> None:
    """Put there what another data directory has, in a tenth of the time that it took to make it."""
    data_dir.mkdir(mode=0o700)
    there = [str(made / name) for name in MADE if (made / name).exists()]
    subprocess.run(["cp", "-a", *there, str(data_dir)], check=True)


@functools.cache
def make_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the data directory of that name. The first process to ask makes it; no service ever runs on it."""
    shared = _find_shared()
    made = shared / name / "data"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            begun = shared / f"{name}-begun"
            shutil.rmtree(begun, ignore_errors=True)
            begun.mkdir()
            begun.chmod(0o755)
            make(begun / "data")
            begun.rename(made.parent)
    return made


@functools.cache
def _find_shared() -> Path:
    if shared := os.environ.get(SHARED):
        return Path(shared)
    own = new_directory()
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def new_directory(prefix: str = "tg-") -> Path:
    """Make a directory that others may enter.

    Pytest's own lies under a directory of mode 0700, which root's engine user cannot enter.
    """
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get(VARIABLE, DISK)))
    made.chmod(0o755)
    return made
