"""`GET /bench` measures within bounds, one at a time in a database, and is gone when it is over, however it ends."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.inside import owner, scratch_schemas
from tests.needs import needs
from tests.service import Service, make_key
from tests.waiting import eventually
from tuplegate.data_plane.bench import percentile
from tuplegate.data_plane.workloads import WORKLOADS

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def inside(service: Service) -> Iterator[Connection]:
    with owner(service) as connection:
        yield connection


@contextmanager
def running(service: Service, connection: Connection) -> Iterator[str]:
    """The schema of a benchmark that is under way; its client leaves with the block."""
    others = scratch_schemas(connection)
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port)) as client:
        head = f"GET /bench?seconds=10&workload=insert HTTP/1.1\r\nHost: {address.netloc}\r\n"
        client.sendall(f"{head}Authorization: Bearer {service.key}\r\n\r\n".encode())
        eventually(lambda: _measuring(connection, others) != "")
        yield _measuring(connection, others)


def _measuring(connection: Connection, others: list[str]) -> str:
    """The scratch schema in which the measuring itself has begun, if there is one."""
    with suppress(psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        for schema in set(scratch_schemas(connection)) - set(others):
            row = connection.execute(f"select exists (select 1 from {schema}.bench_events)").fetchone()
            if row == (True,):
                return schema
    return ""


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_is_measured(client: httpx.Client, inside: Connection, workload: str) -> None:
    """Operations, their rate and percentiles, and nothing is left."""
    answer = client.get(f"/bench?workload={workload}&seconds=1&concurrency=2")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["success"], body["workload"], body["concurrency"]) == (True, workload, 2)
    assert body["seconds"] >= 1
    assert body["operations"] > 0
    assert body["errors"] == 0
    assert body["per_second"] == pytest.approx(body["operations"] / body["seconds"], rel=0.01)
    assert 0 < body["latency_us"]["p50"] <= body["latency_us"]["p95"] <= body["latency_us"]["p99"]
    assert scratch_schemas(inside) == []


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("workload=nothing", "workload"),
        ("workload=", "workload"),
        ("seconds=0", "seconds"),
        ("seconds=11", "seconds"),
        ("seconds=-1", "seconds"),
        ("seconds=1.5", "seconds"),
        ("seconds=%D9%A1", "seconds"),
        ("seconds=99999999999999999999999999", "seconds"),
        ("seconds=1&seconds=2", "seconds"),
        ("concurrency=0", "concurrency"),
        ("concurrency=33", "concurrency"),
        ("concurrency=many", "concurrency"),
        ("threads=2", "threads"),
        ("=", "''"),
    ],
)
def test_a_bad_parameter_is_named(client: httpx.Client, query: str, named: str) -> None:
    """And nothing is run."""
    answer = client.get(f"/bench?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "malformed_request"
    assert named in answer.json()["error"]["message"]


def test_a_query_string_that_is_no_text_is_refused(client: httpx.Client) -> None:
    """So is one of very many parameters."""
    assert client.get("/bench?seconds=%ff").status_code == 400
    assert client.get("/bench?" + "&".join(f"a{n}=1" for n in range(1000))).status_code == 400


@pytest.mark.parametrize("scope", ["read", "write"])
def test_admin_scope_is_needed(service: Service, scope: str) -> None:
    """To measure is to load the database."""
    with service.client(make_key(service, scope)) as client:
        assert client.get("/bench").status_code == 403
        assert client.get("/storage/test").status_code == 403


def test_there_is_one_at_a_time(service: Service, inside: Connection) -> None:
    """The second is told so; when the first one's client leaves, all of it is gone and there is room again."""
    with running(service, inside), service.client() as second:
        answer = second.get("/bench?seconds=1")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "already_running")
        assert answer.json()["error"]["retryable"] is True
    eventually(lambda: scratch_schemas(inside) == [])
    with service.client() as third:
        eventually(lambda: third.get("/bench?seconds=1&concurrency=1").status_code == 200)


@needs("lock_table")
def test_a_benchmark_whose_client_leaves_is_cancelled(service: Service, inside: Connection) -> None:
    """Also where its statements wait for a lock and would go on to wait: they end, and its schema goes."""
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'insert into .*bench'"
    with owner(service) as other, other.transaction(force_rollback=True):
        with running(service, inside) as schema:
            other.execute(f"lock table {schema}.bench_events in access exclusive mode")
            eventually(lambda: inside.execute(waiting).fetchone() == (8,))
        eventually(lambda: inside.execute(waiting).fetchone() == (0,), 20)
    eventually(lambda: scratch_schemas(inside) == [])


def test_percentiles_are_times_that_were_measured() -> None:
    """The nearest rank: of 100 operations the 95th is p95; of one all are that one; of none there is none."""
    times = [n * 1000 for n in range(1, 101)]
    assert [percentile(times, share) for share in (50, 95, 99)] == [50, 95, 99]
    assert [percentile([7000], share) for share in (50, 95, 99)] == [7, 7, 7]
    assert percentile([1000, 2000, 3000], 50) == 2
    assert percentile([], 50) is None
