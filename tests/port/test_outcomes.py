"""Outcomes: what became of a transaction can be asked for later, by anybody who has its id, and never changes."""

import asyncio
import secrets

import pytest

from tests.port.tenant import Tenant
from tuplegate.engine.port import Keep, Lock, Outcome, Promise, StatementFailed, Superseded, TransactionResult


def new_id() -> str:
    """Return an id as a client may choose it."""
    return f"txn_{secrets.token_hex(10)}"


async def run_as(tenant: Tenant, id: str, *statements: str, read_only: bool = False) -> TransactionResult:
    """Run a transaction under an id, as the data plane does: nobody else can use it meanwhile."""
    async with tenant.engine.hold_in(tenant.database, Lock.TRANSACTION, id) as free:
        assert free
        assert await tenant.engine.begin_id(tenant.database, id)
        return await tenant.transaction(*statements, read_only=read_only, promise=Promise(id))


async def test_the_number_of_a_transaction_tells_its_outcome(tenant: Tenant) -> None:
    """A number that was never given is not known to be committed."""
    table = await tenant.table()
    done = await tenant.transaction(f"insert into {table} values (1)")
    assert done.number is not None
    assert await tenant.engine.outcome(tenant.writer, done.number, done.mark) is Outcome.COMMITTED
    assert await tenant.engine.outcome(tenant.writer, done.number + 10**9, done.mark) is not Outcome.COMMITTED


async def test_an_id_that_was_never_seen_has_no_outcome(tenant: Tenant) -> None:
    assert await tenant.engine.find_id(tenant.database, new_id()) is None


async def test_an_id_is_taken_once(tenant: Tenant) -> None:
    id = new_id()
    assert await tenant.engine.begin_id(tenant.database, id) is True
    assert await tenant.engine.begin_id(tenant.database, id) is False
    taken = [tenant.engine.begin_id(tenant.database, other) for other in [new_id()] * 5]
    assert sorted(await asyncio.gather(*taken)) == [False] * 4 + [True]


async def test_a_transaction_and_its_promise_commit_together(tenant: Tenant) -> None:
    """Also one that only reads."""
    table = await tenant.table()
    for read_only, statement in [(False, f"insert into {table} values (1)"), (True, f"select * from {table}")]:
        id = new_id()
        await run_as(tenant, id, statement, read_only=read_only)
        assert await tenant.engine.find_id(tenant.database, id) is Outcome.COMMITTED
    assert await tenant.value(f"select count(*) from {table}") == 1


async def test_the_id_of_a_failure_is_not_committed(tenant: Tenant) -> None:
    """Nobody runs it any more, so it is aborted."""
    table, id = await tenant.table(), new_id()
    with pytest.raises(StatementFailed):
        await run_as(tenant, id, f"insert into {table} values (1)", "select 1 / 0")
    assert await tenant.engine.find_id(tenant.database, id) is Outcome.ABORTED
    assert await tenant.engine.abort_id(tenant.database, id) is Outcome.ABORTED


async def test_an_id_is_in_progress_while_it_is_held(tenant: Tenant) -> None:
    """And aborted once nobody holds it: who did may have died."""
    id = new_id()
    async with tenant.engine.hold_in(tenant.database, Lock.TRANSACTION, id) as free:
        assert free
        assert await tenant.engine.begin_id(tenant.database, id)
        assert await tenant.engine.find_id(tenant.database, id) is Outcome.IN_PROGRESS
    assert await tenant.engine.find_id(tenant.database, id) is Outcome.ABORTED


async def test_an_abort_is_final(tenant: Tenant) -> None:
    """A transaction that was aborted while it ran finds that out when it commits, and applies nothing."""
    table, id = await tenant.table(), new_id()
    await tenant.query(f"insert into {table} values (1, 'x')")
    async with tenant.row_held(table, 1):
        running = asyncio.create_task(
            run_as(tenant, id, f"insert into {table} values (2)", f"update {table} set b = 'y' where a = 1")
        )
        while await tenant.engine.find_id(tenant.database, id) is None:
            assert not running.done()
        assert await tenant.engine.abort_id(tenant.database, id) is Outcome.ABORTED
    with pytest.raises(Superseded):
        await running
    assert await tenant.engine.find_id(tenant.database, id) is Outcome.ABORTED
    assert await tenant.rows(f"select * from {table}") == [[1, "x"]]


async def test_what_was_never_begun_can_be_aborted(tenant: Tenant) -> None:
    """Then it never begins."""
    id = new_id()
    assert await tenant.engine.abort_id(tenant.database, id) is Outcome.ABORTED
    assert await tenant.engine.begin_id(tenant.database, id) is False


async def test_what_is_committed_cannot_be_aborted(tenant: Tenant) -> None:
    table, id = await tenant.table(), new_id()
    await run_as(tenant, id, f"insert into {table} values (1)")
    assert await tenant.engine.abort_id(tenant.database, id) is Outcome.COMMITTED
    assert await tenant.value(f"select count(*) from {table}") == 1


async def test_an_abort_and_a_commit_that_meet_agree(tenant: Tenant) -> None:
    """Whoever comes first: the transaction, both answers and the data say the same."""
    table = await tenant.table(columns="id text")
    for _ in range(10):
        id = new_id()
        running = asyncio.create_task(run_as(tenant, id, f"insert into {table} values ('{id}')"))
        while await tenant.engine.find_id(tenant.database, id) is None:
            assert not running.done()
        verdict = await tenant.engine.abort_id(tenant.database, id)
        [ended] = await asyncio.gather(running, return_exceptions=True)
        committed = not isinstance(ended, BaseException)
        assert committed or isinstance(ended, Superseded), ended
        assert verdict is (Outcome.COMMITTED if committed else Outcome.ABORTED)
        assert await tenant.engine.find_id(tenant.database, id) is verdict
        assert await tenant.value(f"select count(*) from {table} where id = $1", id) == int(committed)


async def test_an_answer_is_kept_with_the_data(tenant: Tenant) -> None:
    """The one is there if, and only if, the other is; `body` sees the result that it belongs to."""
    table, engine = await tenant.table(), tenant.engine
    route, key = "/v1/test", secrets.token_hex(8)
    keep = Keep(route, key, "request", lambda done: b"%d rows" % done.results[0].affected_rows)
    assert (await engine.find_kept(tenant.database, route, key)).found is None
    with pytest.raises(StatementFailed):
        await tenant.transaction(f"insert into {table} values (1)", "select 1 / 0", promise=Promise(keep=keep))
    assert (await engine.find_kept(tenant.database, route, key)).found is None

    await tenant.transaction(f"insert into {table} values (1), (2)", promise=Promise(keep=keep))
    kept = await engine.find_kept(tenant.database, route, key)
    assert kept.found is not None
    assert (kept.found.request, kept.found.body) == ("request", b"2 rows")
    assert kept.bytes >= len(b"2 rows")
    assert (await engine.find_kept(tenant.database, "/v1/other", key)).found is None


async def test_of_two_with_one_key_one_commits(tenant: Tenant) -> None:
    table = await tenant.table(columns="a int")
    keep = Keep("/v1/test", secrets.token_hex(8), "request", lambda done: b"")
    both = [tenant.transaction(f"insert into {table} values (1)", promise=Promise(keep=keep)) for _ in range(2)]
    ended = await asyncio.gather(*both, return_exceptions=True)
    assert [type(end) for end in ended if isinstance(end, BaseException)] == [Superseded]
    assert await tenant.value(f"select count(*) from {table}") == 1
