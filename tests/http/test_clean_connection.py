"""A request leaves nothing behind on its connection, whatever its statement did.

The service here has one connection per database and scope, so the next request is sure to get the one before's.
"""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.cases import each_of
from tests.needs import needs
from tests.service import Service, Sql, make_key
from tests.waiting import eventually

pytestmark = needs("postgresql")
"""What holds on any engine is in `test_clean_anywhere.py`."""


@pytest.fixture(scope="module")
def connected(single: Service) -> Iterator[Sql]:
    """One client for the whole module: making one costs more than most of these tests."""
    with single.client() as client:
        yield Sql(client)


@pytest.fixture
def one(connected: Sql) -> Iterator[Sql]:
    """The client, over a schema of its own; no code of an earlier test is left, which would change the cleaning."""
    one = connected
    one("drop schema if exists scratch cascade")
    one("create schema scratch")
    yield one
    one("drop schema scratch cascade")


@pytest.fixture(scope="module")
def reader(single: Service) -> Iterator[Sql]:
    with single.client(make_key(single, "read")) as client:
        yield Sql(client)


@pytest.fixture(scope="module")
def engine(single: Service) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    """A look at the engine from outside."""
    with psycopg.connect(single.server_of(), autocommit=True) as opened:
        yield opened


PROBE = """
select current_user, session_user, current_setting('app.tenant', true) as custom,
       current_setting('search_path') as path,
       current_setting('statement_timeout') as timeout, current_setting('work_mem') as work_mem,
       current_setting('timezone') as timezone, current_setting('datestyle') as datestyle,
       current_setting('transaction_isolation') as isolation, current_setting('transaction_read_only') as read_only,
       current_setting('default_transaction_isolation') as default_isolation, current_setting('role') as role,
       current_setting('client_min_messages') as messages, current_setting('bytea_output') as bytea,
       current_setting('synchronous_commit') as durable, current_setting('row_security') as row_security,
       current_setting('client_encoding') as encoding,
       (select count(*) from pg_prepared_statements) as prepared,
       (select count(*) from pg_cursors where name not in ('', 'tuplegate')) as cursors,
       (select count(*) from pg_listening_channels()) as listening,
       (select count(*) from pg_class where relnamespace = pg_my_temp_schema()) as temporary
""".strip()


def state(sql: Sql) -> dict[str, Any]:
    row: dict[str, Any] = sql.rows(PROBE)[0]
    return row


SET_ALL = """
    set app.tenant = 'acme'; set search_path = pg_catalog; set statement_timeout = 5000; set work_mem = '8MB';
    set timezone = 'Asia/Tokyo'; set datestyle = 'German'; set default_transaction_isolation = 'read committed';
    set client_min_messages = 'error'; set bytea_output = 'escape'; set synchronous_commit = off;
"""

LEFTOVERS = {
    "custom setting": "set app.tenant = 'acme'",
    "local custom setting": "set local app.tenant = 'acme'",
    "custom setting by function": "select set_config('app.tenant', 'acme', false)",
    "local custom setting by function": "select set_config('app.tenant', 'acme', true)",
    "custom setting in an expression": "select 1 where set_config('app.tenant', 'acme', false) = 'acme'",
    "custom setting in a values list": "values (set_config('app.tenant', 'acme', false))",
    "custom setting by escapes": "select U&\"set\\005fconfig\"('app.tenant', 'acme', false)",
    "custom setting in SQL": "select query_to_xml('select set_config(''app.tenant'', ''x'', true)', true, true, '')",
    "custom setting in explain": "explain analyze select set_config('app.tenant', 'acme', false)",
    "custom setting in an insert": "insert into scratch.t select length(set_config('app.tenant', 'acme', false))",
    "custom setting in a failure": "select set_config('app.tenant', 'acme', false), 1/0",
    "custom setting in a failed block": "do $$ begin set app.tenant = 'acme'; raise exception 'no'; end $$",
    "custom setting in a block": "do $$ begin set app.tenant = 'acme'; end $$",
    "everything in a block": f"do $$ begin {SET_ALL} end $$",
    "everything in a failed block": f"do $$ begin {SET_ALL} perform 1/0; end $$",
    "everything in a function": "select scratch.set_all()",
    "everything in a procedure": "call scratch.set_all_too()",
    "everything in a view": "select * from scratch.set_all_view",
    "everything in a trigger": "insert into scratch.triggered values (1)",
    "function with SET": "select scratch.own_set()",
    "search_path": "set search_path = pg_catalog",
    "statement_timeout": "set statement_timeout = '1h'",
    "tiny statement_timeout": "set statement_timeout = 1",
    "tiny lock_timeout": "set lock_timeout = 1",
    "idle_session_timeout": "set idle_session_timeout = 1",
    "transaction_timeout": "select set_config('transaction_timeout', '60000', false)",
    "work_mem": "set work_mem = '100GB'",
    "durability": "set synchronous_commit = off",
    "default isolation": "set default_transaction_isolation = 'read committed'",
    "default read only": "set default_transaction_read_only = on",
    "error means exit": "set exit_on_error = on",
    "role": "set role none",
    "session authorization": "set session authorization default",
    "encoding": "select set_config('client_encoding', 'latin1', false)",
    "temporary table": "create temp table t as select 1",
    "temporary table by select": "select 1 as a into temp t",
    "temporary view": "create temp view v as select 1",
    "temporary sequence": "create temp sequence s",
    "temporary function": "create function pg_temp.f() returns int language sql as 'select 1'",
    "prepared statement": "prepare p as select 1",
    "cursor": "declare c cursor with hold for select 1",
    "listen": "listen channel",
    "listen in a block": "do $$ begin listen channel; end $$",
    "advisory lock": "select pg_advisory_lock(1)",
    "advisory lock tried": "select pg_try_advisory_lock(1)",
    "advisory lock shared": "select pg_try_advisory_lock_shared(1, 2)",
    "parse error": "selec",
    "copy": "copy scratch.t to stdout",
}


def needs_code(statement: str) -> bool:
    return any(name in statement for name in ("scratch.set_all", "scratch.own", "scratch.triggered"))


def make_code(one: Sql) -> None:
    """Only where it is needed: a database with code is cleaned with more care."""
    one(f"create function scratch.set_all() returns int language plpgsql as $$ begin {SET_ALL} return 1; end $$")
    one(f"create procedure scratch.set_all_too() language plpgsql as $$ begin {SET_ALL} end $$")
    one("create view scratch.set_all_view as select scratch.set_all(), set_config('app.tenant', 'acme', false)")
    one("create table scratch.triggered (a int)")
    one(f"create function scratch.tf() returns trigger language plpgsql as $$ begin {SET_ALL} return new; end $$")
    one("create trigger tr before insert on scratch.triggered for each row execute function scratch.tf()")
    one("create function scratch.own_set() returns int language sql set work_mem = '8MB' as 'select 1'")


def test_nothing_is_left_behind(one: Sql) -> None:
    """The next request finds the connection as the first one did; a custom setting is NULL again, not ''."""
    one("create table scratch.t (a int)")
    each_of("name", [name for name in LEFTOVERS if not needs_code(LEFTOVERS[name])])(leave)(one=one, before=state(one))


def test_nothing_is_left_behind_by_code(one: Sql) -> None:
    make_code(one)
    each_of("name", [name for name in LEFTOVERS if needs_code(LEFTOVERS[name])])(leave)(one=one, before=state(one))


def leave(one: Sql, before: dict[str, Any], name: str) -> None:
    assert before["custom"] is None
    for _ in range(2):
        one.answer(LEFTOVERS[name])
        assert state(one) == before
    assert one.rows("select date '2026-11-14' as d, '\\x00'::bytea as b") == [{"d": "2026-11-14", "b": "\\x00"}]


HIDDEN_PLACES: dict[str, tuple[list[str], str]] = {
    "default": (["create table scratch.h (a int, b text default {})"], "insert into scratch.h (a) values (1)"),
    "check": (["create table scratch.h (a int check (({}) is distinct from 'x'))"], "insert into scratch.h values (1)"),
    "domain": (["create domain scratch.d as int check (({}) is distinct from 'x')"], "select 1::scratch.d"),
    "view": (["create view scratch.v as select {} as x"], "select * from scratch.v"),
    "function": (["create function scratch.f() returns text language sql as $$ select {} $$"], "select scratch.f()"),
    "rule": (
        ["create table scratch.h (a int)", "create rule r as on insert to scratch.h do also select {}"],
        "insert into scratch.h values (1)",
    ),
    "policy": (
        [
            "create table scratch.h (a int)",
            "insert into scratch.h values (1)",
            "alter table scratch.h enable row level security",
            "alter table scratch.h force row level security",
            "create policy p on scratch.h using (({}) is distinct from 'x')",
        ],
        "select * from scratch.h",
    ),
    "condition of a trigger": (
        [
            "create table scratch.h (a int)",
            "create trigger tr before update on scratch.h for each row when (({}) is distinct from 'x')"
            " execute function suppress_redundant_updates_trigger()",
            "insert into scratch.h values (1)",
        ],
        "update scratch.h set a = a + 1",
    ),
    "default of an argument": (
        ["create function scratch.f(a text default {}) returns text language sql as 'select a'"],
        "select scratch.f()",
    ),
    "body of a function": (
        ["create function scratch.f() returns text language sql begin atomic select {}; end"],
        "select scratch.f()",
    ),
    "domain in a table": (
        ["create domain scratch.d as int check (({}) is distinct from 'x')", "create table scratch.h (a scratch.d)"],
        "insert into scratch.h values (1)",
    ),
}


@pytest.mark.parametrize(("making", "use"), HIDDEN_PLACES.values(), ids=HIDDEN_PLACES.keys())
def test_a_setting_made_where_the_text_does_not_show_it_is_removed(one: Sql, making: list[str], use: str) -> None:
    """Expressions that are stored in the database run in statements that look plain."""
    for statement in making:
        one(statement.format("set_config('app.tenant', 'acme', false)"))
    one(use)
    assert one.value("select current_setting('app.tenant', true)") is None


@pytest.mark.parametrize(
    "body",
    [
        "SET app.tenant = 'acme'",
        "set local app.tenant to 'acme'",
        "set session app.tenant = 'acme'",
        "set/**/app.tenant = 'acme'",
        "set app/**/.tenant = 'acme'",
        "set\n\"app\".tenant = 'acme'",
        "set \"app.tenant\" = 'acme'",
        "execute 'set app' || '.tenant = 1'",
        "perform \"set_config\"('app.tenant', 'acme', false)",
        "perform U&\"set!005fconfig\" uescape '!' ('app.tenant', 'acme', false)",
        "do 'begin set app.tenant = 1; end'",
    ],
)
def test_a_setting_of_a_function_is_removed_however_it_is_spelled(one: Sql, body: str) -> None:
    one(f"create function scratch.f() returns int language plpgsql as $f$ begin {body}; return 1; end $f$")
    assert one.value("select scratch.f()") == 1
    assert one.value("select current_setting('app.tenant', true)") is None


HARMLESS = {
    "view": "create view scratch.v as select 1 as a, now() as b",
    "function": "create function scratch.f(a int) returns int language sql as 'select a + 1'",
    "trigger": "create function scratch.f() returns trigger language plpgsql as"
    ' $$ begin update scratch.t set a = 1, "B c" = 2 where a = 3; new.a := 4; return new; end $$',
    "procedure": "create procedure scratch.p() language plpgsql as"
    " $$ begin create temp table x (a int); insert into x values (1); set work_mem = '8MB'; end $$",
    "policy": "create policy p on scratch.t using (a = 1)",
    "serial": "create table scratch.s (id serial, a text default 'x' check (a <> 'y'))",
}


@pytest.mark.parametrize("making", HARMLESS.values(), ids=HARMLESS.keys())
def test_code_that_cannot_leave_a_setting_is_no_reason_to_look(
    one: Sql, engine: "psycopg.Connection[tuple[Any, ...]]", making: str
) -> None:
    """Looking for what is left takes the engine ten times as long as a short statement."""
    writer = one.value("select current_user")
    one('create table scratch.t (a int, "B c" int)')
    one(making)
    for number in range(3):
        one(f"select {number} as harmless")
    rows = engine.execute("select query from pg_stat_activity where usename = %s", [writer]).fetchall()
    texts = [str(text) for (text,) in rows]
    assert texts, "the connection is there"
    assert not [text for text in texts if "setseed" in text], texts


def check_seed(sql: Sql, use: Callable[[], object]) -> None:
    """`use` sets the seed to the same value each time; the numbers after it must not show that."""
    use()
    first = sql.value("select random()")
    use()
    assert sql.value("select random()") != first


@pytest.mark.parametrize(("making", "use"), HIDDEN_PLACES.values(), ids=HIDDEN_PLACES.keys())
def test_a_seed_set_where_the_text_does_not_show_it_is_removed(one: Sql, making: list[str], use: str) -> None:
    """Random numbers of a later request cannot be known from an earlier one."""
    for statement in making:
        one(statement.format("setseed(0.5)::text"))
    check_seed(one, lambda: one(use))


def test_a_seed_set_through_an_operator_is_removed(one: Sql) -> None:
    """An operator gives a function of the engine's a name that the text does not show."""
    one("create operator scratch.@@@ (rightarg = float8, function = setseed)")
    check_seed(one, lambda: one("select operator(scratch.@@@) 0.5::float8"))


@pytest.mark.parametrize(
    "statement",
    [
        "select setseed(0.5)",
        "SELECT SETSEED(0.5), random()",
        "do $$ begin perform setseed(0.5); end $$",
        "select setseed(0.5), 1/0",
        "explain analyze select setseed(0.5)",
        "set seed = 0.5",
        "select set_config('seed', '0.5', false)",
        "/*+ STREAM */ select setseed(0.5)",
    ],
)
def test_a_random_seed_is_removed(one: Sql, statement: str) -> None:
    """Also after a failure, in a block, in a stream, and as the setting that it is."""
    check_seed(one, lambda: one.answer(statement))


def test_code_that_another_scope_has_just_made_leaves_nothing(one: Sql, reader: Sql) -> None:
    """The reader's connections learn of the writer's new function before they run it."""
    reader.value("select 1")
    one("create function scratch.seeded() returns text language sql as 'select setseed(0.5)::text'")
    check_seed(reader, lambda: reader.answer("select scratch.seeded()"))


def test_sequences_are_forgotten(one: Sql) -> None:
    """currval and lastval belong to the request that called nextval."""
    one("create sequence scratch.s")
    assert one.value("select nextval('scratch.s')") == 1
    assert one.fails("select currval('scratch.s')")["sqlstate"] == "55000"
    assert one.fails("select lastval()")["sqlstate"] == "55000"
    one("do $$ begin perform setval('scratch.s', 7); end $$")
    assert one.fails("select currval('scratch.s')")["sqlstate"] == "55000"


@pytest.mark.parametrize(
    ("use", "probe", "clean"),
    [
        ("select nextval('scratch.s')", "select lastval()", "55000"),
        ("set app.tenant = 'acme'", "select current_setting('app.tenant', true)", None),
        ("select set_config('app.tenant', 'acme', false)", "select current_setting('app.tenant', true)", None),
        ("create temp table t as select 1", "select to_regclass('pg_temp.t')", None),
        ("set timezone = 'Asia/Tokyo'", "select current_setting('timezone')", "UTC"),
    ],
)
def test_nothing_is_left_to_those_who_wait(single: Service, one: Sql, use: str, probe: str, clean: str | None) -> None:
    """A connection that goes from hand to hand while others queue for it is clean each time."""
    one("create sequence scratch.s")

    def look(_: int) -> list[Any]:
        seen = []
        with single.client() as client:
            mine = Sql(client)
            for _ in range(8):
                mine.answer(use)
                body = mine.answer(probe, row_mode="arrays").json()
                seen.append(body["rows"][0][0] if body["success"] else body["error"]["sqlstate"])
        return seen

    with ThreadPoolExecutor(4) as threads:
        for seen in threads.map(look, range(4)):
            assert set(seen) == {clean}


def test_a_notification_reaches_no_later_request(one: Sql) -> None:
    """What was listened to is dropped with the request that listened."""
    one("listen channel")
    one("notify channel, 'secret'")
    one("do $$ begin listen channel; notify channel, 'secret'; end $$")
    body = one("select 1 as n")
    assert "secret" not in json.dumps(body)


def test_notices_of_one_request_are_not_in_the_next(one: Sql) -> None:
    """Also when the request failed after them."""
    one.answer("do $$ begin raise notice 'mine'; raise exception 'no'; end $$")
    assert "notices" not in one("select 1")
    one("do $$ begin raise notice 'mine'; end $$")
    assert "notices" not in one("select 1")


TENANTS_OWN = [
    "search_path = 'nowhere'",
    "statement_timeout = 1",
    "lock_timeout = 1",
    "idle_session_timeout = 1",
    "transaction_timeout = 1",
    "default_transaction_isolation = 'read committed'",
    "default_transaction_read_only = on",
    "synchronous_commit = off",
    "client_encoding = 'latin1'",
    "timezone = 'Asia/Tokyo'",
    "datestyle = 'German'",
    "bytea_output = 'escape'",
    "client_min_messages = 'error'",
    "row_security = off",
    "standard_conforming_strings = off",
    "work_mem = '100GB'",
    "array_nulls = off",
    "exit_on_error = on",
    "local_preload_libraries = 'nowhere'",
]


@pytest.mark.parametrize("setting", TENANTS_OWN)
def test_a_role_cannot_change_what_its_connections_start_with(
    one: Sql, engine: "psycopg.Connection[tuple[Any, ...]]", setting: str
) -> None:
    """`ALTER ROLE self SET` would outlive the connection; what the service relies on, it sets itself."""
    before = state(one)
    role = before["current_user"]
    try:
        one.answer(f"alter role {role} set {setting}")
        assert one.answer("copy (select 1) to stdout").status_code == 400  # costs the connection: the next one is new
        assert one.answer("select 1/0").status_code == 200
        assert state(one) == before
        assert one.value("select $1::text[]", [["a", None]]) == ["a", None]
        assert one.value("select pg_sleep(0.05)") is not None
    finally:
        engine.execute(f"alter role {role} reset all")
        one.answer("copy (select 1) to stdout")


def test_a_statement_over_its_time_leaves_nothing(one: Sql) -> None:
    """What it had set by then is gone."""
    before = state(one)
    for statement in (
        f"do $$ begin {SET_ALL} perform setseed(0.5); perform pg_sleep(6); end $$",
        "select set_config('app.tenant', 'acme', false), pg_sleep(6)",
        "select pg_sleep(6)",
    ):
        one.answer(statement, timeout_ms=100)
        assert state(one) == before


@pytest.mark.parametrize(
    "statement",
    [
        "select set_config('app.tenant', 'acme', false), pg_sleep(30)",
        f"do $$ begin {SET_ALL} perform pg_sleep(30); end $$",
        "select pg_sleep(30)",
        "/*+ STREAM */ select set_config('app.tenant', 'acme', false), pg_sleep(30)",
        "create table scratch.made as select 1 as a from pg_sleep(30)",
    ],
)
def test_a_client_that_leaves_takes_everything_with_it(
    single: Service, one: Sql, engine: "psycopg.Connection[tuple[Any, ...]]", statement: str
) -> None:
    """Its statement is cancelled in the engine, and the next request finds a clean connection."""
    running = "select count(*) from pg_stat_activity where state = 'active' and wait_event = 'PgSleep'"
    before = state(one)
    address = urlsplit(single.url)
    assert address.hostname is not None
    body = statement.encode()
    request = (
        f"POST /query HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {single.key}\r\n"
        f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with socket.create_connection((address.hostname, address.port or 80)) as client:
        client.sendall(request)
        eventually(lambda: count(engine, running) == 1)
    eventually(lambda: count(engine, running) == 0)
    assert state(one) == before
    assert one.value("select to_regclass('scratch.made') is null") is True


def test_code_of_a_client_that_has_left_is_noticed(single: Service, one: Sql, reader: Sql) -> None:
    """A statement can go on, and commit, after its client has left: code can swallow the cancel."""
    stubborn = """do $$ begin
        begin perform pg_sleep(30); exception when query_canceled then null; end;
        perform pg_sleep(1.5);
        create function scratch.leave() returns text language sql as 'select set_config(''app.left'', ''x'', false)';
    end $$"""
    for number in range(3):
        reader.value(f"select {number}")  # by now the service knows that there is no such code
    database = one.value("select current_database()")
    with psycopg.connect(single.conninfo(database), autocommit=True) as owner:
        sleeping = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
        with pytest.raises(httpx.ReadTimeout):
            one.client.post("/v1/query", json={"sql": stubborn}, timeout=0.5)
        eventually(lambda: count(owner, sleeping) == 1)
        reader.value("select 1")  # asks for code before there is any
        eventually(lambda: count(owner, "select count(*) from pg_proc where proname = 'leave'") == 1)
        reader.value("select scratch.leave()")
        assert reader.value("select current_setting('app.left', true)") is None


@pytest.mark.parametrize("route", ["query", "transaction", "stream"])
def test_what_a_rollback_has_removed_is_not_remembered(one: Sql, route: str) -> None:
    """PL/pgSQL remembers the types of variables for as long as the connection lives, also when they are gone."""
    one("create type scratch.mood as enum ('a')")
    one("create function scratch.f() returns text language plpgsql as"
        " $$ declare m scratch.mood := 'a'; begin return m; end $$")  # fmt: skip
    one("drop type scratch.mood")
    made = "create type scratch.mood as enum ('a')"
    failed = one.client.post("/v1/transaction", json={"statements": [made, "select scratch.f()", "select 1/0"]})
    assert failed.json()["error"]["sqlstate"] == "22012", failed.text
    if route == "transaction":
        again = one.client.post("/v1/transaction", json={"statements": [made, "select scratch.f() as a"]}).json()
        assert again["success"], again
    else:
        one(made)
        if route == "stream":
            one.client.post("/v1/query", json={"sql": "/*+ STREAM */ select scratch.f() as a"})
        assert one.value("select scratch.f() as a") == "a"


def count(engine: "psycopg.Connection[tuple[Any, ...]]", query: str) -> int:
    row = engine.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_a_client_that_leaves_while_it_waits_takes_nothing_away(single: Service, one: Sql) -> None:
    """Requests that wait for the one connection and go away do not cost it."""
    address = urlsplit(single.url)
    assert address.hostname is not None
    body = b"select pg_sleep(0.3)"
    request = (
        f"POST /query HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {single.key}\r\n"
        f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with contextlib.ExitStack() as open_sockets:
        for _ in range(20):
            client = open_sockets.enter_context(socket.create_connection((address.hostname, address.port or 80)))
            client.sendall(request)
    assert one.value("select 42") == 42


SETTINGS = {"default_transaction_isolation": "read committed", "TimeZone": "Asia/Tokyo", "synchronous_commit": "off"}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("through", ["pg_settings", "pg_catalog.pg_settings", "scratch.own"])
def test_a_setting_in_disguise_is_undone(one: Sql, name: str, through: str) -> None:
    """An UPDATE of pg_settings is a SET. Where it is allowed at all, nobody else meets it."""
    one("create view scratch.own as select * from pg_settings")
    before = one.value(f"select current_setting('{name}')")
    for number in range(5):
        one.answer(f"update {through} set setting = '{SETTINGS[name]}' where name = '{name}'")
        assert one.value("select $1::int", [number]) == number
        assert one.value(f"select current_setting('{name}')") == before
