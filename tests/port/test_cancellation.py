"""Cancellation: what nobody waits for any more ends in the engine too, with nothing of it applied.

How a statement runs on is seen by the row that it holds: while it runs nobody else can change it.
"""

import asyncio

import pytest

from tests.port.tenant import Tenant, read
from tests.waiting import eventually_async
from tuplegate.engine.port import EngineFailure, Stopped, TimedOut

LONG_S = 600
"""Longer than any test: what ends before was ended."""


async def _held(tenant: Tenant) -> tuple[str, str]:
    """Make a table of one row; return its name, and a statement that changes the row and then takes long."""
    table = await tenant.table()
    await tenant.query(f"insert into {table} values (1, 'before')")
    return table, f"update {table} set b = 'after' where a = 1 returning pg_sleep({LONG_S})"


async def _check_ended(tenant: Tenant, table: str) -> None:
    """Check that the row is free, and as it was."""
    assert await tenant.rows(f"select b from {table}") == [["before"]]
    assert (await tenant.query(f"update {table} set b = 'next' where a = 1")).affected_rows == 1


async def _run(tenant: Tenant, kind: str, statement: str, timeout_ms: int) -> None:
    """Run the statement in one of the ways that there are."""
    match kind:
        case "query":
            await tenant.query(statement, timeout_ms=timeout_ms)
        case "transaction":
            await tenant.transaction("select 1", statement, timeout_ms=timeout_ms)
        case "stream":
            async with tenant.stream(statement, timeout_ms=timeout_ms) as stream:
                await read(stream)
        case "session":
            async with tenant.engine.session(tenant.writer, timeout_ms) as session:
                await session.run(statement)


every_way = pytest.mark.parametrize("kind", ["query", "transaction", "stream", "session"])


@every_way
async def test_a_caller_that_leaves_ends_its_statement(tenant: Tenant, kind: str) -> None:
    table, statement = await _held(tenant)
    running = asyncio.create_task(_run(tenant, kind, statement, LONG_S * 1000))
    await eventually_async(lambda: tenant.is_held(table, 1))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await _check_ended(tenant, table)


async def test_a_caller_that_waits_for_a_lock_can_leave(tenant: Tenant) -> None:
    """It lets go of what it holds itself while the lock that it waited for is still another's."""
    table, _ = await _held(tenant)
    await tenant.query(f"insert into {table} values (2, '')")
    async with tenant.row_held(table, 1):
        change = (f"update {table} set b = 'after' where a = $1",)
        waiting = asyncio.create_task(tenant.transaction((*change, 2), (*change, 1)))
        await eventually_async(lambda: tenant.is_held(table, 2))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await tenant.query(f"delete from {table} where a = 2 and b = ''")).affected_rows == 1
    await _check_ended(tenant, table)


async def test_callers_that_leave_take_no_place(tenant: Tenant) -> None:
    """More of them than the engine has connections, at any point of their statement."""
    for round in range(150):
        leaving = asyncio.create_task(tenant.query(f"select pg_sleep({LONG_S})", timeout_ms=LONG_S * 1000))
        for _ in range(round % 4):
            await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    assert await asyncio.gather(*(tenant.value("select 1") for _ in range(10))) == [1] * 10


@every_way
async def test_a_statement_over_its_time_is_ended(tenant: Tenant, kind: str) -> None:
    """The caller is told so."""
    table, statement = await _held(tenant)
    with pytest.raises(TimedOut):
        await _run(tenant, kind, statement, 200)
    await _check_ended(tenant, table)


@pytest.mark.parametrize("kind", ["query", "stream"])
async def test_a_definition_over_its_time_is_not_there(tenant: Tenant, kind: str) -> None:
    """The answer is definite, although the definition runs outside of a block."""
    table = await tenant.table()
    with pytest.raises(TimedOut):
        await _run(tenant, kind, f"create table {table}_slow as select pg_sleep({LONG_S})::text as slept", 200)
    await tenant.query(f"create table {table}_slow (a int)")


async def test_the_time_of_a_transaction_is_that_of_all_its_statements(tenant: Tenant) -> None:
    table, _ = await _held(tenant)
    change = f"update {table} set b = 'after' where a = 1"
    with pytest.raises(TimedOut):
        await tenant.transaction(change, *["select pg_sleep(0.1)"] * 100, timeout_ms=300)
    await _check_ended(tenant, table)


async def test_who_waits_for_a_lock_waits_no_longer_than_its_time(tenant: Tenant) -> None:
    table, _ = await _held(tenant)
    async with tenant.row_held(table, 1):
        with pytest.raises(TimedOut):
            await tenant.query(f"update {table} set b = 'after' where a = 1", timeout_ms=200)
    await _check_ended(tenant, table)


async def test_all_that_runs_can_be_stopped(tenant: Tenant) -> None:
    """When the service stops: each caller gets a definite answer."""
    table, statement = await _held(tenant)
    running = asyncio.create_task(tenant.query(statement, timeout_ms=LONG_S * 1000))
    await eventually_async(lambda: tenant.is_held(table, 1))
    tenant.engine.stop_running()
    with pytest.raises(Stopped) as caught:
        await running
    assert isinstance(caught.value, EngineFailure)
    await _check_ended(tenant, table)
