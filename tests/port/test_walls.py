"""What a tenant tries against the walls around its database. Each attack is tried on every engine."""

import json
from contextlib import suppress

import pytest

from tests.port.capabilities import needs
from tests.port.tenant import ENOUGH_MS, Tenant, new_name, read, statement
from tests.port.test_databases import made
from tests.waiting import eventually_async
from tuplegate.engine.port import (
    Bounds,
    Engine,
    EngineDatabases,
    EngineFailure,
    Outcome,
    Promise,
    StatementFailed,
)


async def roles_of(tenant: Tenant, of: Tenant) -> list[str]:
    """Return the names of the roles of a database, as a tenant finds them."""
    rows = await tenant.rows("select rolname from pg_catalog.pg_roles where rolname like $1", f"{of.database}%")
    return [row[0] for row in rows]


@needs("neighbours")
async def test_rights_that_a_stranger_gave_do_not_keep_a_database(engine: Engine, databases: EngineDatabases) -> None:
    """It is dropped with its roles, whatever others have granted to these."""
    async with made(engine, databases) as one:
        async with made(engine, databases) as two:
            await one.table()
            await one.query("create schema lent")
            await one.query("create function public.f(a int) returns int language sql as $$ select 1 $$")
            given = await roles_of(one, two)
            for role in given:
                await one.query(f'grant select on public.t to "{role}"')
                await one.query(f'grant all on schema lent to "{role}"')
                await one.query(f'grant execute on function public.f to "{role}"')
                await one.query(f'alter default privileges in schema public grant select on tables to "{role}"')
                await one.query(f'alter default privileges grant select on tables to "{role}"')
        assert await roles_of(one, two) == []
        assert await one.value("select count(*) from public.t") == 0
        await one.query("create table public.later (a int primary key)")


AGAINST_OTHERS = (
    "select * from {other}.public.t",
    "insert into {other}.public.t values (2)",
    "create table {other}.public.mine (a int)",
    "drop table {other}.public.t",
    "drop database {other}",
    "alter database {other} rename to mine",
    'grant "{role}" to current_user',
    'set role "{role}"',
    'set session authorization "{role}"',
    "alter role \"{role}\" with password 'mine'",
    'drop role "{role}"',
    'reassign owned by "{role}" to current_user',
    'drop owned by "{role}"',
    "create role mine login",
    "create database mine",
    "grant all on database {other} to current_user",
)


async def test_the_database_of_another_is_out_of_reach(
    engine: Engine, databases: EngineDatabases, tenant: Tenant
) -> None:
    taken = []
    async with made(engine, databases) as two:
        await two.table()
        await two.query("insert into public.t values (1)")
        [role, *_] = await roles_of(tenant, two) or [f"{two.database}_w"]
        for sql in AGAINST_OTHERS:
            with suppress(StatementFailed):
                await tenant.query(sql.format(other=two.database, role=role))
                taken.append(sql)
        assert await two.rows("select a from public.t") == [[1]]
    assert taken == []


TO_THE_OUTSIDE = (
    "export into csv 'nodelocal://1/tuplegate' from select 1",
    "export into csv 'userfile:///tuplegate' from select 1",
    "export into csv 'http://127.0.0.1:1/' from select 1",
    "with x as (export into csv 'nodelocal://1/tuplegate' from select 1) select * from x",
    "import into {table} (a) csv data ('http://127.0.0.1:1/')",
    "backup into 'nodelocal://1/tuplegate'",
    "show backups in 'http://127.0.0.1:1/'",
    "copy {table} to '/tmp/tuplegate'",
    "copy {table} to program 'true'",
    "copy {table} from '/etc/hostname'",
    "select pg_read_file('/etc/hostname')",
    "select lo_import('/etc/hostname')",
    "select crdb_internal.read_file('/etc/hostname')",
    "select crdb_internal.write_file('x', 'nodelocal://1/tuplegate')",
    "create external connection mine as 'nodelocal://1/tuplegate'",
)


async def test_no_file_and_no_host_is_reached(tenant: Tenant) -> None:
    table = await tenant.table()
    taken = []
    for sql in TO_THE_OUTSIDE:
        for send in (tenant.query, tenant.transaction):
            with suppress(StatementFailed):
                await send(sql.format(table=table))
                taken.append(sql)
    assert taken == []


@pytest.mark.parametrize(
    "sql",
    [
        "cancel queries (select query_id from [show cluster queries])",
        "cancel query '15b4aa3d5b9a5b9f0000000000000001'",
        "cancel sessions (select session_id from [show cluster sessions])",
        "select pg_terminate_backend(pid) from pg_stat_activity where usename <> current_user",
    ],
)
async def test_statements_of_others_are_not_ended(tenant: Tenant, sql: str) -> None:
    """It is refused, or ends nobody: it is no failure of the engine."""
    with suppress(StatementFailed):
        assert await tenant.rows(sql) == []


async def test_a_full_database_takes_no_row_by_any_statement(tenant: Tenant) -> None:
    table, engine = await tenant.table(), tenant.engine
    adding = (
        f"insert into {table} values (1)",
        f"select * from [insert into {table} values (2) returning a]",
        f"with x as (insert into {table} values (3) returning a) select * from x",
        f"upsert into {table} values (4)",
        f"explain analyze insert into {table} values (5)",
        f"select 1 as a into {tenant.schema}.more",
        f"create table {tenant.schema}.more as select 1 as a",
    )

    async def refuses_first() -> bool:
        try:
            await tenant.query(f"{adding[0]} on conflict (a) do update set b = 'y'")
        except StatementFailed:
            return True
        return False

    engine.bound_size(tenant.database, 1)
    try:
        await eventually_async(refuses_first)
        await tenant.query(f"delete from {table} where b is distinct from 'update'")
        taken = []
        for sql in adding:
            for send in (tenant.query, tenant.transaction):
                with suppress(StatementFailed):
                    await send(sql)
                    taken.append(sql)
        assert taken == []
        assert await tenant.rows(f"select a from {table}") == []
    finally:
        engine.bound_size(tenant.database, None)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("int2[]", [1, 99999]),
        ("int4[]", [2**40]),
        ("int4[]", "{1,1099511627776}"),
        ("float4", 1e300),
        ("float4", "1e-300"),
        ("float4[]", [1e300]),
        ("varchar(3)", "long"),
        ("varchar(3)[]", ["a", "long"]),
        ("varchar(3)[]", "{long}"),
        ("char(3)[]", ["long"]),
        ("numeric(3)[]", [99999]),
        ("bit(3)[]", ["1111"]),
    ],
)
async def test_a_value_that_does_not_fit_is_not_stored(tenant: Tenant, type: str, value: object) -> None:
    """It is refused, or there is no column of that type."""
    try:
        table = await tenant.table(columns=f"a int primary key, b {type}")
    except StatementFailed as failure:
        if failure.sqlstate != "0A000":
            raise
        return
    with pytest.raises(StatementFailed) as refused:
        await tenant.query(f"insert into {table} values (1, $1)", value)
    assert refused.value.sqlstate in ("22003", "22001", "22026")
    with pytest.raises(StatementFailed):
        await tenant.transaction("select 1", (f"insert into {table} values (1, $1)", value))
    assert await tenant.rows(f"select a from {table}") == []


async def test_the_service_s_own_tables_are_closed(tenant: Tenant) -> None:
    """A tenant reads, changes and removes none of the rows that tell outcomes."""
    for sql in (
        "select * from tuplegate.outcome",
        "delete from tuplegate.outcome",
        "update tuplegate.outcome set state = 'mine'",
        "truncate tuplegate.outcome",
        "drop schema tuplegate cascade",
        "select * from tuplegate.answer",
        "delete from tuplegate.answer",
    ):
        with pytest.raises(StatementFailed):
            await tenant.query(sql)


AGAINST_ONESELF = (
    'alter role "{own}" with nologin',
    "alter role \"{own}\" with password 'mine'",
    'drop role "{own}"',
    'revoke all on database {database} from "{own}"',
    'revoke all on schema tuplegate from "{own}"',
    'revoke all on schema public from "{own}"',
    "alter database {database} rename to mine",
    "drop database {database}",
    "drop schema tuplegate cascade",
    "alter table tuplegate.outcome rename to mine",
    "create table tuplegate.mine (a int)",
)


async def test_no_tenant_locks_the_service_out(engine: Engine, databases: EngineDatabases) -> None:
    """Whatever a tenant does to itself, its next request finds a connection, and its transactions are recorded."""
    async with made(engine, databases) as one:
        table = await one.table()
        for number, sql in enumerate(AGAINST_ONESELF):
            for own in await roles_of(one, one):
                with suppress(StatementFailed):
                    await one.query(sql.format(own=own, database=one.database))
            await one.transaction(f"insert into {table} values ({number})", "select 1")
            async with engine.session(one.writer, ENOUGH_MS) as session:
                assert (await session.run(f"select count(*) from {table}")).rows == [(str(number + 1),)], sql


AS_A_READER = (
    "insert into {table} values (2)",
    "update {table} set a = 2",
    "delete from {table}",
    "truncate {table}",
    "with x as (delete from {table} returning a) select * from x",
    "select * from [delete from {table} returning a]",
    "upsert into {table} values (2)",
    "explain analyze delete from {table}",
    "select nextval('{schema}.s')",
    "select setval('{schema}.s', 9)",
    "alter table {table} add c int",
    "comment on table {table} is 'mine'",
    "drop table {table}",
    "drop view {schema}.v",
    "grant all on {table} to public",
    "create table {schema}.mine (a int)",
    "create table public.mine (a int)",
    "create schema mine",
    "create view {schema}.mine as select 1 as a",
    "create function {schema}.mine() returns int language sql as $$ select 1 $$",
)
TO_WRITE_ALL_THE_SAME = (
    "select 1",
    "set transaction read write",
    "set transaction_read_only = off",
    "set default_transaction_read_only = off",
    "select set_config('transaction_read_only', 'off', true)",
)


async def test_a_reader_changes_nothing_by_any_means(tenant: Tenant) -> None:
    """Neither at once, nor behind a statement that lets it write."""
    table = await tenant.table()
    await tenant.query(f"insert into {table} values (1)")
    await tenant.query(f"create sequence {tenant.schema}.s")
    await tenant.query(f"create view {tenant.schema}.v as select a from {table}")
    taken = []
    for sql in (text.format(table=table, schema=tenant.schema) for text in AS_A_READER):
        with suppress(EngineFailure):
            await tenant.query(sql, target=tenant.reader)
            taken.append(sql)
        with suppress(EngineFailure):
            async with tenant.engine.stream(tenant.reader, statement(sql), Bounds(ENOUGH_MS, None, 2**20)) as stream:
                await read(stream)
                taken.append(sql)
        for first in TO_WRITE_ALL_THE_SAME:
            for read_only in (False, True):
                with suppress(EngineFailure):
                    await tenant.transaction(first, sql, target=tenant.reader, read_only=read_only)
                    taken.append(f"{first}; {sql}")
    assert taken == []
    assert await tenant.rows(f"select * from {table}") == [[1, None]]
    assert await tenant.value(f"select nextval('{tenant.schema}.s')") == 1


AGAINST_THE_ENGINE = (
    "alter system set work_mem = '1GB'",
    "set cluster setting sql.defaults.default_int_size = 4",
    "set cluster setting kv.range_split.by_load_enabled = false",
    "reset cluster setting sql.defaults.default_int_size",
    "alter role current_user createrole",
    "alter role current_user createdb",
    "alter role current_user superuser",
    "alter role current_user controljob",
    "alter role current_user with modifyclustersetting",
    "alter role current_user viewactivity",
    "alter role all set timezone = 'Asia/Tokyo'",
    "grant admin to current_user",
    "grant pg_read_all_data to current_user",
    "grant system modifyclustersetting to current_user",
    "alter range default configure zone using num_replicas = 1",
    "alter database {database} configure zone using num_replicas = 1",
    "alter table {table} configure zone using num_replicas = 1",
    "alter table {table} split at values (1), (2), (3)",
    "alter table {table} unsplit all",
    "alter table {table} scatter",
    "alter index {table}@t_pkey split at values (1)",
    "alter table if exists {table} experimental_relocate values (array[1], 1)",
    "prepare mine as alter table {table} scatter",
    'explain (analyze, verbose, "debug") select 1',
    "explain analyze (debug) select 1",
    "select crdb_internal.force_panic('mine')",
    "select crdb_internal.force_log_fatal('mine')",
    "select crdb_internal.set_vmodule('*=3')",
    "select crdb_internal.reset_sql_stats()",
    "select crdb_internal.reset_index_usage_stats()",
    "select crdb_internal.unsafe_delete_descriptor(1)",
    "select crdb_internal.request_statement_bundle('select 1', 0, '0'::interval, '0'::interval)",
    "select crdb_internal.create_join_token()",
    "create table pg_catalog.mine (a int)",
    "create table crdb_internal.mine (a int)",
    "create table information_schema.mine (a int)",
    "create schema pg_mine",
    "delete from pg_catalog.pg_class",
    "delete from system.users",
    "select * from system.users",
    "select pg_reload_conf()",
)


async def test_the_engine_as_a_whole_is_out_of_reach(tenant: Tenant) -> None:
    """Its settings, its roles, where it keeps its data, and what it stores for all."""
    table = await tenant.table()
    taken = []
    for text in AGAINST_THE_ENGINE:
        sql = text.format(table=table, database=tenant.database)
        for send in (tenant.query, tenant.transaction):
            with suppress(StatementFailed):
                await send(sql)
                taken.append(sql)
    assert taken == []
    assert await tenant.value("select 1") == 1


async def test_no_name_of_a_tenant_stands_in_the_way_of_the_service(engine: Engine, databases: EngineDatabases) -> None:
    """Tables, types and functions that are called as the engine's are not used by the service's own statements."""
    async with made(engine, databases) as one:
        for sql in (
            "create table public.pg_type (oid int, typname text)",
            "create table public.pg_namespace (oid int)",
            "create table public.pg_class (oid int)",
            "create table public.outcome (number int)",
            "create table public.tables (a int)",
            "create type public.text as enum ('mine')",
            "create type public.oid as enum ('mine')",
            "create function public.count(a int) returns int language sql as $$ select 1 / 0 $$",
            "create function public.array_agg(a text) returns int language sql as $$ select 1 / 0 $$",
            "create schema information_schema",
        ):
            with suppress(StatementFailed):
                await one.query(sql)
        await one.query("create type public.mood as enum ('fine')")
        await one.query("create table public.t (a int primary key, b public.mood)")
        result = await one.query("select 'fine'::public.mood as b")
        assert (result.types, result.rows) == (b'["public.mood"]', b'[["fine"]]')
        id = f"txn_{new_name()}"
        await one.transaction("insert into public.t values (1, 'fine')", promise=Promise(id))
        assert await engine.find_id(one.database, id) is Outcome.COMMITTED
        listed = await engine.tables(one.writer, Bounds(ENOUGH_MS, None, 2**20))
        assert {"public.t"} <= {f"{item['schema']}.{item['name']}" for item in json.loads(listed.items)}


LASTING = {
    "timezone": "'Asia/Tokyo'",
    "statement_timeout": "1",
    "default_transaction_read_only": "on",
    "search_path": "pg_catalog",
    "extra_float_digits": "0",
    "default_int_size": "8",
    "serial_normalization": "'rowid'",
    "bytea_output": "'escape'",
    "intervalstyle": "'iso_8601'",
    "idle_in_transaction_session_timeout": "1",
    "synchronous_commit": "off",
    "default_transaction_isolation": "'read committed'",
}
"""Settings that a role or a database might be given for its next connections."""


async def test_no_setting_is_given_to_later_connections(engine: Engine, databases: EngineDatabases) -> None:
    async def look(one: Tenant) -> dict[str, object]:
        found: dict[str, object] = {}
        async with engine.session(one.writer, ENOUGH_MS) as session:
            for name in LASTING:
                with suppress(StatementFailed):
                    found[name] = (await session.run(f"show {name}")).rows
        return found

    async with made(engine, databases) as one:
        before = await look(one)
        own = await roles_of(one, one)
        for name, value in LASTING.items():
            for whose in ("role current_user", f"database {one.database}", "role all", *(f'role "{r}"' for r in own)):
                with suppress(StatementFailed):
                    await one.query(f"alter {whose} set {name} = {value}")
        assert await look(one) == before
        await one.transaction("select 1", "create table public.later (a serial primary key)")
