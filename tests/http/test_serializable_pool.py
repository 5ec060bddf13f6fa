"""The hole in PostgreSQL's SERIALIZABLE is closed through the service; tests/extended/test_bare_engine.py opens it."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.metrics import scrape
from tests.needs import needs
from tests.service import Service, Sql

pytestmark = needs("predicate_locks")
"""Only that has the pool."""

SLOTS = """
select 10 * (sum(setting::int) + 2) from pg_settings where name in ('max_connections', 'max_prepared_transactions',
 'max_worker_processes', 'max_wal_senders', 'autovacuum_worker_slots')
"""


@pytest.fixture
def slots(service: Service) -> int:
    with psycopg.connect(service.server_of()) as connection:
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


def skew(service: Service, sql: Sql, meanwhile: Callable[[], None]) -> dict[str, Any]:
    """Runs a transaction that would be half of a write skew, with `meanwhile` between its begin and its commit.

    Returns its answer. The other half commits before `meanwhile`.
    """
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
    with psycopg.connect(service.conninfo(database)) as gatekeeper:
        gatekeeper.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        gatekeeper.execute("lock table gate in access exclusive mode")
        thread.start()
        waiting = "select count(*) from pg_locks where relation = 'gate'::regclass and not granted"
        while gatekeeper.execute(waiting).fetchone() != (1,):
            pass
        sql("update skew set v = v - 1 where id = 1 and (select sum(v) from skew) = 2")
        meanwhile()
    thread.join()
    sql("drop table skew, gate")
    return answer


def test_the_service_does_not(service: Service, sql: Sql, slots: int) -> None:
    """A transaction that has outlived a safe share of the pool is run again, and then sees what it had missed."""
    ended = scrape(service).value("guard_conflicts_total")
    answer = skew(service, sql, lambda: fill(service, slots + 100))
    assert answer["success"], answer
    assert answer["attempts"] > 1
    assert scrape(service).value("guard_conflicts_total") > ended
    assert answer["results"][0]["rows"] == [{"seen": 1}]


@pytest.mark.parametrize("route", ["query", "stream"])
def test_a_statement_that_commits_in_steps_takes_no_place_in_the_pool(
    service: Service, sql: Sql, slots: int, route: str
) -> None:
    """Such a statement begins a transaction for every table that it names."""
    sql("create table if not exists named ()")
    many = f"vacuum {','.join(['named'] * (slots + 100))}"

    def vacuum() -> None:
        if route == "query":
            sql(many, timeout_ms=60000)
        else:
            streamed = sql.client.post("/v1/query", json={"sql": f"/*+ STREAM */ {many}", "timeout_ms": 60000})
            assert "event: done" in streamed.text, streamed.text[-300:]

    answer = skew(service, sql, vacuum)
    assert answer["success"], answer
    assert answer["results"][0]["rows"] == [{"seen": 1}]
    sql("drop table named")


IN_STEPS = {
    "vacuum": "vacuum parted",
    "vacuum full": "vacuum (full, analyze) parted",
    "analyze": "analyze parted",
    "analyse, behind a comment": "/* ; */ ;-- x\n  analyse parted",
    "reindex": "reindex table parted",
    "reindex concurrently": "reindex (verbose) table concurrently parted",
    "reindex schema": "reindex schema stepped",
    "cluster": "cluster parted using parted_a_idx",
}


@pytest.mark.parametrize("statement", IN_STEPS.values(), ids=IN_STEPS)
def test_no_step_is_a_serializable_transaction(service: Service, sql: Sql, statement: str) -> None:
    """Every such statement works in steps that are not serializable, and the next request is serializable again."""
    sql("drop schema if exists stepped cascade")
    sql("create schema stepped")
    sql("create table stepped.parted (a int, b text) partition by range (a)")
    for i in range(3):
        sql(f"create table stepped.part{i} partition of stepped.parted for values from ({i}) to ({i + 1})")
    sql("create index parted_a_idx on stepped.parted (a)")
    sql("insert into stepped.parted select i % 3, 'x' from generate_series(1, 30) i")
    # What the steps run at is seen by code that they run.
    sql("create table stepped.levels (level text)")
    sql("""create function stepped.note() returns void language plpgsql as $$
           begin
             insert into stepped.levels values (current_setting('transaction_isolation'));
             perform set_config('default_transaction_isolation', 'serializable', false);
           end $$""")
    sql("""create function stepped.seen(text) returns text immutable language plpgsql as $$
           begin perform stepped.note(); return $1; end $$""")
    sql("create index on stepped.parted (stepped.seen(b))")
    sql("truncate stepped.levels")
    sql(statement.replace("parted", "stepped.parted", 1))
    levels = {row["level"] for row in sql.rows("select distinct level from stepped.levels")}
    assert levels <= {"repeatable read"}, levels
    assert levels or statement == "vacuum parted"
    sql("drop schema stepped cascade")


@pytest.mark.parametrize("end", ["done", "failed", "timed out", "left"])
def test_what_follows_a_statement_in_steps_is_serializable(service: Service, sql: Sql, end: str) -> None:
    """The level comes back on every connection, however such a statement has ended on it."""
    database = sql.value("select current_database()")
    sql("create table if not exists stepped_on ()")
    if end == "done":
        sql("vacuum stepped_on")
    elif end == "failed":
        assert sql.fails("vacuum stepped_on, not_there")["sqlstate"] == "42P01"
    else:
        with shut(service.conninfo(database), "stepped_on"):
            if end == "timed out":
                sql.answer("vacuum stepped_on", timeout_ms=200)
            else:
                with pytest.raises(httpx.ReadTimeout):
                    sql.client.post("/v1/query", json={"sql": "vacuum stepped_on"}, timeout=0.3)
    level = "select current_setting('transaction_isolation'), current_setting('default_transaction_isolation')"
    with ThreadPoolExecutor(16) as threads:
        seen = set(threads.map(lambda _: tuple(sql.rows(level, row_mode="arrays")[0]), range(64)))
    assert seen == {("serializable", "serializable")}
    sql("drop table stepped_on")
