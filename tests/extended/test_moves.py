"""Moves of databases whose tenants do what they can to be moved in part, twice, or for ever."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.control import Control, Organization, engine, new_organization, worker_pid
from tests.extended.test_several_engines import SETTLED_S, engine_name, kill_workers, settled, where
from tests.external import ExternalServer
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.waiting import eventually
from tuplegate.engine.postgres.transfer import definitions

STALL_S = 12
"""Longer than two copies and a new organization take on a machine that does other things."""
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
    env = {"TUPLEGATE_ENGINES": f"second={second.url()}", "TUPLEGATE_MOVE_STALL_S": str(STALL_S)}
    running = start_service(data_dir, "--workers", "1", env={**env, "TUPLEGATE_MOVE_LOG_MB_MAX": "64"})
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
        try:
            operator = Control(self._service, self._service.key)
            self.response = operator.ask("POST", "/v1/databases/main/move", self._body)
        except httpx.TransportError:
            self.response = httpx.Response(599)  # it was cut off

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
    waits until a role is there. Statements of the tenant's own pass. The copy comes further meanwhile, from page to
    page of the table, unless the gate `stands`."""

    MADE = (
        "create function waited(place int) returns int language plpgsql as $$ begin if session_user ~ '_c$' then"
        " while not exists (select from pg_roles where rolname = '{role}')"
        " and clock_timestamp() < statement_timestamp() + interval '{wait}' * (1 + place) loop perform pg_sleep(0.01);"
        " end loop; end if; return 0; end $$",
        "create function gate(i int) returns int immutable language plpgsql as"
        " $$ begin return i + public.waited(i); end $$",
        "create table gate (i int primary key, page text)",
        "alter table gate alter page set storage plain",
        "insert into gate select i, repeat('x', 5000) from generate_series(1, {pages}) i",
        "create index on gate (gate(i))",
    )

    def __init__(self, service: Service, second: ExternalServer, tenant: Organization, *, stands: bool = False) -> None:
        self._service = service
        self._second = second
        self._tenant = tenant
        self._place = ""
        self.role = f"gate_{tenant.id[4:].lower()}"
        sql = tenant.control.sql()
        for statement in self.MADE:
            waits = statement.replace("{wait}", "1 day" if stands else "1 s").replace("{role}", self.role)
            sql(waits.replace("{pages}", "1" if stands else "60"))

    def wait(self, move: Move, to: str = "second") -> str:
        """Until the copy stands at the gate; its name in the engine."""
        with engine(self._service) as catalog:
            question = "select successor from move where former = %s"
            name = [engine_name(self._service, self._tenant)]
            eventually(lambda: catalog.execute(question, name).fetchone() is not None)
            [[successor]] = catalog.execute(question, name).fetchall()
        question = (
            "select from pg_stat_activity where datname = %s and query ~ 'CREATE INDEX' and wait_event = 'PgSleep'"
        )
        self._place = self._service.server_of(str(successor)) if to == "first" else self._second.url("postgres")
        with psycopg.connect(self._place, autocommit=True) as looking:
            eventually(lambda: move.is_over or looking.execute(question, [successor]).fetchone() is not None, SETTLED_S)
        assert not move.is_over, move.answer()
        return str(successor)

    def open(self) -> None:
        """Where it was waited for."""
        with psycopg.connect(self._place, autocommit=True) as opening:
            opening.execute(f"create role {self.role}".encode())


@pytest.fixture
def gate(pair: Service, second: ExternalServer, tenant: Organization) -> Gate:
    return Gate(pair, second, tenant)


def home(service: Service, tenant: Organization) -> psycopg.Connection[Any]:
    """The server of the tenant's database, while that is on the first engine."""
    return psycopg.connect(service.server_of(engine_name(service, tenant)), autocommit=True)


def slots(service: Service, tenant: Organization) -> list[str]:
    with home(service, tenant) as server:
        return [str(name) for (name,) in server.execute("select slot_name from pg_replication_slots")]


def peak_of_memory(service: Service) -> int:
    """The most that the only worker has had, in bytes (Linux)."""
    return next(
        int(line.split()[1]) * 1024
        for line in Path(f"/proc/{worker_pid(service)}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )


def made(sql: Sql, *statements: str) -> None:
    for statement in statements:
        sql(statement)


# -- nothing is lost ------------------------------------------------------------------------------------------------


def test_a_table_that_is_made_before_the_copy_is_brought_whole(pair: Service, tenant: Organization) -> None:
    """It is made while the move waits for a transaction of somebody else's to end, for longer than for a lock."""
    sql = tenant.control.sql()
    with home(pair, tenant) as other, home(pair, tenant) as looking:
        other.execute("begin")
        other.execute("select pg_current_xact_id()")
        move = Move(pair, tenant)
        waiting = (
            "select from pg_stat_activity where query ~ 'pg_create_logical_replication_slot'"
            " and wait_event_type = 'Lock' and clock_timestamp() - query_start > %s * interval '1 second'"
        )
        eventually(lambda: move.is_over or looking.execute(waiting, [LOCK_S]).fetchone() is not None, SETTLED_S)
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
        gate.open()
        answer = move.answer()
        assert (answer["engine"], answer["way"], answer["reason"]) == (to, "replication", None)
        assert sql.value("select count(*) from tuplegate_scratch_mine.t") == number
        for table in ("parent", "deferred", "numbered", "also"):
            assert sql.value(f"select sum(v) from {table}") == number
        same = "extract(epoch from i) = -93784 and f = 0.1::float8 + 0.2::float8 and d = '2026-03-04' and m = 5::money"
        assert sql.value(f"select count(*) from styles where {same} and b = '\\x00'") == number
        assert sql.value("select n from shown") == number
    eventually(lambda: settled(pair, second), SETTLED_S)


def test_large_rows_take_little_memory(pair: Service, tenant: Organization, gate: Gate) -> None:
    """However many of them are told at once."""
    sql = tenant.control.sql()
    sql("create table large (id int primary key, v text)")
    move = Move(pair, tenant)
    gate.wait(move)
    before = peak_of_memory(pair)
    sql("insert into large select i, repeat(md5(i::text), 200000) from generate_series(1, 8) i")
    gate.open()
    assert move.answer()["way"] == "replication"
    assert peak_of_memory(pair) - before < 128 * 2**20
    assert sql.value("select sum(length(v)) from large") == 8 * 6_400_000


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


def test_a_right_of_another_tenants_is_named(pair: Service, tenant: Organization) -> None:
    """On a server that both share. Its role is not on the other engine. The reason says what is in the way."""
    other = new_organization(pair)
    for moved in (tenant, other):
        Move(pair, moved).answer()
    sql = tenant.control.sql()
    sql("create table shared (a int)")
    role = other.control.sql().value("select current_user::text")
    sql(f"grant select on shared to {role}")
    error = Move(pair, tenant, "first").answer(409)["error"]
    assert error["code"] == "move_failed"
    assert f"the table public.shared names {role}" in error["message"]
    sql(f"revoke select on shared from {role}")


# -- nothing goes on for ever ---------------------------------------------------------------------------------------


def test_moves_that_stand_still_are_given_up(pair: Service, second: ExternalServer) -> None:
    """They take no place of anybody's else, and leave nothing behind; their databases were never out of use."""
    tenants = [new_organization(pair) for _ in range(2)]
    gates = [Gate(pair, second, tenant, stands=True) for tenant in tenants]
    moves = [Move(pair, tenant) for tenant in tenants]
    for gate, move in zip(gates, moves, strict=True):
        gate.wait(move)
    new_organization(pair)
    assert not any(move.is_over for move in moves)
    for tenant, move in zip(tenants, moves, strict=True):
        tenant.control.sql()("insert into gate values (2)")
        error = move.answer(409)["error"]
        assert error["code"] == "move_failed"
        assert f"the statement CREATE INDEX of the copy came no further for {STALL_S} s" in error["message"]
        assert where(tenant) == "first"
    assert [slots(pair, tenant) for tenant in tenants] == [[], []]
    eventually(lambda: settled(pair, second), SETTLED_S)


def test_a_view_that_waits_does_not_hold_requests_for_long(pair: Service, tenant: Organization, gate: Gate) -> None:
    """It is refreshed in the last part of a move, where it was refreshed meanwhile, for a limited time."""
    sql = tenant.control.sql()
    made(
        sql,
        "create function late() returns int language plpgsql as $$ begin if current_setting('application_name')"
        " = 'tuplegate-service' then perform pg_sleep(1000000); end if; return 1; end $$",
        "create materialized view slow as select late()",
    )
    move = Move(pair, tenant)
    gate.wait(move)
    sql("refresh materialized view slow")
    gate.open()
    assert "not answered within" in move.answer(409)["error"]["message"]
    assert sql.value("select count(*) from slow") == 1
    assert where(tenant) == "first"


def test_a_move_that_keeps_too_much_log_is_given_up(pair: Service, tenant: Organization, gate: Gate) -> None:
    """Of an engine that others write on; the slot is gone, and the log with it."""
    move = Move(pair, tenant)
    gate.wait(move)
    with home(pair, tenant) as other:
        for _ in range(20):
            other.execute("select pg_logical_emit_message(false, 'other', repeat('x', 4000000))")
    assert "64 MiB of its log" in move.answer(409)["error"]["message"]
    assert where(tenant) == "first"
    assert slots(pair, tenant) == []


def test_a_slot_that_is_being_read_goes_with_its_move(
    pair: Service, second: ExternalServer, tenant: Organization, gate: Gate
) -> None:
    """Whoever reads it, such as a server process whose worker was killed, is ended."""
    move = Move(pair, tenant)
    gate.wait(move)
    name = engine_name(pair, tenant)
    inside = f"{pair.cells.login(name)} dbname={name} replication=database"
    with contextlib.closing(psycopg.connect(inside, autocommit=True)) as reading:
        start = (
            f"START_REPLICATION SLOT tuplegate_move_{name} LOGICAL 0/0 (proto_version '1', publication_names 'none')"
        )
        assert reading.pgconn.exec_(start.encode()).status == psycopg.pq.ExecStatus.COPY_BOTH
        kill_workers(pair)
        eventually(lambda: slots(pair, tenant) == [], SETTLED_S)
    gate.open()
    eventually(lambda: settled(pair, second), SETTLED_S)
    assert where(tenant) == "first"


def test_an_engine_that_stands_still_holds_requests_only_briefly(
    pair: Service, second: ExternalServer, tenant: Organization, gate: Gate
) -> None:
    """The one that the database goes to, in the last part of its move: what is asked then is answered where it is."""
    sql = tenant.control.sql()
    sql("create table t (a int primary key)")
    move = Move(pair, tenant)
    gate.wait(move)
    name = engine_name(pair, tenant)
    with engine(pair) as holding, engine(pair) as catalog, home(pair, tenant) as server:
        holding.execute("begin")
        holding.execute("select from move where former = %s for update", [name])  # the last part waits to begin
        gate.open()
        question = "select from pg_stat_activity where query ~ '^UPDATE move SET step' and wait_event_type = 'Lock'"
        eventually(lambda: move.is_over or catalog.execute(question).fetchone() is not None, SETTLED_S)
        second.freeze()
        holding.execute("commit")
        question = "select from pg_database where datname = %s and not has_database_privilege(%s, oid, 'connect')"
        eventually(lambda: move.is_over or server.execute(question, [name, f"{name}_w"]).fetchone() is not None)
    try:
        sql("insert into t values (1)")
        assert not move.is_over, "it still clears up with the engine that stands still"
    finally:
        second.thaw()
    assert move.answer(503)["error"]["code"] == "engine_unavailable"
    assert where(tenant) == "first"
    eventually(lambda: settled(pair, second), SETTLED_S)
