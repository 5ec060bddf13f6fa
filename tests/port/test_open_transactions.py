"""Transactions that stay open between requests: their statements come one by one, and their client ends them."""

import asyncio
import gc
import json
import secrets
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.port.tenant import BYTES_MAX, ENOUGH_MS, Tenant, read, statement
from tests.waiting import eventually_async
from tuplegate.engine.port import (
    Bounds,
    Commit,
    Conflict,
    EndReason,
    OpenState,
    OpenTransaction,
    Outcome,
    StatementFailed,
    TimedOut,
    TransactionOver,
)

ENOUGH = Bounds(ENOUGH_MS, None, BYTES_MAX)
LONG_S = 600


class Opened:
    """An open transaction, and the id that its outcome is asked for by."""

    def __init__(self, transaction: OpenTransaction, id: str) -> None:
        self.transaction = transaction
        self.id = id

    async def run(self, sql: str, *params: Any, timeout_ms: int = ENOUGH_MS) -> list[Any]:
        bounds = Bounds(timeout_ms, None, BYTES_MAX)
        rows: list[Any] = json.loads((await self.transaction.query(statement(sql, params), bounds)).rows)
        return rows


@asynccontextmanager
async def opened(tenant: Tenant, *, read_only: bool = False) -> AsyncIterator[Opened]:
    """Begin a transaction; leaving the block rolls it back where it is not over."""
    id = f"txn_{secrets.token_hex(10)}"
    transaction = await tenant.engine.begin(tenant.writer, id, ENOUGH_MS, read_only=read_only)
    try:
        yield Opened(transaction, id)
    finally:
        if transaction.over is None:
            await roll_back(transaction)


async def roll_back(transaction: OpenTransaction) -> None:
    over = asyncio.Event()
    transaction.on_over = over.set
    transaction.abort(EndReason.ROLLBACK)
    await over.wait()


async def test_a_number_that_does_not_fit_is_refused(tenant: Tenant) -> None:
    """Alone, and among others for one statement."""
    table = await tenant.table(columns="a int2")
    insert = f"insert into {table} values ($1)"
    lists = [[msgspec.Raw(b"1")], [msgspec.Raw(b"70000")]]
    async with opened(tenant) as it:
        with pytest.raises(StatementFailed) as refused:
            await it.run(insert, 70000)
        assert refused.value.sqlstate == "22003"
    async with opened(tenant) as it:
        with pytest.raises(StatementFailed) as refused:
            await it.transaction.query(statement(insert), ENOUGH, lists)
        assert (refused.value.sqlstate, refused.value.statement) == ("22003", 1)
    assert await tenant.value(f"select count(*) from {table}") == 0


async def test_it_goes_back_behind_a_stream_and_a_failure(tenant: Tenant) -> None:
    """What a stream may have changed is set back once the transaction takes statements again. A definition comes
    first: from then on a statement could change anything."""
    table = await tenant.table()
    async with opened(tenant) as it:
        await it.run(f"insert into {table} values (1)")
        await it.run(f"create table {table}_too (a int)")
        await it.run("savepoint here")
        async with it.transaction.stream(statement("select 1"), ENOUGH) as stream:
            assert [line async for line in stream.lines()]
        with pytest.raises(StatementFailed):
            await it.run(f"insert into {table} values (1)")
        with pytest.raises(StatementFailed):
            await it.run(f"select * from {table}")
        await it.run("rollback to savepoint here")
        assert await it.run(f"select count(*) from {table}") == [[1]]
        await it.transaction.commit(None, ENOUGH)
    assert await tenant.value(f"select count(*) from {table}") == 1


async def test_a_commit_applies_everything(tenant: Tenant) -> None:
    """With a last statement that goes along with it. Its outcome can be asked for by its id."""
    table = await tenant.table()
    async with opened(tenant) as it:
        await it.run(f"insert into {table} values ($1, $2)", 1, "x")
        assert await it.run(f"select * from {table}") == [[1, "x"]]
        done = await it.transaction.commit(statement(f"insert into {table} values (2) returning a"), ENOUGH)
        assert [json.loads(result.rows) for result in done.results] == [[[2]]]
        assert done.commit is not Commit.READ_ONLY
        assert it.transaction.over is Outcome.COMMITTED
        with pytest.raises(TransactionOver):
            await it.run("select 1")
        assert await tenant.engine.abort_id(tenant.database, it.id) is Outcome.COMMITTED
    assert await tenant.rows(f"select a from {table} order by a") == [[1], [2]]


async def test_a_rollback_applies_nothing(tenant: Tenant) -> None:
    table = await tenant.table()
    async with opened(tenant) as it:
        await it.run(f"insert into {table} values (1)")
        await roll_back(it.transaction)
        assert (it.transaction.state, it.transaction.over) == (OpenState.OVER, EndReason.ROLLBACK)
        assert await tenant.engine.abort_id(tenant.database, it.id) is Outcome.ABORTED
    assert await tenant.rows(f"select * from {table}") == []


async def test_a_failure_can_be_gone_back_from(tenant: Tenant) -> None:
    """To a savepoint. Without one everything is refused."""
    table = await tenant.table()
    async with opened(tenant) as it:
        await it.run(f"insert into {table} values (1)")
        await it.run("savepoint here")
        with pytest.raises(StatementFailed) as caught:
            await it.run(f"insert into {table} values (1)")
        assert caught.value.sqlstate == "23505"
        assert it.transaction.state is OpenState.FAILED
        with pytest.raises(StatementFailed):
            await it.run("select 1")
        await it.run("rollback to savepoint here")
        assert OpenState(it.transaction.state) is OpenState.WAITING
        await it.run(f"insert into {table} values (2)")
        await it.transaction.commit(None, ENOUGH)
    assert await tenant.rows(f"select a from {table} order by a") == [[1], [2]]


async def test_a_failed_one_cannot_be_committed(tenant: Tenant) -> None:
    table = await tenant.table()
    async with opened(tenant) as it:
        await it.run(f"insert into {table} values (1)")
        with pytest.raises(StatementFailed):
            await it.run("select 1 / 0")
        with pytest.raises(StatementFailed):
            await it.transaction.commit(None, ENOUGH)
        assert it.transaction.over is EndReason.ROLLBACK
    assert await tenant.rows(f"select * from {table}") == []


async def test_of_two_that_meet_one_is_ended(tenant: Tenant) -> None:
    """Each reads what the other writes."""
    table = await tenant.table(columns="a int primary key, n int")
    await tenant.query(f"insert into {table} values (1, 0), (2, 0)")
    async with opened(tenant) as one, opened(tenant) as two:
        failed = 0
        for it, seen in ((one, 2), (two, 1)):
            await it.run(f"select n from {table} where a = {seen}")

        async def finish(it: Opened, written: int) -> None:
            nonlocal failed
            try:
                await it.run(f"update {table} set n = n + 1 where a = {written}")
                await it.transaction.commit(None, ENOUGH)
            except Conflict:
                failed += 1
                assert it.transaction.over is EndReason.CONFLICT

        await asyncio.gather(finish(one, 1), finish(two, 2))
        assert failed == 1
    assert await tenant.value(f"select sum(n) from {table}") == 1


async def test_one_that_only_reads_writes_nothing(tenant: Tenant) -> None:
    table = await tenant.table()
    async with opened(tenant, read_only=True) as it:
        assert await it.run(f"select * from {table}") == []
        with pytest.raises(StatementFailed):
            await it.run(f"insert into {table} values (1)")
    async with opened(tenant) as it:
        await it.run(f"select * from {table}")
        assert (await it.transaction.commit(None, ENOUGH)).commit is Commit.READ_ONLY


async def test_one_statement_takes_many_lists_of_parameters(tenant: Tenant) -> None:
    table = await tenant.table()
    lists = [[msgspec.Raw(json.dumps(value).encode()) for value in (n, f"row {n}")] for n in range(50)]
    async with opened(tenant) as it:
        insert = statement(f"insert into {table} values ($1, $2) returning a")
        result = await it.transaction.query(insert, ENOUGH, lists)
        assert (result.affected_rows, len(json.loads(result.rows))) == (50, 50)
        lists[3] = lists[3][:1]
        with pytest.raises(StatementFailed) as caught:
            await it.transaction.query(insert, ENOUGH, lists)
        assert caught.value.statement == 3


async def test_a_stream_inside_goes_on_after_it(tenant: Tenant) -> None:
    table = await tenant.table()
    rows = "select g, 'x' from generate_series(1, 3000) g order by 1"
    async with opened(tenant) as it:
        await it.run(f"insert into {table} values (1)")
        async with it.transaction.stream(statement(rows), ENOUGH) as stream:
            assert len(await read(stream)) == 3000
        await it.run(f"insert into {table} values (2)")
        await it.transaction.commit(None, ENOUGH)
    assert await tenant.value(f"select count(*) from {table}") == 2


async def test_a_stream_that_is_left_can_be_gone_back_from(tenant: Tenant) -> None:
    """Whether or not the engine counts that as a failure."""
    table = await tenant.table()
    async with opened(tenant) as it:
        await it.run(f"insert into {table} values (1)")
        await it.run("savepoint here")
        many = statement("select g, repeat('x', 1000) from generate_series(1, 100000) g")
        async with it.transaction.stream(many, ENOUGH) as stream, aclosing(stream.lines()) as lines:
            async for _ in lines:
                break
        await it.run("rollback to savepoint here")
        await it.transaction.commit(None, ENOUGH)
    assert await tenant.value(f"select count(*) from {table}") == 1


async def test_a_statement_over_its_time_fails_alone(tenant: Tenant) -> None:
    table = await tenant.table()
    async with opened(tenant) as it:
        await it.run(f"insert into {table} values (1)")
        await it.run("savepoint here")
        with pytest.raises(TimedOut):
            await it.run(f"select pg_sleep({LONG_S})", timeout_ms=200)
        await it.run("rollback to savepoint here")
        await it.transaction.commit(None, ENOUGH)
    assert await tenant.value(f"select count(*) from {table}") == 1


async def test_a_stream_over_its_time_can_be_gone_back_from(tenant: Tenant) -> None:
    """Wherever it was cut short: before its first row, or while rows are on their way."""
    table = await tenant.table()
    many = statement(f"insert into {table} select g, repeat('x', 500) from generate_series(1, 20000) g returning *")
    async with opened(tenant) as it:
        await it.run(f"insert into {table} values (0)")
        for timeout_ms in (0, 1):
            await it.run("savepoint s")
            with pytest.raises(TimedOut):
                async with it.transaction.stream(many, Bounds(timeout_ms, None, BYTES_MAX)) as stream:
                    await read(stream)
            await it.run("rollback to s")
        await it.transaction.commit(None, ENOUGH)
    assert await tenant.value(f"select count(*) from {table}") == 1


async def test_an_abort_ends_what_runs(tenant: Tenant) -> None:
    table = await tenant.table()
    await tenant.query(f"insert into {table} values (1, 'before')")
    over = asyncio.Event()
    async with opened(tenant) as it:
        it.transaction.on_over = over.set
        running = asyncio.create_task(
            it.run(f"update {table} set b = 'after' where a = 1 returning pg_sleep({LONG_S})", timeout_ms=LONG_S * 1000)
        )
        await eventually_async(lambda: tenant.is_held(table, 1))
        it.transaction.abort(EndReason.REVOKED)
        with pytest.raises(StatementFailed):
            await running
        await over.wait()
        assert it.transaction.over is EndReason.REVOKED
    assert await tenant.rows(f"select b from {table}") == [["before"]]


async def test_one_that_was_aborted_by_its_id_is_not_committed(tenant: Tenant) -> None:
    table = await tenant.table()
    async with opened(tenant) as it:
        await it.run(f"insert into {table} values (1)")
        assert await tenant.engine.abort_id(tenant.database, it.id) is Outcome.ABORTED
        with pytest.raises((TransactionOver, Conflict)):
            await it.transaction.commit(None, ENOUGH)
    assert await tenant.rows(f"select * from {table}") == []


async def test_its_connection_is_clean_afterwards(tenant: Tenant) -> None:
    for _ in range(3):
        async with opened(tenant) as it:
            await it.run("set time zone 'Asia/Tokyo'")
            await it.transaction.commit(None, ENOUGH)
        hour = "select extract(hour from '2026-01-01 00:00:00+00'::timestamptz)::int"
        assert {await tenant.value(hour) for _ in range(5)} == {0}


@pytest.mark.parametrize("commits", [True, False])
async def test_whoever_waits_for_the_end_is_not_held_by_it(tenant: Tenant, commits: bool) -> None:
    """What `on_over` refers to refers to the transaction: only the collector would ever find the two, at a cost that
    every request shares."""

    over = asyncio.Event()

    class Waiting:
        def __init__(self, transaction: OpenTransaction) -> None:
            self.transaction = transaction
            self.over = over

        def note(self) -> None:
            self.over.set()

    table = await tenant.table()
    transaction = await tenant.engine.begin(tenant.writer, f"txn_{secrets.token_hex(10)}", ENOUGH_MS, read_only=False)
    waiting = Waiting(transaction)
    transaction.on_over = waiting.note
    await transaction.query(statement(f"insert into {table} values ($1, $2)", (1, "x")), ENOUGH)
    gc.disable()
    try:
        if commits:
            await transaction.commit(None, ENOUGH)
        else:
            transaction.abort(EndReason.ROLLBACK)
            await over.wait()
        assert over.is_set()
        alive = weakref.ref(waiting)
        del waiting, transaction
        assert alive() is None
    finally:
        gc.enable()
