"""Statements that come often are kept prepared, also in transactions: the answers stay what they are without it.

A comment in a text keeps it from being taken for a template, so that the two ways can be compared.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.control import Organization
from tests.metrics import scrape
from tests.needs import needs
from tests.service import Service, Sql
from tests.waiting import eventually
from tuplegate.engine.libpq.pools.frequent_statements import KEPT_MAX

pytestmark = needs("postgresql")
"""Only its adapter keeps statements prepared."""

OFTEN = 8
"""Often enough for the engine to have planned it for any value."""


@pytest.fixture(scope="module")
def tenant(service: Service, organization: Organization) -> str:
    """The engine's name of a database without any code: only there is anything kept."""
    with psycopg.connect(service.conninfo("tuplegate")) as connection:
        rows = connection.execute("select engine_name from database where organization = %s", (organization.id,))
        [(name,)] = rows.fetchall()
    return str(name)


@pytest.fixture(scope="module")
def data(organization: Organization, tenant: str) -> Sql:
    sql = organization.control.sql()
    sql("create table account (id int primary key, n bigint not null, name text)")
    sql("insert into account select g, 0, 'name ' || g from generate_series(1, 100) g")
    sql("create table entry (account int, amount int)")
    return sql


@pytest.fixture
def engine(service: Service, tenant: str) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    with psycopg.connect(service.conninfo(tenant), autocommit=True) as opened:
        yield opened


def run(sql: Sql, *statements: Any) -> Any:
    """Return the answer to a transaction, without what is another each time."""
    body = sql.client.post("/v1/transaction", json={"statements": list(statements)}).json()
    return {name: value for name, value in body.items() if name not in ("timings", "request_id", "transaction_id")}


def move(id: int) -> tuple[str, str]:
    return f"update account set n = n + 1 where id = {id}", f"insert into entry values ({id}, 1)"


def test_what_comes_often_is_prepared(
    service: Service, tenant: str, data: Sql, engine: "psycopg.Connection[tuple[Any, ...]]"
) -> None:
    """And nothing is lost of what it does."""
    for id in range(1, OFTEN):
        assert run(data, *move(id))["affected_rows"] == 2

    def is_waiting() -> bool:
        rows = engine.execute("select query from pg_stat_activity where wait_event_type = 'Lock'")
        return ("update account set n = n + 1 where id = $1",) in rows.fetchall()

    with ThreadPoolExecutor(1) as thread:
        with engine.transaction():
            engine.execute("select from account where id = 50 for update")
            moving = thread.submit(run, data, *move(50))
            # The other connection is in its transaction, and shows what there was when that began.
            with psycopg.connect(service.conninfo(tenant), autocommit=True) as engine:
                eventually(is_waiting)
        assert moving.result()["success"]
    assert data.value("select count(*) from entry") == OFTEN
    assert data.value("select sum(n) from account") == OFTEN


def test_an_error_speaks_of_the_text_as_it_was_sent(data: Sql) -> None:
    """Where in which statement it is, whatever was prepared before."""
    data("create table short (id int, gone int)")
    good, bad = "select id from short where id = 1", "select gone from short where id = 1"
    for _ in range(OFTEN):
        assert run(data, good, bad)["success"]
    data("alter table short drop gone")
    expected = run(data, good, f"{bad} /* as it stands */")
    assert expected["error"]["statement"] == 1
    assert expected["error"]["position"] is not None
    for _ in range(2):
        assert run(data, good, bad) == expected


@pytest.mark.parametrize(
    "wrong",
    ["select 1; select 2", {"sql": "select $2::int", "params": [1, 2]}, "insert into totals values (1)"],
    ids=["several statements", "a parameter of no type", "a view that takes no rows"],
)
def test_an_error_without_a_position_names_its_statement(data: Sql, wrong: Any) -> None:
    data("create or replace view totals as select sum(n) from account")
    seen = [run(data, "select 1", wrong)["error"]["statement"] for _ in range(OFTEN)]
    assert seen == [1] * OFTEN


def test_what_was_never_prepared_is_not_run_again(data: Sql) -> None:
    """Nor is what ran before it, however often that comes: it would draw its numbers twice."""
    data("create table numbered (id serial, n int)")
    for number in range(1, OFTEN):
        assert run(data, "insert into numbered (n) values (1)", f"select wrong_{number}")["error"]["statement"] == 1
    assert data.value("select nextval('numbered_id_seq')") == OFTEN


@pytest.mark.parametrize("change", ["add more int default 7", "drop word", "alter word type int using 5"])
def test_a_table_that_changes_is_seen_as_it_is(
    data: Sql, engine: "psycopg.Connection[tuple[Any, ...]]", change: str
) -> None:
    """Also where the service does not hear of the change."""
    data("drop table if exists changing")
    data("create table changing (id int, word text)")
    data("insert into changing values (1, 'one')")
    text = "select * from changing where id = 1"
    for _ in range(OFTEN):
        assert run(data, text, *move(1))["results"][0]["rows"] == [{"id": 1, "word": "one"}]
    engine.execute(f"alter table changing {change}")
    expected = run(data, f"{text} /* as it stands */", *move(1))
    for _ in range(OFTEN):
        assert run(data, text, *move(1))["results"] == expected["results"]


def test_a_transaction_that_fails_leaves_nothing_half_prepared(data: Sql, service: Service) -> None:
    """What comes behind the failure is not prepared then, and is the next time: nothing is tried twice."""
    data("create table unique_one (id int primary key)")
    before = scrape(service).value("attempts_total", kind="transaction")
    for number in range(3 * OFTEN):
        text = f"select count(*) as n, {number // 3} as number from unique_one"
        failed = run(data, "insert into unique_one values (1)", "insert into unique_one values (1)", text)
        assert failed["error"]["sqlstate"] == "23505", failed
        assert failed["error"]["statement"] == 1
        assert run(data, text)["results"][0]["rows"] == [{"n": 0, "number": number // 3}]
    assert scrape(service).value("attempts_total", kind="transaction") - before == 2 * 3 * OFTEN


def test_a_notice_comes_each_time(data: Sql) -> None:
    """Some come from parsing, and what is prepared is not parsed again: nor is it by a transaction, then."""
    name = "n" * 70
    for text in (f"select 1 as {name}", f"select id as {name} from account where id = 1"):
        for _ in range(OFTEN):
            assert run(data, text)["success"]
        for _ in range(OFTEN):
            assert len(data(text)["notices"]) == 1


def test_one_text_many_times_in_one_transaction(data: Sql) -> None:
    """With parameters that the engine plans for each time, and with literals."""
    for _ in range(3):
        texts = [{"sql": "select $1::int + 1 as n, $2::varchar(2) as t", "params": [n, f"{n}"]} for n in range(OFTEN)]
        results = run(data, *texts, *(f"select id from account where id = {n}" for n in range(1, OFTEN)))["results"]
        assert [result["rows"] for result in results[:OFTEN]] == [[{"n": n + 1, "t": str(n)}] for n in range(OFTEN)]
        assert [result["rows"] for result in results[OFTEN:]] == [[{"id": n}] for n in range(1, OFTEN)]


def test_more_texts_than_are_kept(data: Sql) -> None:
    texts = [f"select {n} as n" for n in range(2 * KEPT_MAX)]
    for _ in range(OFTEN):
        results = run(data, *texts)["results"]
        assert [result["rows"][0]["n"] for result in results] == list(range(2 * KEPT_MAX))
    assert run(data, *move(1))["success"]


def test_what_is_kept_is_not_seen(data: Sql) -> None:
    for _ in range(OFTEN):
        assert run(data, *move(2))["success"]
    look = "select count(*) as n from pg_prepared_statements"
    assert run(data, look, *move(2))["results"][0]["rows"] == [{"n": 0}]
    assert data.value(look) == 0


def begin(sql: Sql, first: str | None) -> str:
    body = sql.client.post("/v1/transaction/begin", json={} if first is None else {"statement": first}).json()
    return f"/v1/transaction/{body['transaction_id']}"


def test_what_open_transactions_keep_is_not_seen(data: Sql) -> None:
    """Their own commands are prepared while their statements cannot look."""
    first, last = move(3)
    look = {"sql": "select count(*) as n from pg_prepared_statements"}

    def keep() -> None:
        """After a look nothing is kept until the engine was asked what it has left."""
        for _ in range(OFTEN):
            assert data.client.post(f"{begin(data, first)}/commit", json={"statement": last}).json()["success"]

    for _ in range(3):
        keep()
        looking = begin(data, first)
        assert data.client.post(f"{looking}/query", json=look).json()["rows"] == [{"n": 0}]
        assert data.client.post(f"{looking}/commit", json={"statement": last}).json()["success"]
        keep()
        looking = begin(data, None)
        assert data.client.post(f"{looking}/query", json=look).json()["rows"] == [{"n": 0}]
        assert data.client.post(f"{looking}/commit", json={}).json()["success"]
        keep()
        done = data.client.post(f"{begin(data, first)}/commit", json={"statement": look}).json()
        assert done["results"][0]["rows"] == [{"n": 0}]
    assert data.value(look["sql"]) == 0


def test_an_open_transaction_that_fails_leaves_nothing_half_prepared(data: Sql) -> None:
    """What comes behind the failure is not prepared then, and is the next time."""
    first, last = move(4)
    for _ in range(3):
        assert data.value("select count(*) from pg_prepared_statements") == 0  # nothing is kept after it
        for _ in range(OFTEN):
            assert run(data, first, last)["success"]
        failed = data.client.post(f"{begin(data, first)}/commit", json={"statement": "insert into account values (1)"})
        assert failed.json()["error"]["sqlstate"] == "23502"
        assert "error" in data.client.post("/v1/transaction/begin", json={"statement": "select nothing"}).json()
        for _ in range(OFTEN):
            done = data.client.post(f"{begin(data, first)}/commit", json={"statement": last}).json()
            assert done["success"], done


def ask(sql: Sql, opened: str, text: str) -> Any:
    return sql.client.post(f"{opened}/query", json={"sql": text}).json()


def test_a_table_that_changes_below_an_open_transaction_is_a_conflict(
    data: Sql, engine: "psycopg.Connection[tuple[Any, ...]]"
) -> None:
    """Where the service does not hear of the change. The next one sees the table as it is."""
    data("create table altered (id int, word text)")
    data("insert into altered values (1, 'one')")
    text = "select * from altered where id = 1"
    for _ in range(OFTEN):
        opened = begin(data, "select 1")
        assert ask(data, opened, text)["rows"] == [{"id": 1, "word": "one"}]
        assert data.client.post(f"{opened}/commit").json()["success"]
    engine.execute("alter table altered add more int default 7")
    opened = begin(data, "select 1")
    error = ask(data, opened, text)["error"]
    assert (error["code"], error["sqlstate"], error["retryable"]) == ("conflict", "40001", True)
    assert data.client.get(opened).json()["state"] == "aborted"
    for _ in range(OFTEN):
        opened = begin(data, "select 1")
        assert ask(data, opened, text)["rows"] == [{"id": 1, "word": "one", "more": 7}]
        assert data.client.post(f"{opened}/rollback").json()["success"]


def test_errors_in_open_transactions_are_those_of_the_text_as_it_was_sent(data: Sql) -> None:
    """And the transaction goes on from a savepoint behind them, whatever was half prepared."""
    for wrong in (
        "select missing from account where id = 1",
        "insert into nowhere values (1, 2)",
        "select 1; select 2",
    ):
        first = None
        for _ in range(OFTEN):
            opened = begin(data, move(5)[0])
            ask(data, opened, "savepoint here")
            error = ask(data, opened, wrong)["error"]
            assert first in (None, error)
            first = error
            assert data.client.get(opened).json()["state"] == "failed"
            ask(data, opened, "rollback to savepoint here")
            assert ask(data, opened, "select n >= 1 as yes from account where id = 5")["rows"] == [{"yes": True}]
            assert data.client.post(f"{opened}/commit", json={"statement": move(5)[1]}).json()["success"]
        assert data.value("select count(*) from pg_prepared_statements") == 0


def test_texts_with_parameters_in_open_transactions(data: Sql) -> None:
    """The types are those of the first, and what does not fit them is told as ever."""
    for number in range(2 * OFTEN):
        opened = begin(data, None)
        body = {"sql": "select n >= $2 as more, id from account where id = $1", "params": [number % 3 + 1, 0]}
        assert data.client.post(f"{opened}/query", json=body).json()["rows"] == [{"more": True, "id": number % 3 + 1}]
        fewer = {**body, "params": [1]}
        assert data.client.post(f"{opened}/query", json=fewer).json()["error"]["code"] == "parameter_mismatch"
        assert data.client.post(f"{opened}/rollback").json()["success"]
