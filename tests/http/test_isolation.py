"""Every statement runs at SERIALIZABLE, and nothing it does can change that."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.needs import Abilities, by_words, needs
from tests.service import Service, Sql


@pytest.fixture(scope="module")
def connected(single: Service) -> Iterator[Sql]:
    """One client for the whole module: making one costs more than most of these tests."""
    with single.client() as client:
        yield Sql(client)


LEVEL = "current_setting('transaction_isolation')"


@pytest.fixture
def one(connected: Sql, abilities: Abilities) -> Iterator[Sql]:
    one = connected
    one("drop schema if exists scratch cascade")
    one("create schema scratch")
    one("create table scratch.t (a text)")
    one(f"create view scratch.level as select {LEVEL} as level")
    if abilities.can("procedure"):
        weak = f"if {LEVEL} <> 'serializable' then raise exception 'weak'; end if"
        one(f"create procedure scratch.check() language plpgsql as $$ begin {weak}; end $$")
        one(f"create function scratch.level() returns text language sql as $$ select {LEVEL} $$")
    yield one
    one("drop schema scratch cascade")


def check_serializable(sql: Sql, abilities: Abilities) -> None:
    """In every way in which a statement can be run."""
    assert sql.value(f"select {LEVEL}") == "serializable"
    assert sql.value(f"(select {LEVEL})") == "serializable"
    assert sql.value("show transaction_isolation") == "serializable"
    assert sql.value("table scratch.level") == "serializable"
    for level in (LEVEL, "scratch.level()") if abilities.can("procedure") else (LEVEL,):
        check_level(sql, level)
    if abilities.can("procedure"):
        sql("call scratch.check()")
        sql("do $$ begin call scratch.check(); end $$")


def check_level(sql: Sql, level: str) -> None:
    assert sql.value(f"select {level}") == "serializable"
    assert sql.value(f"with x as (select {level}) select * from x") == "serializable"
    assert sql.value(f"select {level} where set_config('a.b', 'c', false) = 'c'") == "serializable"
    assert sql.value(f"insert into scratch.t values ({level}) returning a") == "serializable"
    for statement in (f"select {level} as level", f"insert into scratch.t values ({level}) returning a"):
        answer = sql.client.post(
            "/query", content=statement, headers={"Accept": "application/x-ndjson", "Content-Type": "text/plain"}
        )
        events = [json.loads(line) for line in answer.text.splitlines()]
        assert [list(e["data"].values()) for e in events if e["event"] == "row"] == [["serializable"]]
        assert events[-1]["event"] == "done"


def test_statements_are_serializable(one: Sql, abilities: Abilities) -> None:
    """As a plain statement, a cursor, a block and a stream."""
    check_serializable(one, abilities)


@pytest.mark.parametrize(
    "statement",
    by_words([
        "set default_transaction_isolation = 'read committed'",
        "set default_transaction_isolation to 'repeatable read'",
        "set local default_transaction_isolation = 'read committed'",
        "select set_config('default_transaction_isolation', 'read committed', false)",
        "do $$ begin set default_transaction_isolation = 'read committed'; end $$",
        "reset default_transaction_isolation",
        "reset all",
        "discard all",
        "set default_transaction_deferrable = on",
        "set default_transaction_read_only = on",
        "alter database {database} set default_transaction_isolation = 'read committed'",
        "alter role current_user in database {database} set default_transaction_isolation = 'read committed'",
        "alter role current_user set default_transaction_isolation = 'read committed'",
        "alter role all set default_transaction_isolation = 'read committed'",
    ]),
)  # fmt: skip
def test_no_setting_weakens_the_statements_after_it(
    single: Service, one: Sql, abilities: Abilities, statement: str
) -> None:
    """Neither on this connection nor on the next one that is made."""
    database, role = one.rows("select current_database(), current_user", row_mode="arrays")[0]
    try:
        one.answer(statement.format(database=database))
        check_serializable(one, abilities)
        assert one.answer("copy (select 1) to stdout").status_code == 400  # costs the connection: the next one is new
        check_serializable(one, abilities)
    finally:
        with psycopg.connect(single.server_of(database)) as engine:
            engine.execute(f"alter role {role} reset all")
            engine.execute(f"alter role {role} in database {database} reset all")
        one.answer("copy (select 1) to stdout")


def test_a_tenant_does_not_own_its_database(one: Sql) -> None:
    """Or it could change settings for everybody."""
    database = one.value("select current_database()")
    for change in (
        "set statement_timeout = '1s'",
        "set default_transaction_isolation = 'read committed'",
        "owner to current_user",
    ):
        assert one.fails(f"alter database {database} {change}")["sqlstate"] == "42501"


@pytest.mark.parametrize(
    "statement",
    by_words([
        "select set_config('transaction_isolation', 'read committed', false)",
        pytest.param(
            "select set_config('transaction_isolation', 'read committed', true), scratch.level()",
            marks=needs("procedure"),
        ),
        "values (set_config('transaction_isolation', 'read committed', true))",
        "insert into scratch.t values (set_config('transaction_isolation', 'read committed', true))",
        "create table scratch.x as select set_config('transaction_isolation', 'read committed', true)",
        "explain analyze select set_config('transaction_isolation', 'read committed', true)",
        "do $$ begin set transaction isolation level read committed; end $$",
        "do $$ begin set local transaction_isolation = 'read committed'; end $$",
        "do $$ begin perform set_config('transaction_isolation', 'read committed', true); end $$",
        "do $$ begin execute 'set transaction isolation level read committed'; end $$",
        "call scratch.weaken()",
        pytest.param("select scratch.weakened()", marks=needs("procedure")),
    ]),
)  # fmt: skip
def test_a_statement_cannot_weaken_itself(one: Sql, abilities: Abilities, statement: str) -> None:
    """The snapshot is taken before its code runs, and after that the engine refuses."""
    if abilities.can("procedure"):
        weaken = "set transaction isolation level read committed"
        one(f"create procedure scratch.weaken() language plpgsql as $$ begin {weaken}; end $$")
        one(f"create function scratch.weakened() returns void language plpgsql as $$ begin {weaken}; end $$")
        assert one.fails(statement)["sqlstate"] == "25001"
    else:
        one.answer(statement)
    check_serializable(one, abilities)


@pytest.mark.parametrize(
    "body",
    [
        "commit; set transaction isolation level read committed; insert into scratch.t values ('x')",
        "rollback; insert into scratch.t values ('x')",
        "insert into scratch.t values ('x'); commit; raise serialization_failure",
        "insert into scratch.t values ('x'); commit and chain",
    ],
)
@needs("procedure")
@pytest.mark.parametrize("form", ["do $$ begin {body}; end $$", "call scratch.p()"])
def test_code_cannot_leave_its_transaction(one: Sql, form: str, body: str) -> None:
    """A block that committed could weaken what follows, and a retry would apply it twice."""
    one(f"create procedure scratch.p() language plpgsql as $$ begin {body}; end $$")
    assert one.fails(form.format(body=body))["sqlstate"] == "2D000"
    assert one.value("select count(*) from scratch.t") == 0


@needs("do_block")
def test_a_retried_block_is_applied_once(one: Sql) -> None:
    """A conflict that a block raises itself is retried, and none of the tries leaves a row."""
    error = one.fails("do $$ begin insert into scratch.t values ('x'); raise serialization_failure; end $$")
    assert error["sqlstate"] == "40001"
    assert one.value("select count(*) from scratch.t") == 0


@pytest.mark.parametrize(
    "statement",
    by_words([
        "insert into skew.t select 1 where (select count(*) from skew.t) = 0 and pg_sleep(0.3) is not null",
        "do $$ begin if (select count(*) from skew.t) = 0 then perform pg_sleep(0.3); insert into skew.t values (1);"
        " end if; end $$",
        pytest.param("select skew.add_if_empty()", marks=needs("procedure")),
        "call skew.add_if_empty_too()",
    ]),
)  # fmt: skip
def test_write_skew_does_not_commit(service: Service, sql: Sql, abilities: Abilities, statement: str) -> None:
    """Four clients see the table empty at the same time; only one of their rows is there at the end."""
    sql("drop schema if exists skew cascade")
    sql("create schema skew")
    sql("create table skew.t (a int)")
    add = "if (select count(*) from skew.t) = 0 then perform pg_sleep(0.3); insert into skew.t values (1); end if"
    if abilities.can("procedure"):
        sql(f"create function skew.add_if_empty() returns void language plpgsql as $$ begin {add}; end $$")
        sql(f"create procedure skew.add_if_empty_too() language plpgsql as $$ begin {add}; end $$")
    start = threading.Barrier(4)

    def add_if_empty(_: int) -> dict[str, Any]:
        with service.client() as client:
            start.wait()
            return Sql(client)(statement)

    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(add_if_empty, range(4)))) == 4
    assert sql.value("select count(*) from skew.t") == 1
    sql("drop schema skew cascade")


def test_the_engines_own_protocol_can_be_switched_off(single: Service) -> None:
    """It would let a client choose its isolation."""
    with single.client() as client:
        answer = client.get("/v2")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
