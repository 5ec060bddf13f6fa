"""A long result takes the command no more memory than a short one, in forms that `make test` leaves out."""

import pytest

from tests.cli.command import Command
from tests.cli.conftest import command
from tests.cli.test_query import pass_through

__all__ = ["command"]  # a fixture


@pytest.mark.parametrize("form", ["ndjson", "csv"])
def test_a_long_result_takes_no_more_memory_than_a_short_one(command: Command, form: str) -> None:
    pass_through(command, form)
