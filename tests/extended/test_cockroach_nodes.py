"""Several nodes of CockroachDB behind one service: connections spread, and nodes that die, hang or drain are left.

Needs the program, by `TUPLEGATE_TEST_COCKROACH`.
"""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.cockroach_cluster import PROGRAM, CockroachCluster, CockroachNode
from tests.faults import definite, once_back
from tests.service import Service, Sql, new_data_dir, remove, start_service

pytestmark = [
    pytest.mark.skipif(not PROGRAM, reason="TUPLEGATE_TEST_COCKROACH names no program of CockroachDB"),
    pytest.mark.timeout(900),
]
BACK_S = 120.0
TOGETHER = 12
LATE_S = 24.0
"""Nobody waits that much longer than its time limit."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[CockroachCluster]:
    with CockroachCluster() as running:
        yield running


@pytest.fixture(scope="module")
def behind(cluster: CockroachCluster) -> Iterator[Service]:
    """A service that knows all three nodes."""
    data_dir = new_data_dir()
    running = start_service(data_dir, env={"TUPLEGATE_ENGINE": cluster.url()})
    with running.client() as client:
        Sql(client)("create table counted (n int primary key)")
    yield running
    running.kill()
    remove(data_dir)


@contextmanager
def away(cluster: CockroachCluster, behind: Service) -> Iterator[CockroachNode]:
    """A node that serves connections of the service; afterwards the cluster is whole."""
    once_back(lambda: _is_spread(cluster, behind), BACK_S)
    node = cluster.nodes[1]
    yield node
    if node.has_ended:
        cluster.start(node)
    cluster.wait_whole()


def _ask_together(behind: Service, sql: str) -> list[httpx.Response]:
    with behind.client() as client, ThreadPoolExecutor(TOGETHER) as threads:
        return list(threads.map(lambda _: Sql(client).answer(sql), range(TOGETHER)))


def _is_spread(cluster: CockroachCluster, behind: Service) -> bool:
    """Ask for much at once; return whether every node has a part of the connections then."""
    answers = _ask_together(behind, "select pg_sleep(0.2)")
    return (
        all(answer.status_code == 200 for answer in answers) and cluster.count_sessions().keys() == cluster.ids.keys()
    )


def _serves_all(behind: Service) -> bool:
    """Return whether many requests in a row, and at once, are all answered."""
    with behind.client() as client:
        ask = Sql(client)
        one_by_one = [ask.answer("select count(*) from counted", timeout_ms=5000) for _ in range(TOGETHER)]
    return all(answer.status_code == 200 for answer in one_by_one + _ask_together(behind, "select pg_sleep(0.01)"))


def _warnings(behind: Service) -> dict[str, str]:
    with behind.client() as client:
        health = client.get("/health").json()
    return {name: state for name, state in health["checks"].items() if name.startswith("node ")}


def test_connections_are_spread_over_all_nodes(cluster: CockroachCluster, behind: Service) -> None:
    answers = _ask_together(behind, "select pg_sleep(2)")
    assert [answer.status_code for answer in answers] == [200] * TOGETHER
    counts = cluster.count_sessions()
    assert counts.keys() == cluster.ids.keys(), counts
    assert max(counts.values()) - min(counts.values()) <= 2, counts


def test_a_killed_node_is_left_and_used_again(cluster: CockroachCluster, behind: Service) -> None:
    with away(cluster, behind) as node:
        node.kill()
        once_back(lambda: _serves_all(behind), BACK_S)
        once_back(lambda: _warnings(behind) == {"node 2": "gives no answer"}, BACK_S)
    once_back(lambda: _warnings(behind) == {} and _is_spread(cluster, behind), BACK_S)


def test_a_frozen_node_is_left_and_used_again(cluster: CockroachCluster, behind: Service) -> None:
    """Its connections stay open and nothing comes of them: only who asks and waits can know that."""
    with away(cluster, behind) as node:
        node.freeze()
        try:
            once_back(lambda: _serves_all(behind), BACK_S)
            once_back(lambda: _warnings(behind) == {"node 2": "gives no answer"}, BACK_S)
        finally:
            node.thaw()
    once_back(lambda: _warnings(behind) == {} and _is_spread(cluster, behind), BACK_S)


def test_nobody_notices_that_a_node_drains(cluster: CockroachCluster, behind: Service) -> None:
    """Reads that meet its end are asked of another node."""
    with away(cluster, behind) as node, behind.client() as client:
        ask = Sql(client)
        node.drain()
        while not node.has_ended:
            answer = ask.answer("select count(*) from counted")
            assert answer.status_code == 200, answer.text
            answers = _ask_together(behind, "select 1")
            assert [answer.text for answer in answers if answer.status_code != 200] == []
    once_back(lambda: _is_spread(cluster, behind), BACK_S)


def test_without_a_quorum_everybody_is_answered_and_learns_the_outcome_later(
    cluster: CockroachCluster, behind: Service
) -> None:
    """No time limit of the engine's own ends anything then."""
    once_back(lambda: _is_spread(cluster, behind), BACK_S)
    chosen = {number: f"txn_{secrets.token_hex(12)}" for number in range(1, 5)}

    def write(number: int) -> httpx.Response:
        """Every second one has an id of the client's choice."""
        body = {"statements": [f"insert into counted values ({number})"], "timeout_ms": 2000}
        headers = {"Tuplegate-Transaction-Id": chosen[number]} if number in chosen else {}
        with behind.client() as client:
            client.timeout = httpx.Timeout(LATE_S)
            return client.post("/v1/transaction", json=body, headers=headers)

    def query(number: int) -> httpx.Response:
        with behind.client() as client:
            client.timeout = httpx.Timeout(LATE_S)
            return Sql(client).answer(f"insert into counted values ({-number})", timeout_ms=2000)

    for node in cluster.nodes[1:]:
        node.freeze()
    try:
        with ThreadPoolExecutor(8) as threads:
            written = dict(zip(range(1, 9), threads.map(write, range(1, 9)), strict=True))
            queried = list(threads.map(query, range(1, 5)))
    finally:
        for node in cluster.nodes[1:]:
            node.thaw()
    assert {answer.status_code for answer in (*written.values(), *queried)} <= {200, 503}
    cluster.wait_whole()
    once_back(lambda: _serves_all(behind), BACK_S)
    with behind.client() as client:
        for number, answer in written.items():
            id = chosen.get(number) or answer.json().get("transaction_id")
            state = "refused" if id is None else definite(client, id)
            found = Sql(client).rows(f"select n from counted where n = {number}")
            assert len(found) == (state == "committed"), (number, state, answer.text)


def test_a_service_starts_while_a_node_is_frozen(cluster: CockroachCluster, behind: Service) -> None:
    """Even where that one comes first in its URL."""
    with away(cluster, behind) as node:
        node.freeze()
        data_dir = new_data_dir()
        try:
            once_back(lambda: _serves_all(behind), BACK_S)
            second = start_service(data_dir, env={"TUPLEGATE_ENGINE": cluster.url(turned=1)})
            second.key = behind.key
            once_back(lambda: _serves_all(second), BACK_S)
            second.kill()
        finally:
            node.thaw()
            remove(data_dir)
