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
    """And what it did is taken back. Each large object that is removed is locked until the end."""
    one.write("create table untouched as select 1 as a")
    one.write(f"do $$ begin perform lo_create(0) from generate_series(1, {capacity * 3 // 5}); end $$")
    take = "perform lo_unlink(oid) from pg_largeobject_metadata"
    greedy = f"do $$ begin delete from untouched; {take}; perform pg_sleep(60); end $$"
    with undisturbed(two):
        error = one.transaction("select 1", greedy).json()["error"]
        assert (error["sqlstate"], error["statement"]) == ("53200", 1), error
    eventually_served(one)
    assert one.write.value("select count(*) from untouched") == 1
    assert one.write.value("select count(*) from pg_largeobject_metadata") == capacity * 3 // 5


@pytest.mark.parametrize(
    "function",
    [
        f"pg_{tried}advisory_{of}lock{shared}({key})"
        for tried in ("", "try_")
        for of in ("", "xact_")
        for shared in ("", "_shared")
        for key in ("i", "1, i::int")
    ],
)
def test_each_advisory_lock_takes_its_moment(one: Tenant, function: str) -> None:
    """By the engine's clock, not by what is said of the function: the engine has calls that do not ask for that."""
    taken = f"select {function} from generate_series(1, 20) i"
    lasted = f"with before as materialized (select clock_timestamp() as at), taken as materialized ({taken})"
    lasted += " select clock_timestamp() - max(at) >= interval '20 ms' from before, (select count(*) from taken) t"
    assert one.write.value(lasted) is True


def test_the_functions_beneath_advisory_locks_are_nobodys(one: Tenant) -> None:
    names = "proname ~ 'pg_(try_)?advisory_(xact_)?lock(_shared)?$'"
    callable_ones = (
        f"select count(*), bool_and(oid >= 16384) from pg_proc where {names} and has_function_privilege(oid, 'execute')"
    )
    assert [list(row.values()) for row in one.write(callable_ones)["rows"]] == [[16, True]]
    beneath = "pronamespace = 'tuplegate'::regnamespace"
    for row in one.write(f"select oid::regproc::text as name from pg_proc where {names} and {beneath}")["rows"]:
        refused = one.write.answer(f"select {row['name']}(1)").json()["error"]
        assert refused["sqlstate"] == "42501", refused


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
