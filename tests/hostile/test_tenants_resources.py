"""No tenant takes the memory, the disk, the log or the time of the others.

The service here has small bounds, so that they are reached soon.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.servers import needs_linux
from tests.service import Service, Sql, needs_bundled, running_service, since
from tests.tenants import Tenant, make_tenant_fixture, server_of, undisturbed
from tests.waiting import eventually
from tests.workers import peak_mb

MEMORY_MB, TEMP_MB = 128, 16


@pytest.fixture(scope="module")
def small() -> Iterator[Service]:
    with running_service("--engine-process-memory-mb", str(MEMORY_MB), "--engine-temp-mb", str(TEMP_MB)) as running:
        yield running


one = make_tenant_fixture("small", "tenant-one")
two = make_tenant_fixture("small", "tenant-two", "create table kept (a int)")


GREEDY = {
    "one long value": "select length(repeat('x', 500 * 1024 * 1024))",
    "a long array": "select array_length(array_agg(repeat('x', 100000) || i), 1) from generate_series(1, 10000) i",
    "many long values": "select string_agg(repeat('x', 100000), '') from generate_series(1, 10000)",
    "a great document": "select length(jsonb_agg(repeat('x', 100000))::text) from generate_series(1, 10000)",
    "a variable that grows": "do $$ declare a text[]; begin loop a := a || repeat('x', 1000000); end loop; end $$",
    "a sort in memory": "do $$ begin set work_mem = '100GB';"
    " perform 1 from (select repeat(i::text, 500) as a from generate_series(1, 200000) i order by a) x; end $$",
    "groups in memory": "do $$ begin set work_mem = '100GB'; set hash_mem_multiplier = 1000; set enable_sort = off;"
    " perform a from (select repeat(i::text, 500) as a from generate_series(1, 200000) i) x group by a; end $$",
    "notifications": "do $$ begin loop perform pg_notify('c', repeat('x', 7000) || random()); end loop; end $$",
}


@needs_bundled
@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize("statement", GREEDY.values(), ids=GREEDY)
def test_memory_is_bounded(one: Tenant, two: Tenant, scope: str, statement: str) -> None:
    """A statement that wants more fails by itself; the engine goes on, and its connection can be used again."""
    with server_of(one) as engine, undisturbed(two):
        started = engine.execute("select pg_postmaster_start_time()").fetchone()
        error = one.sql(scope).fails(statement)
        assert error["sqlstate"] in ("53200", "54000"), error
        assert engine.execute("select pg_postmaster_start_time()").fetchone() == started
    assert one.sql(scope).value("select 1") == 1


@needs_linux
@needs_bundled
def test_what_parallel_workers_share_is_bounded(one: Tenant, two: Tenant) -> None:
    """Hash tables that they share are no process's own memory. One is allowed; eight of them are too much."""
    one.write("create table shared as select i as a, repeat(md5(i::text), 8) as t from generate_series(1, 250000) i")
    one.write("analyze shared")
    settings = (
        "set work_mem = '100GB'",
        "set max_parallel_workers_per_gather = 2",
        "set parallel_setup_cost = 0",
        "set parallel_tuple_cost = 0",
        "set min_parallel_table_scan_size = 0",
        "set enable_mergejoin = off",
        "set enable_nestloop = off",
    )

    def join(count: int) -> dict[str, Any]:
        joins = " ".join(f"join shared t{number} using (a)" for number in range(count))
        columns = ", ".join(f"t{number}.t" for number in range(count))
        answer = one.transaction(*settings, f"select count(concat({columns})) from shared {joins}")
        body: dict[str, Any] = answer.json()
        return body

    with server_of(one) as engine, undisturbed(two):
        started = engine.execute("select pg_postmaster_start_time()").fetchone()
        assert join(1)["results"][-1]["rows"] == [{"count": 250000}]
        assert join(8)["error"]["sqlstate"] == "53200"
        assert join(1)["success"]
        assert engine.execute("select pg_postmaster_start_time()").fetchone() == started
    one.write("drop table shared")


@needs_bundled
@since(17)
def test_one_transaction_cannot_fill_the_queue_of_notifications(one: Tenant, two: Tenant) -> None:
    """It keeps them in memory until it commits, and the queue has more room than that."""
    pages = MEMORY_MB * 128
    notify = f"do $$ begin for i in 1..{pages} loop perform pg_notify('c', repeat('x', 4100) || i); end loop; end $$"
    with server_of(one) as engine, undisturbed(two):
        assert engine.execute("select current_setting('max_notify_queue_pages')::int").fetchone() == (2 * pages,)
        assert one.write.fails(notify)["sqlstate"] == "53200"
        assert engine.execute("select pg_notification_queue_usage()").fetchone() == (0.0,)


def test_a_great_index_is_made_in_bounded_memory(one: Tenant, two: Tenant) -> None:
    """Whatever the tenant says it may take."""
    one.write("create table t as select repeat(i::text, 500) as a from generate_series(1, 1000) i")
    with undisturbed(two):
        one.write("do $$ begin set maintenance_work_mem = '100GB'; create index on t (left(a, 100)); end $$")
    one.write("drop table t")


TEMPORARY = {
    "a sort": "select count(*) from (select repeat(i::text, 100) as a from generate_series(1, 200000) i order by a) x",
    "a join": "select count(*) from generate_series(1, 3000000) a join generate_series(1, 3000000) b on a = b",
    "a set": "select count(*) from (select distinct repeat(i::text, 100) from generate_series(1, 200000) i) x",
    "a held query": "with x as materialized (select repeat('x', 100) || i as a from generate_series(1, 500000) i)"
    " select count(*) from x a, x b where a.a = b.a",
}


@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize("statement", TEMPORARY.values(), ids=TEMPORARY)
def test_temporary_files_are_bounded(one: Tenant, two: Tenant, scope: str, statement: str) -> None:
    with undisturbed(two):
        error = one.sql(scope).fails(statement)
    assert error["sqlstate"] == "53400", error
    assert "temp_file_limit" in error["message"]


STUBBORN = {
    "cancels swallowed": "do $$ begin loop begin loop perform 1; end loop;"
    " exception when query_canceled then null; end; end loop; end $$",
    "and clients not looked for": "do $$ begin set client_connection_check_interval = 0; loop begin loop perform 1;"
    " end loop; exception when others or query_canceled then null; end; end loop; end $$",
    "in sleep": "do $$ begin loop begin perform pg_sleep(60);"
    " exception when query_canceled then null; end; end loop; end $$",
}


STILL_RUNNING = "select count(*) from pg_stat_activity where state = 'active' and query like 'do %'"


def test_a_statement_that_swallows_cancels_is_ended(one: Tenant, two: Tenant) -> None:
    """With its server process, which it cannot prevent; and it is told why."""

    def run(scope: str, statement: str) -> dict[str, Any]:
        return one.sql(scope).fails(statement, timeout_ms=100)

    with server_of(one) as engine, undisturbed(two), ThreadPoolExecutor(len(STUBBORN)) as threads:
        tried = [threads.submit(run, *each) for each in zip(("write", "read", "read"), STUBBORN.values(), strict=True)]
        for error in (each.result() for each in tried):
            assert (error["code"], error["sqlstate"]) == ("timeout", "57014")
        # The answer comes with the last word of the server process, which then has its memory to give back.
        eventually(lambda: engine.execute(STILL_RUNNING).fetchone() == (0,))
    assert [one.sql(scope).value("select 1") for scope in ("write", "read")] == [1, 1]


def test_a_client_that_leaves_ends_even_that(one: Tenant, two: Tenant) -> None:
    """Where nobody waits for the answer any more, the server process must go all the same."""
    with server_of(one) as engine, undisturbed(two):
        with one.service.client(one.admin) as client:
            sent = threading.Thread(target=lambda: _give_up(client, STUBBORN["and clients not looked for"]))
            sent.start()
            eventually(lambda: engine.execute(STILL_RUNNING).fetchone() != (0,))
            sent.join()
        eventually(lambda: engine.execute(STILL_RUNNING).fetchone() == (0,))


def _give_up(client: httpx.Client, statement: str) -> None:
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/query", json={"sql": statement}, timeout=1)


@needs_bundled
@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize("level", ["log", "warning", "notice", "debug", "info"])
def test_the_log_cannot_be_filled(one: Tenant, two: Tenant, scope: str, level: str) -> None:
    """Messages go to whoever sent the statement, a hundred of them at most, and not into the engine's log."""
    log = one.service.data_dir / "cells" / one.database / "server.log"
    before = log.stat().st_size
    with undisturbed(two):
        body = one.sql(scope)(
            f"do $$ begin set client_min_messages = debug1;"
            f" for i in 1..20000 loop raise {level} '%', repeat('x', 200); end loop; end $$"
        )
        assert len(body.get("notices", [])) <= 100
        assert (
            one.sql(scope).fails("do $$ begin raise exception '%', repeat('x', 100000); end $$")["sqlstate"] == "P0001"
        )
    assert log.stat().st_size - before < 10_000


def test_the_queue_of_notifications_stays_empty(one: Tenant, two: Tenant) -> None:
    """All databases share it; it fills only while a listener stays behind, and none outlives its request."""
    with server_of(one) as engine, undisturbed(two):
        for _ in range(3):
            one.write("listen c")
            assert one.transaction("listen c", "select pg_sleep(0.1)").json()["success"]
            one.write(
                "do $$ begin for i in 1..5000 loop perform pg_notify('c', repeat('x', 5000) || i); end loop; end $$"
            )
        one.write("notify c")
        assert engine.execute("select pg_notification_queue_usage()").fetchone() == (0.0,)
    assert two.write("notify c")["success"]


@needs_bundled
@pytest.mark.parametrize("route", ["transaction", "query"])
def test_notifications_take_no_memory_of_the_worker(service: Service, sql: Sql, route: str) -> None:
    """Whoever listens to itself is sent all that it notifies, and nobody wants it."""
    loop = "for i in 1..30000 loop perform pg_notify('c', repeat('x', 7000) || i); end loop"
    before = peak_mb(service)
    if route == "transaction":
        body = {"statements": ["listen c", f"do $$ begin {loop}; end $$"], "timeout_ms": 60000}
        assert sql.client.post("/v1/transaction", json=body).json()["success"]
    else:
        sql(f"do $$ begin listen c; {loop}; end $$", timeout_ms=60000)
    assert peak_mb(service) - before < 100


def test_many_slow_statements_leave_room_for_others(one: Tenant, two: Tenant) -> None:
    """One tenant's connections are bounded, so there are some left for the next."""
    with one.service.client(one.admin) as client, undisturbed(two):
        sleepers = [
            threading.Thread(target=lambda: client.post("/v1/query", json={"sql": "select pg_sleep(0.5)"}))
            for _ in range(60)
        ]
        for sleeper in sleepers:
            sleeper.start()
        for sleeper in sleepers:
            sleeper.join()
