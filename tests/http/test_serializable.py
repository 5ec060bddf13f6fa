"""Transactions through HTTP are strictly serializable: shown by the history of a workload, and by known anomalies."""

import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import httpx
import psycopg
import pytest

from tests.histories import Outcome, Read, Transaction, check, names
from tests.list_append.statements import Op, create_table, drop_table, final_lists, found, random_ops, statements_of
from tests.list_append.workload import ListAppend
from tests.needs import needs
from tests.service import Service, Sql, needs_bundled
from tests.waiting import eventually

CLIENTS = 6
TRANSACTIONS = 1500
CONTROL_TRANSACTIONS = 300
CONTROL_S = 120.0

Run = Callable[[Sequence[Op], random.Random], tuple[Outcome, tuple[Op, ...]]]
"""Runs the operations as one transaction; what became of it, with what was read."""


@pytest.fixture
def lists(sql: Sql) -> Iterator[str]:
    """An empty table of lists."""
    name = f"lists_{uuid.uuid4().hex[:12]}"
    create_table(sql, name)
    yield name
    drop_table(sql, name)


# -- by the history of a workload -----------------------------------------------------------------------------------


def test_list_append(service: Service, sql: Sql, lists: str) -> None:
    """A workload on hot keys has a strictly serializable history; what was acknowledged is there."""
    seed = random.SystemRandom().randrange(2**32)
    work = ListAppend(service, lists, seed, TRANSACTIONS, clients=CLIENTS)
    work.run()
    anomalies = check(work.history, final_lists(sql, lists), real_time=True)
    assert anomalies == [], f"seed {seed}: {anomalies[:5]}"
    assert work.wrong == []
    assert work.counts["ok"] > TRANSACTIONS * 0.9, work.counts


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


def history_of(connect: Callable[[], AbstractContextManager[Run]], seed: int, transactions: int) -> list[Transaction]:
    """The history of clients that run random transactions side by side."""

    def client(number: int) -> list[Transaction]:
        rng = random.Random(f"{seed}-{number}")
        numbers = itertools.count(number + 1, CLIENTS)
        history = []
        with connect() as run:
            for id in range(number, transactions, CLIENTS):
                ops = random_ops(rng, numbers)
                began = time.monotonic()
                outcome, seen = run(ops, rng)
                history.append(Transaction(id, outcome, seen, began, time.monotonic()))
        return history

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [transaction for part in pool.map(client, range(CLIENTS)) for transaction in part]


@needs("repeatable_read")
def test_control(service: Service, sql: Sql, lists: str) -> None:
    """The same workload at REPEATABLE READ shows the checker G2: it can fail."""
    database = sql.value("select current_database()")
    seen: set[str] = set()
    deadline = time.monotonic() + CONTROL_S
    for seed in itertools.count():
        sql(f"truncate {lists}")
        history = history_of(lambda: on_the_engine(service, lists, database), seed, CONTROL_TRANSACTIONS)
        seen = names(check(history, final_lists(sql, lists)))
        if "G2" in seen or time.monotonic() > deadline:
            break
    assert seen == {"G2"}, "at this level nothing worse may happen, and this must"


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
        with psycopg.connect(service.server_of(), autocommit=True) as look:
            question = "select 1 from pg_stat_activity where wait_event = 'PgSleep' and query = %s"
            eventually(lambda: look.execute(question, [sleep]).fetchone())

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


@needs("activity")
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


@needs("activity")
def test_write_skew(service: Service, client: httpx.Client, sql: Sql, t: str) -> None:
    """Two doctors cannot both go off call because each has seen the other on it."""
    sql(f"insert into {t} values ('alice', 1), ('bob', 1)")
    leave = f"update {t} set n = 0 where name = '%s' and (select sum(n) from {t}) > 1"
    alice = Started(service, f"select sum(n) from {t}", "sleep", leave % "alice")
    transaction(client, f"select sum(n) from {t}", leave % "bob")
    assert alice.body()["attempts"] == 2
    assert sql.value(f"select sum(n) from {t}") == 1


@needs("activity")
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


@needs("activity")
def test_phantom(service: Service, sql: Sql, t: str) -> None:
    """Rows that others insert while a transaction runs do not appear in it."""
    question = f"select count(*) from {t} where n between 1 and 9"
    reader = Started(service, question, "sleep", question, f"select * from {t} where n = 5")
    sql(f"insert into {t} values ('x', 5)")
    results = reader.body()["results"]
    assert results[0]["rows"] == results[2]["rows"] == [[0]]
    assert results[3]["rows"] == []
    assert sql.value(question) == 1


@needs("activity")
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


@needs_bundled
@pytest.mark.parametrize("by", ["query", "transaction", "stream"])
def test_a_conflict_that_lasts(service: Service, client: httpx.Client, sql: Sql, t: str, by: str) -> None:
    """Another's commit that is under way for a while fails every try until it is done; the tries outlast it."""
    sql(f"insert into {t} values ('seen', 1)")
    insert = f"insert into {t} select 'mine', (select n from {t} where name = 'seen') returning n"
    name = f"held-{t}"
    database = sql.value("select current_database()")
    with (
        closing(psycopg.connect(service.conninfo(database))) as reader,
        closing(psycopg.connect(service.conninfo(database), autocommit=True)) as writer,
    ):
        reader.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        reader.execute(f"select from {t}")
        writer.execute("begin isolation level serializable")
        writer.execute(f"update {t} set n = 2 where name = 'seen'")
        writer.execute(f"prepare transaction '{name}'")
        over = threading.Timer(0.5, lambda: writer.execute(f"commit prepared '{name}'"))
        over.start()
        try:
            if by == "transaction":
                assert transaction(client, insert)["attempts"] > 1
            elif by == "query":
                sql(insert)
            else:
                answer = client.post("/v1/query", json={"sql": f"/*+ STREAM */ {insert}"})
                assert '"row_count":1' in answer.text, answer.text
        finally:
            over.join()
    assert sql.value(f"select n from {t} where name = 'mine'") == 2
