"""What an older version has made is brought up to date at start, or refused where that cannot be."""

import psycopg

from tests.service import Service, Sql, new_data_dir, remove, start_service


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
        tenant.execute(f"alter database {database} reset all".encode())
    # A cell says itself what was made there.
    noted = "database" if first.engine else "engine.identity"
    with psycopg.connect(first.server_of(database), autocommit=True) as server:
        server.execute(f"update {noted} set furnishing = 'of an older version'".encode())
    assert first.stop() == 0
    second = start_service(data_dir)
    with second.client(first.key) as client:
        sql = Sql(client)
        assert sql.value("select n from kept") == 7
        assert sql.value("select to_regclass('depends') is not null and to_regclass('depends_too') is not null") is True
        assert client.get("/v1/transaction/txn_never_seen_1").status_code == 404
        sql("create table later as select 1 as n")
        assert sql.value(f"select has_table_privilege('{reader}', 'later', 'select')") is False
    with psycopg.connect(second.conninfo(database)) as tenant:
        [(settings,)] = tenant.execute(
            "select setconfig from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase"
            " where setrole = 0 and datname = current_database()"
        ).fetchall()
        assert {"log_min_messages=fatal", "log_min_error_statement=panic"} <= set(settings)
    assert second.stop() == 0
    remove(data_dir)


def look(service: Service, database: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(service.conninfo(database), autocommit=True) as engine:
        cursor = engine.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


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
