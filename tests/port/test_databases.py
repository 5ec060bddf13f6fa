"""Databases: made, copied, silenced and dropped by steps that may be repeated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.port.capabilities import needs
from tests.port.tenant import Tenant, new_name
from tests.port.test_outcomes import new_id, run_as
from tests.waiting import eventually_async
from tuplegate.engine.port import Engine, EngineBusy, EngineDatabases, EngineFailure, Outcome


@asynccontextmanager
async def made(engine: Engine, databases: EngineDatabases, *, copied_from: str = "") -> AsyncIterator[Tenant]:
    """Make a database, and drop it when the block is left."""
    name = new_name()
    if copied_from:
        engine.pause(frozenset([copied_from]))  # who uses a source is asked to let go of it
        try:
            await databases.copy(copied_from, name)
        finally:
            engine.pause(frozenset())
    else:
        await databases.create(name)
    try:
        yield Tenant(engine, name, "public")
    finally:
        await databases.drop(name)


async def test_a_database_is_made_and_dropped(engine: Engine, databases: EngineDatabases) -> None:
    """Each step may be repeated: who did it may have died before noting so. Nobody sees another's tables."""
    async with made(engine, databases) as one, made(engine, databases) as two:
        await databases.create(one.database)
        await one.table()
        assert await one.value("select count(*) from public.t") == 0
        with pytest.raises(EngineFailure):
            await two.query("select * from public.t")
    for gone in (one, two):
        await databases.drop(gone.database)
        with pytest.raises(EngineFailure):
            await gone.query("select 1")
    await databases.drop_left_roles()


@needs("copies")
async def test_a_copy_has_what_its_source_had(engine: Engine, databases: EngineDatabases) -> None:
    """With the same rights for its own writers and readers, and nothing that joins the two."""
    async with made(engine, databases) as source:
        await source.table()
        await source.query("insert into public.t values (1, 'x')")
        id = new_id()
        await run_as(source, id, "insert into public.t values (2, 'y')")
        async with made(engine, databases, copied_from=source.database) as copy:
            await copy.query("insert into public.t values (3, 'z')")
            await copy.query("alter table public.t add c int")
            assert await copy.rows("select a from public.t order by a", target=copy.reader) == [[1], [2], [3]]
            with pytest.raises(EngineFailure):
                await copy.query("insert into public.t values (4)", target=copy.reader)
            assert await engine.find_id(copy.database, id) is None, "a transaction of the source is not one of the copy"
        assert await source.rows("select * from public.t order by a") == [[1, "x"], [2, "y"]]


@needs("copies")
async def test_what_is_not_there_cannot_be_copied(databases: EngineDatabases) -> None:
    name = new_name()
    try:
        with pytest.raises(EngineBusy):
            await databases.copy(new_name(), name)
    finally:
        await databases.drop(name)


async def test_a_silent_database_commits_nothing(engine: Engine, databases: EngineDatabases) -> None:
    """What runs there is ended, and nothing begins until it is opened again."""
    async with made(engine, databases) as tenant, databases.reach(tenant.database) as server:
        table = await tenant.table()
        await tenant.query(f"insert into {table} values (1, 'x')")
        running = asyncio.create_task(
            tenant.query(f"update {table} set b = 'y' where a = 1 returning pg_sleep(600)", timeout_ms=600_000)
        )
        await eventually_async(lambda: tenant.is_held(table, 1))
        await server.silence(tenant.database)
        await server.check_silent(tenant.database)
        with pytest.raises(EngineFailure):
            await running
        with pytest.raises(EngineFailure):
            await tenant.query(f"insert into {table} values (2)")
        await server.silence(tenant.database)

        await server.open(tenant.database)
        await server.open(tenant.database)
        with pytest.raises(EngineBusy):
            await server.check_silent(tenant.database)
        assert await tenant.rows(f"select * from {table}") == [[1, "x"]]


async def test_outcomes_can_be_kept_for_a_successor(engine: Engine, databases: EngineDatabases) -> None:
    """A database that is made anew still knows what became of the transactions before."""
    async with made(engine, databases) as former, made(engine, databases) as successor:
        committed, aborted = new_id(), new_id()
        await run_as(former, committed, "create table public.t (a int)")
        await engine.abort_id(former.database, aborted)
        assert await engine.find_id(successor.database, committed) is None
        for _ in range(2):
            await databases.keep_outcomes(former.database, successor.database)
        assert await engine.find_id(successor.database, committed) is Outcome.COMMITTED
        assert await engine.find_id(successor.database, aborted) is Outcome.ABORTED
        assert await engine.abort_id(successor.database, committed) is Outcome.COMMITTED


async def test_sizes_and_load_are_told(tenant: Tenant, databases: EngineDatabases) -> None:
    """Of what is there; a database that is not has no size."""
    assert await tenant.value("select 1") == 1
    sizes = await databases.sizes([tenant.database, new_name()])
    assert sizes.keys() == {tenant.database}
    assert sizes[tenant.database] > 0
    load = await databases.load()
    assert 0 <= load.connections <= load.connections_max
    async with databases.reach(tenant.database) as server:
        await server.analyze(tenant.database)
    assert databases.furnishing_of(tenant.database)
