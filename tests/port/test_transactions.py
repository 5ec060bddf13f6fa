"""Transactions: all statements or none, serializable, tried again where others were in the way."""

import asyncio
import json
from contextlib import suppress

import pytest

from tests.port.capabilities import needs
from tests.port.tenant import Tenant
from tuplegate.engine.port import Commit, MultipleStatements, ParameterMismatch, ParseFailed, StatementFailed


async def test_statements_run_in_order_and_see_those_before(tenant: Tenant) -> None:
    table = await tenant.table()
    done = await tenant.transaction(
        f"insert into {table} values (1, 'x'), (2, 'y')",
        (f"select * from {table} where a >= $1 order by a", 2),
        (f"update {table} set b = $1", "z"),
        f"delete from {table} where a = 1 returning b",
        f"select b from {table}",
    )
    assert [json.loads(result.rows) for result in done.results] == [[], [[2, "y"]], [], [["z"]], [["z"]]]
    assert [result.affected_rows for result in done.results] == [2, 0, 2, 1, 0]
    assert done.attempts == 1
    assert done.number is not None
    assert await tenant.rows(f"select * from {table}") == [[2, "z"]]


async def test_a_failure_undoes_everything_and_names_its_statement(tenant: Tenant) -> None:
    """Tables and columns that the transaction made included."""
    table = await tenant.table()
    for failing, sqlstate in [
        ("select 1 / 0", "22012"),
        (f"insert into {table} values (1)", "23505"),
        (f"select * from {tenant.schema}.nowhere", "42P01"),
    ]:
        with pytest.raises(StatementFailed) as caught:
            await tenant.transaction(
                f"insert into {table} values (1)",
                f"create table {tenant.schema}.made (a int)",
                failing,
                f"insert into {table} values (2)",
            )
        assert (caught.value.statement, caught.value.sqlstate) == (2, sqlstate)
        assert await tenant.value(f"select count(*) from {table}") == 0
        with pytest.raises(StatementFailed):
            await tenant.query(f"select * from {tenant.schema}.made")


async def test_what_is_no_statement_is_named_by_its_index(tenant: Tenant) -> None:
    table = await tenant.table()
    cases: list[tuple[int, str | tuple[object, ...], type[StatementFailed]]] = [
        (0, "selec 1", ParseFailed),
        (1, f"insert into {table} valuess (5)", ParseFailed),
        (2, "select 1; select 2", MultipleStatements),
        (1, ("select $1::int", 1, 2), ParameterMismatch),
    ]
    for index, failing, failure in cases:
        statements: list[str | tuple[object, ...]] = [f"insert into {table} values ({i})" for i in range(4)]
        statements[index] = failing
        with pytest.raises(failure) as caught:
            await tenant.transaction(*statements)
        assert caught.value.statement == index
    assert await tenant.value(f"select count(*) from {table}") == 0


async def test_many_statements_are_one_transaction(tenant: Tenant) -> None:
    table = await tenant.table()
    done = await tenant.transaction(*((f"insert into {table} values ($1, $2)", i, "x" * i) for i in range(300)))
    assert len(done.results) == 300
    assert await tenant.rows(f"select count(*), sum(length(b)) from {table}") == [[300, 299 * 150]]


async def test_parameters_fit_a_table_that_the_transaction_makes(tenant: Tenant) -> None:
    """The type of a placeholder may be known only when the statements before it have run."""
    table = f"{tenant.schema}.made"
    done = await tenant.transaction(
        f"create table {table} (j jsonb, n numeric[], s text)",
        (f"insert into {table} values ($1, $2, $3)", {"k": [1, None]}, [1.5, 2], None),
        (f"insert into {table} values ($1, $2, $3)", "text", [], "x"),
        f"select * from {table} order by s nulls first",
    )
    assert json.loads(done.results[3].rows) == [[{"k": [1, None]}, [1.5, 2], None], ["text", [], "x"]]


async def test_a_read_only_transaction_writes_nothing(tenant: Tenant) -> None:
    """The engine enforces it, whatever the statement; there is nothing to commit, and so no number."""
    table = await tenant.table()
    done = await tenant.transaction(f"select * from {table}", "select 1", read_only=True)
    assert (done.commit, done.number) == (Commit.READ_ONLY, None)
    for sql in (
        f"insert into {table} values (1)",
        f"with x as (insert into {table} values (1) returning a) select * from x",
        f"create table {tenant.schema}.made (a int)",
    ):
        with pytest.raises(StatementFailed) as caught:
            await tenant.transaction("select 1", sql, read_only=True)
        assert caught.value.statement == 1
    assert await tenant.value(f"select count(*) from {table}") == 0


async def test_no_statement_makes_a_read_only_transaction_write(tenant: Tenant) -> None:
    """Whether the engine refuses that or takes it: nothing is there in the end."""
    table = await tenant.table()
    for change in ("select set_config('transaction_read_only', 'off', false)", "set transaction read write"):
        with suppress(StatementFailed):
            await tenant.transaction(change, f"insert into {table} values (1)", read_only=True)
    assert await tenant.value(f"select count(*) from {table}") == 0


async def test_a_transaction_that_only_read_has_nothing_to_commit(tenant: Tenant) -> None:
    table = await tenant.table()
    assert (await tenant.transaction(f"select * from {table}")).commit is Commit.READ_ONLY
    assert (await tenant.transaction(f"insert into {table} values (1)")).commit is not Commit.READ_ONLY


@needs("two_phase")
async def test_a_transaction_that_wrote_is_committed_in_two_phases(tenant: Tenant) -> None:
    """What cannot be prepared is committed in one, and is no less applied."""
    table = await tenant.table()
    assert (await tenant.transaction(f"insert into {table} values (1)")).commit is Commit.TWO_PHASE
    done = await tenant.transaction("create temp table mine (a int)", f"insert into {table} values (2)")
    assert done.commit is Commit.ONE_PHASE
    assert await tenant.value(f"select count(*) from {table}") == 2


@needs("late_checks")
async def test_a_check_at_the_commit_undoes_everything(tenant: Tenant) -> None:
    """And nothing where it holds by then."""
    table = await tenant.table()
    child = await tenant.table("child", f"a int references {table} deferrable initially deferred")
    with pytest.raises(StatementFailed) as caught:
        await tenant.transaction(f"insert into {child} values (1)", "select 1")
    assert caught.value.sqlstate == "23503"
    assert await tenant.value(f"select count(*) from {child}") == 0
    await tenant.transaction(f"insert into {child} values (1)", f"insert into {table} values (1)")
    assert await tenant.value(f"select count(*) from {child}") == 1


async def test_those_in_each_others_way_are_tried_again(tenant: Tenant) -> None:
    """Each reads a row and writes what it read, plus one: all of them count."""
    table = await tenant.table(columns="a int primary key, n int")
    await tenant.query(f"insert into {table} values (1, 0)")

    async def add() -> None:
        for _ in range(5):
            await tenant.transaction(f"select n from {table}", f"update {table} set n = n + 1 where a = 1")

    async def add_alone() -> None:
        for _ in range(5):
            await tenant.query(f"update {table} set n = n + 1 where a = 1")

    await asyncio.gather(add(), add(), add(), add_alone())
    assert await tenant.value(f"select n from {table}") == 20


async def test_two_that_each_undo_what_the_other_relied_on_do_not_both_commit(tenant: Tenant) -> None:
    """Write skew: each may go off call only while the other is on call. In any order, one of them stays."""
    table = await tenant.table(columns="a int primary key, on_call bool")
    for _ in range(5):
        await tenant.query(f"delete from {table}")
        await tenant.query(f"insert into {table} values (1, true), (2, true)")
        others = f"(select count(*) from {table} where on_call)"
        leave = f"update {table} set on_call = false where a = $1::int and {others} > 1"
        await asyncio.gather(*(tenant.transaction(f"select * from {table}", (leave, who)) for who in (1, 2)))
        assert await tenant.value(f"select count(*) from {table} where on_call") == 1


async def test_a_reader_sees_all_of_a_transaction_or_nothing(tenant: Tenant) -> None:
    table = await tenant.table(columns="a int primary key, n int")
    await tenant.query(f"insert into {table} values (1, 50), (2, 50)")
    done = asyncio.Event()

    async def move() -> None:
        for _ in range(10):
            await tenant.transaction(
                f"update {table} set n = n - 1 where a = 1", f"update {table} set n = n + 1 where a = 2"
            )
        done.set()

    async def look() -> None:
        while not done.is_set():
            assert await tenant.value(f"select sum(n) from {table}") == 100
            [one, two] = (
                await tenant.transaction(
                    f"select n from {table} where a = 1", f"select n from {table} where a = 2", read_only=True
                )
            ).results
            assert json.loads(one.rows)[0][0] + json.loads(two.rows)[0][0] == 100

    await asyncio.gather(move(), look(), look())
    assert await tenant.rows(f"select n from {table} order by a") == [[40], [60]]
