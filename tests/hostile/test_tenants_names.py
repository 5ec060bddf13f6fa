"""No tenant learns anything of another, and no key sees what other requests of its own database are doing."""

import re
import threading
from collections.abc import Iterator

import pytest

from tests.tenants import Tenant, as_owner, server_of, undisturbed

SECRET = "zebra-in-the-vault"
"""Stands in everything that tenant two has: names, values, comments, settings, the texts of its statements."""

NAME = SECRET.replace("-", "_")


@pytest.fixture(scope="module")
def busy(two: Tenant) -> Iterator[Tenant]:
    """Tenant two, with the secret wherever a tenant can put it, in a statement that is running all the while too."""
    two.write(f"create schema {NAME}")
    two.write(f"create table {NAME}.{NAME} (a text default '{SECRET}')")
    two.write(f"comment on table {NAME}.{NAME} is '{SECRET}'")
    two.write(f"insert into {NAME}.{NAME} values ('{SECRET}')")
    two.write(f"select lo_from_bytea(0, '{SECRET}')")
    role = two.write.value("select current_user")
    with server_of(two) as engine:
        # As ALTER ROLE of its own would; but that is undone when the next connection is opened, and this stays.
        engine.execute(f"alter role {role} set application_name = '{SECRET}'")
        running = threading.Thread(target=lambda: two.transaction("select pg_sleep(60)", f"select '{SECRET}'"))
        running.start()
        wait = "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)'"
        while engine.execute(wait).fetchone() == (0,):
            pass
        yield two
        engine.execute("select pg_cancel_backend(pid) from pg_stat_activity where query = 'select pg_sleep(60)'")
        running.join()
        engine.execute(f"alter role {role} reset all")
    two.write(f"drop schema {NAME} cascade")
    two.write("select lo_unlink(oid) from pg_largeobject_metadata")


@pytest.mark.parametrize("scope", ["write", "read"])
def test_no_catalog_shows_anything_of_another_tenant(one: Tenant, busy: Tenant, scope: str) -> None:
    """Every table and view of the system is read whole, as far as the engine lets it."""
    sql = one.sql(scope)
    places = sql.rows(
        "select format('%I.%I', n.nspname, c.relname) as name from pg_class c"
        " join pg_namespace n on n.oid = c.relnamespace where c.relkind in ('r', 'v')"
        " and n.nspname in ('pg_catalog', 'information_schema', 'tuplegate') order by 1"
    )
    read = 0
    for place in places:
        look = f"select bool_or(x::text ~ $1) as found from {place['name']} x"
        body = sql.answer(look, [f"{NAME}|{SECRET}"]).json()
        if body["success"]:
            read += 1
            assert not body["rows"][0]["found"], place
        else:
            assert body["error"]["sqlstate"] in ("42501", "55000"), (place, body)
    assert read > 100


@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize(
    "statement",
    [
        "select pg_stat_get_backend_idset()",
        "select pg_stat_get_backend_activity(1)",
        "select pg_stat_get_backend_dbid(1)",
        "select * from pg_stat_get_activity(null)",
        "select * from pg_stat_replication",
        "select * from pg_stat_get_progress_info('VACUUM')",
        "select * from pg_lock_status()",
        "select * from tuplegate.all_pg_stat_activity",
        "select * from tuplegate.all_pg_locks",
        "select * from pg_stat_wal",
        "select * from pg_stat_io",
        "select * from pg_stat_bgwriter",
        "select * from pg_stat_checkpointer",
        "select * from pg_stat_slru",
        "select * from pg_stat_archiver",
        "select pg_tablespace_size('pg_default')",
        "select pg_current_wal_lsn()",
        "select pg_current_wal_insert_lsn()",
        "select pg_notification_queue_usage()",
        "select tuplegate.is_genuine('begin/x', 'y')",
        "select * from pg_stat_ssl",
        "select pg_stat_get_db_xact_commit(oid) from pg_database",
        "select * from pg_prepared_xacts",
        "select pg_blocking_pids(1)",
        "select * from pg_replication_slots",
        "select * from pg_db_role_setting",
        "select * from pg_shdepend",
        "select * from pg_auth_members",
        "select * from pg_group",
        "select pg_stat_get_tuples_inserted('pg_authid'::regclass)",
        "select * from tuplegate.all_pg_stat_all_tables",
        "select rolconfig from pg_roles",
        "select useconfig from pg_user",
        "select rolpassword from pg_authid",
        "select passwd from pg_shadow",
        "select * from pg_user_mapping",
        "select * from pg_file_settings",
        "select * from pg_hba_file_rules",
        "select * from pg_config",
        "select * from pg_shmem_allocations",
        "select pg_control_system()",
        "select pg_database_size(oid) from pg_database where datname <> current_database()",
        "table tuplegate.secret",
        "table tuplegate.answer",
        "table tuplegate.verdict",
        "table tuplegate.begun",
    ],
)
def test_what_shows_others_is_refused(one: Tenant, busy: Tenant, scope: str, statement: str) -> None:
    assert one.sql(scope).fails(statement)["sqlstate"] == "42501"


@pytest.mark.parametrize("scope", ["write", "read"])
def test_how_much_others_use_shared_catalogs_is_not_shown(one: Tenant, two: Tenant, scope: str) -> None:
    """By no statistics of tables and indexes, under no name; those of one's own are there."""
    one.write("create table if not exists used (a int primary key)")
    sql = one.sql(scope)
    views = sql.rows(
        "select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'relid'"
        " where c.relname ~ '^pg_stat(io)?_(all|sys|user)_' and c.relnamespace = 'pg_catalog'::regnamespace"
    )
    assert len(views) >= 14
    for view in views:
        shared = f"select count(*) from {view['name']} v join pg_class c on c.oid = v.relid where c.relisshared"
        assert sql.value(shared) == 0, view
        is_own = "_sequences" not in view["name"] and "_sys_" not in view["name"]
        assert sql.value(f"select count(*) from {view['name']} where relname = 'used'") == int(is_own), view
    functions = sql.rows(
        "select proname as name from pg_proc where proname ~ '^pg_stat_get_'"
        " and proname !~ '^pg_stat_get_(xact|function)_' and proargtypes = '26'"
    )
    assert len(functions) > 20
    for function in functions:
        assert sql.fails(f"select {function['name']}('pg_database'::regclass)")["sqlstate"] == "42501", function


@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize("role", ["tg_another_d", "tg_another_c"])
def test_that_another_is_dumped_or_copied_is_not_shown(one: Tenant, scope: str, role: str) -> None:
    """Its database has a role for that while it lasts. No list has it, not even for a function that looks first."""
    one.write("create table if not exists seen (name text)")
    one.write(
        "create or replace function look(n name) returns boolean language plpgsql cost 0.0001"
        " as 'begin if n ~ ''_[dc]$'' then raise exception using message = n; end if; return true; end'"
    )
    with server_of(one) as engine:
        engine.execute(f"create role {role} login")
        try:
            for view, name in (("pg_roles", "rolname"), ("pg_user", "usename")):
                assert one.sql(scope).value(f"select count(*) from {view} where {name} = $1", [role]) == 0
                assert one.sql(scope).value(f"select count(*) from {view} where look({name})") > 0
        finally:
            engine.execute(f"drop role {role}")


@pytest.mark.parametrize("scope", ["write", "read"])
def test_databases_and_roles_of_others_are_ids_without_meaning(one: Tenant, busy: Tenant, scope: str) -> None:
    """In a cell there are none. On a server of one's own can be seen that there are others; not who they are. It has
    names that are not the service's, which it does not hide."""
    own = {f"tuplegate{what}" for what in ("", "_dump", "_records", "_service", "_template", "_warden")}
    own |= {"postgres", "template0", "template1"}
    sql = one.sql(scope)
    databases = {row["datname"] for row in sql.rows("select datname from pg_database")} - own
    roles = {row["rolname"] for row in sql.rows("select rolname from pg_roles where rolname not like 'pg\\_%'")} - own
    made = {one.database}
    if one.service.engine:
        with as_owner(one.service) as engine:
            made = {str(name) for (name,) in engine.execute("select engine_name from database")}
        assert len(made) >= 2
        assert made <= databases
        databases, roles = made, {name for name in roles if name.startswith("tg_")}
    assert databases == made
    assert {f"{name}_{kind}" for name in made for kind in "rw"} <= roles
    assert all(re.fullmatch("tg_[a-z0-9]{12}", name) for name in databases)
    assert all(re.fullmatch("tg_[a-z0-9]{12}_[rw]", name) for name in roles)
    assert one.service.engine or roles == {f"{one.database}_r", f"{one.database}_w"}


@pytest.mark.parametrize("scope", ["write", "read"])
def test_no_setting_names_a_file(one: Tenant, scope: str) -> None:
    """Nor does one that is asked for by name."""
    sql = one.sql(scope)
    assert sql.rows("select name, setting from pg_settings where setting like '%/%' and name !~ 'timezone$'") == []
    for name in ("data_directory", "config_file", "hba_file", "unix_socket_directories", "dynamic_library_path"):
        assert sql.fails(f"show {name}")["sqlstate"] == "42501", name


def test_the_databases_of_others_cannot_be_chosen(one: Tenant, two: Tenant) -> None:
    """Neither by name, nor by id; nor the service's own."""
    with two.service.client(two.admin) as client:
        ids = [client.post("/v1/query", json={"sql": "select current_database() as id"}).json()["rows"][0]["id"]]
    for name in [*ids, "tuplegate", "postgres", "template1", "../main"]:
        with one.service.client(one.admin) as client:
            client.headers["Tuplegate-Database"] = name
            assert client.post("/v1/query", json={"sql": "select 1"}).status_code == 404


def test_a_transaction_of_another_tenant_is_unknown(one: Tenant, two: Tenant) -> None:
    """Its id opens nothing; whoever aborts it makes one of the same name aborted in a database of their own."""
    made = two.transaction("create table made (a int)", "drop table made").json()["transaction_id"]
    with one.service.client(one.admin) as client:
        assert client.get(f"/v1/transaction/{made}").status_code == 404
        assert client.post(f"/v1/transaction/{made}/abort").json()["state"] == "aborted"
    with two.service.client(two.admin) as client:
        assert client.get(f"/v1/transaction/{made}").json()["state"] == "committed"


@pytest.mark.parametrize("scope", ["write", "read"])
def test_what_all_share_shows_ones_own_part(one: Tenant, busy: Tenant, scope: str) -> None:
    """Under the names that every tool knows."""
    sql = one.sql(scope)
    own = sql.value("select current_database()")
    assert {row["datname"] for row in sql.rows("select distinct datname from pg_stat_activity")} == {own}
    assert sql.value("select count(*) from pg_stat_activity where pid = pg_backend_pid() and state = 'active'") == 1
    locks = sql.rows("select relation::regclass::text as r, database from pg_locks where pid = pg_backend_pid()")
    assert "pg_locks" in {row["r"] for row in locks}
    oid = sql.value("select oid::int from pg_database where datname = current_database()")
    assert {row["database"] for row in sql.rows("select database::int from pg_locks")} == {oid}
    [statistics] = sql.rows("select datname, numbackends, xact_commit from pg_stat_database")
    assert statistics["datname"] == own
    assert statistics["numbackends"] > 0
    assert sql.rows("select * from pg_stat_progress_create_index") == []


def test_a_read_key_does_not_see_what_a_write_key_runs(one: Tenant, two: Tenant) -> None:
    """Who logs in with the same rights sees it, as anywhere in PostgreSQL; nobody can end it."""
    started = threading.Thread(target=lambda: one.transaction("select pg_sleep(60)", "select 'literal'"))
    with server_of(one) as engine, undisturbed(two):
        started.start()
        running = "from pg_stat_activity where query = 'select pg_sleep(60)' and usename = $1"
        role = one.write.value("select current_user")
        while engine.execute(f"select count(*) {running.replace('$1', '%s')}", (role,)).fetchone() == (0,):
            pass
        [(pid,)] = engine.execute(f"select pid {running.replace('$1', '%s')}", (role,)).fetchall()
        assert one.write.rows("select query from pg_stat_activity where pid = $1", [pid]) == [
            {"query": "select pg_sleep(60)"}
        ]
        hidden = {"usename": role, "query": "<insufficient privilege>", "state": None, "xact_start": None}
        seen = "select usename, query, state, xact_start from pg_stat_activity where pid = $1"
        assert one.read.rows(seen, [pid]) == [hidden]
        for sql in (one.write, one.read):
            assert sql.fails(f"select pg_cancel_backend({pid})")["sqlstate"] == "42501"
            assert sql.fails(f"select pg_terminate_backend({pid})")["sqlstate"] == "42501"
        assert started.is_alive()
        engine.execute("select pg_cancel_backend(%s)", (pid,))
        started.join()
