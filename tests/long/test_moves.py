"""Moves of databases whose tenants do what they can to be moved in part, twice, or for ever."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from tests.control import Control, Organization, engine, new_organization, wait_until
from tests.external import ExternalServer
from tests.long.test_several_engines import SETTLED_S, engine_name, settled, where
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tuplegate.engine.postgres.tenancy import definitions

LOCK_S = 2.5
"""Longer than a statement of the service's own waits for a lock."""


@pytest.fixture(scope="module")
def second() -> Iterator[ExternalServer]:
    """Writes values in its own way."""
    server = ExternalServer(wal_level="logical", intervalstyle="sql_standard", extra_float_digits="0")
    yield server
    server.remove()


@pytest.fixture(scope="module")
def pair(second: ExternalServer) -> Iterator[Service]:
    data_dir = new_data_dir()
    running = start_service(data_dir, "--workers", "2", env={"TUPLEGATE_ENGINES": f"second={second.url()}"})
    Control(running, running.key).patch("/v1/engines/second", {"weight": 0})
    yield running
    assert running.stop() == 0
    assert [line for line in running.log.splitlines() if "unexpected failure" in line] == []
    remove(data_dir)


@pytest.fixture
def tenant(pair: Service) -> Organization:
    return new_organization(pair)


class Move:
    """A move that is sent from another thread."""

    def __init__(self, service: Service, tenant: Organization, to: str = "second") -> None:
        self._service = service
        self._body = {"engine": to, "organization": tenant.id}
        self._thread = threading.Thread(target=self._send)
        self.response: httpx.Response | None = None
        self._thread.start()

    def _send(self) -> None:
        self.response = Control(self._service, self._service.key).ask("POST", "/v1/databases/main/move", self._body)

    @property
    def is_over(self) -> bool:
        return self.response is not None

    def answer(self, status: int = 200) -> dict[str, Any]:
        self._thread.join()
        assert self.response is not None
        body: dict[str, Any] = self.response.json()
        assert self.response.status_code == status, body
        return body


class Gate:
    """Keeps whoever restores a copy of a tenant's database from going on until it is opened: by an index whose function
    waits until a role is there. Statements of the tenant's own pass."""

    MADE = (
        "create function waited() returns int language plpgsql as $$ begin if session_user ~ '_c$' then"
        " while not exists (select from pg_roles where rolname = '{role}') loop perform pg_sleep(0.01); end loop;"
        " end if; return 0; end $$",
        "create function gate(i int) returns int immutable language plpgsql as"
        " $$ begin return i + public.waited(); end $$",
        "create table gate (i int primary key)",
        "insert into gate values (1)",
        "create index on gate (gate(i))",
    )

    def __init__(self, service: Service, second: ExternalServer, tenant: Organization) -> None:
        self._service = service
        self._tenant = tenant
        self._urls = {"first": service.conninfo("tuplegate"), "second": second.url("postgres")}
        self.role = f"gate_{tenant.id[4:].lower()}"
        sql = tenant.control.sql()
        for statement in self.MADE:
            sql(statement.replace("{role}", self.role))

    def wait(self, move: Move, to: str = "second") -> str:
        """Until the copy stands at the gate; its name in the engine."""
        with engine(self._service) as catalog:
            question = "select successor from move where former = %s"
            name = [engine_name(self._service, self._tenant)]
            wait_until(lambda: catalog.execute(question, name).fetchone() is not None)
            [[successor]] = catalog.execute(question, name).fetchall()
        question = (
            "select from pg_stat_activity where datname = %s and query ~ 'CREATE INDEX' and wait_event = 'PgSleep'"
        )
        with psycopg.connect(self._urls[to], autocommit=True) as looking:
            wait_until(lambda: move.is_over or looking.execute(question, [successor]).fetchone() is not None, SETTLED_S)
        assert not move.is_over, move.answer()
        return str(successor)

    def open(self, to: str = "second") -> None:
        with psycopg.connect(self._urls[to], autocommit=True) as opening:
            opening.execute(f"create role {self.role}".encode())


@pytest.fixture
def gate(pair: Service, second: ExternalServer, tenant: Organization) -> Gate:
    return Gate(pair, second, tenant)


def made(sql: Sql, *statements: str) -> None:
    for statement in statements:
        sql(statement)


# -- nothing is lost ------------------------------------------------------------------------------------------------


def test_a_table_that_is_made_before_the_copy_is_brought_whole(pair: Service, tenant: Organization) -> None:
    """It is made while the move waits for a transaction of somebody else's to end, for longer than for a lock."""
    sql = tenant.control.sql()
    with engine(pair) as other, engine(pair) as looking:
        other.execute("begin")
        other.execute("select pg_current_xact_id()")
        move = Move(pair, tenant)
        waiting = (
            "select from pg_stat_activity where query ~ 'pg_create_logical_replication_slot'"
            " and wait_event_type = 'Lock' and clock_timestamp() - query_start > %s * interval '1 second'"
        )
        wait_until(lambda: move.is_over or looking.execute(waiting, [LOCK_S]).fetchone() is not None, SETTLED_S)
        sql("create table late (a int primary key)")
        other.execute("commit")
    count = 0
    while not move.is_over:
        sql(f"insert into late values ({count})")
        count += 1
    answer = move.answer()
    assert (answer["way"], answer["reason"]) == ("replication", None)
    assert sql.value("select count(*) from late") == count


def test_what_is_written_meanwhile_arrives(
    pair: Service, second: ExternalServer, tenant: Organization, gate: Gate
) -> None:
    """There and back, while the copy is made: into a schema that is called like one of the service's own, children of
    other tables, tables with keys that cannot tell rows apart, with numbers that nobody may set, and with values that
    the engines write each in its own way."""
    sql = tenant.control.sql()
    made(
        sql,
        "create schema tuplegate_scratch_mine",
        "create table tuplegate_scratch_mine.t (id int primary key)",
        "create table parent (id int primary key, v int)",
        "create table child () inherits (parent)",
        "insert into child values (1, 0)",
        "create table deferred (id int primary key deferrable, v int)",
        "insert into deferred values (1, 0)",
        "create table numbered (id int generated always as identity primary key, n int, v int)",
        "create table also (id int primary key, n int generated always as identity, v int)",
        "insert into numbered (v) values (0)",
        "insert into also (id, v) values (1, 0)",
        "create table styles (id int primary key, i interval, f float8, d date, b bytea, m money)",
        "create materialized view shown as select count(*) as n from styles",
    )
    for number, to in enumerate(("second", "first"), 1):
        move = Move(pair, tenant, to)
        gate.wait(move, to)
        made(
            sql,
            f"insert into tuplegate_scratch_mine.t values ({number})",
            "update parent set v = v + 1",
            "update deferred set v = v + 1",
            "update numbered set v = v + 1",
            "update also set v = v + 1",
            f"insert into styles values ({number}, '-1 day -02:03:04', 0.1::float8 + 0.2::float8, '2026-03-04',"
            " '\\x00', 5)",
            "refresh materialized view shown",
        )
        gate.open(to)
        answer = move.answer()
        assert (answer["engine"], answer["way"], answer["reason"]) == (to, "replication", None)
        assert sql.value("select count(*) from tuplegate_scratch_mine.t") == number
        for table in ("parent", "deferred", "numbered", "also"):
            assert sql.value(f"select sum(v) from {table}") == number
        same = "extract(epoch from i) = -93784 and f = 0.1::float8 + 0.2::float8 and d = '2026-03-04' and m = 5::money"
        assert sql.value(f"select count(*) from styles where {same} and b = '\\x00'") == number
        assert sql.value("select n from shown") == number
    wait_until(lambda: settled(pair, second), SETTLED_S)


def test_triggers_and_rules_do_not_act_twice(pair: Service, tenant: Organization) -> None:
    """Those that act on what is applied, too; then the database is brought while nobody writes."""
    sql = tenant.control.sql()
    made(
        sql,
        "create table ruled (id int primary key)",
        "create rule noting as on insert to ruled do also nothing",
        "alter table ruled enable always rule noting",
        "create table kept (a int)",
        "insert into kept select generate_series(1, 100)",
        "create function keep() returns trigger language plpgsql as $$ begin return null; end $$",
        "create trigger keeping before delete on kept for each row execute function keep()",
        "alter table kept enable replica trigger keeping",
    )
    answer = Move(pair, tenant).answer()
    assert (answer["way"], "the trigger keeping of the table public.kept" in answer["reason"]) == ("dump", True)
    assert sql.value("select count(*) from kept") == 100
    sql("drop table kept")
    answer = Move(pair, tenant, "first").answer()
    assert (answer["way"], "the rule noting of the table public.ruled" in answer["reason"]) == ("dump", True)


def test_definitions_of_every_kind_are_compared(pair: Service, tenant: Organization, gate: Gate) -> None:
    """Where one changes meanwhile, all is brought at the end."""
    sql = tenant.control.sql()
    sql("create text search configuration simple_one (parser = default)")
    move = Move(pair, tenant)
    gate.wait(move)
    sql("alter text search configuration simple_one add mapping for word with simple")
    gate.open()
    answer = move.answer()
    assert (answer["way"], answer["reason"]) == ("dump", "definitions have changed while the database was copied")
    assert sql.value("select count(*) from pg_ts_config_map where mapcfg = 'simple_one'::regconfig") == 1


def test_every_catalog_of_the_engine_is_known(pair: Service, second: ExternalServer) -> None:
    """An engine with another one may keep definitions there that a move would not notice."""
    question = "select relname from pg_class where relnamespace = 'pg_catalog'::regnamespace and relkind = 'r'"
    with engine(pair) as catalog:
        assert {str(name) for (name,) in catalog.execute(question)} - definitions.KNOWN == set()
    assert {str(name) for (name,) in second.execute(question)} - definitions.KNOWN == set()


def test_a_copy_that_differs_is_not_used(
    pair: Service, second: ExternalServer, tenant: Organization, gate: Gate
) -> None:
    """Whatever made it so: here somebody else who writes into it."""
    sql = tenant.control.sql()
    made(sql, "create table told (a int primary key)", "insert into told values (1), (2), (3)")
    move = Move(pair, tenant)
    second.execute("update told set a = 7 where a = 3", gate.wait(move))
    gate.open()
    answer = move.answer()
    assert (answer["way"], answer["reason"]) == ("dump", "the table public.told has other rows in the copy")
    assert where(tenant) == "second"
    assert sql.value("select array_agg(a order by a) from told") == [1, 2, 3]
