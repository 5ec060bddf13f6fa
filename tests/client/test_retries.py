"""What becomes of a call whose answer is lost: it is asked for again, and nothing is ever written twice."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client.faults import ABANDON, HANG, LOSE, PASS, Relay, first, relay
from tests.service import Service, new_data_dir, remove, start_service
from tests.waiting import eventually
from tuplegate.client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    OutcomeUnknown,
    QueryCanceled,
    UniqueViolation,
)


def count(database: Client, table: str) -> int:
    found: int = database.query(f"select count(*) from {table}").value()
    return found


def keys(used: Relay) -> list[bytes]:
    """The Idempotency-Key of every request, b"" where it has none."""
    heads = [request.partition(b"\r\n\r\n")[0].lower().split(b"\r\n") for request in used.requests]
    return [next((line for line in head if line.startswith(b"idempotency-key:")), b"") for head in heads]


def test_a_write_whose_answer_is_lost_is_applied_once(service: Service, database: Client, table: str) -> None:
    """The repeat has the same key, and gets the first answer."""
    with relay(service.url, first(LOSE)) as lossy, Client(lossy.url, service.key) as client:
        rows = client.query(f"insert into {table} values ($1) returning n", [7])
    assert rows.value() == 7
    assert rows.replayed
    assert lossy.statuses == [200, 200]
    assert lossy.requests[0] == lossy.requests[1]
    assert len(set(keys(lossy))) == 1
    assert count(database, table) == 1


def test_two_calls_have_two_keys(service: Service, database: Client, table: str) -> None:
    """The same statement called twice is meant twice."""
    with relay(service.url, lambda _: PASS) as open_relay, Client(open_relay.url, service.key) as client:
        client.query(f"insert into {table} values (1)")
        client.query(f"insert into {table} values (1)")
    assert len(set(keys(open_relay))) == 2
    assert count(database, table) == 2


def test_a_transaction_whose_answer_is_lost_is_applied_once(service: Service, database: Client, table: str) -> None:
    """As a single statement is."""
    with relay(service.url, first(LOSE)) as lossy, Client(lossy.url, service.key) as client:
        done = client.transaction([f"insert into {table} values (1)", (f"insert into {table} values ($1)", [2])])
    assert done.replayed
    assert [rows.affected_rows for rows in done.results] == [1, 1]
    assert count(database, table) == 2


def test_a_repeat_waits_for_the_first_that_still_runs(service: Service, database: Client, table: str) -> None:
    """The service says 409 until it has ended, and then gives its answer."""
    database.query("create table gate as select 1 as n")
    held = database.stream("select pg_sleep(0.1) from gate, generate_series(1, 600) for update of gate")
    with (
        relay(service.url, first(ABANDON)) as lossy,
        Client(lossy.url, service.key) as client,
        held,
        ThreadPoolExecutor(1) as pool,
    ):
        next(held)
        done = pool.submit(client.query, f"insert into {table} select n from gate for update returning n")
        eventually(lambda: 409 in lossy.statuses)
        held.close()
        assert done.result().replayed
    assert count(database, table) == 1
    database.query("drop table gate")


def test_a_read_whose_answer_is_lost_is_read_again(service: Service) -> None:
    """Without a key, and where the engine would refuse to write."""
    with relay(service.url, first(LOSE)) as lossy, Client(lossy.url, service.key) as client:
        rows = client.query("select g, g * 1.5 as half from generate_series(1, $1) g", [3], max_rows=2)
    assert rows.tuples() == [(1, rows[0]["half"]), (2, rows[1]["half"])]
    assert rows.truncated
    assert set(keys(lossy)) == {b""}
    assert b"/v1/transaction" in lossy.requests[1]


def test_a_read_that_turns_out_to_write_is_not_repeated(service: Service, database: Client) -> None:
    """`select nextval()` moves a sequence: once, and the caller is told that the answer is lost."""
    database.query("create sequence tickets")
    with (
        relay(service.url, first(LOSE)) as lossy,
        Client(lossy.url, service.key) as client,
        pytest.raises(OutcomeUnknown, match="may have been applied"),
    ):
        client.query("select nextval('tickets')")
    assert database.query("select nextval('tickets')").value() == 2
    database.query("drop sequence tickets")


def test_without_a_key_a_lost_write_is_reported_as_unknown(service: Service, database: Client, table: str) -> None:
    """It was applied; it is not sent again."""
    with (
        relay(service.url, first(LOSE)) as lossy,
        Client(lossy.url, service.key) as client,
        pytest.raises(OutcomeUnknown),
    ):
        client.query(f"insert into {table} values (1)", idempotent=False)
    assert len(lossy.requests) == 1
    assert keys(lossy) == [b""]
    assert count(database, table) == 1


def test_a_write_that_cannot_be_asked_about_gives_its_key(service: Service, database: Client, table: str) -> None:
    """The same call with that key, later, gets the first answer."""
    sql = f"insert into {table} values (1)"
    with (
        relay(service.url, lambda _: LOSE) as lossy,
        Client(lossy.url, service.key, retries=2) as client,
        pytest.raises(OutcomeUnknown) as caught,
    ):
        client.query(sql)
    assert len(lossy.requests) == 3
    key = caught.value.idempotency_key
    assert key is not None
    assert database.query(sql, idempotency_key=key).replayed
    assert count(database, table) == 1


def test_an_error_on_a_repeat_is_the_error(service: Service, database: Client) -> None:
    """Failures are not recorded, so the statement is judged again."""
    database.query("create table judged (n int primary key)")
    database.query("insert into judged values (1)")
    with (
        relay(service.url, first(LOSE)) as lossy,
        Client(lossy.url, service.key) as client,
        pytest.raises(UniqueViolation),
    ):
        client.query("insert into judged values (1)")
    database.query("drop table judged")


def test_statements_outside_of_a_block_work_without_a_word(service: Service, database: Client, table: str) -> None:
    """The service refuses them a key; they are sent once more without."""
    with relay(service.url, lambda _: PASS) as open_relay, Client(open_relay.url, service.key) as client:
        client.query(f"vacuum {table}")
        client.query(f"create index concurrently {table}_i on {table} (n)")
    assert open_relay.statuses == [400, 200, 400, 200]
    assert [bool(key) for key in keys(open_relay)] == [True, False, True, False]


def test_a_lost_answer_of_such_a_statement_is_unknown(service: Service, table: str) -> None:
    """The service cannot record that it ran."""
    fates = iter([PASS, LOSE])
    with (
        relay(service.url, lambda _: next(fates)) as lossy,
        Client(lossy.url, service.key) as client,
        pytest.raises(OutcomeUnknown),
    ):
        client.query(f"vacuum {table}")
    assert len(lossy.requests) == 2


def test_a_transaction_with_an_id_of_its_own_is_asked_for(service: Service, database: Client, table: str) -> None:
    """Not repeated: the id says what became of it."""
    with (
        relay(service.url, first(LOSE)) as lossy,
        Client(lossy.url, service.key) as client,
        pytest.raises(OutcomeUnknown),
    ):
        client.transaction([f"insert into {table} values (1)"], transaction_id="txn_asked_for_later")
    assert len(lossy.requests) == 1
    assert database.transaction_state("txn_asked_for_later") == "committed"
    assert database.abort_transaction("txn_never_seen_before") == "aborted"


def test_a_stream_that_is_lost_before_its_head_is_unknown(service: Service, database: Client, table: str) -> None:
    """A stream can write, and cannot have a key."""
    with (
        relay(service.url, first(ABANDON)) as lossy,
        Client(lossy.url, service.key) as client,
        pytest.raises(OutcomeUnknown),
    ):
        list(client.stream("select 1"))
    assert len(lossy.requests) == 1


def test_a_service_that_never_answers_is_given_up(service: Service, database: Client, table: str) -> None:
    """A while after the call's time; by then the write may have happened."""
    with (
        relay(service.url, lambda _: HANG) as mute,
        Client(mute.url, service.key) as client,
        pytest.raises(OutcomeUnknown) as caught,
    ):
        client.query(f"insert into {table} values (1)", timeout_s=0.1)
    assert caught.value.idempotency_key is not None


def test_the_time_of_a_call_ends_its_statement(database: Client) -> None:
    """By the service's own clock."""
    with pytest.raises(QueryCanceled) as caught:
        database.query("select pg_sleep(20)", timeout_s=0.3)
    assert caught.value.sqlstate == "57014"


def test_nobody_there_is_said_after_a_few_tries() -> None:
    """Nothing can have been applied, also by a write."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        Client(f"http://127.0.0.1:{port}", "svc_k_x", retries=2) as client,
        pytest.raises(ConnectionFailed, match="cannot be reached") as caught,
    ):
        client.query("insert into t values (1)")
    assert caught.value.hint is not None


def test_what_is_busy_is_tried_again() -> None:
    """One connection and no queue: the statement gets 503 for as long as another one runs."""
    data_dir = new_data_dir()
    running = start_service(data_dir, "--connections-per-database", "1", "--queue-max", "0")
    with (
        relay(running.url, lambda _: PASS) as watched,
        Client(watched.url, running.key) as client,
        Client(running.url, running.key) as other,
        other.stream("select pg_sleep(0.1) from generate_series(1, 600)") as held,
        ThreadPoolExecutor(1) as pool,
    ):
        next(held)
        done = pool.submit(client.query, "select 1")
        eventually(lambda: 503 in watched.statuses)
        held.close()
        assert done.result().value() == 1
    assert running.stop() == 0
    remove(data_dir)


def test_a_lost_answer_is_asked_for_again_by_the_async_client_too(
    service: Service, database: Client, table: str
) -> None:
    """The same code, awaited."""

    async def insert(url: str) -> bool:
        async with AsyncClient(url, service.key) as client:
            return (await client.query(f"insert into {table} values (1)")).replayed

    with relay(service.url, first(LOSE)) as lossy:
        assert asyncio.run(insert(lossy.url))
    assert count(database, table) == 1
