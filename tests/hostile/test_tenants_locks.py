"""No tenant fills the engine's tables of locks, which all of them share."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.control import wait_until
from tests.service import Service, running_service
from tests.tenants import Tenant, as_owner, make_tenant_fixture, undisturbed

ROOM_S = 60.0
"""How long a test waits for locks to be given back."""


@pytest.fixture(scope="module")
def small() -> Iterator[Service]:
    """With as few locks as the engine's settings allow."""
    with running_service("--engine-connections-max", "40") as running:
        yield running


one = make_tenant_fixture("small", "tenant-one")
two = make_tenant_fixture("small", "tenant-two", "create table kept (a int)")


@pytest.fixture(scope="module")
def capacity(small: Service) -> int:
    """How many locks the table is sure to hold."""
    with as_owner(small) as engine:
        row = engine.execute(
            "select current_setting('max_locks_per_transaction')::int"
            " * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int)"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_transaction_may_use_hundreds_of_tables(one: Tenant, two: Tenant) -> None:
    """Made and read in one go, with their indexes: what real programs do is far from the bound."""
    make = (
        "do $$ begin for i in 1..500 loop execute format('create table t%s (a int primary key)', i); end loop; end $$"
    )
    read = "do $$ begin for i in 1..500 loop execute format('select 1 from t%s', i); end loop; end $$"
    drop = "do $$ begin for i in 1..500 loop execute format('drop table t%s', i); end loop; end $$"
    with undisturbed(two):
        for statement in (make, read, drop):
            one.write(statement)


def test_a_transaction_that_holds_too_many_locks_is_ended(one: Tenant, two: Tenant, capacity: int) -> None:
    """And what it did is taken back. Locks on objects, which take longer to get, are in tests/extended."""
    one.write("create table untouched as select 1 as a")
    take = f"perform pg_advisory_xact_lock(i) from generate_series(1, {capacity * 3 // 5}) i"
    greedy = f"do $$ begin delete from untouched; {take}; perform pg_sleep(60); end $$"
    assert_ended(one, two, greedy)
    assert one.write.value("select count(*) from untouched") == 1


def assert_ended(one: Tenant, two: Tenant, greedy: str) -> None:
    with undisturbed(two):
        error = one.transaction("select 1", greedy).json()["error"]
        assert (error["sqlstate"], error["statement"]) == ("53200", 1), error
    eventually_served(one)


def test_advisory_locks_cannot_fill_the_table(one: Tenant, two: Tenant, capacity: int) -> None:
    """Each takes a moment: long before the table is full the watch over locks has looked, and time is over."""
    greedy = f"select count(pg_advisory_lock(i)) from generate_series(1, {capacity * 2}) i"
    with undisturbed(two), ThreadPoolExecutor(8) as threads:
        for tried in [threads.submit(one.write.answer, greedy, timeout_ms=3000) for _ in range(8)]:
            assert tried.result().json()["success"] is False
    eventually_served(one)
    # Other databases are left out: there the service holds names of its own by such locks, now and then. A connection
    # gives them back after its request was answered.
    held = (
        "select count(*) from pg_locks join pg_database d on d.oid = database"
        " where locktype = 'advisory' and d.datname = current_database()"
    )
    wait_until(lambda: one.write.value(held) == 0, ROOM_S)


@pytest.mark.parametrize("open_between_requests", [False, True])
def test_locks_of_finished_transactions_hold_their_owner_back(
    one: Tenant, two: Tenant, open_between_requests: bool
) -> None:
    """A long transaction keeps what many short ones have read, also while it waits for its client. Whoever reads so
    much has to wait; others do not."""
    eventually_served(one, "create table wide (id int primary key, pad text) with (fillfactor = 10)")
    one.write("insert into wide select i, repeat('x', 700) from generate_series(1, 12000) i")
    one.write("analyze wide")
    held_back = threading.Event()

    def read(worker: int) -> None:
        with one.service.client(one.admin) as client:
            while not held_back.is_set():
                sql = "select count(pad) from wide where id in (select g * 100 + $1 from generate_series(1, 115) g)"
                answer = client.post("/v1/query", json={"sql": sql, "params": [worker]})
                if answer.status_code == 503:
                    assert answer.json()["error"]["code"] == "busy", answer.text
                    held_back.set()
                else:
                    assert answer.json()["success"], answer.text

    def keep() -> None:
        with one.service.client(one.admin) as client:
            while not held_back.is_set():
                if open_between_requests:
                    begin = {"statement": "select 1 from wide where id = 1", "idle_timeout_ms": 20_000}
                    begun = client.post("/v1/transaction/begin", json=begin).json()
                    held_back.wait(20)
                    if "transaction_id" in begun:
                        client.post(f"/v1/transaction/{begun['transaction_id']}/rollback")
                else:
                    client.post("/v1/query", json={"sql": "select pg_sleep(20) from wide where id = 1"})

    with undisturbed(two), ThreadPoolExecutor(9) as threads:
        keeper = threads.submit(keep)
        readers = [threads.submit(read, worker) for worker in range(8)]
        for reader in readers:
            reader.result()
        with as_owner(one.service) as engine:

            def is_over() -> bool:
                engine.execute(
                    "select pg_cancel_backend(pid) from pg_stat_activity where query like 'select pg_sleep%'"
                )
                return keeper.done()

            wait_until(is_over, ROOM_S)
    eventually_served(one)
    one.write("drop table wide")


def eventually_served(tenant: Tenant, sql: str = "select 1") -> None:
    """What was held back goes on once there is room."""

    def is_served() -> bool:
        answer = tenant.write.answer(sql)
        assert answer.json()["success"] or answer.json()["error"]["code"] == "busy", answer.text
        return answer.status_code != 503

    wait_until(is_served, ROOM_S)
