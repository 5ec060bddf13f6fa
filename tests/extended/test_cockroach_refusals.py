"""Clusters of CockroachDB that the service refuses at its start, with what is missing and how to mend it.

Needs the program, by `TUPLEGATE_TEST_COCKROACH`.
"""

from collections.abc import Iterator

import pytest

from tests.cockroach_cluster import PROGRAM, CockroachCluster
from tests.extended.test_external_engine import run_serve

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
    assert f"the engine at {cluster.nodes[0].address} cannot be used" in done.stderr
    assert "GRANT admin TO" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_role_that_is_not_there(cluster: CockroachCluster) -> None:
    done = run_serve(cluster.url().replace("root", "nobody_of_that_name"))
    assert done.returncode == 1
    assert "nobody_of_that_name" in done.stderr
    assert "Traceback" not in done.stderr
