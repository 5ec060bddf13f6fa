"""Transactions that stay open between calls: their ends, savepoints, streams, conflicts, and lost answers."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client.faults import ABANDON, LOSE, PASS, Relay, relay
from tests.service import Service
from tests.waiting import eventually
from tuplegate.client import (
    AlreadyExists,
    AsyncClient,
    AsyncOpenTransaction,
    BadRequest,
    Client,
    ConnectionFailed,
    DivisionByZero,
    InvalidTransactionState,
    OpenTransaction,
    OutcomeUnknown,
    ReadOnlyTransaction,
    Rows,
    SerializationFailure,
    TransactionAborted,
    TransactionExpired,
    UniqueViolation,
)
from tuplegate.client.errors import make_error
from tuplegate.client.progress import can_run_again


@pytest.fixture
def notes(database: Client) -> Iterator[str]:
    """The name of an empty table with a primary key, `n`."""
    database.query("create table open_notes (n int primary key, text text)")
    yield "open_notes"
    database.query("drop table open_notes")


def numbers(database: Client) -> list[int]:
    return list(database.query("select n from open_notes order by n").column())


def verbs(used: Relay) -> list[str]:
    """The last part of the path of every request."""
    return [request.split(b" ", 2)[1].decode().rsplit("/", 1)[1] for request in used.requests]


def losing(*lost: int) -> Callable[[bytes], str]:
    """A plan: lose the answers of these requests, counted from 0."""
    count = iter(range(10**6))
    return lambda _request: LOSE if next(count) in lost else PASS


# -- how it ends ---------------------------------------------------------------------------------------------------


def test_the_end_of_the_block_commits(service: Service, database: Client, notes: str) -> None:
    """The first statement begins it: three requests for two statements."""
    with relay(service.url, lambda _: PASS) as watched, Client(watched.url, service.key) as client:
        with client.transaction() as t:
            assert (t.state, t.id, t.expires_at) == ("new", None, None)
            assert t.query(f"insert into {notes} values ($1, $2) returning n", [1, "a"]).value() == 1
            assert (t.state, t.expires_at is not None) == ("open", True)
            assert t.query(f"select count(*) from {notes}").value() == 1
            assert numbers(database) == []
        assert t.state == "committed"
        assert t.id is not None
        assert database.transaction_state(t.id) == "committed"
    assert verbs(watched) == ["begin", "query", "commit"]
    assert numbers(database) == [1]
    with pytest.raises(AlreadyExists, match="has ended"):
        t.query("select 1")
    with pytest.raises(AlreadyExists, match="has ended"):
        t.rollback()


def test_an_exception_rolls_back_and_is_raised(database: Client, notes: str) -> None:
    for kind in (ValueError, KeyboardInterrupt):
        with pytest.raises(kind, match="mine"), database.transaction() as t:  # noqa: PT012 - the block is tested
            t.query(f"insert into {notes} values (1)")
            raise kind("mine")
        assert (t.state, t.reason) == ("aborted", "rollback")
        assert t.id is not None
        assert database.transaction_state(t.id) == "aborted"
    assert numbers(database) == []


def test_it_is_committed_with_a_last_statement_or_rolled_back_by_hand(database: Client, notes: str) -> None:
    with database.transaction() as t:
        t.query(f"insert into {notes} values (1)")
        done = t.commit((f"insert into {notes} values ($1) returning n", [2]))
    assert (done.id, done.results[0].value()) == (t.id, 2)
    with database.transaction() as alone:
        assert alone.commit(f"insert into {notes} values (3) returning n").results[0].value() == 3
    with database.transaction() as t:
        t.query(f"insert into {notes} values (4)")
        t.rollback()
        t.rollback()
        with pytest.raises(TransactionAborted) as caught:
            t.query("select 1")
        assert caught.value.reason == "rollback"
    assert numbers(database) == [1, 2, 3]


def test_without_a_statement_nothing_is_sent(service: Service) -> None:
    with relay(service.url, lambda _: PASS) as watched, Client(watched.url, service.key) as client:
        with client.transaction() as t:
            pass
        assert t.state == "committed"
        with client.transaction() as t:
            t.rollback()
        assert t.state == "aborted"
    assert watched.requests == []


def test_a_failed_one_is_not_committed_silently(database: Client, notes: str) -> None:
    """A program that swallows an error learns at the end that nothing was applied."""
    with pytest.raises(InvalidTransactionState), database.transaction() as t:  # noqa: PT012 - the block is tested
        t.query(f"insert into {notes} values (1)")
        with pytest.raises(DivisionByZero):
            t.query("select 1/0")
        assert t.state == "failed"
        with pytest.raises(InvalidTransactionState):
            t.query("select 1")
    assert t.state == "aborted"
    assert numbers(database) == []


def test_a_first_statement_that_fails_ends_it(database: Client) -> None:
    with pytest.raises(TransactionAborted), database.transaction() as t:  # noqa: PT012 - the block is tested
        with pytest.raises(DivisionByZero):
            t.query("select 1/0")
        assert t.state == "aborted"
        t.query("select 1")


def test_it_only_reads_if_asked_to(database: Client, notes: str) -> None:
    with pytest.raises(ReadOnlyTransaction), database.transaction(read_only=True) as t:  # noqa: PT012 - the block is tested
        t.query("select 1")
        t.query(f"insert into {notes} values (1)")


def test_an_expired_one_says_so(database: Client, notes: str) -> None:
    """The lock that another one waits for is free when it has expired."""
    with pytest.raises(TransactionExpired), database.transaction(idle_timeout_s=0.2) as t:  # noqa: PT012 - the block is tested
        t.query(f"lock table {notes}")
        database.query(f"select 1 from {notes}")
        t.query("select 1")
    assert (t.state, t.reason) == ("aborted", "expired")


def test_the_service_says_why_it_was_aborted(database: Client) -> None:
    with pytest.raises(TransactionAborted) as caught, database.transaction() as t:  # noqa: PT012 - the block is tested
        t.query("select 1")
        assert t.id is not None
        assert database.abort_transaction(t.id) == "aborted"
        t.query("select 1")
    assert (caught.value.reason, caught.value.status, t.reason) == ("rollback", 409, "rollback")


def test_refused_requests_do_not_disturb_the_numbers(database: Client, notes: str) -> None:
    """Whether the service took their number cannot be seen from every error."""
    with database.transaction() as t:
        t.query("select 1")
        for _ in range(3):
            with pytest.raises(BadRequest):
                t.query("commit")
        assert t.state == "open"
        t.query(f"insert into {notes} values (1)")
        with pytest.raises(BadRequest):
            t.query("begin")
        assert list(t.stream(f"select n from {notes}")) == [{"n": 1}]
        with pytest.raises(BadRequest):
            t.commit("rollback")
        t.query(f"insert into {notes} values (2)")
    assert numbers(database) == [1, 2]


# -- savepoints and streams ----------------------------------------------------------------------------------------


def test_a_savepoint_undoes_its_block_alone(database: Client, notes: str) -> None:
    with database.transaction() as t:
        with t.savepoint():
            t.query(f"insert into {notes} values (1)")
        with pytest.raises(UniqueViolation), t.savepoint():  # noqa: PT012 - the block is tested
            t.query(f"insert into {notes} values (2)")
            with t.savepoint():
                t.query(f"insert into {notes} values (1)")
        assert t.state == "open"
        with t.savepoint() as point:
            t.query(f"insert into {notes} values (3)")
            point.rollback()
            t.query(f"insert into {notes} values (4)")
    assert numbers(database) == [1, 4]


def test_a_stream_within(database: Client, notes: str) -> None:
    with database.transaction() as t:
        rows = t.stream(f"insert into {notes} select g from generate_series(1, 3) g returning n", max_rows=None)
        with rows:
            assert rows.columns == ["n"]
            with pytest.raises(AlreadyExists, match="running another statement"):
                t.query("select 1")
            assert [row["n"] for row in rows] == [1, 2, 3]
        assert t.query(f"select count(*) from {notes}").value() == 3
        with t.savepoint() as point:
            with t.stream("select repeat('x', 1000) from generate_series(1, 1000000) g") as left:
                next(left)
            point.rollback()  # the cancelled statement may have left it failed
        with pytest.raises(DivisionByZero), t.savepoint():
            list(t.stream("select 1 / (3 - g) from generate_series(1, 5) g"))
        assert t.state == "open"
    assert numbers(database) == [1, 2, 3]


# -- conflicts -----------------------------------------------------------------------------------------------------


def test_a_conflict_is_run_again(database: Client, notes: str) -> None:
    """By run(); without it the error says that all of it can be repeated."""
    database.query(f"insert into {notes} values (1, '0')")
    seen: list[OpenTransaction] = []

    def raise_by_one(t: OpenTransaction) -> int:
        seen.append(t)
        text: str = t.query(f"select text from {notes} where n = 1").value()
        if len(seen) < 3:
            database.query(f"update {notes} set text = text::int + 10 where n = 1")
        t.query(f"update {notes} set text = $1 where n = 1", [str(int(text) + 1)])
        return int(text)

    assert database.run(raise_by_one) == 20
    assert [t.state for t in seen] == ["aborted", "aborted", "committed"]
    assert [t.reason for t in seen] == ["conflict", "conflict", None]
    assert database.query(f"select text from {notes}").value() == "21"
    seen.clear()
    with pytest.raises(SerializationFailure) as caught:
        database.run(raise_by_one, attempts=2)
    assert (caught.value.retryable, len(seen)) == (True, 2)


def test_run_repeats_nothing_but_conflicts(database: Client, notes: str) -> None:
    calls: list[int] = []

    def fail(t: OpenTransaction) -> None:
        calls.append(1)
        t.query(f"insert into {notes} values (1)")
        t.query("select 1/0")

    with pytest.raises(DivisionByZero):
        database.run(fail)
    assert calls == [1]
    assert numbers(database) == []
    with pytest.raises(ValueError, match="attempts is 0"):
        database.run(fail, attempts=0)


# -- lost answers --------------------------------------------------------------------------------------------------


def test_lost_answers_are_asked_for_again_and_nothing_runs_twice(
    service: Service, database: Client, notes: str
) -> None:
    """Of a statement, of a savepoint, and of the commit with its last statement."""
    with relay(service.url, losing(1, 3, 5, 7, 9)) as lossy, Client(lossy.url, service.key) as client:
        with client.transaction() as t:
            t.query("select 1")
            rows = t.query(f"insert into {notes} values (1) returning n")
            with t.savepoint():
                t.query(f"insert into {notes} select max(n) + 1 from {notes}")
            done = t.commit(f"insert into {notes} select max(n) + 1 from {notes} returning n")
        assert (rows.value(), rows.replayed) == (1, True)
        assert (done.results[0].value(), done.replayed) == (3, True)
    assert verbs(lossy) == ["begin", *["query"] * 8, "commit", "commit"]
    assert lossy.requests[1] == lossy.requests[2]
    assert numbers(database) == [1, 2, 3]


def test_a_repeat_waits_for_the_first_that_still_runs(service: Service, database: Client, notes: str) -> None:
    """The connection is cut while the statement waits for a lock: it goes on, and its answer is asked for."""
    database.query("create table open_gate (n int)")
    fates = iter([PASS, ABANDON])
    with (
        relay(service.url, lambda _: next(fates, PASS)) as lossy,
        Client(lossy.url, service.key) as client,
        ThreadPoolExecutor(1) as pool,
        client.transaction() as t,
    ):
        t.query("select 1")
        locking = database.transaction()
        locking.query("lock table open_gate")
        done = pool.submit(t.query, f"insert into {notes} select count(*) from open_gate returning n")
        eventually(lambda: 409 in lossy.statuses)
        locking.rollback()
        assert (done.result().value(), done.result().replayed) == (0, True)
    database.query("drop table open_gate")
    assert numbers(database) == [0]


def test_a_transaction_that_the_service_lost_can_be_run_again() -> None:
    """Nothing of it was applied; one that was revoked or has expired is left alone."""
    for reason, again in (("lost", True), ("conflict", True), ("revoked", False), ("rollback", False)):
        said = {"code": "transaction_aborted", "message": f"txn_x was rolled back (reason: {reason}); nothing"}
        assert can_run_again(make_error(409, said, None, None)) is again
    assert not can_run_again(make_error(410, {"code": "transaction_expired", "message": "late"}, None, None))
    away = make_error(503, {"code": "engine_unavailable", "message": "away", "retryable": True}, None, None)
    assert not can_run_again(away)
    away.answer = {"transaction": {"state": "aborted", "reason": "lost"}}
    assert can_run_again(away)


def test_a_begin_whose_answer_is_lost_is_begun_again(service: Service, database: Client, notes: str) -> None:
    """The first one is never committed: it expires, and its lock with it."""
    with (
        relay(service.url, losing(0)) as lossy,
        Client(lossy.url, service.key) as client,
        client.transaction(idle_timeout_s=0.3) as t,
    ):
        t.query(f"insert into {notes} values (1)")
    assert verbs(lossy) == ["begin", "begin", "commit"]
    assert numbers(database) == [1]


def test_a_statement_whose_answer_never_comes_ends_it(service: Service, database: Client, notes: str) -> None:
    """It is rolled back, also where the program goes on."""
    with (
        relay(service.url, losing(1, 2)) as lossy,
        Client(lossy.url, service.key, retries=1) as client,
        client.transaction() as t,
    ):
        t.query("select 1")
        with pytest.raises(ConnectionFailed):
            t.query(f"insert into {notes} values (1)")
        with pytest.raises(TransactionAborted) as caught:
            t.query(f"insert into {notes} values (2)")
        assert caught.value.reason == "lost"
        assert t.id is not None
        t.rollback()
        assert database.transaction_state(t.id) == "aborted"
    assert verbs(lossy) == ["begin", "query", "query", "abort"]
    assert numbers(database) == []


def test_a_commit_whose_answer_never_comes_can_be_asked_about(service: Service, database: Client, notes: str) -> None:
    with (
        relay(service.url, losing(1, 2)) as lossy,
        Client(lossy.url, service.key, retries=1) as client,
        pytest.raises(OutcomeUnknown) as caught,
        client.transaction() as t,
    ):
        t.query(f"insert into {notes} values (1)")
    assert (t.state, caught.value.transaction_id) == ("in_progress", t.id)
    assert t.id is not None
    assert database.transaction_state(t.id) == "committed"
    assert numbers(database) == [1]


def test_an_answer_too_large_to_be_kept_ends_it(service: Service, database: Client, notes: str) -> None:
    """Of a statement it is lost, and so is the transaction; of a commit only the rows are."""
    large = "select repeat('x', 2000000)"
    with relay(service.url, losing(1, 5)) as lossy, Client(lossy.url, service.key) as client:
        with pytest.raises(ConnectionFailed, match="too large"), client.transaction() as t:  # noqa: PT012 - the block is tested
            t.query(f"insert into {notes} values (1)")
            t.query(large)
        assert (t.state, t.reason) == ("aborted", "lost")
        with pytest.raises(Exception, match="is committed, but the rows"), client.transaction() as t:  # noqa: PT012 - the block is tested
            t.query(f"insert into {notes} values (2)")
            t.commit(large)
        assert t.state == "committed"
    assert numbers(database) == [2]


# -- with asyncio --------------------------------------------------------------------------------------------------


def test_the_asynchronous_client_does_the_same(service: Service, database: Client, notes: str) -> None:
    async def insert(t: AsyncOpenTransaction) -> Rows:
        async with t.savepoint():
            await t.query(f"insert into {notes} values (2)")
        return await t.query(f"select count(*) from {notes}")

    async def work() -> None:
        async with AsyncClient(service.url, service.key) as client:
            async with client.transaction() as t:
                await t.query(f"insert into {notes} values (1)")
                assert [row["n"] async for row in t.stream(f"select n from {notes}")] == [1]
            assert (await client.run(insert)).value() == 2
            done = await client.transaction([f"insert into {notes} values (3)"])
            assert done.affected_rows == 1

    asyncio.run(work())
    assert numbers(database) == [1, 2, 3]


def test_cancelling_a_task_rolls_its_transaction_back(service: Service, database: Client, notes: str) -> None:
    """At once, although a statement of it is still running."""

    async def work() -> AsyncOpenTransaction:
        async with AsyncClient(service.url, service.key) as client:
            opened = client.transaction()
            began = asyncio.Event()

            async def hang() -> None:
                async with opened as t:
                    await t.query(f"insert into {notes} values (1)")
                    began.set()
                    await t.query("select pg_sleep(50)")

            task = asyncio.create_task(hang())
            await began.wait()
            while not (await client.query("select 1 from pg_stat_activity where query like 'select pg_sleep(50)%'")):
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return opened

    opened = asyncio.run(work())
    assert opened.state == "aborted"
    assert opened.id is not None
    assert database.transaction_state(opened.id) == "aborted"
    assert numbers(database) == []


def test_an_exception_in_the_middle_of_a_stream_rolls_back(database: Client, notes: str) -> None:
    """The stream is closed, although nobody has read it to its end."""
    with pytest.raises(ValueError, match="mine"), database.transaction() as t:  # noqa: PT012 - the block is tested
        t.query(f"insert into {notes} values (1)")
        for _ in t.stream("select repeat('x', 1000) from generate_series(1, 1000000) g"):
            raise ValueError("mine")
    assert t.state == "aborted"
    assert numbers(database) == []


def test_two_threads_cannot_use_one_at_the_same_time(database: Client) -> None:
    with database.transaction() as t:
        next(t.stream("select repeat('x', 1000) from generate_series(1, 1000000) g"))
        raised: list[BaseException] = []

        def use() -> None:
            try:
                t.query("select 1")
            except AlreadyExists as error:
                raised.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert len(raised) == 1
        t.rollback()
