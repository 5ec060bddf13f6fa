"""A data directory that an older version has made is brought up to date at start."""

import psycopg

from tests.service import Sql, new_data_dir, remove, start_service


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
    with psycopg.connect(first.conninfo(database), autocommit=True) as tenant:
        tenant.execute("drop function tuplegate.look(text, text)")
        tenant.execute("drop function tuplegate.tables()")
        tenant.execute("create function tuplegate.tables(int) returns int language sql as 'select 1'")
        tenant.execute(f"alter database {database} reset all".encode())
    with psycopg.connect(first.conninfo("tuplegate"), autocommit=True) as catalog:
        catalog.execute("update database set furnishing = 'of an older version'")
    assert first.stop() == 0
    second = start_service(data_dir)
    with second.client(first.key) as client:
        sql = Sql(client)
        assert sql.value("select n from kept") == 7
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
