"""Where tests keep their data: in memory where there is room for it, since nothing of it has to last.

The engine writes and flushes there as it does on a disk, and is done at once.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

VARIABLE = "TUPLEGATE_TEST_DIR"
"""Names the directory to use. Without it, as in a benchmark, the data is on the disk; tests/conftest.py sets it."""

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


MADE = ("tuplegate.lock", "postgres", "extensions")
"""What a data directory has while no service uses it, but for its log."""


def copy_data(made: Path, data_dir: Path) -> None:
    """Put there what another data directory has, in a tenth of the time that it took to make it."""
    data_dir.mkdir(mode=0o700)
    subprocess.run(["cp", "-a", *(str(made / name) for name in MADE), str(data_dir)], check=True)


def new_directory(prefix: str = "tg-") -> Path:
    """Make a directory that others may enter.

    Pytest's own lies under a directory of mode 0700, which root's engine user cannot enter.
    """
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get(VARIABLE, DISK)))
    made.chmod(0o755)
    return made
