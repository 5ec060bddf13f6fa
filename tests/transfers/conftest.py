"""The fixtures of the command, and what tests of import share."""

from pathlib import Path

import pytest

from tests.cli.conftest import command as command
from tests.cli.conftest import database as database

ROWS = 12_000
"""Three batches, with the lines of `numbers`."""


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    file = tmp_path / "numbers.csv"
    file.write_text("id,label\n" + "".join(f"{n},row {n:>200}\n" for n in range(ROWS)))
    return file
