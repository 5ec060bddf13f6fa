"""No tenant gets out of its database: to files, programs, the network, other roles, or the engine's own parts."""

import threading
from collections.abc import Iterator

import pytest

from tests.tenants import Tenant, as_owner, server_of, undisturbed

DENIED, READ_ONLY, UNSUPPORTED = "42501", "25006", "0A000"
NOT_THERE = {"42704", "3D000", "22023"}
"""How the engine says that it knows no such role, database or value of a setting."""


@pytest.fixture(autouse=True, scope="module")
def others_go_on(two: Tenant) -> Iterator[None]:
    """Tenant two works while all of this is tried."""
    with undisturbed(two):
        yield


@pytest.fixture(scope="module")
def names(one: Tenant, two: Tenant) -> dict[str, str]:
    """What statements say instead of names that nobody knows before."""
    with as_owner(one.service) as engine:
        owner = engine.info.user
    own, other = (tenant.write.value("select current_database()") for tenant in (one, two))
    return {"{own}": own, "{other}": other, "{owner}": owner}


def fill_in(statement: str, names: dict[str, str]) -> str:
    for place, name in names.items():
        statement = statement.replace(place, name)
    return statement


FILES_AND_PROGRAMS = {
    "copy (select 1) to program 'id'": DENIED,
    "copy pg_class from program 'id'": DENIED,
    "copy pg_class from '/etc/passwd'": DENIED,
    "copy (select 1) to '/tmp/escaped'": DENIED,
    "select pg_read_file('/etc/passwd')": DENIED,
    "select pg_read_binary_file('PG_VERSION')": DENIED,
    "select pg_ls_dir('/')": DENIED,
    "select pg_ls_waldir()": DENIED,
    "select pg_ls_tmpdir()": DENIED,
    "select pg_stat_file('PG_VERSION')": DENIED,
    "select lo_import('/etc/passwd')": DENIED,
    "select lo_export(1, '/tmp/escaped')": DENIED,
    "load 'auto_explain'": DENIED,
    "load '$libdir/dblink'": DENIED,
    "create function f() returns int language c as 'libc', 'getpid'": DENIED,
    "create function f() returns int language internal as 'pg_terminate_backend'": DENIED,
    "create language evil handler plpgsql_call_handler": DENIED,
    "create tablespace elsewhere location '/tmp'": DENIED,
    "create text search dictionary d (template = ispell, dictfile = '/etc/passwd')": "22023",
    "create text search dictionary d (template = synonym, synonyms = '../../../etc/passwd')": "22023",
    "do $$ begin copy (select 1) to program 'id'; end $$": DENIED,
    "do $$ begin execute 'copy (select 1) to ''/tmp/escaped'''; end $$": DENIED,
    "select query_to_xml('select pg_read_file(''/etc/passwd'')', true, true, '')": DENIED,
}

NETWORK = {
    "create foreign data wrapper w": DENIED,
    "create server s foreign data wrapper postgresql": "42704",
    "create subscription s connection 'host=example.org' publication p": DENIED,
    "select pg_create_physical_replication_slot('s')": DENIED,
    "select pg_create_logical_replication_slot('s', 'pgoutput')": DENIED,
    "select pg_replication_origin_create('s')": DENIED,
    "select pg_logical_emit_message(false, 'a', 'b')": DENIED,
    "create publication p for all tables": DENIED,
}

ENGINE = {
    "alter system set work_mem = '1GB'": DENIED,
    "alter system reset all": DENIED,
    "create database d": DENIED,
    "create role r": DENIED,
    "create role r superuser": DENIED,
    "alter role current_user superuser": DENIED,
    "alter role current_user createdb": DENIED,
    "alter role current_user createrole": DENIED,
    "alter role current_user bypassrls": DENIED,
    "alter role current_user replication": DENIED,
    "alter role current_user connection limit 0": DENIED,
    "alter role current_user valid until 'yesterday'": DENIED,
    "grant pg_read_all_data to current_user": DENIED,
    "grant pg_monitor to current_user": DENIED,
    "grant pg_signal_backend to current_user": DENIED,
    "grant pg_execute_server_program to current_user": DENIED,
    "grant {owner} to current_user": DENIED,
    "grant execute on function pg_terminate_backend(int, bigint) to current_user": DENIED,
    "grant set on parameter log_statement to current_user": DENIED,
    "create event trigger e on ddl_command_start execute function now()": DENIED,
    "create access method m type index handler bthandler": DENIED,
    "create operator class c for type int using btree as storage int": DENIED,
    "create type t": DENIED,
    "create cast (text as int) with function length(text)": DENIED,
    "create transform for int language sql (from sql with function now())": DENIED,
    "create table pg_catalog.t (a int)": DENIED,
    "create function pg_catalog.now(text) returns int language sql as 'select 1'": DENIED,
    "create operator pg_catalog.=== (leftarg = int, rightarg = int, function = int4eq)": DENIED,
    "create schema pg_evil": "42939",
    "create table information_schema.t (a int)": DENIED,
    "create table tuplegate.t (a int)": DENIED,
    "create function tuplegate.begin(text) returns int language sql as 'select 1'": DENIED,
    "create trigger t before insert on tuplegate.begun execute function now()": DENIED,
    "alter schema tuplegate rename to mine": DENIED,
    "drop schema tuplegate cascade": DENIED,
    "drop schema public cascade": DENIED,
    "update pg_class set relname = relname": DENIED,
    "update pg_proc set proacl = null": DENIED,
    "delete from pg_authid": DENIED,
    "insert into pg_auth_members select * from pg_auth_members": DENIED,
    "alter function now() owner to current_user": DENIED,
    "alter extension plpgsql set schema public": DENIED,
    "drop extension plpgsql": DENIED,
    "checkpoint": DENIED,
    "select pg_reload_conf()": DENIED,
    "select pg_rotate_logfile()": DENIED,
    "select pg_switch_wal()": DENIED,
    "select pg_create_restore_point('x')": DENIED,
    "select pg_backup_start('x')": DENIED,
    "select pg_stat_reset()": DENIED,
    "select pg_stat_reset_shared('io')": DENIED,
    "select pg_log_backend_memory_contexts(1)": DENIED,
    "select pg_import_system_collations('public')": DENIED,
    "select pg_export_snapshot()": DENIED,
    "alter database {own} set work_mem = '1GB'": DENIED,
    "alter database {own} rename to mine": DENIED,
    "alter database {own} connection limit 0": DENIED,
    "comment on database {own} is 'mine'": DENIED,
    "reindex system {own}": DENIED,
    "reindex database {own}": DENIED,
}

OTHERS = {
    "drop database {other}": DENIED,
    "drop database {other} with (force)": DENIED,
    "alter database {other} set statement_timeout = 1": DENIED,
    "alter database {other} connection limit 0": DENIED,
    "create database copied template {other}": DENIED,
    "set role {other}_w": DENIED,
    "set local role {other}_w": DENIED,
    "set session authorization {other}_w": DENIED,
    "set session authorization {owner}": DENIED,
    "select set_config('role', '{other}_w', false)": DENIED,
    "select set_config('session_authorization', '{other}_w', false)": DENIED,
    "do $$ begin execute 'reset role'; execute 'set role {other}_w'; end $$": DENIED,
    "alter role {other}_w set statement_timeout = 1": DENIED,
    "alter role {other}_w in database {other} set statement_timeout = 1": DENIED,
    "alter role all set statement_timeout = 1": DENIED,
    "alter role {other}_w password 'x'": DENIED,
    "alter role {other}_w nologin": DENIED,
    "drop role {other}_w": DENIED,
    "drop owned by {other}_w": DENIED,
    "reassign owned by {other}_w to current_user": DENIED,
    "grant {other}_w to current_user": DENIED,
    "comment on role {other}_w is 'mine'": DENIED,
    "alter default privileges for role {other}_w grant all on tables to current_user": DENIED,
    "create schema authorization {other}_w": DENIED,
    "select * from {other}.public.kept": UNSUPPORTED,
}

# What needs no right to write, so that the engine's refusal is the same for a key that reads.
_SAME = (
    "copy",
    "select",
    "load",
    "set",
    "do $$ begin copy",
    "do $$ begin execute",
    "alter system",
    "checkpoint",
    "rei",
)


@pytest.mark.parametrize("scope", ["write", "read"])
def test_xml_reads_no_file(one: Tenant, scope: str) -> None:
    """An engine that knows XML leaves a reference to a file as it is; the others refuse all of it."""
    text = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>'
    for statement in (
        f"select xmlparse(document '{text}')::text as x",
        f"select (xpath('/x/text()', xmlparse(document '{text}')))::text as x",
    ):
        body = one.sql(scope).answer(statement).json()
        assert "root:" not in str(body)
        assert body["success"] or body["error"]["sqlstate"] in (UNSUPPORTED, "2200M", "2200N"), body


@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize(("statement", "sqlstate"), [*FILES_AND_PROGRAMS.items(), *NETWORK.items(), *ENGINE.items()])
def test_the_way_out_is_closed(one: Tenant, names: dict[str, str], scope: str, statement: str, sqlstate: str) -> None:
    """To whoever writes; whoever only reads is refused for the same reason, or for writing."""
    error = one.sql(scope).fails(fill_in(statement, names))
    wanted = {sqlstate} if scope == "write" or statement.startswith(_SAME) else {sqlstate, READ_ONLY}
    assert error["sqlstate"] in wanted, error


@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize(("statement", "sqlstate"), OTHERS.items())
def test_other_tenants_are_out_of_reach(
    one: Tenant, names: dict[str, str], scope: str, statement: str, sqlstate: str
) -> None:
    """They are not there at all in a cell; on a server that several share they are refused."""
    error = one.sql(scope).fails(fill_in(statement, names))
    wanted = {sqlstate} if scope == "write" or statement.startswith(_SAME) else {sqlstate, READ_ONLY}
    if not one.service.engine:
        wanted |= NOT_THERE
    assert error["sqlstate"] in wanted, error


@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize("kind", ["advisory_lock", "try_advisory_lock", "advisory_xact_lock", "try_advisory_xact_lock"])
@pytest.mark.parametrize("shared", ["", "_shared"])
@pytest.mark.parametrize("key", ["1", "1, 2"])
def test_advisory_locks_work(one: Tenant, scope: str, kind: str, shared: str, key: str) -> None:
    """They are there while the request runs, and gone after it."""
    held = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    [taken, seen] = (
        one.sql(scope)
        .client.post(
            "/v1/transaction",
            json={"statements": [f"select pg_{kind}{shared}({key}) as taken", held], "read_only": True},
        )
        .json()["results"]
    )
    assert taken["rows"] == [{"taken": True if kind.startswith("try") else ""}]
    assert seen["rows"] == [{"count": 1}]
    one.sql(scope)(f"select pg_{kind}{shared}({key})")
    left = "select count(*) from pg_locks where locktype = 'advisory'"
    while one.sql(scope).value(left):  # what cleans the connection may still be under way
        pass


def test_advisory_locks_are_those_of_one_database(one: Tenant, two: Tenant) -> None:
    """Two who want the same wait for each other; a tenant's are not in the way of anybody else's."""
    with two.service.client(two.admin) as client:
        held = threading.Thread(
            target=lambda: client.post(
                "/v1/transaction", json={"statements": ["select pg_advisory_xact_lock(7)", "select pg_sleep(60)"]}
            )
        )
        held.start()
        while two.write.value("select pg_try_advisory_lock(7)"):
            pass
        assert one.write.value("select pg_try_advisory_lock(7)") is True
        with server_of(two) as engine:
            engine.execute("select pg_cancel_backend(pid) from pg_stat_activity where query = 'select pg_sleep(60)'")
        held.join()


@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize(
    "statement",
    [
        "prepare transaction 'mine'",
        "/* */ ; PREPARE\n/**/TRANSACTION 'mine'",
        "commit prepared 'mine'",
        "rollback prepared 'mine'",
        "do $$ begin execute 'prepare transaction ''mine'''; end $$",
        "do $$ begin execute 'commit prepared ''mine'''; end $$",
    ],
)
def test_prepared_transactions_are_the_services_own(one: Tenant, scope: str, statement: str) -> None:
    """The engine has room for a fixed number of them, and one that is left behind holds its locks for ever."""
    answer = one.sql(scope).answer(statement)
    assert answer.json()["error"]["code"] in ("transaction_control", "sql_error")
    assert answer.json()["error"]["sqlstate"] in (None, UNSUPPORTED)
    answer = one.transaction("select 1", statement)
    assert answer.json()["success"] is False


def test_what_the_service_runs_cannot_be_shadowed(one: Tenant) -> None:
    """Functions, operators, casts and types in `public` that look like the engine's do not get into its statements."""
    one.write("drop schema if exists trap cascade")
    one.write("create schema trap")
    one.write("create table trap.caught (who text)")
    spring = "insert into trap.caught values (current_user)"
    for name, arguments, returns in (
        ("setseed", "double precision", "void"),
        ("sha256", "bytea", "bytea"),
        ("encode", "bytea, text", "text"),
        ("clock_timestamp", "", "timestamptz"),
        ("pg_database_size", "name", "bigint"),
        ("pg_current_xact_id", "", "xid8"),
        ("pg_current_xact_id_if_assigned", "", "xid8"),
        ("set_config", "text, text, boolean", "text"),
    ):
        body = f"begin {spring}; return{'' if returns == 'void' else ' null'}; end"
        one.write(f"create function public.{name}({arguments}) returns {returns} language plpgsql as $$ {body} $$")
    body = f"begin {spring}; return false; end"
    one.write(f"create function trap.differ(text, text) returns boolean language plpgsql as $$ {body} $$")
    one.write("create operator public.= (leftarg = text, rightarg = text, function = trap.differ)")
    try:
        path = "set search_path = public, trap, pg_catalog"
        done = one.transaction(path, "select 1 as a, now() as b", "create table trap.t (a int)", "drop table trap.t")
        assert done.json()["success"], done.text
        with one.service.client(one.admin) as client:
            headers = {"Idempotency-Key": "shadowed", "Tuplegate-Transaction-Id": "txn_shadowed00000000000000"}
            request = {"statements": [path, "create table trap.t (a int)"]}
            kept = client.post("/v1/transaction", json=request, headers=headers)
            assert kept.json()["success"], kept.text
            again = client.post("/v1/transaction", json=request, headers={"Idempotency-Key": "shadowed"})
            assert again.headers["Idempotency-Replayed"] == "true"
            state = client.get("/v1/transaction/txn_shadowed00000000000000").json()
            assert state["state"] == "committed"
        assert one.write.rows("select distinct who from trap.caught") == []
    finally:
        one.write("drop operator public.= (text, text)")
        for name in ("setseed", "sha256", "encode", "clock_timestamp", "pg_database_size", "set_config"):
            one.write(f"drop function public.{name}")
        one.write("drop function public.pg_current_xact_id, public.pg_current_xact_id_if_assigned")
        one.write("drop schema trap cascade")
