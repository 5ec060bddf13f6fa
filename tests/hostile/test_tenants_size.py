"""A database that has reached the size of its tier takes nothing more, and can be emptied by every means."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from secrets import token_hex
from typing import Any, LiteralString

import httpx
import psycopg
import pytest
from psycopg import errors

from tests.cases import each_of
from tests.service import Service, new_data_dir, remove, start_service
from tests.tenants import Tenant, server_of, tenant_of, undisturbed
from tests.tunnel import Tunnel
from tests.waiting import eventually
from tests.workers import workers

LIMIT = 24 * 2**20
FULL = "53100"


@pytest.fixture(scope="module")
def small() -> Iterator[Service]:
    data_dir = new_data_dir()
    running = start_service(data_dir, "--tiers", "free=200, small=/24MB, unlimited")
    yield running
    assert running.stop() == 0
    remove(data_dir)


@contextmanager
def small_tenant(service: Service, name: str) -> Iterator[Tenant]:
    """Of the small tier, where nothing is vacuumed by itself: that could give room back in the middle of a test."""
    with tenant_of(service, name, "small") as tenant:
        set_up(tenant, "alter system set autovacuum_naptime = '10d'")
        yield tenant
        set_up(tenant, "alter system reset autovacuum_naptime")


def set_up(tenant: Tenant, setting: LiteralString) -> None:
    with server_of(tenant) as engine:
        engine.execute(setting)
        engine.execute("select pg_reload_conf()")


@pytest.fixture(scope="module")
def two(small: Service) -> Iterator[Tenant]:
    """Of the same tier, and far from its limit."""
    with small_tenant(small, "tenant-two") as tenant:
        tenant.write("create table kept (a int)")
        yield tenant


@pytest.fixture(scope="module")
def one(small: Service) -> Iterator[Tenant]:
    with small_tenant(small, "tenant-one") as tenant:
        yield tenant


MORE = "insert into filled select i, repeat(md5(i::text), 60) from generate_series(1, 2000) i"
"""About four megabytes, which the engine does not compress."""
FILLED = "filled (a int, b text)"
ENDLESS = "insert into filled select generate_series(1, 1000000000), md5('x')"


@pytest.fixture(scope="module")
def furnished(one: Tenant) -> Tenant:
    """With a small table, and code that writes."""
    one.write("create table little (a int)")
    one.write("insert into little select generate_series(1, 10)")
    one.write("create function add() returns int language sql as 'insert into little values (1) returning a'")
    removing = "with d as (delete from little returning 1) select count(*) from d"
    one.write(f"create function remove() returns bigint language sql as '{removing}'")
    return one


@pytest.fixture
def full(furnished: Tenant) -> Tenant:
    """Filled until the service says so."""
    furnished.write(f"create table if not exists {FILLED}")
    furnished.write("vacuum filled")  # of rows that were refused: else it would get far beyond its limit in time
    fill(furnished)
    return furnished


@pytest.fixture
def emptied(one: Tenant) -> Tenant:
    """With nothing but a table to fill."""
    one.write("drop table if exists filled")
    one.write(f"create table {FILLED}")
    return one


def size(tenant: Tenant) -> int:
    return int(tenant.write.value("select pg_database_size(current_database())"))


def fill(tenant: Tenant) -> None:
    """Fill it, and wait until that was noticed."""
    while size(tenant) <= LIMIT and adds(tenant, MORE):
        pass
    eventually(lambda: not adds(tenant))
    assert size(tenant) > LIMIT


def fill_at_once(tenant: Tenant) -> None:
    """Write all the while, until it is refused."""
    while adds(tenant, MORE):
        pass
    assert size(tenant) > LIMIT


def adds(tenant: Tenant, statement: str = "insert into filled values (1)") -> bool:
    """Whether something can be added; a refusal must say that it is full."""
    body = tenant.write.answer(statement).json()
    assert body["success"] or body["error"]["sqlstate"] == FULL, body
    return bool(body["success"])


ADDING = [
    "insert into little values (1)",
    "insert into little values (1) returning a",
    "update little set a = 2",
    "merge into little using (select 1) x on false when not matched then insert values (1)",
    "with x as (insert into little values (1) returning a) select * from x",
    "create table other as select * from filled",
    "select * into other from filled",
    "create index on filled (b)",
    "create index concurrently on filled (b)",
    "create materialized view other as table filled",
    "select add()",
    "select add(), set_config('a.b', 'c', true)",
    "do $$ begin insert into little values (1); end $$",
    "do $$ begin delete from little; insert into little values (1); end $$",
    "select lo_from_bytea(0, 'x')",
    "explain analyze insert into little values (1)",
    "alter table filled add c int default random()",
    "create function long() returns text language sql as $$ select '{long}' $$",
    "comment on table little is '{long}'",
    "do $$ begin for i in 1..3000 loop perform lo_create(0); end loop; end $$",
    "do $$ begin for i in 1..200 loop execute 'create table empty_' || i || ' (a int)'; end loop; end $$",
]


def test_what_adds_to_a_full_database_is_refused(full: Tenant, two: Tenant) -> None:
    """As a statement, as a stream and in a transaction; nothing of it is applied."""
    with undisturbed(two):
        assert_refused(full=full)


@each_of("statement", ADDING)
def assert_refused(full: Tenant, statement: str) -> None:
    statement = statement.replace("{long}", token_hex(10_000))
    before = full.write.rows("select * from little")
    assert full.write.fails(statement)["sqlstate"] == FULL
    if "concurrently" not in statement:
        error = full.transaction("select 1", statement).json()["error"]
        assert error["sqlstate"] == FULL, error
        assert streamed(full, statement).get("sqlstate") in (FULL, "0A000")
    assert full.read.rows("select * from little") == before


def test_the_judge_cannot_be_replaced(full: Tenant) -> None:
    """By operators of the tenant's own, on a search path of its own."""
    full.write("create schema if not exists trap")
    body = "language sql as 'select false'"
    for left, right in (("bigint", "bigint"), ("bigint", "int"), ("oid", "oid"), ("numeric", "numeric")):
        full.write(f"create or replace function trap.never({left}, {right}) returns boolean {body}")
        full.write(f"create operator trap.> (leftarg = {left}, rightarg = {right}, function = trap.never)")
    path = "set local search_path = trap, public, pg_catalog"
    error = full.transaction(path, "insert into little values (1)").json()["error"]
    full.write("drop schema trap cascade")
    assert error["sqlstate"] == FULL


def streamed(tenant: Tenant, statement: str) -> dict[str, Any]:
    """The error of a stream; empty where it was done."""
    headers = {"Accept": "application/x-ndjson"}
    answer = tenant.write.client.post("/v1/query", json={"sql": statement}, headers=headers)
    last = json.loads(answer.text.splitlines()[-1])
    error: dict[str, Any] = last["data"].get("error") or {}
    return error


@each_of(
    "statement",
    [
        "select count(*) from little",
        "select count(*) from little where set_config('a.b', 'c', true) = 'c'",
        "delete from little where a = 1",
        "delete from little where a = 1 returning a",
        "with x as (delete from little where a = 1 returning a) select * from x",
        "merge into little l using (select 1 as a) x on l.a = x.a when matched then delete",
        "select remove()",
        "do $$ begin delete from little; end $$",
        "vacuum little",
        "vacuum full little",
        "analyze little",
        "explain delete from little",
        "create table other (a int)",
        "alter table little add column b int",
        "alter table filled add column c int",
        "comment on table filled is 'short'",
        "set a.b = 'c'",
        "show search_path",
    ],
)
def test_reading_and_removing_go_on(full: Tenant, statement: str) -> None:
    """However it is sent, in a database that is full before each."""
    assert full.write.fails("insert into little values (1)")["sqlstate"] == FULL
    full.write(statement)
    if not statement.startswith(("vacuum", "create", "alter")):
        assert full.transaction(statement).json()["success"]
    if statement.startswith(("delete", "merge", "do", "with", "select remove")):
        assert streamed(full, statement) == {}


@pytest.mark.parametrize(
    "making_room",
    [["truncate filled"], ["drop table filled"], ["delete from filled", "vacuum filled"]],
    ids=["truncate", "drop", "delete and vacuum"],
)
def test_room_that_was_made_can_be_used_at_once(full: Tenant, making_room: list[str]) -> None:
    for statement in making_room:
        full.write(statement)
    full.write("insert into little values (1)")
    full.write("update little set a = 1")
    assert full.transaction("truncate little", "insert into little values (2)").json()["success"]


def test_removing_and_adding_in_one_transaction(full: Tenant) -> None:
    """What counts is the size at its end; files that are dropped go with the commit, so this is still too much."""
    error = full.transaction("drop table filled", "insert into little values (1)").json()["error"]
    assert error["sqlstate"] == FULL
    assert full.write.value("select count(*) from filled") > 0


def test_one_statement_does_not_grow_without_end(emptied: Tenant, two: Tenant) -> None:
    """It is ended while it runs, when its database is far beyond the limit."""
    with undisturbed(two):
        error = emptied.write.fails(ENDLESS)
        assert error["sqlstate"] == FULL, error
        error = emptied.transaction("select 1", ENDLESS).json()["error"]
        assert error["sqlstate"] == FULL, error
    assert emptied.write.value("select count(*) from filled") == 0


def test_what_a_database_takes_in_shared_catalogs_counts(emptied: Tenant, two: Tenant) -> None:
    """Every right that a role has to an object is a row there, in no file of the database itself."""
    create = "do $$ begin for i in 1..20000 loop perform lo_create(0); end loop; end $$"
    with undisturbed(two):
        for _ in range(10):
            if "error" in (body := emptied.write.answer(create).json()):
                break
        assert body["error"]["sqlstate"] == FULL, body
        assert size(emptied) < LIMIT
        assert emptied.write.fails("insert into filled values (1)")["sqlstate"] == FULL
        while emptied.write.rows("select lo_unlink(oid) from (select oid from pg_largeobject_metadata limit 2000) x"):
            pass
        eventually(lambda: emptied.write.answer("insert into filled values (1)").json()["success"], 30)


def test_many_writers_are_stopped_together(emptied: Tenant, two: Tenant) -> None:
    with undisturbed(two), ThreadPoolExecutor(4) as threads:
        for writer in [threads.submit(fill_at_once, emptied) for _ in range(4)]:
            writer.result()
    assert emptied.write.fails("insert into filled values (1)")["sqlstate"] == FULL


def test_an_organization_sees_its_limit(emptied: Tenant) -> None:
    """And a change of its tier counts within seconds."""
    with httpx.Client(base_url=emptied.service.control_url, timeout=60, trust_env=False, verify=False) as control:
        control.headers["Authorization"] = f"Bearer {emptied.admin}"
        own = control.get("/v1/organization").json()
        assert own["limits"]["database_bytes"] == LIMIT
        fill(emptied)
        control.headers["Authorization"] = f"Bearer {emptied.service.key}"
        changed = control.patch(f"/v1/organizations/{own['id']}", json={"tier": "unlimited"})
        assert changed.status_code == 200, changed.text
        eventually(lambda: adds(emptied))
        control.patch(f"/v1/organizations/{own['id']}", json={"tier": "small"})
        eventually(lambda: not adds(emptied))
        assert size(emptied) > LIMIT


def test_what_was_begun_before_it_was_full_adds_nothing_either(one: Tenant) -> None:
    """And what became of a transaction is told in a full database, too."""
    one.write("drop table if exists filled")
    one.write(f"create table {FILLED}")
    client = one.write.client
    begun = [client.post("/v1/transaction/begin", json={"idle_timeout_ms": 120_000}).json() for _ in range(3)]
    adding, freeing, lost = (f"/v1/transaction/{each['transaction_id']}" for each in begun)
    one.write("create table elsewhere as select generate_series(1, 10)")
    assert client.post(f"{adding}/query", json={"sql": "insert into elsewhere values (11)"}).json()["success"]
    assert client.post(f"{freeing}/query", json={"sql": "delete from elsewhere"}).json()["success"]
    assert client.post(f"{lost}/query", json={"sql": "select 1"}).json()["success"]
    fill(one)
    assert client.post(f"{adding}/commit", json={}).json()["error"]["sqlstate"] == FULL
    assert client.post(f"{freeing}/commit", json={}).json()["success"]
    for worker in workers(one.service):
        os.kill(worker, signal.SIGKILL)
    eventually(lambda: _told(one, lost) == {"state": "aborted", "reason": "lost"})
    one.write("truncate filled")
    one.write("drop table elsewhere")


def _told(tenant: Tenant, path: str) -> dict[str, Any]:
    """What is told of a transaction; nothing while no worker answers."""
    try:
        told = tenant.write.client.get(path).json()
    except httpx.TransportError:
        return {}
    return {name: told[name] for name in ("state", "reason") if name in told}


def test_a_database_that_only_the_wire_uses_is_measured(small: Service) -> None:
    """With a key of one kind, and no request over HTTP."""
    with (
        tenant_of(small, "tenant-wired", "small") as tenant,
        Tunnel(small, tenant.admin) as tunnel,
        tunnel.connect() as wire,
    ):
        wire.execute(f"create table {FILLED}")
        with pytest.raises(errors.DiskFull, match="size limit"):
            fill_by_wire(wire)


def fill_by_wire(wire: psycopg.Connection[Any]) -> None:
    """Write ten times what the tier allows, and then a little again and again, unless it is refused."""
    for _ in range(60):
        wire.execute(MORE)
    eventually(lambda: wire.execute("insert into filled values (1, '')").rowcount != 1)
