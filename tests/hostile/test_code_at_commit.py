"""Code that runs at the commit itself, after everything that the service could check, passes no bound.

Deferred constraint triggers, cursors WITH HOLD and the expressions of indexes run such code.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.hostile.test_tenants_size import FILLED, FULL, LIMIT, fill, small, small_tenant, streamed
from tests.service import Service, Sql
from tests.tenants import Tenant

__all__ = ["small"]  # a fixture

MORE_AT_COMMIT = "insert into filled select i, md5(i::text) from generate_series(1, 1000) i"
# Fired before the commit, by SET CONSTRAINTS, it queues itself again for the commit.
TRIGGER = """
create function at_commit() returns trigger language plpgsql as $$ begin
  if tg_table_name = 'queued' then {code};
  else
    set constraints all deferred;
    delete from queued where ctid in (select ctid from queued limit 1);
  end if;
  return null;
end $$
"""


@pytest.fixture(scope="module")
def one(small: Service) -> Iterator[Tenant]:
    """With a table whose rows fire the trigger when they are deleted, and one for the trigger itself."""
    with small_tenant(small, "at-commit") as tenant:
        tenant.write(f"create table {FILLED}")
        for table in ("little", "queued"):
            tenant.write(f"create table {table} (a int) with (autovacuum_enabled = off)")
            tenant.write(f"insert into {table} select generate_series(1, 1000)")
        tenant.write("create function add() returns int language sql as 'insert into filled values (1) returning a'")
        yield tenant


def defer(tenant: Tenant, code: str) -> None:
    tenant.write("drop function if exists at_commit cascade")
    tenant.write(TRIGGER.format(code=code))
    for table in ("little", "queued"):
        tenant.write(
            f"create constraint trigger deferred after delete on {table}"
            " deferrable initially deferred for each row execute function at_commit()"
        )


@pytest.fixture
def full(one: Tenant) -> Iterator[Tenant]:
    defer(one, MORE_AT_COMMIT)
    fill(one)
    yield one
    one.write("drop function if exists at_commit cascade")
    one.write("truncate filled")


@pytest.mark.parametrize("route", ["query", "block", "stream", "transaction"])
def test_a_deferred_trigger_adds_nothing_to_a_full_database(full: Tenant, route: str) -> None:
    """Deleting runs it at the commit; what it inserts there has been checked by nobody."""
    before = full.write.value("select count(*) from filled")
    statement = "delete from little where ctid in (select ctid from little limit 1)"
    if route == "query":
        assert full.write.fails(statement)["sqlstate"] == FULL
    elif route == "block":
        assert full.write.fails(f"do $$ begin {statement}; end $$")["sqlstate"] == FULL
    elif route == "stream":
        assert streamed(full, statement).get("sqlstate") == FULL
    else:
        assert full.transaction(statement).json()["error"]["sqlstate"] == FULL
    assert full.write.value("select count(*) from filled") == before
    full.write("truncate little")  # fires no trigger
    full.write("truncate filled")
    full.write("insert into little select generate_series(1, 1000)")


def test_a_cursor_that_is_held_adds_nothing_to_a_full_database(full: Tenant) -> None:
    """Its query runs at the commit."""
    before = full.write.value("select count(*) from filled")
    held = "declare c cursor with hold for select add() from generate_series(1, 1000)"
    assert full.transaction(held).json()["error"]["sqlstate"] == FULL
    assert full.write.value("select count(*) from filled") == before


@pytest.mark.parametrize("statement", ["vacuum analyze indexed", "vacuum full indexed", "/*+ STREAM */ vacuum full"])
def test_vacuum_adds_nothing_to_a_full_database(full: Tenant, statement: str) -> None:
    """It computes what indexes are over, by code of the tenant's own. Without such an index it works."""
    with sneaky_index(full):
        fill(full)
        answer = full.write.answer(statement)
        assert FULL in answer.text, answer.text
        assert full.write.value("select count(*) from written") == 0
        full.write("drop index sneaky")
        full.write(statement.replace("/*+ STREAM */ ", ""))


def test_a_database_that_was_found_full_stays_full(full: Tenant) -> None:
    """Whatever was measured just before: it would be too old to say otherwise."""
    with sneaky_index(full):
        for _ in range(10):
            fill(full)
            answer = full.write.answer("vacuum analyze indexed")
            assert FULL in answer.text, answer.text
            full.write("truncate filled")


@contextmanager
def sneaky_index(full: Tenant) -> Iterator[None]:
    """A table with an index whose expression writes to another table."""
    full.write("truncate filled")
    full.write("create table indexed (a int) with (autovacuum_enabled = off)")
    full.write("insert into indexed select generate_series(1, 1000)")
    full.write("create table written (a int) with (autovacuum_enabled = off)")
    write = "insert into public.written values (1)"
    full.write(f"create function sneak() returns void language plpgsql as $$ begin {write}; end $$")
    sneaky = "begin perform public.sneak(); return 1; end"
    full.write(f"create function one(int) returns int immutable language plpgsql as $$ {sneaky} $$")
    full.write("create index sneaky on indexed (one(a))")
    full.write("truncate written")
    yield
    full.write("drop table indexed, written")
    full.write("drop function one, sneak")


def test_rules_that_run_no_code_do_not_stand_in_the_way(full: Tenant) -> None:
    """Foreign keys and unique keys can be deferred too; the engine checks those itself."""
    full.write("truncate filled")
    full.write("create table parent (a int primary key, b int unique deferrable initially deferred)")
    full.write("create table child (a int references parent deferrable initially deferred)")
    full.write("insert into parent values (1), (2)")
    full.write("insert into child values (1)")
    fill(full)
    full.write("delete from child")
    assert full.transaction("delete from parent where a = 1").json()["success"]
    full.write("drop table child, parent")


@pytest.mark.parametrize("route", ["query", "transaction", "one phase"])
def test_code_at_commit_does_not_grow_a_database_without_end(one: Tenant, route: str) -> None:
    """Not even while a transaction is being prepared, which nothing else cancels."""
    one.write("truncate filled")
    defer(one, "insert into filled select generate_series(1, 1000000000), md5('x')")
    one.write("insert into little values (1)")
    started = time.monotonic()
    if route == "query":
        error = one.write.fails("delete from little", timeout_ms=60000)
    else:
        more = ["notify c"] if route == "one phase" else []
        error = one.transaction("delete from little", *more, timeout_ms=60000).json()["error"]
    assert error["sqlstate"] == FULL, error
    assert time.monotonic() - started < 20
    assert one.write.value("select pg_database_size(current_database())") < LIMIT + 600 * 2**20
    assert one.write.value("select count(*) from filled") == 0
    one.write("drop function at_commit cascade")
    one.write("truncate filled")


@pytest.mark.parametrize("route", ["query", "block", "one phase", "two phases"])
def test_code_at_commit_cannot_make_the_commit_lazy(service: Service, sql: Sql, route: str) -> None:
    """What was answered is on disk, whatever a trigger has set at the last moment."""
    # Fired by SET CONSTRAINTS, it queues itself again for the commit.
    lazy = """begin
      perform set_config('synchronous_commit', 'off', true);
      if new.a = 1 then set constraints all deferred; insert into lazily values (2); end if;
      return null;
    end"""
    sql("create table if not exists lazily (a int)")
    sql(f"create or replace function be_lazy() returns trigger language plpgsql as $$ {lazy} $$")
    sql("create constraint trigger lazy after insert on lazily deferrable initially deferred"
        " for each row execute function be_lazy()")  # fmt: skip
    statement = "insert into lazily values (1)"
    late = 0
    with psycopg.connect(service.conninfo(sql.value("select current_database()")), autocommit=True) as owner:
        for _ in range(10):
            if route == "query":
                sql(statement)
            elif route == "block":
                sql(f"do $$ begin {statement}; end $$")
            else:
                more = ["notify c"] if route == "one phase" else []
                body = {"statements": [statement, *more]}
                assert sql.client.post("/v1/transaction", json=body).json()["success"]
            row = owner.execute("select pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()").fetchone()
            late += row == (True,)
    sql("drop table lazily")
    sql("drop function be_lazy")
    assert late < 5


def test_a_transaction_that_writes_only_at_its_commit_is_no_reader(sql: Sql) -> None:
    """The query of a held cursor runs there: its commit is guarded and made durable like any other that writes."""
    sql("create table held (a int)")
    sql("create function hold() returns int language sql as 'insert into held values (1) returning a'")
    body = {"statements": ["declare c cursor with hold for select hold()"]}
    answer = sql.client.post("/v1/transaction", json=body).json()
    assert answer["commit"] == "one_phase", answer
    assert sql.value("select count(*) from held") == 1
    assert sql.client.post("/v1/transaction", json={"statements": ["set local work_mem = '8MB'"]}).json()["commit"] == (
        "read_only"
    )
    sql("drop function hold")
    sql("drop table held")
