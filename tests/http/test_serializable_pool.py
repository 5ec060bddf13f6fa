"""The hole in PostgreSQL's SERIALIZABLE: open on the bare engine, closed through the service."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.metrics import scrape
from tests.service import Service, Sql

SLOTS = """
select 10 * (sum(setting::int) + 2) from pg_settings where name in ('max_connections', 'max_prepared_transactions',
 'max_worker_processes', 'max_wal_senders', 'autovacuum_worker_slots')
"""


@pytest.fixture
def slots(service: Service) -> int:
    with psycopg.connect(service.conninfo("postgres")) as connection:
        row = connection.execute(SLOTS).fetchone()
        assert row is not None
        return int(row[0])


def fill(service: Service, count: int, sock: socket.socket | None = None, database: str = "main") -> None:
    """That many statements, each a serializable transaction, sent without waiting for their answers one by one."""
    address = urlsplit(service.url)
    body = json.dumps({"sql": "select 1"})
    request = (
        f"POST /v1/query HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {service.key}\r\nTuplegate-Database: {database}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    with sock or socket.create_connection((str(address.hostname), int(address.port or 0))) as sock:
        writer = threading.Thread(target=sock.sendall, args=(request * count,))
        writer.start()
        answered, tail = 0, b""
        while answered < count:
            data = tail + sock.recv(1 << 20)
            answered += data.count(b'{"success":true')
            tail = data[-14:] if not data.endswith(b'{"success":true') else b""
        writer.join()


@contextmanager
def shut(conninfo: str, table: str) -> Iterator[None]:
    """Who reads the table waits until the block is left. At READ COMMITTED, so that it takes no place in the pool."""
    with psycopg.connect(conninfo) as gate:
        gate.execute("set transaction isolation level read committed")
        gate.execute(f"lock table {table} in access exclusive mode".encode())
        yield


def test_the_bare_engine_lets_write_skew_commit_when_its_pool_is_used_up(
    service: Service, sql: Sql, slots: int
) -> None:
    """What the guard is for: without it the same three steps end in a state that no order of them could give."""
    conninfo = service.conninfo("postgres")
    with (
        psycopg.connect(conninfo, autocommit=True) as one,
        psycopg.connect(conninfo, autocommit=True) as two,
    ):
        one.execute("drop table if exists skew; create table skew (id int primary key, v int)")
        one.execute("insert into skew values (1, 1), (2, 1)")
        for connection in (one, two):
            connection.execute("begin isolation level serializable")
            connection.execute("select sum(v) from skew").fetchall()
        one.execute("update skew set v = v - 1 where id = 1")
        one.execute("commit")
        fill(service, slots + 100)
        two.execute("update skew set v = v - 1 where id = 2")
        two.execute("commit")
        assert one.execute("select sum(v) from skew").fetchone() == (0,)
        one.execute("drop table skew")


def test_the_service_does_not(service: Service, sql: Sql, slots: int) -> None:
    """A transaction that has outlived a safe share of the pool is run again, and then sees what it had missed."""
    sql("drop table if exists skew, gate")
    sql("create table skew (id int primary key, v int)")
    sql("create table gate ()")
    sql("insert into skew values (1, 1), (2, 1)")
    answer: dict[str, Any] = {}

    def slow() -> None:
        statements = ["select sum(v) as seen from skew", "table gate", "update skew set v = v - 1 where id = 2"]
        with service.client() as client:
            answer.update(client.post("/v1/transaction", json={"statements": statements, "timeout_ms": 60000}).json())

    thread = threading.Thread(target=slow)
    database = sql.value("select current_database()")
    ended = scrape(service).value("guard_conflicts_total")
    with psycopg.connect(service.conninfo(database)) as gatekeeper:
        gatekeeper.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        gatekeeper.execute("lock table gate in access exclusive mode")
        thread.start()
        waiting = "select count(*) from pg_locks where relation = 'gate'::regclass and not granted"
        while gatekeeper.execute(waiting).fetchone() != (1,):
            pass
        sql("update skew set v = v - 1 where id = 1 and (select sum(v) from skew) = 2")
        fill(service, slots + 100)
    thread.join()
    assert answer["success"], answer
    assert answer["attempts"] > 1
    assert scrape(service).value("guard_conflicts_total") > ended
    assert answer["results"][0]["rows"] == [{"seen": 1}]
    sql("drop table skew, gate")
