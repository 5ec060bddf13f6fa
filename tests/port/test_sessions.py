"""What the service itself wants of an engine: sessions, schemas to try things in, locks, and words about its state."""

import asyncio
import json

import pytest

from tests.port.capabilities import needs
from tests.port.tenant import BYTES_MAX, ENOUGH_MS, Tenant, new_name, statement
from tests.port.test_databases import made
from tuplegate.engine.port import BadPosition, Bounds, Engine, EngineDatabases, Lock, Statement, StatementFailed


async def test_a_session_controls_its_own_transactions(tenant: Tenant) -> None:
    """Values are as the engine writes them."""
    table = await tenant.table()
    async with tenant.engine.session(tenant.writer, ENOUGH_MS) as session:
        await session.run("begin")
        await session.run(f"insert into {table} values ($1, $2)", "1", None)
        assert (await session.run(f"select * from {table}")).rows == [("1", None)]
        await session.run("rollback")
        await session.run(f"insert into {table} values (2)")
    assert await tenant.rows(f"select a from {table}") == [[2]]


async def test_a_session_that_is_left_is_rolled_back(tenant: Tenant) -> None:
    table = await tenant.table()
    async with tenant.engine.session(tenant.writer, ENOUGH_MS) as session:
        await session.run("begin")
        await session.run(f"insert into {table} values (1)")
    await tenant.query(f"insert into {table} values (1)")
    assert await tenant.value(f"select count(*) from {table}") == 1


async def test_a_session_goes_on_after_a_failure(tenant: Tenant) -> None:
    async with tenant.engine.session(tenant.reader, ENOUGH_MS) as session:
        with pytest.raises(StatementFailed) as caught:
            await session.run("select 1 / 0")
        assert caught.value.sqlstate == "22012"
        assert (await session.run("select 1")).rows == [("1",)]


async def test_a_scratch_schema_goes_with_its_block(tenant: Tenant) -> None:
    """With everything in it, and each block has its own."""
    async with tenant.engine.scratch(tenant.database) as first, tenant.engine.scratch(tenant.database) as second:
        assert first != second
        await tenant.query(f"create table {first}.t (a int)")
        await tenant.query(f"create view {second}.v as select a from {first}.t")
    for relation in (f"{first}.t", f"{second}.v"):
        with pytest.raises(StatementFailed):
            await tenant.query(f"select * from {relation}")


async def test_a_name_is_held_by_one(tenant: Tenant) -> None:
    """Who comes second is told so at once, and the name is free when the block is left."""
    name = new_name()
    async with tenant.engine.hold(name) as first:
        assert first is True
        async with tenant.engine.hold(name) as second, tenant.engine.hold(new_name()) as other:
            assert (second, other) == (False, True)
    async with tenant.engine.hold(name) as third:
        assert third is True


async def test_locks_of_a_database_differ_by_their_kind_and_key(
    engine: Engine, databases: EngineDatabases, tenant: Tenant
) -> None:
    hold = tenant.engine.hold_in
    async with hold(tenant.database, Lock.IDEMPOTENCY, "k") as first:
        assert first is True
        for lock, key, free in [
            (Lock.IDEMPOTENCY, "k", False),
            (Lock.IDEMPOTENCY, "other", True),
            (Lock.TRANSACTION, "k", True),
            (Lock.DUMP, "", True),
        ]:
            async with hold(tenant.database, lock, key) as held:
                assert held is free, (lock, key)
        async with made(engine, databases) as two, hold(two.database, Lock.IDEMPOTENCY, "k") as elsewhere:
            assert elsewhere is True


async def test_of_many_that_want_a_name_one_holds_it(tenant: Tenant) -> None:
    name, held = new_name(), 0

    async def work() -> None:
        nonlocal held
        async with tenant.engine.hold(name) as mine:
            if mine:
                held += 1
                assert held == 1, "two hold it"
                await asyncio.sleep(0)
                held -= 1

    await asyncio.gather(*(work() for _ in range(30)))


async def test_nothing_stays_on_a_connection(tenant: Tenant) -> None:
    """What one request sets for its session is gone when the next one comes."""
    table = await tenant.table()
    noon = "select extract(hour from '2026-01-01 00:00:00+00'::timestamptz)::int"
    for sql in ("set time zone 'Asia/Tokyo'", f"set search_path = {tenant.schema}"):
        await tenant.query(sql)
        await tenant.transaction(sql)
        assert (await tenant.query("select 1")).notices == [], "nor is anybody told how it went"
    assert {await tenant.value(noon) for _ in range(10)} == {0}
    with pytest.raises(StatementFailed):
        await tenant.query(f"select * from {table.split('.')[1]}")


@needs("temporary_tables")
async def test_no_temporary_table_stays_on_a_connection(tenant: Tenant) -> None:
    for run in (tenant.query, tenant.transaction):
        await run("create temp table mine (a int)")
        with pytest.raises(StatementFailed):
            await tenant.query("select * from mine")


async def test_tables_are_told_with_their_columns(tenant: Tenant) -> None:
    await tenant.table("seen", "a int primary key, b text not null default 'x'")
    await tenant.query(f"create view {tenant.schema}.looked as select a from {tenant.schema}.seen")
    told = await tenant.engine.tables(tenant.reader, Bounds(ENOUGH_MS, None, BYTES_MAX))
    assert told.truncated is False
    mine = {item["name"]: item for item in json.loads(told.items) if item["schema"] == tenant.schema}
    assert {name: item["kind"] for name, item in mine.items()} == {"seen": "table", "looked": "view"}
    columns = [(c["name"], c["type"], c["nullable"], c["primary_key"]) for c in mine["seen"]["columns"]]
    assert columns == [("a", "int4", False, True), ("b", "text", False, False)]
    assert (await tenant.engine.tables(tenant.reader, Bounds(ENOUGH_MS, None, 2))).truncated is True


async def test_an_engine_says_how_it_is(tenant: Tenant) -> None:
    """Its kind and version, its durability, its counts; a position is always given, whether or not one is told."""
    health = await tenant.engine.health()
    assert health.ok
    assert health.kind
    assert health.version
    assert (await tenant.engine.durability(tenant.writer)).durable is True
    assert tenant.engine.serializable_headroom().slots >= 0
    before = sum(tenant.engine.measure().seconds["query"])
    await tenant.query("select 1")
    assert sum(tenant.engine.measure().seconds["query"]) > before
    tenant.engine.snapshots.check(await tenant.engine.position())


async def test_a_snapshot_read_sees_what_was_answered_before(tenant: Tenant) -> None:
    """A replica answers it that has come so far, or else the primary."""
    table = await tenant.table()
    await tenant.query(f"insert into {table} values (1)")
    engine, bounds = tenant.engine, Bounds(ENOUGH_MS, None, BYTES_MAX)
    for after in (None, await engine.position()):
        read = statement(f"select a from {table}")
        assert (await engine.snapshots.query(tenant.reader, read, bounds, after)).rows == b"[[1]]"
        done = await engine.snapshots.transaction(tenant.reader, [read], bounds, after)
        assert done.results[0].rows == b"[[1]]"
        async with engine.snapshots.stream(tenant.reader, read, bounds, after) as stream:
            assert b"".join([block async for block in stream.lines()]).strip() == b"[1]"


async def test_a_text_that_is_no_position_is_refused(tenant: Tenant) -> None:
    for text in (b"", b"nonsense", b"\xff"):
        with pytest.raises(BadPosition):
            tenant.engine.snapshots.check(text)


@needs("dumps")
async def test_a_dump_is_a_file_of_everything(tenant: Tenant) -> None:
    async with tenant.engine.dump(tenant.database, 60.0) as blocks:
        assert len(b"".join([block async for block in blocks])) > 0


async def test_a_statement_that_is_not_what_it_was_read_as_leaves_nothing(tenant: Tenant) -> None:
    """Its first word is told to the engine wrongly; what it has set is gone with its connection."""
    before = await tenant.value("select current_setting('statement_timeout')")
    misread = Statement("set statement_timeout = '65s'", "select")
    bounds = Bounds(ENOUGH_MS, None, BYTES_MAX)
    for _ in range(3):
        await tenant.engine.query(tenant.writer, misread, bounds)
        assert await tenant.value("select current_setting('statement_timeout')") == before
