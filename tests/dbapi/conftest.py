"""Connections of PEP 249 to the service that all tests share."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.service import Service
from tuplegate import dbapi


def address(service: Service) -> str:
    return f"tuplegate://{service.key}@{urlsplit(service.url).netloc}/"


@pytest.fixture
def connection(service: Service) -> Iterator[dbapi.Connection]:
    opened = dbapi.connect(address(service))
    yield opened
    opened.close()


@pytest.fixture
def table(service: Service) -> Iterator[str]:
    """The name of an empty table that is gone after the test."""
    with dbapi.connect(address(service), autocommit=True) as opened:
        opened.cursor().execute("create table things (id int primary key, name text)")
        yield "things"
        opened.cursor().execute("drop table things")
