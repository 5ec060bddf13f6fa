"""Limits: what is over a bound is cut off, refused or kept waiting, and the engine works on."""

import asyncio
import json

import pytest

from tests.port.tenant import ENOUGH_MS, Tenant, statement
from tests.waiting import eventually_async
from tuplegate.engine.port import Bounds, EngineBusy, Result, StatementFailed, TimedOut


async def test_rows_beyond_the_bound_are_cut_off(tenant: Tenant) -> None:
    """They are not refused, and what the statement changed stands."""
    table = await tenant.table()
    result = await tenant.query(
        f"insert into {table} select g, '' from generate_series(1, 10) g returning a", rows_max=3
    )
    assert (len(json.loads(result.rows)), result.truncated, result.affected_rows) == (3, True, 10)
    assert await tenant.value(f"select count(*) from {table}") == 10
    whole = await tenant.query(f"select a from {table}", rows_max=10)
    assert (whole.row_count, whole.truncated) == (10, False)
    assert (await tenant.query(f"select a from {table}", rows_max=0)).rows == b"[]"


async def test_bytes_beyond_the_bound_are_cut_off(tenant: Tenant) -> None:
    """Between two rows: what is given is still JSON."""
    bytes_max = 10_000
    result = await tenant.query("select g, repeat('x', 100) from generate_series(1, 1000) g", bytes_max=bytes_max)
    assert result.truncated is True
    rows = json.loads(result.rows)
    assert 0 < len(rows) < 1000
    assert len(result.rows) <= bytes_max


async def test_the_bytes_of_a_transaction_are_those_of_all_its_results(tenant: Tenant) -> None:
    table = await tenant.table()
    chunk = "select repeat('x', 1000) from generate_series(1, 10)"
    done = await tenant.engine.transaction(
        tenant.writer,
        [statement(sql) for sql in (f"insert into {table} values (1)", chunk, chunk, chunk)],
        Bounds(ENOUGH_MS, None, 15_000),
        read_only=False,
        promise=None,
    )
    assert [result.truncated for result in done.results] == [False, False, True, True]
    assert sum(len(result.rows) for result in done.results) <= 15_000
    assert await tenant.value(f"select count(*) from {table}") == 1


async def test_a_database_over_its_size_takes_no_more(tenant: Tenant) -> None:
    """What is there can be read and removed, and a larger bound lets others in again."""
    table, engine = await tenant.table(), tenant.engine
    await tenant.query(f"insert into {table} values (1, 'x')")

    async def takes(row: int) -> bool:
        try:
            await tenant.query(f"insert into {table} values ({row}) on conflict (a) do update set b = 'y'")
        except StatementFailed:
            return False
        return True

    async def refuses(row: int) -> bool:
        return not await takes(row)

    engine.bound_size(tenant.database, 1)
    try:
        await eventually_async(lambda: refuses(2))
        assert await tenant.value(f"select count(*) from {table} where a = 1") == 1
        with pytest.raises(StatementFailed):
            await tenant.transaction(f"insert into {table} values (3)")
        assert (await tenant.query(f"delete from {table} where a = 1")).affected_rows == 1
    finally:
        engine.bound_size(tenant.database, None)
    await eventually_async(lambda: takes(4))
    assert await tenant.value(f"select count(*) from {table} where a = 3") == 0


async def test_a_paused_database_keeps_its_callers_waiting(tenant: Tenant) -> None:
    """Those who cannot wait are refused. When the pause is over the others go on."""
    table = await tenant.table()
    tenant.engine.pause(frozenset([tenant.database]))
    await _end_pause(tenant, table, asyncio.create_task(tenant.query(f"insert into {table} values (1)")))


async def test_a_pause_holds_up_whose_connection_is_being_opened(tenant: Tenant) -> None:
    """Nothing begins once the pause has."""
    table = await tenant.table()
    paused = frozenset([tenant.database])
    tenant.engine.pause(paused)  # closes the connections
    tenant.engine.pause(frozenset())
    waiting = asyncio.create_task(tenant.query(f"insert into {table} values (1)"))
    await asyncio.sleep(0)
    tenant.engine.pause(paused)
    await _end_pause(tenant, table, waiting)


async def _end_pause(tenant: Tenant, table: str, waiting: "asyncio.Task[Result]") -> None:
    """Check that whoever waits is held up as long as others are refused, and goes on after that."""
    try:
        with pytest.raises((EngineBusy, TimedOut)):
            await tenant.query(f"insert into {table} values (2)", timeout_ms=500)
        assert not waiting.done()
    finally:
        tenant.engine.pause(frozenset())
    assert (await waiting).affected_rows == 1
    assert await tenant.rows(f"select a from {table}") == [[1]]


async def test_more_callers_than_connections_take_turns(tenant: Tenant) -> None:
    table = await tenant.table()
    await asyncio.gather(*(tenant.query(f"insert into {table} values ({n})") for n in range(200)))
    assert await tenant.value(f"select count(*) from {table}") == 200
