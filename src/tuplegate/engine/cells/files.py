"""Bounds the files of cells, even those that are not part of a table: a cell's superuser can write any file.

A worker measures the directories of the cells that it has open, and has a cell killed that is far above its bound. It
asks only the file system, not the server. A sleeping cell costs nothing. Data that a tenant adds by SQL are refused
long before (`postgres/safety/sizes.py`).
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from stat import S_ISDIR

from tuplegate.background import keep, tick
from tuplegate.engine.cells.layout import CellError, CellsDirectory
from tuplegate.engine.cells.line import CellLine
from tuplegate.engine.cells.server import WAL_MB_MAX
from tuplegate.engine.cells.trees import DEPTH_MAX

FREE_BYTES = (64 + WAL_MB_MAX) * 2**20
"""Bytes that do not count of a cell's files outside its database: the engine's own databases, and the log that it
keeps."""
BURST_BYTES = 2**30
"""The log may grow by about so much while the engine makes a checkpoint."""

_EVERY_S = 2.0
_ENTRY_BYTES = 1024
"""Counts for each name beside its blocks: the file system keeps the name, too."""
_BLOCK_BYTES = 512


def measure_cell(data: Path, oid: int) -> int:
    """Return the size of a cell: the bytes of the tenant's database, and those of all other files beyond FREE_BYTES."""
    own = measure_tree(data / "base" / str(oid))
    return own + max(0, measure_tree(data) - own - FREE_BYTES)


def measure_tree(top: Path, most: float = inf, *, on_disk: bool = False) -> int:
    """Return the bytes of all files below a directory of a cell, or some number above `most`. Follow no link.

    `on_disk`: measure the room that the files and their names take. Raises CellError for deeper trees than
    PostgreSQL's.
    """
    size = 0
    left = [(str(top), 0)]
    while left and size <= most:
        place, depth = left.pop()
        if depth > DEPTH_MAX:
            raise CellError(f"its directories are nested deeper than {DEPTH_MAX}")
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    size += _measure_entry(entry, depth, left, on_disk=on_disk)
                    if size > most:
                        break
        except FileNotFoundError:
            if not depth:
                raise
    return size


def _measure_entry(entry: "os.DirEntry[str]", depth: int, left: list[tuple[str, int]], *, on_disk: bool) -> int:
    """Return the size of one entry. Add a directory to `left`."""
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0  # it was removed meanwhile
    if is_directory := S_ISDIR(status.st_mode):
        left.append((entry.path, depth + 1))
    if on_disk:
        return status.st_blocks * _BLOCK_BYTES + _ENTRY_BYTES
    return 0 if is_directory else status.st_size


class FilesWatch:
    """Has cells killed whose files are far too large. `find_bounds` returns the bounds of the cells that this worker
    has open. `slack_bytes` is for files that come and go: the log, and what statements write for a while."""

    def __init__(
        self,
        directory: CellsDirectory,
        line: CellLine,
        find_bounds: Callable[[], Mapping[str, int]],
        slack_bytes: int,
    ) -> None:
        self._directory = directory
        self._line = line
        self._find_bounds = find_bounds
        self._slack_bytes = slack_bytes

    def begin(self) -> None:
        self._task = keep("cell_files", self._watch)

    def end(self) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await tick(_EVERY_S)
            for name, bound in dict(self._find_bounds()).items():
                if reason := await loop.run_in_executor(None, partial(self._judge, name, bound + self._slack_bytes)):
                    self._line.kill(name, reason)

    def _judge(self, name: str, most: int) -> str:
        """Return the reason to kill a cell; empty if there is none."""
        try:
            if measure_tree(self._directory.locate(name), most, on_disk=True) <= most:
                return ""
        except CellError as failure:
            return str(failure)
        except OSError:
            return ""  # it is just removed
        return f"its files take more than {most >> 20} MiB, far more than the database may"
