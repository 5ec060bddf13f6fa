"""A data directory that an older version has made is brought up to date at start."""

import psycopg

from tests.service import Service, Sql, needs_bundled, new_data_dir, remove, start_service

OLD_LOCK = """
drop function pg_catalog.pg_advisory_lock(bigint);
create or replace function tuplegate.pg_advisory_lock(bigint) returns void language sql strict
begin atomic select pg_sleep(0.001); select tuplegate.raw_pg_advisory_lock($1); end;
alter function tuplegate.pg_advisory_lock(bigint) set schema pg_catalog;
grant execute on function pg_catalog.pg_advisory_lock(bigint) to public;
"""
"""The engine's own with another text, which it never runs."""


def test_databases_are_furnished_anew() -> None:
    """What the service has in a tenant's database is made again; what the tenant made of its rights stays."""
    data_dir = new_data_dir()
    first = start_service(data_dir)
    with first.client() as client:
        sql = Sql(client)
        sql("create table kept as select 7 as n")
        database, role = sql.value("select current_database()"), sql.value("select current_user")
        reader = role.removesuffix("_w") + "_r"
        sql(f"alter default privileges revoke select on tables from {reader}")
        # What depends on the service's own neither keeps the next version from starting, nor goes.
        sql("create view depends as select is_there from tuplegate.code()")
        sql("create table depends_too (a bool default tuplegate.role_has_settings(), b tuplegate.begun)")
    with psycopg.connect(first.conninfo(database), autocommit=True) as tenant:
        tenant.execute("drop function tuplegate.look(text, text)")
        tenant.execute("drop function tuplegate.tables()")
        tenant.execute("create function tuplegate.tables(int) returns int language sql as 'select 1'")
        tenant.execute(OLD_LOCK)
        tenant.execute(f"alter database {database} reset all".encode())
    with psycopg.connect(first.conninfo("tuplegate"), autocommit=True) as catalog:
        catalog.execute("update database set furnishing = 'of an older version'")
    assert first.stop() == 0
    second = start_service(data_dir)
    with second.client(first.key) as client:
        sql = Sql(client)
        assert sql.value("select n from kept") == 7
        assert sql.value("select to_regclass('depends') is not null and to_regclass('depends_too') is not null") is True
        assert client.get("/v1/transaction/txn_never_seen_1").status_code == 404
        sql("create table later as select 1 as n")
        assert sql.value("select 'pg_advisory_lock(bigint)'::regprocedure::oid::int8") >= 16384
        sql("select pg_advisory_lock(1)")
        assert sql.value(f"select has_table_privilege('{reader}', 'later', 'select')") is False
    with psycopg.connect(second.conninfo(database)) as tenant:
        [(settings,)] = tenant.execute(
            "select setconfig from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase"
            " where setrole = 0 and datname = current_database()"
        ).fetchall()
        assert {"log_min_messages=fatal", "log_min_error_statement=panic"} <= set(settings)
    assert second.stop() == 0
    remove(data_dir)


OLD_RECORDS = """
create or replace function tuplegate.authenticate(message text, mac text) returns void
language plpgsql security definer set search_path = pg_catalog as $$ declare secret bytea; begin end $$;
alter table tuplegate.verdict owner to tuplegate;
alter schema tuplegate owner to tuplegate;
"""


def look(service: Service, database: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(service.conninfo(database), autocommit=True) as engine:
        cursor = engine.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


@needs_bundled
def test_what_had_a_superusers_rights_has_them_no_more() -> None:
    """A database that a superuser owned, with functions that ran as superuser and a secret that may be known to a
    tenant: all of it is replaced, and what was prepared is committed first."""
    data_dir = new_data_dir()
    first = start_service(data_dir)
    with first.client() as client:
        sql = Sql(client)
        sql("create table kept (n int)")
        database = str(sql.value("select current_database()"))
    secrets = look(first, database, "select value from tuplegate.secret")
    secrets += look(first, "tuplegate", "select secret from installation")
    look(first, database, OLD_RECORDS)
    look(first, "tuplegate", "update installation set secret_is_old = true")
    look(first, "tuplegate", f"alter database {database} owner to tuplegate")
    look(first, "tuplegate", f"revoke {database}_w, {database}_r from tuplegate_service")
    look(first, "tuplegate", "comment on database tuplegate_template is 'of an older version'")
    with psycopg.connect(first.conninfo(database).replace("user=tuplegate", f"user={database}_w")) as tenant:
        [(installation,)] = look(first, "tuplegate", "select id from installation")
        tenant.execute("insert into kept values (7)")
        tenant.execute(f"prepare transaction 'tuplegate_{installation}_1_word'".encode())
    first.kill()
    second = start_service(data_dir)
    try:
        with second.client(first.key) as client:
            assert Sql(client).rows("select n from kept") == [{"n": 7}]
            id = {"Tuplegate-Transaction-Id": "txn_after_the_upgrade_1"}
            made = client.post("/v1/transaction", json={"statements": ["insert into kept values (8)"]}, headers=id)
            assert made.json()["commit"] == "two_phase"
            assert client.get("/v1/transaction/txn_after_the_upgrade_1").json()["state"] == "committed"
        now = look(second, database, "select value from tuplegate.secret")
        now += look(second, "tuplegate", "select secret from installation")
        assert not set(now) & set(secrets)
        assert look(
            second, "tuplegate", f"select datdba::regrole::text from pg_database where datname = '{database}'"
        ) == [("tuplegate_service",)]
        definers = "select count(*) from pg_proc where prosecdef and proowner = 10"
        assert look(second, database, definers) == [(0,)]
        with psycopg.connect(second.conninfo("tuplegate")) as catalog:
            made_of = catalog.execute("select count(*) from pg_prepared_xacts").fetchone()
            assert made_of == (0,)
    finally:
        assert second.stop() == 0
        remove(data_dir)


OLD_CATALOG = """
alter table organization drop column limits;
alter table database drop column size_bytes;
drop index audit_tally cascade;
drop index audit_at;
drop index usage_hour;
alter table audit drop column count;
alter table audit drop column last_at;
alter table audit drop column tally;
delete from migration where name >= '0017'
"""
"""Makes the catalog what it was before limits of organizations and the retention of the audit."""


def test_an_older_catalog_is_brought_up_to_date() -> None:
    """On every engine, with its rows; a start that was cut off half-way is gone on with."""
    data_dir = new_data_dir()
    first = start_service(data_dir)
    entries = "select action, count from audit order by id"
    written = look(first, "tuplegate", entries)
    migrations = look(first, "tuplegate", "select name from migration order by name")
    for statement in OLD_CATALOG.split(";\n"):
        look(first, "tuplegate", statement)
    look(first, "tuplegate", "alter table organization add column limits jsonb not null default '{}'")
    assert first.stop() == 0
    second = start_service(data_dir)
    with second.client(first.key) as client:
        assert Sql(client).value("select 7") == 7
    assert look(second, "tuplegate", "select name from migration order by name") == migrations
    assert look(second, "tuplegate", entries)[: len(written)] == written
    assert look(second, "tuplegate", "select distinct limits::text from organization") == [("{}",)]
    assert second.stop() == 0
    remove(data_dir)
