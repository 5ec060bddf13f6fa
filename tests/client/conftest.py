"""A client of the service that all tests share."""

from collections.abc import Iterator

import pytest

from tests.service import Service
from tuplegate.client import Client


@pytest.fixture
def database(service: Service) -> Iterator[Client]:
    with Client(service.url, service.key, control_url=service.control_url) as opened:
        yield opened


@pytest.fixture
def table(database: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an empty table of one column, `n`, that is gone after the test."""
    name = "t_" + request.node.name.split("[")[0][-50:]
    database.query(f"create table {name} (n int)")
    yield name
    database.query(f"drop table {name}")
