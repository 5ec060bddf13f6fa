"""Streams: columns first, rows as they come, and an end that means committed."""

import asyncio
import json
from contextlib import aclosing

import pytest

from tests.port.capabilities import needs
from tests.port.tenant import Tenant, read
from tuplegate.engine.port import CopyRefused, ParameterMismatch, ParseFailed, StatementFailed, TimedOut


async def test_a_stream_gives_columns_rows_and_counts(tenant: Tenant) -> None:
    """One row of JSON a line, the same as in a result that is given at once."""
    statement = "select g as n, 'é\n' || g::text as t from generate_series(1, 5000) g order by 1"
    async with tenant.stream(statement) as stream:
        assert json.loads(stream.columns) == ["n", "t"]
        rows = await read(stream)
        sums = stream.sum_up()
        assert (sums.row_count, sums.affected_rows, sums.truncated) == (5000, 0, False)
    whole = await tenant.query(statement)
    assert stream.types == whole.types
    assert rows == json.loads(whole.rows)


async def test_a_stream_without_rows_still_has_columns(tenant: Tenant) -> None:
    table = await tenant.table()
    async with tenant.stream(f"select * from {table}") as stream:
        assert json.loads(stream.columns) == ["a", "b"]
        assert await read(stream) == []
    async with tenant.stream(f"insert into {table} values (1)") as stream:
        assert json.loads(stream.columns) == []
        assert await read(stream) == []
        assert stream.sum_up().affected_rows == 1


async def test_parameters_are_taken(tenant: Tenant) -> None:
    """Also by a statement that changes something."""
    table = await tenant.table()
    async with tenant.stream("select $1::int + 1, $2::text[]", 1, ["x", None]) as stream:
        assert await read(stream) == [[2, ["x", None]]]
    async with tenant.stream(f"insert into {table} values ($1, $2) returning *", 8, "x") as stream:
        assert await read(stream) == [[8, "x"]]


async def test_the_end_of_a_stream_means_committed(tenant: Tenant) -> None:
    """Nobody else sees its changes while rows are still to come."""
    table = await tenant.table()
    count = f"select count(*) from {table}"
    async with tenant.stream(f"insert into {table} select g, '' from generate_series(1, 3) g returning a") as stream:
        assert await tenant.value(count) == 0
        assert await read(stream) == [[1], [2], [3]]
        assert await tenant.value(count) == 3
        assert stream.sum_up().affected_rows == 3


async def test_a_stream_that_is_left_is_undone(tenant: Tenant) -> None:
    """A reader that stops in the middle leaves no change and no statement that runs on."""
    table = await tenant.table()
    await tenant.query(f"insert into {table} values (0, 'x')")
    change = f"insert into {table} select g, repeat('x', 1000) from generate_series(1, 20000) g returning a, b"
    async with tenant.stream(change) as stream, aclosing(stream.lines()) as lines:
        async for _ in lines:
            break
    assert await tenant.value(f"select count(*) from {table}") == 1


async def test_a_failure_comes_where_it_happens(tenant: Tenant) -> None:
    """Rows before it may have been given; what the statement changed is undone."""
    table = await tenant.table()
    failing = f"insert into {table} select g, (1 / (2000 - g))::text from generate_series(1, 3000) g returning a"
    with pytest.raises(StatementFailed) as caught:
        async with tenant.stream(failing) as stream:
            await read(stream)
    assert caught.value.sqlstate == "22012"
    assert await tenant.value(f"select count(*) from {table}") == 0


async def test_a_stream_over_its_time_does_not_come_to_its_end(tenant: Tenant) -> None:
    """Although every portion of rows is there before a cancel comes to the engine."""
    for timeout_ms in (0, 1, 2, 3):
        with pytest.raises(TimedOut):
            async with tenant.stream("select g from generate_series(1, 100000) g", timeout_ms=timeout_ms) as stream:
                await read(stream)


async def test_what_is_no_statement_fails_before_the_stream_is_open(tenant: Tenant) -> None:
    """So that the caller can still refuse the whole request."""
    for sql, params, failure in [
        ("selec 1", (), ParseFailed),
        ("select $1::int", (1, 2), ParameterMismatch),
        (f"select * from {tenant.schema}.nowhere", (), StatementFailed),
    ]:
        with pytest.raises(failure):
            async with tenant.stream(sql, *params):
                raise AssertionError("the stream was opened")


async def test_copy_is_refused(tenant: Tenant) -> None:
    with pytest.raises(CopyRefused):
        async with tenant.stream("copy (select 1) to stdout") as stream:
            await read(stream)


async def test_rows_beyond_the_bound_are_cut_off(tenant: Tenant) -> None:
    async with tenant.stream("select g from generate_series(1, 100) g order by 1", rows_max=3) as stream:
        assert await read(stream) == [[1], [2], [3]]
        assert stream.sum_up().truncated is True
    async with tenant.stream("select g from generate_series(1, 3) g order by 1", rows_max=3) as stream:
        assert len(await read(stream)) == 3
        assert stream.sum_up().truncated is False


async def test_streams_run_beside_each_other(tenant: Tenant) -> None:
    async def run(first: int) -> list[object]:
        async with tenant.stream(f"select g from generate_series({first}, {first + 999}) g order by 1") as stream:
            return await read(stream)

    found = await asyncio.gather(*(run(first) for first in (0, 1000, 2000)))
    assert found == [[[n] for n in range(first, first + 1000)] for first in (0, 1000, 2000)]


@needs("late_checks")
async def test_a_check_that_fails_at_the_commit_ends_the_stream(tenant: Tenant) -> None:
    """After all rows, and instead of the end."""
    table = await tenant.table(columns="a int unique deferrable initially deferred")
    with pytest.raises(StatementFailed) as caught:
        async with tenant.stream(f"insert into {table} values (1), (1) returning a") as stream:
            await read(stream)
    assert caught.value.sqlstate == "23505"
    assert await tenant.value(f"select count(*) from {table}") == 0


@needs("code")
async def test_messages_come_with_the_end(tenant: Tenant) -> None:
    async with tenant.stream("do $$ begin raise notice 'one'; end $$") as stream:
        await read(stream)
        assert [notice.message for notice in stream.sum_up().notices] == ["one"]
