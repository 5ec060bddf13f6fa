"""What the service refuses on CockroachDB, with what is missing and how to mend it: clusters, and organizations.

Needs the program, by `TUPLEGATE_TEST_COCKROACH`.
"""

from collections.abc import Iterator

import pytest

from tests.cockroach_cluster import PROGRAM, CockroachCluster
from tests.control import Control
from tests.extended.test_external_engine import run_serve
from tests.service import Service, new_data_dir, remove, start_service, with_database

pytestmark = [
    pytest.mark.skipif(not PROGRAM, reason="TUPLEGATE_TEST_COCKROACH names no program of CockroachDB"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[CockroachCluster]:
    with CockroachCluster(nodes=1) as running:
        yield running


@pytest.mark.parametrize("rights", ["", "CREATEDB CREATEROLE"])
def test_a_role_with_too_few_rights(cluster: CockroachCluster, rights: str) -> None:
    role = f"few_{len(rights)}"
    cluster.nodes[0].ask(f"CREATE ROLE {role} WITH LOGIN {rights}")
    done = run_serve(cluster.url().replace("root", role))
    assert done.returncode == 1
    assert f"the engine at {', '.join(node.address for node in cluster.nodes)} cannot be used" in done.stderr
    assert "GRANT admin TO" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_role_that_is_not_there(cluster: CockroachCluster) -> None:
    done = run_serve(cluster.url().replace("root", "nobody_of_that_name"))
    assert done.returncode == 1
    assert "nobody_of_that_name" in done.stderr
    assert "Traceback" not in done.stderr


REACHING = {
    "values_of_others",
    "keys_of_others",
    "statements_of_others",
    "comments_of_others",
    "names_of_others",
    "contention_of_others",
}


def _serve(url: str, **more: str) -> Iterator[Service]:
    data_dir = new_data_dir()
    running = start_service(data_dir, env={"TUPLEGATE_ENGINE": url, "TUPLEGATE_ACCEPT_WEAKER_WALLS": "false", **more})
    try:
        yield running
    finally:
        running.kill()
        remove(data_dir)


@pytest.fixture
def service(cluster: CockroachCluster) -> Iterator[Service]:
    yield from _serve(with_database(cluster.url(), "alone"))


@pytest.fixture
def accepting(cluster: CockroachCluster) -> Iterator[Service]:
    yield from _serve(with_database(cluster.url(), "several"), TUPLEGATE_ACCEPT_WEAKER_WALLS="true")


def test_a_second_organization_has_to_be_accepted(service: Service) -> None:
    """What tenants would see of each other was tried, and is told."""
    control = Control(service, service.key)
    error = control.refused(409, "weaker_walls", "POST", "/v1/organizations", {"name": "second"})
    assert all(name in error["message"] for name in REACHING)
    assert "--accept-weaker-walls" in error["hint"]
    assert service.log.count("tenants are not kept apart in full") == len(REACHING) + 1, "names are told as well"


def test_a_second_organization_that_was_accepted(cluster: CockroachCluster, accepting: Service) -> None:
    """From then on a start without the setting is refused."""
    Control(accepting, accepting.key).post("/v1/organizations", {"name": "second"})
    done = run_serve(with_database(cluster.url(), "several"))
    assert done.returncode == 1
    assert "there are several organizations" in done.stderr
    assert "values_of_others" in done.stderr
    assert "--accept-weaker-walls" in done.stderr
