"""One service for all tests that only talk to it; tests that hurt it start their own."""

import asyncio
import gc
import os
import shutil
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.cli.command import run_tunnel
from tests.control import TIERS, Control, Organization, close_clients, new_organization
from tests.directories import SHARED, VARIABLE, choose_place, new_directory
from tests.needs import Abilities
from tests.service import ENGINE, FORKED, Service, Sql, make_key, running_service

pytest_plugins = ["tests.cells", "tests.servers", "tests.tenants"]

# Every service that a test starts takes free ports, also where the test names only one.
os.environ.update(TUPLEGATE_DATA_PORT="0", TUPLEGATE_ALIAS_PORT="0", TUPLEGATE_CONTROL_PORT="0")
os.environ.setdefault(VARIABLE, str(choose_place()))
os.environ.setdefault(FORKED, "1")

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

GROUPS = {
    "tests/port": ("tests/port/",),
    "single": ("tests/http/test_isolation.py", "tests/http/test_clean_connection.py", "tests/http/test_tables.py"),
}
"""Files that share something dear, and so run in one process: a server, or the fixture of that name."""


class ByGroup(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives the files of a group to one process, and every other file as a whole to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return next((name for name, files in GROUPS.items() if nodeid.startswith(files)), nodeid.split("::")[0])


# To load all tests makes millions of objects that stay: to search them for garbage again and again takes seconds.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*names): what not every engine can do, by its names in needs.py")
    if not hasattr(config, "workerinput"):  # other processes inherit it
        os.environ[SHARED] = str(new_directory())


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(SHARED))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByGroup:
    return ByGroup(config, log)


@pytest.fixture(scope="module", autouse=True)
def no_loop_left() -> Iterator[None]:
    """Fail the file whose fixtures leave an event loop running: asyncio.run would fail in all files after it."""
    yield
    assert asyncio._get_running_loop() is None, "a fixture of this file keeps a loop running: give it the scope module"


@pytest.fixture(scope="session", autouse=True)
def clients() -> Iterator[None]:
    yield
    close_clients()


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    with running_service(*TIERS) as running:
        yield running


@pytest.fixture(scope="module")  # some modules have a service of their own
def abilities(service: Service) -> Abilities:
    return Abilities(service)


@pytest.fixture(scope="module")
def commit(abilities: Abilities) -> str:
    """How a transaction that writes is committed, as its answer says."""
    return "two_phase" if abilities.can("two_phase_commit") else "engine"


@pytest.fixture(autouse=True, scope="module")
def capable_module(request: pytest.FixtureRequest) -> None:
    """Skip the tests of a module before its fixtures meet what the engine of the tests cannot do."""
    _skip_incapable(request)


@pytest.fixture(autouse=True)
def capable(request: pytest.FixtureRequest) -> None:
    """Skip a test of something that the engine of the tests cannot do."""
    _skip_incapable(request)


def _skip_incapable(request: pytest.FixtureRequest) -> None:
    for mark in request.node.iter_markers("needs") if ENGINE else ():
        for name in mark.args:
            if reason := request.getfixturevalue("abilities").find_missing(name):
                pytest.skip(reason)


@pytest.fixture(scope="session")
def single() -> Iterator[Service]:
    """A service with one connection for each database and scope: the next request is sure to get the one before's. It
    does not serve PostgreSQL's own protocol."""
    with running_service("--connections-per-database", "1", env={"TUPLEGATE_WIRE": "false"}) as running:
        yield running


@pytest.fixture(scope="session")
def read_key(service: Service) -> str:
    """A key that may only read, made from the machine itself."""
    return make_key(service, "read")


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as opened:
        yield opened


@pytest.fixture
def sql(client: httpx.Client) -> Sql:
    return Sql(client)


@pytest.fixture
def read_sql(service: Service, read_key: str) -> Iterator[Sql]:
    with service.client(read_key) as opened:
        yield Sql(opened)


@pytest.fixture
def operator(service: Service) -> Control:
    """The control plane with the first key, which may do everything."""
    return Control(service, service.key)


@pytest.fixture(scope="module")
def organization(service: Service) -> Organization:
    """An organization of the module's own, without a limit."""
    return new_organization(service)


@pytest.fixture
def control(organization: Organization) -> Control:
    """The control plane with the first key of the module's organization."""
    return organization.control


@pytest.fixture(scope="session")
def other(service: Service) -> Organization:
    """Another organization, whose things nobody else may see. Has a database `secret-plans`."""
    made = new_organization(service)
    made.control.post("/v1/databases", {"name": "secret-plans"})
    return made


@pytest.fixture(scope="module")
def address(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """That of a tunnel, for clients of PostgreSQL."""
    with run_tunnel(service, tmp_path_factory.mktemp("home"), "--port", "0") as found:
        yield found
