"""On CockroachDB a transaction is known again by its savepoint, and records expire whatever a tenant puts into them."""

import asyncio

import pytest

from tests.engine.test_writing_functions import BOUNDS, cluster, read, run, statement
from tests.inside import owner
from tests.service import Service, Sql
from tuplegate.engine import port
from tuplegate.engine.cockroach.transaction.records import EXPIRE

__all__ = ["cluster"]


@pytest.mark.parametrize(
    "statements",
    [
        ("commit", "begin", "select 1 / 0"),
        ("commit", "begin", "select 1"),
        ("commit", "select 1 / 0"),
        ("commit",),
        ("rollback", "begin", "select 1"),
    ],
)
def test_a_transaction_that_a_statement_ended_is_not_called_undone(service: Service, statements: tuple[str]) -> None:
    """However the statement came past the service, which refuses COMMIT."""

    async def work(engine: port.OpenEngine, target: port.Target) -> None:
        await engine.query(target, statement("drop table if exists guarded"), BOUNDS)
        await engine.query(target, statement("create table guarded (a int primary key)"), BOUNDS)
        sent = [statement(sql) for sql in ("insert into guarded values (1)", *statements)]
        with pytest.raises(port.OutcomeUnknown, match="a statement ended the transaction"):
            await engine.transaction(target, sent, BOUNDS)
        assert len(await read(engine, target, "select a from guarded")) == (statements[0] == "commit")
        await engine.query(target, statement("drop table guarded"), BOUNDS)

    run(service, work)


def test_a_failure_is_told_as_it_is(service: Service) -> None:
    """A transaction that is still the one that was begun fails with the words of its statement."""

    async def work(engine: port.OpenEngine, target: port.Target) -> None:
        for sql, sqlstate in (("select 1 / 0", "22012"), ("select nothing_of_that_name", "42703")):
            sent = [statement("select 1"), statement(sql)]
            with pytest.raises(port.StatementFailed) as caught:
                await engine.transaction(target, sent, BOUNDS)
            assert (caught.value.sqlstate, caught.value.statement) == (sqlstate, 1)
        with pytest.raises(port.StatementFailed):
            await engine.transaction(
                target, [statement("create table made (a int)"), statement("select 1 / 0")], BOUNDS
            )
        await asyncio.gather(*(read(engine, target, "select 1") for _ in range(10)))

    run(service, work)


def test_rows_that_a_tenant_adds_to_the_records_expire(service: Service, sql: Sql) -> None:
    """By the engine's own time: theirs is from a thousand years ahead."""
    add = "insert into tuplegate.answer (key, mac, request, body, at) values ('mine', '', '', '', '3026-01-01')"
    count = b"select count(*) from tuplegate.answer where key = 'mine'"
    sql(add)
    with owner(service) as connection:
        for hours, left in (("25 hours", 1), ("-1 hours", 0)):
            for statement in EXPIRE:
                connection.execute(statement.replace("25 hours", hours).encode())
            assert connection.execute(count).fetchone() == (left,)
