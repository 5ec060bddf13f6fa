"""Log lines, where there may be no room for them."""

import os
from pathlib import Path

import pytest

from tests.servers import needs_linux
from tuplegate.logs import LossyOutput


def test_lines_are_written_whole(tmp_path: Path) -> None:
    """Each in one piece, whatever is in it."""
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    print("a line with \ud800", file=LossyOutput(fd), flush=True)
    os.close(fd)
    assert (tmp_path / "log").read_text() == "a line with \\ud800\n"


@needs_linux
def test_a_line_without_room_is_lost_and_stops_nobody() -> None:
    """Not even the next one."""
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        os.write(fd, b"a line")
    log = LossyOutput(fd)
    for _ in range(2):
        print("a line", file=log, flush=True)
    os.close(fd)
