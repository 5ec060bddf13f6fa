"""Failures: each is an exception of the port that says what was refused, and nothing of the statement is applied."""

import pytest

from tests.port.capabilities import needs
from tests.port.tenant import Tenant, new_name
from tuplegate.engine.port import (
    Access,
    Conflict,
    CopyRefused,
    EmptyStatement,
    EngineUnavailable,
    MultipleStatements,
    ParameterMismatch,
    ParseFailed,
    StatementFailed,
    Target,
)


async def test_a_text_that_is_no_statement_says_where(tenant: Tenant) -> None:
    """Positions count characters from 1, whatever each takes in UTF-8. The engine has run nothing."""
    for sql, position in [("selec 1", 1), ("select 'é€😀', 1 frm x y", 21), ("select 1 from", 14)]:
        with pytest.raises(ParseFailed) as caught:
            await tenant.query(sql)
        assert (caught.value.position, caught.value.sqlstate, caught.value.never_ran) == (position, "42601", True), sql


async def test_of_two_statements_none_is_run(tenant: Tenant) -> None:
    table = await tenant.table()
    for sql in (f"insert into {table} values (1); insert into {table} values (2)", "select 1; select 2"):
        with pytest.raises(MultipleStatements):
            await tenant.query(sql)
    assert await tenant.value(f"select count(*) from {table}") == 0


async def test_a_text_without_a_statement_is_refused(tenant: Tenant) -> None:
    for sql in ("", " ", ";", "-- nothing", "/* */"):
        with pytest.raises(EmptyStatement):
            await tenant.query(sql)


async def test_parameters_must_fit_their_placeholders(tenant: Tenant) -> None:
    """As many of them, and each of a kind that can be written as the placeholder's type: no text holds a NUL."""
    for sql, params in [
        ("select $1::int", (1, 2)),
        ("select $1::int, $2::int", (1,)),
        ("select 1", (1,)),
        ("select $1::text", ("a\0b",)),
    ]:
        with pytest.raises(ParameterMismatch):
            await tenant.query(sql, *params)


async def test_the_engine_judges_the_value_of_a_parameter(tenant: Tenant) -> None:
    """What has the right kind and a wrong value is refused with the engine's own state."""
    for sql, param, sqlstate in [("select $1::int", "x", "22P02"), ("select $1::date", "2026-02-30", "22008")]:
        with pytest.raises(StatementFailed) as caught:
            await tenant.query(sql, param)
        assert caught.value.sqlstate == sqlstate


async def test_a_refusal_carries_the_state_that_sql_has_for_it(tenant: Tenant) -> None:
    table = await tenant.table(columns="a int primary key, b text not null, c int check (c > 0)")
    await tenant.query(f"insert into {table} values (1, 'x', 1)")
    for sql, sqlstate in [
        (f"insert into {table} values (1, 'y', 1)", "23505"),
        (f"insert into {table} values (2, null, 1)", "23502"),
        (f"insert into {table} values (2, 'y', 0)", "23514"),
        (f"select * from {tenant.schema}.nowhere", "42P01"),
        (f"select absent from {table}", "42703"),
        ("select nosuch(1)", "42883"),
        ("select 1 / 0", "22012"),
        (f"create table {table} (a int)", "42P07"),
    ]:
        with pytest.raises(StatementFailed) as caught:
            await tenant.query(sql)
        assert caught.value.sqlstate == sqlstate, sql
        assert caught.value.message
    assert await tenant.rows(f"select * from {table}") == [[1, "x", 1]]


async def test_a_failure_leaves_the_next_statement_alone(tenant: Tenant) -> None:
    """Also where it failed after it had changed something."""
    table = await tenant.table()
    for _ in range(3):
        with pytest.raises(StatementFailed):
            await tenant.query(f"insert into {table} select 3 - g, (1 / (2 - g))::text from generate_series(1, 2) g")
    assert await tenant.value(f"select count(*) from {table}") == 0
    assert (await tenant.query(f"insert into {table} values (1)")).affected_rows == 1


async def test_copy_from_and_to_the_client_is_refused(tenant: Tenant) -> None:
    """Nobody could send or take the rows. The connection is not lost: it works on."""
    table = await tenant.table()
    for sql in (f"copy {table} from stdin", f"copy {table} to stdout"):
        with pytest.raises(CopyRefused):
            await tenant.query(sql)
        with pytest.raises(CopyRefused):
            await tenant.transaction(f"insert into {table} values (1)", sql)
    assert await tenant.value(f"select count(*) from {table}") == 0


async def test_who_may_only_read_cannot_write(tenant: Tenant) -> None:
    """The engine itself enforces it, by the role that logs in."""
    table = await tenant.table()
    await tenant.query(f"insert into {table} values (1, 'x')")
    assert await tenant.rows(f"select * from {table}", target=tenant.reader) == [[1, "x"]]
    for sql in (
        f"insert into {table} values (2)",
        f"with x as (delete from {table} returning a) select * from x",
        f"drop table {table}",
        f"create table {tenant.schema}.other (a int)",
    ):
        with pytest.raises(StatementFailed):
            await tenant.query(sql, target=tenant.reader)
        with pytest.raises(StatementFailed):
            await tenant.transaction(sql, target=tenant.reader)
    assert await tenant.rows(f"select * from {table}") == [[1, "x"]]


async def test_a_database_that_is_not_there_is_unavailable(tenant: Tenant) -> None:
    with pytest.raises(EngineUnavailable):
        await tenant.query("select 1", target=Target(new_name(), Access.WRITE))


@needs("late_checks")
async def test_a_check_that_fails_at_the_commit_fails_the_statement(tenant: Tenant) -> None:
    """The rows were made by then; the caller gets the refusal, and nothing is stored."""
    table = await tenant.table(columns="a int unique deferrable initially deferred")
    with pytest.raises(StatementFailed) as caught:
        await tenant.query(f"insert into {table} values (1), (1) returning a")
    assert caught.value.sqlstate == "23505"
    assert await tenant.value(f"select count(*) from {table}") == 0


@needs("code")
async def test_a_conflict_is_tried_again_until_it_lasts(tenant: Tenant) -> None:
    """The caller sees how often it was tried, and that nothing was applied."""
    table = await tenant.table()
    conflict = "do $$ begin insert into {} values (1); raise exception 'again' using errcode = '40001'; end $$"
    with pytest.raises(Conflict) as caught:
        await tenant.query(conflict.format(table))
    assert caught.value.attempts > 1
    assert await tenant.value(f"select count(*) from {table}") == 0


@needs("code")
async def test_messages_come_with_a_result_and_with_a_failure(tenant: Tenant) -> None:
    """What the engine said before it failed helps to understand the failure."""
    done = await tenant.query("do $$ begin raise notice 'one'; raise warning 'two'; end $$")
    assert [(notice.severity, notice.message) for notice in done.notices] == [("NOTICE", "one"), ("WARNING", "two")]
    with pytest.raises(StatementFailed) as caught:
        await tenant.query(
            "do $$ begin raise notice 'so far';"
            " raise exception 'no' using errcode = 'TG001', detail = 'why', hint = 'how'; end $$"
        )
    failure = caught.value
    assert [notice.message for notice in failure.notices] == ["so far"]
    assert (failure.message, failure.sqlstate, failure.detail, failure.hint) == ("no", "TG001", "why", "how")
    assert (await tenant.query("select 1")).notices == []


@needs("named_objects")
async def test_a_failure_of_the_engine_names_what_it_is_about(tenant: Tenant) -> None:
    """The table, the column and the constraint, where there are such."""
    table = await tenant.table()
    for row, told in [("(null)", ("t", "a", None)), ("(1), (1)", ("t", None, "t_pkey"))]:
        with pytest.raises(StatementFailed) as caught:
            await tenant.query(f"insert into {table} values {row}")
        fields = caught.value.fields
        assert fields is not None
        assert (fields.table, fields.column, fields.constraint) == told
        assert (fields.schema, fields.severity) == (tenant.schema, "ERROR")


@needs("code")
async def test_code_cannot_end_its_transaction(tenant: Tenant) -> None:
    """The service alone decides what is committed."""
    table = await tenant.table()
    for end in ("commit", "rollback"):
        with pytest.raises(StatementFailed):
            await tenant.query(f"do $$ begin insert into {table} values (1); {end}; end $$")
        with pytest.raises(StatementFailed):
            await tenant.transaction(f"do $$ begin insert into {table} values (1); {end}; end $$")
    assert await tenant.value(f"select count(*) from {table}") == 0
