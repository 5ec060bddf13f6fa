"""Transactions through HTTP are strictly serializable: shown by the history of a workload, and by known anomalies."""

import http.client
import itertools
import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.histories import Append, Outcome, Read, Transaction, Values, check, names
from tests.service import Service, Sql

KEYS = 10
CLIENTS = 8
TRANSACTIONS = 5000
WORKLOAD_S = 25.0
CONTROL_S = 10.0
WAIT_S = 10.0

Op = Append | Read
Statement = dict[str, Any]
Run = Callable[[Sequence[Op], random.Random], tuple[Outcome, tuple[Op, ...]]]
"""Runs the operations as one transaction; what became of it, with what was read."""


@pytest.fixture
def lists(sql: Sql) -> Iterator[str]:
    """An empty table of lists: a key, the same once more without an index, and the values as text."""
    name = f"lists_{uuid.uuid4().hex[:12]}"
    sql(f"create table {name} (k int primary key, name text, v text)")
    yield name
    sql(f"drop table {name}")


# -- the workload ---------------------------------------------------------------------------------------------------


def statements_of(table: str, op: Op, rng: random.Random) -> list[Statement]:
    """An operation in one of the ways to write it. The last statement of a read gives the list."""
    key = int(op.key)
    if isinstance(op, Read):
        if rng.random() < 0.5:
            return [{"sql": f"select v from {table} where k = $1", "params": [key]}]
        return [{"sql": f"select v from {table} where name = $1", "params": [f"n{key}"]}]
    row = [key, f"n{key}", str(op.value)]
    if rng.random() < 0.5:
        upsert = f"insert into {table} values ($1, $2, $3) on conflict (k) do update set v = {table}.v || ',' || $3"
        return [{"sql": upsert, "params": row}]
    absent = f"not exists (select from {table} where k = $1)"
    return [
        {"sql": f"update {table} set v = v || ',' || $2 where k = $1", "params": [key, str(op.value)]},
        {"sql": f"insert into {table} select $1::int, $2::text, $3::text where {absent}", "params": row},
    ]


def parsed(rows: list[Any]) -> Values:
    return tuple(map(int, rows[0][0].split(","))) if rows else ()


@contextmanager
def over_http(service: Service, table: str) -> Iterator[Run]:
    address = urlsplit(service.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    headers = {"Authorization": f"Bearer {service.key}", "Content-Type": "application/json"}

    def run(ops: Sequence[Op], rng: random.Random) -> tuple[Outcome, tuple[Op, ...]]:
        groups = [statements_of(table, op, rng) for op in ops]
        body: dict[str, Any] = {"statements": [s for group in groups for s in group], "row_mode": "arrays"}
        if not any(isinstance(op, Append) for op in ops) and rng.random() < 0.5:
            body["read_only"] = True
        connection.request("POST", "/v1/transaction", json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        if not answer["success"]:
            assert answer["error"]["code"] in ("conflict", "timeout"), answer
            return Outcome.FAIL, tuple(ops)
        ends = itertools.accumulate(len(group) for group in groups)
        rows = [answer["results"][end - 1]["rows"] for end in ends]
        return Outcome.OK, found(ops, rows)

    with closing(connection):
        yield run


@contextmanager
def on_the_engine(service: Service, table: str, database: str) -> Iterator[Run]:
    """Straight to the engine, at REPEATABLE READ."""
    connection = psycopg.connect(service.conninfo(database))
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    def run(ops: Sequence[Op], rng: random.Random) -> tuple[Outcome, tuple[Op, ...]]:
        rows: list[Any] = []
        try:
            with connection.transaction():
                for op in ops:
                    for statement in statements_of(table, op, rng):
                        sql = statement["sql"].replace("$1", "%(a)s").replace("$2", "%(b)s").replace("$3", "%(c)s")
                        cursor = connection.execute(sql, dict(zip("abc", statement["params"], strict=False)))
                    rows.append(cursor.fetchall() if isinstance(op, Read) else [])
        except (psycopg.errors.OperationalError, psycopg.errors.UniqueViolation):
            return Outcome.FAIL, tuple(ops)
        return Outcome.OK, found(ops, rows)

    with closing(connection):
        yield run


def found(ops: Sequence[Op], rows: list[Any]) -> tuple[Op, ...]:
    return tuple(Read(op.key, parsed(row)) if isinstance(op, Read) else op for op, row in zip(ops, rows, strict=True))


def random_ops(rng: random.Random, numbers: Iterator[int]) -> list[Op]:
    ops: list[Op] = []
    for _ in range(rng.randint(1, 4)):
        key = str(rng.randrange(KEYS))
        ops.append(Read(key) if rng.random() < 0.5 else Append(key, next(numbers)))
    return ops


def workload(
    connect: Callable[[], AbstractContextManager[Run]], seed: int, seconds: float, transactions: int
) -> list[Transaction]:
    """The history of clients that run random transactions side by side."""
    ids, numbers = itertools.count(), itertools.count(1)
    deadline = time.monotonic() + seconds

    def client(number: int) -> list[Transaction]:
        rng = random.Random(f"{seed}-{number}")
        history = []
        with connect() as run:
            while time.monotonic() < deadline and (id := next(ids)) < transactions:
                ops = random_ops(rng, numbers)
                began = time.monotonic()
                outcome, seen = run(ops, rng)
                history.append(Transaction(id, outcome, seen, began, time.monotonic()))
        return history

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [transaction for part in pool.map(client, range(CLIENTS)) for transaction in part]


def final_lists(rows: list[Any]) -> dict[str, Values]:
    return {str(key): parsed([[values]]) for key, values in rows}


def test_list_append(service: Service, sql: Sql, lists: str) -> None:
    """A workload on hot keys has a strictly serializable history; what was acknowledged is there."""
    seed = random.SystemRandom().randrange(2**32)
    history = workload(lambda: over_http(service, lists), seed, WORKLOAD_S, TRANSACTIONS)
    final = final_lists(sql.rows(f"select k, v from {lists}", row_mode="arrays"))
    anomalies = check(history, final, real_time=True)
    assert anomalies == [], f"seed {seed}: {anomalies[:5]}"
    done = sum(transaction.outcome is Outcome.OK for transaction in history)
    assert done > 500, f"only {done} of {len(history)} transactions committed"


def test_control(service: Service, sql: Sql, lists: str) -> None:
    """The same workload at REPEATABLE READ shows the checker G2: it can fail."""
    database = sql.value("select current_database()")
    found: set[str] = set()
    deadline = time.monotonic() + CONTROL_S
    seed = 0
    while "G2" not in found and time.monotonic() < deadline:
        seed += 1
        sql(f"truncate {lists}")
        history = workload(lambda: on_the_engine(service, lists, database), seed, 1.0, TRANSACTIONS)
        final = final_lists(sql.rows(f"select k, v from {lists}", row_mode="arrays"))
        found = names(check(history, final))
    assert found == {"G2"}, "at this level nothing worse may happen, and this must"


# -- anomalies by name ----------------------------------------------------------------------------------------------


class Started:
    """A transaction in a thread of its own, once it has come to its `pg_sleep`."""

    def __init__(self, service: Service, *statements: str, sleep_s: float = 0.5) -> None:
        mark = uuid.uuid4().hex
        sleep = f"select pg_sleep({sleep_s}) /* {mark} */"
        self.bodies: list[dict[str, Any]] = []
        body = {"statements": [sleep if s == "sleep" else s for s in statements], "row_mode": "arrays"}

        def work() -> None:
            with service.client() as client:
                self.bodies.append(client.post("/v1/transaction", json=body).json())

        self.thread = threading.Thread(target=work)
        self.thread.start()
        deadline = time.monotonic() + WAIT_S
        with psycopg.connect(service.conninfo("postgres"), autocommit=True) as look:
            question = "select 1 from pg_stat_activity where wait_event = 'PgSleep' and query = %s"
            while look.execute(question, [sleep]).fetchone() is None:
                assert time.monotonic() < deadline, "it never slept"
                time.sleep(0.005)

    def body(self) -> dict[str, Any]:
        self.thread.join(60)
        [body] = self.bodies
        assert body["success"] is True, body
        return body


def transaction(client: httpx.Client, *statements: str, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = client.post(
        "/v1/transaction", json={"statements": list(statements), "row_mode": "arrays", **more}
    ).json()
    assert body["success"] is True, body
    return body


@pytest.fixture
def t(sql: Sql) -> Iterator[str]:
    """A table `(name text, n int)`."""
    table = f"t_{uuid.uuid4().hex[:12]}"
    sql(f"create table {table} (name text, n int)")
    yield table
    sql(f"drop table {table}")


@pytest.mark.parametrize("alone", [False, True])
def test_predicate_write_skew(service: Service, client: httpx.Client, sql: Sql, t: str, alone: bool) -> None:
    """Two that insert only if nothing matches a predicate, of which each would make it match: one does."""
    insert = f"insert into {t} select 'x', 1 where not exists (select from {t} where n % 2 = 1)"
    first = Started(service, f"select count(*) from {t} where n % 2 = 1", "sleep", insert)
    second = sql(insert)["affected_rows"] if alone else transaction(client, insert)["affected_rows"]
    body = first.body()
    assert (second, body["affected_rows"]) == (1, 0)
    assert body["attempts"] == 2
    assert sql.value(f"select count(*) from {t}") == 1


def test_write_skew(service: Service, client: httpx.Client, sql: Sql, t: str) -> None:
    """Two doctors cannot both go off call because each has seen the other on it."""
    sql(f"insert into {t} values ('alice', 1), ('bob', 1)")
    leave = f"update {t} set n = 0 where name = '%s' and (select sum(n) from {t}) > 1"
    alice = Started(service, f"select sum(n) from {t}", "sleep", leave % "alice")
    transaction(client, f"select sum(n) from {t}", leave % "bob")
    assert alice.body()["attempts"] == 2
    assert sql.value(f"select sum(n) from {t}") == 1


@pytest.mark.parametrize("by", ["read_only", "transaction", "query"])
def test_read_only_anomaly(service: Service, client: httpx.Client, sql: Sql, t: str, by: str) -> None:
    """A report that saw the deposit but not the withdrawal holds: the withdrawal then reckons with the deposit."""
    sql(f"insert into {t} values ('checking', 0), ('savings', 0)")
    withdraw = (
        f"update {t} set n = n - 10 - case when (select sum(n) from {t}) < 10 then 1 else 0 end where name = 'checking'"
    )
    withdrawal = Started(service, f"select * from {t}", "sleep", withdraw)
    transaction(client, f"update {t} set n = n + 20 where name = 'savings'")
    report = f"select name, n from {t} order by name"
    if by == "query":
        seen = sql.rows(report, row_mode="arrays")
    else:
        seen = transaction(client, report, read_only=by == "read_only")["results"][0]["rows"]
    assert seen == [["checking", 0], ["savings", 20]]
    assert withdrawal.body()["attempts"] == 2
    assert sql.rows(report, row_mode="arrays") == [["checking", -10], ["savings", 20]], "the penalty was charged"


def test_phantom(service: Service, sql: Sql, t: str) -> None:
    """Rows that others insert while a transaction runs do not appear in it."""
    question = f"select count(*) from {t} where n between 1 and 9"
    reader = Started(service, question, "sleep", question, f"select * from {t} where n = 5")
    sql(f"insert into {t} values ('x', 5)")
    results = reader.body()["results"]
    assert results[0]["rows"] == results[2]["rows"] == [[0]]
    assert results[3]["rows"] == []
    assert sql.value(question) == 1


def test_lost_update(service: Service, sql: Sql, t: str) -> None:
    """An update of what another has changed in the meantime is done again on the new value."""
    sql(f"insert into {t} values ('x', 1)")
    slow = Started(service, f"select n from {t}", "sleep", f"update {t} set n = n + 1 where n = (select n from {t})")
    sql(f"update {t} set n = n * 10")
    assert slow.body()["attempts"] == 2
    assert sql.value(f"select n from {t}") == 11


def test_strict_order(service: Service, client: httpx.Client, sql: Sql, t: str) -> None:
    """What was acknowledged is seen by everything that begins later, over other connections too."""
    with service.client() as other:
        for i in range(30):
            transaction(client, f"insert into {t} values ('x', {i})")
            assert transaction(other, f"select max(n) from {t}", read_only=True)["results"][0]["rows"] == [[i]]
            assert sql.value(f"select max(n) from {t}") == i
