"""Statements that come often are kept prepared on their connection: the answers stay what they are without it.

A comment in a text keeps it from being taken for a template, so that the two ways can be compared.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.control import Organization
from tests.needs import needs
from tests.service import Service, Sql
from tests.waiting import eventually

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
    sql("create table words (id int primary key, word text, n int)")
    sql("insert into words select g, 'word ' || g, g % 10 from generate_series(1, 100) g")
    return sql


@pytest.fixture
def engine(service: Service, tenant: str) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    with psycopg.connect(service.conninfo(tenant), autocommit=True) as opened:
        yield opened


def last_texts(engine: "psycopg.Connection[tuple[Any, ...]]") -> list[str]:
    rows = engine.execute(
        "select query from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    return [str(row[0]) for row in rows]


def same(sql: Sql, text: str, times: int = OFTEN) -> None:
    """However often it comes, the answer is that of the text as it stands."""
    expected = told(sql, f"{text} /* as it stands */")
    for _ in range(times):
        assert told(sql, text) == expected, text


def told(sql: Sql, text: str, params: list[Any] | None = None) -> Any:
    """An answer without its times."""
    body = sql.answer(text, params).json()
    return {name: value for name, value in body.items() if name not in ("timings", "request_id")}


# -- that it happens ------------------------------------------------------------------------------------------------


def test_a_text_with_literals_is_prepared_once_it_comes_often(
    data: Sql, engine: "psycopg.Connection[tuple[Any, ...]]"
) -> None:
    for number in range(1, OFTEN):
        assert data.rows(f"select word from words where id = {number}") == [{"word": f"word {number}"}]
    assert "select word from words where id = $1" in last_texts(engine)


def test_a_change_leaves_it_prepared(data: Sql, engine: "psycopg.Connection[tuple[Any, ...]]") -> None:
    """What is left after a change is removed without what is prepared; the engine knows the statement the next time."""
    data("create table log (id serial, n int)")
    for number in range(OFTEN):
        data(f"insert into log (n) values ({number})")
        assert data.value("select count(*) from log where n = $1", [number]) == 1
    engine.execute("alter table log rename n to m")
    assert data.fails("insert into log (n) values (1)")["sqlstate"] == "42703"
    assert data.value("select count(*) from log") == OFTEN
    assert data.fails("select lastval()")["sqlstate"] == "55000"


# -- that it means what it meant -----------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [None, [1]])
@pytest.mark.parametrize(
    "literal",
    [
        "'now'::timestamptz",
        "timestamptz ' Now '",
        "'now()'::timestamptz",
        "lower('[n\"o\"w,)'::tstzrange)",
        "('{now,today}'::timestamptz[])[1]",
        "lower('[now,)'::tstzrange)",
        "E'n\\x6fw'::timestamptz",
        "$q$now$q$::timestamptz",
        "'n'\n'ow'::timestamptz",
    ],
)
def test_a_literal_that_means_the_moment_is_read_each_time(data: Sql, literal: str, params: list[Any] | None) -> None:
    """The engine reads literals when it prepares a statement."""
    text = f"select {literal} as at" + (", $1::int as one" if params else "")
    shown = [data.value(text, params) for _ in range(OFTEN)]
    assert len(set(shown)) == OFTEN


def test_a_change_elsewhere_is_seen_at_once(data: Sql) -> None:
    """Of what the engine itself does not make plans anew for."""
    data("create type temper as enum ('ok')")
    data("create domain five as int default 5")
    data("create table tempers (id int, m temper, n five)")
    data("insert into tempers values (1, 'ok', 1)")
    for number in range(OFTEN):
        data("update tempers set m = 'ok' where id > 0")
        data(f"insert into tempers (id) values ({-number})")
    data("alter type temper rename value 'ok' to 'fine'")
    data("alter type temper add value 'ok'")
    data("alter domain five set default 6")
    with ThreadPoolExecutor(16) as threads:  # on every connection
        list(threads.map(lambda _: data("update tempers set m = 'ok' where id > 0"), range(64)))
        list(threads.map(lambda number: data(f"insert into tempers (id) values ({-100 - number})"), range(64)))
    assert data.value("select m from tempers where id = 1") == "ok"
    assert data.value("select array_agg(distinct n) from tempers where id <= -100") == [6]


def test_a_literal_that_names_something_means_what_has_the_name_now(data: Sql) -> None:
    for _ in range(2):
        data("create text search configuration simply (copy = simple)")
        for number in range(OFTEN):
            assert data.value("select to_tsvector('simply', $1)::text", [f"w{number}"]) == f"'w{number}':1"
        data("drop text search configuration simply")
    assert data.fails("select to_tsvector('simply', $1)::text", ["x"])["sqlstate"] == "42704"


# -- that nobody sees it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "look",
    [
        "select count(*) from pg_prepared_statements",
        "select count(*) from pg_catalog.pg_prepared_statement()",
        'select count(*) from U&"pg_prepared\\005fstatements"',
        "with x as (select * from pg_prepared_statements) select count(*) from x",
        "select count(*) from pg_get_backend_memory_contexts() where ident ~ 'words wher[e]'",
    ],
)
def test_what_is_kept_is_not_seen(data: Sql, look: str) -> None:
    for number in range(OFTEN):
        data(f"select n from words where id = {number}")
    assert data.value(look) == 0
    for number in range(OFTEN):
        data(f"select n from words where id = {number}")
    answer = data.client.post("/v1/transaction", json={"statements": ["select 1", look]}).json()
    assert list(answer["results"][1]["rows"][0].values()) == [0]
    for number in range(OFTEN):
        data(f"select n from words where id = {number}")
    with data.client.stream("POST", "/v1/query", json={"sql": f"/*+ STREAM */ {look}"}) as stream:
        assert '"count":0' in "".join(stream.iter_text()).replace(" ", "")


def test_what_is_kept_is_not_seen_by_a_template_either(data: Sql) -> None:
    for number in range(OFTEN):
        data(f"select n from words where id = {number}")
        assert data.rows("select name from pg_prepared_statements where from_sql = false") == []
        assert data.rows(f"select name from pg_prepared_statements where name = 'tuplegate_{number}'") == []


def test_what_is_kept_is_not_seen_through_a_view(data: Sql) -> None:
    data("create view memory as select ident from pg_get_backend_memory_contexts()")
    try:
        for number in range(OFTEN):
            data(f"select n from words where id = {number}")
            assert data.value("select count(*) from memory where ident ~ 'words wher[e]'") == 0
    finally:
        data("drop view memory")


def test_what_is_kept_cannot_be_run_or_removed(data: Sql) -> None:
    for number in range(OFTEN):
        data(f"select n from words where id = {number}")
    for number in range(1, 200):
        assert data.fails(f"execute tuplegate_{number}(1)")["sqlstate"] == "26000"
    data("deallocate all")
    assert data.value("select n from words where id = 7") == 7


def test_a_stream_that_waited_gets_a_clean_connection(data: Sql, service: Service, organization: Organization) -> None:
    """It is handed the connection of a statement that has left something, while it waits for one."""
    made = "with x as (select pg_sleep(0.1)) select 1 as a into temporary table leftover from x"

    def run(_: int) -> None:
        with service.client(organization.key) as client:
            Sql(client)(made)

    def stream(_: int) -> str:
        body = {"sql": "/*+ STREAM */ select to_regclass('pg_temp.leftover') as found"}
        with service.client(organization.key) as client, client.stream("POST", "/v1/query", json=body) as answer:
            return "".join(answer.iter_text())

    with ThreadPoolExecutor(64) as threads:
        busy = [threads.submit(run, n) for n in range(32)]
        streams = [threads.submit(stream, n) for n in range(32)]
        for future in busy:
            future.result()
        for looked in streams:
            assert '"found":null' in looked.result()


# -- that the answers are the same ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "alter table changing alter v type text",
        "alter table changing add w int default 5",
        "alter table changing rename v to u",
        "alter table changing drop v",
        "drop table changing",
        "drop table changing; create view changing as select 1 as id, 'a view' as v",
        "create index on changing (v)",
        "update changing set v = 9",
    ],
)
def test_a_table_that_changes_is_seen_as_it_is(data: Sql, change: str) -> None:
    is_view = data.value("select count(*) from pg_views where viewname = 'changing'")
    data(f"drop {'view' if is_view else 'table'} if exists changing")
    data("create table changing (id int, v int)")
    data("insert into changing values (1, 2)")
    texts = ["select * from changing where id = 1", "select v from changing where id = 1"]
    for text in texts:
        same(data, text)
    for part in change.split("; "):
        data(part)
    for text in texts:
        same(data, text)
        assert told(data, text.replace("1", "$1"), [1]) == told(data, f"{text} /* as it stands */")


def test_a_table_that_another_path_hides(data: Sql) -> None:
    """What a name means can change without the table."""
    data("create table public.hidden (id int, v text)")
    data("insert into hidden values (1, 'public')")
    same(data, "select v from hidden where id = 1")
    statements = ["create temporary table hidden (id int, v text)", "insert into hidden values (1, 'temporary')"]
    query = "select v from hidden where id = 1"
    body = data.client.post("/v1/transaction", json={"statements": [*statements, query]}).json()
    assert body["results"][2]["rows"] == [{"v": "temporary"}]
    assert data.value(query) == "public"


def test_two_at_once_on_few_connections(data: Sql, service: Service, organization: Organization) -> None:
    """Statements of both kinds, mixed with what takes everything prepared away."""

    def work(seed: int) -> None:
        with service.client(organization.key) as client:
            mine = Sql(client)
            for number in range(1, 28):
                id = (seed * 7 + number) % 100 + 1
                assert mine.value(f"select word from words where id = {id}") == f"word {id}"
                assert mine.value("select word from words where id = $1", [id]) == f"word {id}"
                if number % 9 == seed:
                    assert mine.value("select current_setting('timezone')") == "UTC"
                    mine("set timezone = 'Asia/Tokyo'")

    with ThreadPoolExecutor(24) as threads:
        for done in [threads.submit(work, seed) for seed in range(24)]:
            done.result()


def test_more_texts_than_are_kept(data: Sql, engine: "psycopg.Connection[tuple[Any, ...]]") -> None:
    """The engine's memory stays bounded: what is prepared goes when there are too many."""
    for text in range(100):
        for _ in range(3):
            assert data.value(f"select id as a{text} from words where id = $1", [text + 1]) == text + 1
            assert data.rows(f"select id from words where id = {text + 1} limit {text + 1}") == [{"id": text + 1}]


def test_a_backend_that_ends_takes_what_it_kept(data: Sql, engine: "psycopg.Connection[tuple[Any, ...]]") -> None:
    for number in range(1, OFTEN):
        data(f"select word from words where id = {number}")
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    engine.execute(f"select pg_terminate_backend(pid) {others}")
    eventually(lambda: engine.execute(f"select 1 {others} limit 1").fetchone() is None)
    eventually(lambda: data.answer("select word from words where id = 1").status_code == 200)
    for number in range(1, OFTEN):
        assert data.rows(f"select word from words where id = {number}") == [{"word": f"word {number}"}]
