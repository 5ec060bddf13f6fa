"""The command, a home directory of its own, and a client of the shared database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.service import Service
from tuplegate.client import Client


@pytest.fixture
def command(service: Service, tmp_path: Path) -> Command:
    return Command(service, tmp_path)


@pytest.fixture
def database(service: Service) -> Iterator[Client]:
    with Client(service.url, service.key) as opened:
        yield opened
        opened.query("drop table if exists load")
