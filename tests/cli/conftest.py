"""The command, a home directory of its own, and what tests of import share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.service import Service
from tuplegate.client import Client

ROWS = 12_000
"""Three batches, with the lines of `numbers`."""


@pytest.fixture
def command(service: Service, tmp_path: Path) -> Command:
    return Command(service, tmp_path)


@pytest.fixture
def database(service: Service) -> Iterator[Client]:
    with Client(service.url, service.key) as opened:
        yield opened
        opened.query("drop table if exists load")


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    file = tmp_path / "numbers.csv"
    file.write_text("id,label\n" + "".join(f"{n},row {n:>200}\n" for n in range(ROWS)))
    return file
