"""The command, and a home directory of its own."""

from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.service import Service


@pytest.fixture
def command(service: Service, tmp_path: Path) -> Command:
    return Command(service, tmp_path)
