"""No name in the SQL that the service sends into a tenant's database can mean something that the tenant has defined.

All of it is read: what the service sends is taken from the engine's own log while every kind of request is made, and
what it has stored is taken from the engine's catalog.
"""

import re
from collections.abc import Iterator

import psycopg
import pytest

from tests.service import Service, needs_bundled, new_data_dir, remove, start_service
from tests.tenants import Tenant, as_owner, server_of, tenant_of
from tests.waiting import eventually

pytestmark = needs_bundled

MARK = "/* of the tenant */"
OWN_SCHEMA = re.compile(r"(pg_catalog|tuplegate|pg_temp|tuplegate_scratch_[0-9a-f]{32})\.")
LITERAL = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$\$.*?\$\$", re.DOTALL)
QUALIFIED_OPERATOR = re.compile(r"OPERATOR\(pg_catalog\.[^)\s]+\)")
OPERATOR = re.compile(r"[-+/<>=~!@#%^&|`?]+|(?<!SELECT )(?<!\()\*")
CALL = re.compile(r"(?<![\w.])([a-z_][a-z_0-9]*)\s*\(", re.IGNORECASE)
CAST = re.compile(r"::\s*(?!pg_catalog\.)\w+")
RELATION = re.compile(r"\b(?:FROM|JOIN|INTO|TABLE|UPDATE)\s+([a-z_][\w.]*)", re.IGNORECASE)
KEYWORDS = {"any", "in", "exists", "values", "operator", "as", "from", "and", "or", "not", "select", "where", "on"}
# Statements of the engine that name settings, cursors, transactions or schemas, and nothing that could be looked up.
UTILITY = re.compile(
    r"(BEGIN|COMMIT|ROLLBACK|DISCARD|SET|RESET|DEALLOCATE|FETCH|PREPARE TRANSACTION|COMMIT PREPARED|SELECT 1$"
    r"|DO \$\$BEGIN END\$\$$|DECLARE tuplegate)"
)


def unsound(sql: str) -> list[str]:
    """Everything in a statement that is looked up by a search path."""
    if UTILITY.match(sql):
        return []
    bare = QUALIFIED_OPERATOR.sub(" ", LITERAL.sub(" ", sql))
    found = [f"operator {match.group()}" for match in OPERATOR.finditer(bare.replace("::", ""))]
    found += [f"function {name}" for name in CALL.findall(bare) if name.lower() not in KEYWORDS]
    found += [f"cast {match.group()}" for match in CAST.finditer(bare)]
    names = (name for name in RELATION.findall(bare) if "(" not in name)
    return found + [f"relation {name}" for name in names if not OWN_SCHEMA.match(name)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 WHERE 1 = 1",
        "SELECT max(a) FROM pg_catalog.pg_class",
        "SELECT pg_catalog.max(a) FROM pg_class",
        "SELECT $1::int",
        "SELECT oid FROM pg_catalog.pg_proc WHERE oid >= 16384",
        "SELECT a || b FROM tuplegate.x",
        "INSERT INTO t VALUES (1)",
    ],
)
def test_the_reader_finds_what_is_not_qualified(sql: str) -> None:
    assert unsound(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM tuplegate.look($1, $2)",
        "SELECT pg_catalog.set_config('a', 'b = c', true)",
        "SELECT 1 OPERATOR(pg_catalog./) (pg_catalog.clock_timestamp())::pg_catalog.int4",
        "SET TimeZone = 'UTC'",
    ],
)
def test_the_reader_lets_pass_what_is_qualified(sql: str) -> None:
    assert unsound(sql) == []


@pytest.fixture(scope="module")
def logged() -> Iterator[Service]:
    """A service with a small tier."""
    data_dir = new_data_dir()
    running = start_service(data_dir, "--tiers", "free=200, pro=6000, unlimited, small=/12MB")
    yield running
    assert running.stop() == 0
    remove(data_dir)


def log_statements(tenant: Tenant) -> None:
    """Let the server of the tenant's database write down all statements of new connections, and end those that are."""
    database = tenant.database
    with server_of(tenant) as engine:
        engine.execute("alter system set log_line_prefix = '\x01%a@%d\x02'")
        engine.execute("alter system set log_statement = 'all'")
        engine.execute(f"alter database {database} set log_min_messages = 'log'".encode())
        engine.execute("select pg_reload_conf()")
        eventually(lambda: tenant.write.value("show log_statement") == "all")
        engine.execute(
            # It waits until they are gone: one that is about to be would lose the next request.
            "select pg_terminate_backend(pid, 30000) from pg_stat_activity"
            " where datname = %s and usename <> current_user",
            [database],
        )


def statements(service: Service, database: str, application: str = "tuplegate") -> list[str]:
    """What was sent to the database, by the applications of that name."""
    entries = (service.data_dir / "cells" / database / "server.log").read_text().split("\x01")[1:]
    found = []
    for entry in entries:
        who, _, said = entry.partition("\x02")
        match = re.match(r"LOG: +(?:execute|statement)(?: <unnamed>| \w+)?: (.*)", said, re.DOTALL)
        if who == f"{application}@{database}" and match:
            found.append(re.split(r"\nDETAIL: ", match[1].replace("\n\t", "\n"))[0].strip())
    return found


def test_nothing_that_the_service_sends_is_looked_up_by_a_search_path(logged: Service) -> None:
    with tenant_of(logged, "read-whole") as tenant:
        database = tenant.database
        log_statements(tenant)
        sent: set[str] = set()
        for ask in (ask_everything, look, measure, fill):  # the log is emptied whenever it is at its bound
            ask(tenant)
            sent.update(sql for sql in statements(logged, database) if MARK not in sql)
    assert len(sent) > 25, sent
    assert any("tuplegate.decide" in sql for sql in sent)
    assert any("tuplegate.takes_room" in sql for sql in sent)
    assert {sql: found for sql in sorted(sent) if (found := unsound(sql))} == {}


def ask_everything(tenant: Tenant) -> None:
    """Every kind of request of a writer and a reader, so that every statement of the service's own is sent."""
    write, read = tenant.write, tenant.read
    write(f"create table t (id int primary key, at timestamptz, j jsonb, e int[]) {MARK}")
    write(f"create type mood as enum ('good') {MARK}")
    write(f"create domain deep as mood {MARK}")
    for _ in range(5):
        write(f"insert into t (id) values ($1) on conflict do nothing {MARK}", [1])
        write(f"select id from t where id = 1 {MARK}")
        read(f"select 'good'::deep as d, array['good'::mood] as m {MARK}")
    write(f"select $1::jsonb as a, $2::int[] as b {MARK}", [{"a": 1}, [1, 2]])
    write(f"select set_config('a.b', 'c', false) {MARK}")
    write(f"insert into t (id) values (2) returning set_config('DateStyle', 'German', true) {MARK}")
    write(f"do $$ begin perform 1; end $$ {MARK}")
    write(f"create function f() returns int language plpgsql as $$ begin execute 'select 1'; return 1; end $$ {MARK}")
    write(f"select f() {MARK}")
    write.fails(f"select 1 / 0 {MARK}")
    write.fails(f"select pg_sleep(9) {MARK}", timeout_ms=50)
    write(f"vacuum t {MARK}")
    write(f"alter role current_user set work_mem = '1MB' {MARK}")
    assert write.answer(f"copy (select 1) to stdout {MARK}").status_code == 400  # costs the connection
    client = write.client
    headers = {"Idempotency-Key": "one", "Tuplegate-Transaction-Id": "txn_own_sql_0000000001"}
    body = {"statements": [f"insert into t (id) values (3) {MARK}", f"set datestyle = 'German' {MARK}"]}
    for _ in range(2):
        assert client.post("/v1/transaction", json=body, headers=headers).json()["success"]
    temporary = {"statements": [f"create temp table x (a int) {MARK}", f"notify c {MARK}"]}
    assert client.post("/v1/transaction", json=temporary).json()["commit"] == "one_phase"
    assert client.post("/v1/transaction", json={"statements": [f"select 1 {MARK}"], "read_only": True}).is_success
    assert client.get("/v1/transaction/txn_own_sql_0000000001").json()["state"] == "committed"
    assert client.post("/v1/transaction/txn_own_sql_0000000002/abort").json()["state"] == "aborted"
    for sql in ("select generate_series(1, 1000)", "insert into t (id) values (4) returning id", "show work_mem"):
        asked = client.post("/v1/query", json={"sql": f"{sql} {MARK}"}, headers={"Accept": "application/x-ndjson"})
        assert '"event":"done"' in asked.text


def look(tenant: Tenant) -> None:
    with tenant.service.client(tenant.admin) as admin:
        assert admin.get("/tables").json()["success"]


def measure(tenant: Tenant) -> None:
    with tenant.service.client(tenant.admin) as admin:
        assert admin.get("/storage/test").json()["success"]


def fill(tenant: Tenant) -> None:
    """Until the database is full, so that it is asked how much room is left."""
    with as_owner(tenant.service) as engine:
        engine.execute("update organization set tier = 'small' where name = 'read-whole'")
        engine.execute("update revision set number = number + 1")
    tenant.write(f"create table big as select repeat(i::text, 100) as a from generate_series(1, 50000) i {MARK}")
    eventually(lambda: not tenant.write.answer(f"insert into big values ('x') {MARK}").json()["success"])
    assert not tenant.transaction(f"insert into big values ('x') {MARK}").json()["success"]


def test_nothing_that_the_service_stores_is_looked_up_when_it_runs(logged: Service) -> None:
    """Its functions are parsed when they are made. Those with more rights than their caller belong to a role that has
    next to none, and are run with a path of the engine's own names alone."""
    with as_owner(logged) as engine:
        [(database,)] = engine.execute("select engine_name from database order by created_at limit 1").fetchall()
    with psycopg.connect(logged.conninfo(database)) as tenant:
        tenant.execute("set search_path = pg_catalog")
        functions = tenant.execute(
            "select p.oid::regprocedure::text, l.lanname, p.prosqlbody is not null, p.prosecdef, p.proconfig,"
            " p.proowner::regrole::text"
            " from pg_proc p join pg_language l on l.oid = p.prolang"
            " where p.pronamespace = 'tuplegate'::regnamespace or p.proowner <> 10 or p.prosecdef"
        ).fetchall()
        assert len(functions) > 20
        for name, language, is_parsed, is_definer, settings, owner in functions:
            assert (language, is_parsed) == ("sql", True), name
            if is_definer:
                assert owner in ("tuplegate_records", "tuplegate_warden"), name
                assert settings == ["search_path=pg_catalog, pg_temp"], name
        owned = tenant.execute(
            "select distinct r.rolname, pg_describe_object(s.classid, s.objid, 0) from pg_shdepend s"
            " join pg_roles r on r.oid = s.refobjid and s.deptype = 'o' and s.dbid <> 0"
            " where r.rolname = 'tuplegate_records'"
        ).fetchall()
        assert {what.split()[0] for _, what in owned} == {"table", "function"}
        assert all("tuplegate." in what for _, what in owned), owned
