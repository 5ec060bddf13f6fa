"""A part of the suite, on an engine that is not the bundled one: the same tests, with this module's `service`."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.external import ExternalServer
from tests.http.test_isolation import *  # noqa: F403 - its tests and fixtures
from tests.http.test_transactions import *  # noqa: F403 - as above
from tests.service import Service, needs_bundled, running_service

pytestmark = needs_bundled


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    running = ExternalServer(max_connections="250")
    yield running
    running.remove()


def started(server: ExternalServer, database: str, *flags: str, **env: str) -> Iterator[Service]:
    with running_service(*flags, env={"TUPLEGATE_ENGINE": server.url(database), **env}) as running:
        yield running


@pytest.fixture(scope="module")
def service(server: ExternalServer) -> Iterator[Service]:
    yield from started(server, "several_workers", "--workers", "2")


@pytest.fixture(scope="module")
def single(server: ExternalServer) -> Iterator[Service]:
    yield from started(server, "single", "--connections-per-database", "1", TUPLEGATE_WIRE="false")


@pytest.fixture(scope="module")
def read_key(service: Service) -> str:
    command = [sys.executable, "-m", "tuplegate", "key", "create", "--name", "reader", "--scope", "read"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env=service.environment)
    return made.stdout.removeprefix("key: ").strip()
