"""Copies of databases: everything of the source is there and works, nothing speaks of the source, which goes on."""

import threading
import time
from typing import Any

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.control import Control, Organization, at_once, disagreements, engine, engine_name, error_of, sleeping
from tests.needs import needs
from tests.service import Service, Sql
from tests.tenants import PAUSE_S
from tests.waiting import eventually

pytestmark = needs("postgresql")
"""Elsewhere copies are refused: see `test_lacking.py`."""

SOURCE = "clone-source"
COPY = "clone-copy"

CONTENT = [
    "create schema app",
    "create type app.mood as enum ('sad', 'ok', 'happy')",
    "create type app.pair as (a int, b text)",
    "create domain app.positive as int check (value > 0)",
    "create sequence app.numbers start 100",
    "create table app.people (id int generated always as identity primary key, name text not null unique,"
    " mood app.mood default 'ok', tags text[], extra app.pair, score app.positive, changes int not null default 0)",
    "insert into app.people (name, mood, tags, extra, score) values"
    " ('ann', 'happy', '{a,b}', (1, 'x'), 5), ('bob', 'sad', '{}', null, 7)",
    "create index on app.people (mood)",
    "create view app.happy as select name from app.people where mood = 'happy'",
    "create materialized view app.counts as select mood, count(*) from app.people group by mood",
    "create function app.bump() returns trigger language plpgsql as"
    " $$ begin new.changes := old.changes + 1; return new; end $$",
    "create trigger bump before update on app.people for each row execute function app.bump()",
    "create function app.twice(x int) returns int language sql security definer as 'select x * 2'",
    "create table app.own (owner text, x int)",
    "insert into app.own values ('me', 1), ('you', 2)",
    "alter table app.own enable row level security",
    "create table hidden (x int)",
    "insert into hidden values (1)",
    "create table columns (open int, shut int)",
    "insert into columns values (1, 2)",
    "create table partly (x int) partition by range (x)",
    "create table partly_1 partition of partly for values from (0) to (10)",
    "create extension pg_trgm",
    "create publication everything for table app.people",
    "create statistics app.some on name, mood from app.people",
    "select nextval('app.numbers')",
    "do $$ declare o oid; begin o := lo_from_bytea(4711, '\\x68656c6c6f'); end $$",
]
"""Made as the tenant. The rights to the reading role come after, by its name in the engine."""


def roles(service: Service, id: str) -> tuple[str, str]:
    name = engine_name(service, id)
    return f"{name}_w", f"{name}_r"


def fill(sql: Sql, reader: str, writer: str) -> None:
    for statement in [
        *CONTENT,
        f"create policy mine on app.own to {reader} using (owner = 'me')",
        f"create policy all_mine on app.own to {writer} using (true)",
        f"revoke select on hidden from {reader}",
        f"revoke select on columns from {reader}",
        f"grant select (open) on columns to {reader}",
        "revoke execute on function app.twice(int) from public",
        f"grant execute on function app.twice(int) to {reader}",
        f"grant select on large object 4711 to {reader}",
        f"grant usage on type app.mood to {reader}",
        f"alter default privileges in schema app grant update on tables to {reader}",
        f"alter default privileges revoke select on sequences from {reader}",
    ]:
        sql(statement)


@pytest.fixture(scope="module")
def source(organization: Organization, service: Service) -> dict[str, Any]:
    """A database with something of every kind, and its copy; the record of both."""
    control = organization.control
    made = control.post("/v1/databases", {"name": SOURCE})
    writer, reader = roles(service, made["id"])
    fill(control.sql(database=SOURCE), reader, writer)
    headers = {"Idempotency-Key": "of-the-source", "Tuplegate-Database": SOURCE}
    with service.client(control.token) as client:
        client.post("/v1/query", json={"sql": "select 1"}, headers=headers).raise_for_status()
        client.post(
            "/v1/transaction",
            json={"statements": ["insert into hidden values (2)"]},
            headers={"Tuplegate-Transaction-Id": "txn_of_the_source", "Tuplegate-Database": SOURCE},
        ).raise_for_status()
    copy = control.post("/v1/databases", {"name": COPY, "clone_of": SOURCE})
    assert (copy["name"], copy["state"], copy["default"]) == (COPY, "active", False)
    return {"source": made, "copy": copy}


@pytest.fixture
def sql(source: Any, control: Control) -> Sql:
    return control.sql(database=COPY)


@pytest.fixture
def reader(source: Any, control: Control) -> Sql:
    return control.sql(control.post("/v1/keys", {"name": "r", "scopes": ["read"], "database": COPY})["key"])


def test_a_copy_has_the_data_and_all_that_it_is_made_of(sql: Sql) -> None:
    """Types, enums, domains, generated numbers, views, triggers, functions, indexes, large objects, extensions."""
    assert sql.rows("select id, name, mood, tags, extra, score from app.people order by id") == [
        {"id": 1, "name": "ann", "mood": "happy", "tags": ["a", "b"], "extra": "(1,x)", "score": 5},
        {"id": 2, "name": "bob", "mood": "sad", "tags": [], "extra": None, "score": 7},
    ]
    assert sql.value("select name from app.happy") == "ann"
    assert sql.value("select count(*) from app.counts") == 2
    assert sql.value("select app.twice(21)") == 42
    assert sql.value("select convert_from(lo_get(4711), 'UTF8')") == "hello"
    assert sql.value("select similarity('abc', 'abc')") == 1
    assert sql.value("select nextval('app.numbers')") == 101
    assert sql.value("select count(*) from pg_publication") == 1


def test_the_copys_own_writing_role_owns_what_is_in_it(sql: Sql) -> None:
    """It changes, alters and drops all of it."""
    assert sql.rows("update app.people set name = 'anna' where id = 1 returning changes") == [{"changes": 1}]
    assert sql.fails("insert into app.people (name, score) values ('x', -1)")["sqlstate"] == "23514"
    assert sql.rows("insert into app.people (name) values ('cy') returning mood") == [{"mood": "ok"}]
    for statement in (
        "alter table app.people add column more int",
        "alter type app.mood add value 'great'",
        "refresh materialized view app.counts",
        "insert into partly values (5)",
        "create or replace function app.twice(x int) returns int language sql as 'select x * 2'",
        "drop trigger bump on app.people",
        "drop view app.happy",
        "drop publication everything",
        "drop extension pg_trgm",
        "select lo_put(4711, 0, '\\x48')",
        "create table public.made_later (x int)",
        "create schema another",
    ):
        sql(statement)
    assert sql.value("select count(*) from pg_class where pg_get_userbyid(relowner) <> current_user and oid > 16384"
                     " and relnamespace not in (select oid from pg_namespace where nspname in"
                     " ('tuplegate', 'pg_toast'))") == 0  # fmt: skip


def test_the_copys_own_reading_role_sees_what_the_sources_did(reader: Sql, sql: Sql) -> None:
    """Grants, revokes, rights to columns, policies and default rights; it writes nothing."""
    assert reader.value("select count(*) from app.people") >= 2
    assert reader.rows("select owner from app.own") == [{"owner": "me"}]
    assert reader.fails("select * from hidden")["sqlstate"] == "42501"
    assert reader.value("select open from columns") == 1
    assert reader.fails("select shut from columns")["sqlstate"] == "42501"
    assert reader.value("select app.twice(2)") == 4
    assert reader.value("select length(lo_get(4711))") == 5
    assert reader.fails("update app.people set name = 'x'")["sqlstate"] in ("25006", "42501")
    assert reader.fails("create table mine (x int)")["sqlstate"] in ("25006", "42501")
    sql("create table app.later as select 1 as x")
    assert reader.value("select x from app.later") == 1
    granted = "select has_table_privilege('app.later', 'update'), has_sequence_privilege('app.tomorrow', 'select')"
    sql("create sequence app.tomorrow")
    assert reader.rows(granted, row_mode="arrays") == [[True, False]], "what the source's tenant has set holds"


def places(connection: psycopg.Connection[TupleRow], role: str) -> int:
    """How often the catalog of this database speaks of a role: as a number, in rights, or as what something needs. One
    that is not on its server at all has no number."""

    def number(sql: str, *params: object) -> int:
        [row] = connection.execute(sql.encode(), params).fetchall()
        return int(row[0])

    [(oid,)] = connection.execute("select to_regrole(%s)::oid", [role]).fetchall()
    references = connection.execute(
        "select fktable::text, fkcols[1], is_array"
        " from pg_get_catalog_foreign_keys() join pg_class c on c.oid = fktable"
        " where pktable = 'pg_authid'::regclass and not relisshared"
    ).fetchall()
    rights = connection.execute(
        "select attrelid::regclass::text, attname from pg_attribute a join pg_class c on c.oid = attrelid"
        " where atttypid = 'aclitem[]'::regtype and relkind = 'r' and relnamespace = 'pg_catalog'::regnamespace"
    ).fetchall()
    assert ("pg_class", "relowner", False) in references
    assert ("pg_class", "relacl") in rights
    found = 0
    for table, column, is_array in references if oid is not None else ():
        condition = f"%s::oid = any ({column})" if is_array else f"{column} = %s"
        found += number(f"select count(*) from {table} where {condition}", oid)
    for table, column in rights:
        shared = " and datname = current_database()" if table == "pg_database" else ""
        found += number(f"select count(*) from {table} where {column}::text like %s{shared}", f"%{role}%")
    return found + number(
        "select count(*) from pg_shdepend where refobjid = %s"
        " and dbid = (select oid from pg_database where datname = current_database())",
        oid,
    )


def test_nothing_in_a_copy_names_the_sources_roles(source: Any, service: Service) -> None:
    """Wherever the engine's own catalog can name a role."""
    with engine(service, engine_name(service, source["copy"]["id"])) as connection:
        formers = [places(connection, role) for role in roles(service, source["source"]["id"])]
        laters = [places(connection, role) for role in roles(service, source["copy"]["id"])]
    assert formers == [0, 0]
    assert min(laters) > 5, "the search finds what is there"


def test_a_copy_has_no_record_of_the_sources_requests(source: Any, service: Service, control: Control) -> None:
    """Its tables are empty, and an id or an Idempotency-Key that the source has seen is new to it."""
    with engine(service, engine_name(service, source["copy"]["id"])) as connection:
        for table in ("begun", "verdict", "answer"):
            assert connection.execute(f"select count(*) from tuplegate.{table}").fetchone() == (0,)
    with service.client(control.token) as client:
        client.headers["Tuplegate-Database"] = COPY
        error_of(client.get("/v1/transaction/txn_of_the_source"), 404, "not_found")
        answer = client.post("/v1/query", json={"sql": "select 2 as x"}, headers={"Idempotency-Key": "of-the-source"})
        assert answer.json()["rows"] == [{"x": 2}]
        answer = client.post(
            "/v1/transaction",
            json={"statements": ["insert into hidden values (3)"]},
            headers={"Tuplegate-Transaction-Id": "txn_of_the_copy"},
        )
        assert answer.json()["success"], answer.text
        assert client.get("/v1/transaction/txn_of_the_copy").json()["state"] == "committed"


def test_what_happens_to_one_does_not_show_in_the_other(source: Any, control: Control, sql: Sql) -> None:
    """Neither data nor structure."""
    original = control.sql(database=SOURCE)
    original("insert into app.people (name) values ('only in the source')")
    original("create table only_in_the_source (x int)")
    sql("create table only_in_the_copy (x int)")
    assert sql.value("select count(*) from app.people where name like 'only%'") == 0
    assert sql.fails("select * from only_in_the_source")["sqlstate"] == "42P01"
    assert original.fails("select * from only_in_the_copy")["sqlstate"] == "42P01"


def test_a_copy_has_the_vectors_of_its_source(source: Any, control: Control) -> None:
    """Where the engine has pgvector."""
    sql = control.sql()
    if sql.answer("create extension if not exists vector").json()["success"] is False:
        pytest.skip("tenants cannot make pgvector here")
    sql("create table if not exists points as select '[1,2]'::vector as p")
    control.post("/v1/databases", {"name": "vectors", "clone_of": "main"})
    assert control.sql(database="vectors").value("select p <-> '[1,2]' from points") == 0


def test_the_source_can_be_deleted(control: Control, service: Service) -> None:
    """Its roles too: the copy does not need them."""
    control.post("/v1/databases", {"name": "first-life"})
    control.sql(database="first-life")("create table t as select 1 as x")
    control.post("/v1/databases", {"name": "second-life", "clone_of": "first-life"})
    control.delete("/v1/databases/first-life")
    assert control.sql(database="second-life").value("select x from t") == 1
    assert disagreements(service).none


def test_a_source_under_load_is_copied_and_loses_nothing(control: Control) -> None:
    """Its clients wait for a moment; every write that was answered is there, and each copy has a prefix of
    them. The next copy begins while they come back."""
    copies = [f"busy-{number}" for number in range(4)]
    control.post("/v1/databases", {"name": "busy"})
    control.sql(database="busy")("create table writes (client int, n int, primary key (client, n))")
    stop = threading.Event()

    def write(client: int) -> int:
        sql = control.sql(database="busy")
        n = 0
        while not stop.is_set():
            assert sql("insert into writes values ($1, $2)", [client, n])["affected_rows"] == 1
            n += 1
        return n

    def copy() -> int:
        try:
            observer = control.sql(database="busy")
            eventually(lambda: observer.value("select count(distinct client) from writes") == 4, 30)
            for name in copies:
                control.post("/v1/databases", {"name": name, "clone_of": "busy"})
            seen = observer.value("select count(*) from writes")
            eventually(lambda: observer.value("select count(*) from writes") > seen, 30)
        finally:
            stop.set()
        return 0

    written = at_once([*(lambda client=client: write(client) for client in range(4)), copy])[:4]
    counts = "select client, count(*), max(n) + 1 from writes group by client order by client"
    final = control.sql(database="busy").rows(counts, row_mode="arrays")
    assert final == [[client, n, n] for client, n in enumerate(written)]
    for name in copies:
        for client, here, last in control.sql(database=name).rows(counts, row_mode="arrays"):
            assert 0 < here == last <= written[client]


def test_a_source_that_is_not_let_go_of_is_not_copied(control: Control, service: Service) -> None:
    """The request is told so, the name is free again, and others who use the source only wait."""
    id = control.post("/v1/databases", {"name": "held"})["id"]
    holder, other_client = (control.sql(database="held") for _ in range(2))
    holder("create sequence refused")  # whoever runs already sees its next value

    def copy() -> str:
        eventually(lambda: sleeping(service, id))
        control.refused(503, "busy", "POST", "/v1/databases", {"name": "held-copy", "clone_of": "held"})
        other_client("select nextval('refused')")
        return "refused"

    def use() -> str:
        eventually(lambda: not holding or sleeping(service, id))
        while holding:
            assert other_client.value("select 1") == 1
            time.sleep(PAUSE_S)
        return "used"

    holding = [True]

    def hold() -> str:
        until_refused = "loop exit when (select is_called from refused); perform pg_sleep(0.1); end loop"
        try:
            assert holder(f"do $$ begin {until_refused}; end $$")["success"]
        finally:
            holding.clear()
        return "held"

    assert at_once([hold, copy, use]) == ["held", "refused", "used"]
    control.refused(404, "not_found", "GET", "/v1/databases/held-copy")
    assert disagreements(service).none
    control.post("/v1/databases", {"name": "held-copy", "clone_of": "held"})


def test_what_a_reset_has_left_behind_does_not_touch_the_tenants_rights(control: Control, service: Service) -> None:
    """The database in place is only opened again; a right that its tenant took away stays away."""
    made = control.post("/v1/databases", {"name": "interrupted"})
    writer, reader = roles(service, made["id"])
    sql = control.sql(database="interrupted")
    sql(f"alter default privileges revoke select on tables from {reader}")
    name = engine_name(service, made["id"])
    with psycopg.connect(service.server_of(name)) as server:
        server.execute(f"revoke connect on database {name} from {writer}, {reader}".encode())
    with engine(service) as connection:
        connection.execute("insert into leftover values (%s, %s)", [name, made["id"]])

        def cleared() -> bool:
            return connection.execute("select from leftover where engine_name = %s", [name]).fetchone() is None

        eventually(cleared)
    sql("create table later (x int)")
    key = control.post("/v1/keys", {"name": "r", "scopes": ["read"], "database": "interrupted"})["key"]
    assert control.sql(key).fails("select * from later")["sqlstate"] == "42501"
