"""Several engines behind one service: where databases are, what an engine that is down touches, and moves."""

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from tests.control import Control, Organization, engine, engine_pid, error_of, new_organization
from tests.external import ExternalServer
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.waiting import eventually
from tests.workers import workers
from tuplegate.access.transaction_ids import IdKind, TransactionId, TransactionIds
from tuplegate.engine.port import BadUrl
from tuplegate.engine.routing.engines import mark_of
from tuplegate.further_engines import read_engines

SETTLED_S = 60.0
KEY = "Idempotency-Key"


@pytest.fixture(scope="module")
def second() -> Iterator[ExternalServer]:
    server = ExternalServer(wal_level="logical")
    yield server
    server.remove()


@pytest.fixture(scope="module")
def pair(second: ExternalServer) -> Iterator[Service]:
    """A service with the bundled engine and another. Two workers: what one does, the other hears of."""
    data_dir = new_data_dir()
    running = start_service(data_dir, "--workers", "2", env={"TUPLEGATE_ENGINES": f"second={second.url()}"})
    yield running
    assert running.stop() == 0
    assert [line for line in running.log.splitlines() if "unexpected failure" in line] == []
    remove(data_dir)


@pytest.fixture
def operator(pair: Service) -> Control:
    return Control(pair, pair.key)


@pytest.fixture
def tenant(pair: Service, operator: Control) -> Organization:
    """Its databases are on the first engine until they are moved."""
    operator.patch("/v1/engines/second", {"weight": 0})
    return new_organization(pair)


def where(tenant: Organization) -> str:
    found: str = tenant.control.get("/v1/databases/main")["engine"]
    return found


def move(operator: Control, tenant: Organization, to: str) -> dict[str, Any]:
    body = {"engine": to, "organization": tenant.id}
    return operator.post("/v1/databases/main/move", body, status=200)


def engine_name(service: Service, tenant: Organization) -> str:
    with engine(service) as catalog:
        row = catalog.execute("select engine_name from database where organization = %s", [tenant.id]).fetchone()
    assert row is not None
    return str(row[0])


def names(connection: psycopg.Connection[Any]) -> set[str]:
    found = connection.execute("select datname from pg_database where datname ~ '^tg_' union all"
                               " select rolname from pg_roles where rolname ~ '^tg_'").fetchall()  # fmt: skip
    return {str(row[0]) for row in found}


def settled(service: Service, second: ExternalServer) -> bool:
    """Catalog and engines agree: every database is where the catalog says, with its two roles, and nothing else is."""
    with engine(service) as catalog:
        rows = catalog.execute("select engine_name, engine, state from database").fetchall()
        if catalog.execute("select from leftover union all select from move where step <> 'done'").fetchone():
            return False
    cells = [path.name for path in (service.data_dir / "cells").glob("tg_*")]
    there = {"first": {f"{cell}{role}" for cell in cells for role in ("", "_w", "_r")}}
    with psycopg.connect(second.url("postgres"), autocommit=True) as other:
        there["second"] = names(other)
    wanted: dict[str, set[str]] = {"first": set(), "second": set()}
    for name, place, state in rows:
        if state != "active":
            return False
        wanted[place] |= {name, f"{name}_w", f"{name}_r"}
    return there == wanted


# -- where databases are --------------------------------------------------------------------------------------------


def test_new_databases_go_where_there_is_room(operator: Control, pair: Service) -> None:
    """By weight; an engine that is draining takes none, and a copy stays with its source."""
    operator.patch("/v1/engines/second", {"weight": 1000, "state": "active"})
    made = new_organization(pair)
    assert where(made) == "second"
    made.control.sql()("create table t as select 1 as a")
    operator.patch("/v1/engines/second", {"state": "draining"})
    assert made.control.post("/v1/databases", {"name": "other"})["engine"] == "first"
    copy = made.control.post("/v1/databases", {"name": "copy", "clone_of": "main"})
    assert copy["engine"] == "second"
    assert made.control.sql(database="copy").value("select a from t") == 1
    assert copy["size_bytes"] > 0
    made.control.sql()("drop table t")
    listed = {item["name"]: item for item in operator.get("/v1/engines")["items"]}
    assert (listed["second"]["state"], listed["second"]["weight"]) == ("draining", 1000)
    assert listed["second"]["databases"] == 2
    assert listed["second"]["size_bytes"] > 2 * 2**20
    assert listed["second"]["connections_max"] > 0
    operator.patch("/v1/engines/second", {"state": "active"})


def test_engines_are_the_operators_business(operator: Control, tenant: Organization) -> None:
    tenant.control.refused(403, "forbidden", "GET", "/v1/engines")
    tenant.control.refused(403, "forbidden", "PATCH", "/v1/engines/second", {"weight": 1})
    tenant.control.refused(403, "forbidden", "POST", "/v1/databases/main/move", {"engine": "second"})
    for path, body, status, code in (
        ("/v1/databases/main/move", {"engine": "third", "organization": tenant.id}, 404, "not_found"),
        ("/v1/databases/main/move", {"engine": "first", "organization": tenant.id}, 409, "wrong_state"),
        ("/v1/databases/none/move", {"engine": "second", "organization": tenant.id}, 404, "not_found"),
        ("/v1/databases/main/move", {"engine": "second", "nonsense": 1}, 400, "malformed_request"),
    ):
        operator.refused(status, code, "POST", path, body)
    operator.refused(404, "not_found", "PATCH", "/v1/engines/third", {"weight": 1})
    operator.refused(400, "malformed_request", "PATCH", "/v1/engines/second", {"weight": -1})


# -- an engine that is down -----------------------------------------------------------------------------------------


def test_an_engine_that_is_down_touches_only_its_own_databases(
    pair: Service, second: ExternalServer, operator: Control, tenant: Organization
) -> None:
    operator.patch("/v1/engines/second", {"weight": 1000})
    away = new_organization(pair)
    away_sql, home_sql = away.control.sql(), tenant.control.sql()
    away_sql("create table t as select 7 as a")
    second.stop()
    try:
        refused = error_of(away_sql.answer("select a from t"), 503, "engine_unavailable")
        assert "second" in refused["message"]
        assert home_sql.value("select 1") == 1
        health = httpx.get(pair.url + "/health", trust_env=False)
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert health.json()["checks"]["engines"] == "failing"
        assert home_sql.client.get("/health").json() == health.json()  # it is no operator's
        told = operator.sql().client.get("/health").json()
        assert told["checks"]["engine second"] not in ("ok", "failing")
        listed = {item["name"]: item for item in operator.get("/v1/engines")["items"]}
        assert listed["second"]["problem"]
        assert listed["first"]["problem"] is None
        assert new_organization(pair).control.get("/v1/databases/main")["engine"] == "first"
        error_of(operator.ask("POST", "/v1/databases/main/move", {"engine": "second", "organization": tenant.id}),
                 503, "engine_unavailable")  # fmt: skip
        assert home_sql.value("select 1") == 1
    finally:
        second.start()
    eventually(lambda: away_sql.answer("select a from t").status_code == 200, SETTLED_S)
    assert away_sql.value("select a from t") == 7
    eventually(lambda: settled(pair, second), SETTLED_S)


def test_several_organizations_beside_a_shared_server_have_to_be_accepted(second: ExternalServer) -> None:
    """Though the first engine is the bundled one: databases of several can be on the other."""
    data_dir = new_data_dir()
    env = {"TUPLEGATE_ENGINES": f"shared={second.url('shared')}", "TUPLEGATE_ACCEPT_WEAKER_WALLS": "false"}
    try:
        service = start_service(data_dir, env=env)
        refused = Control(service, service.key).refused(
            409, "weaker_walls", "POST", "/v1/organizations", {"name": "second"}
        )
        assert "locks_unbounded" in refused["message"]
        assert service.stop() == 0
    finally:
        remove(data_dir)


def test_a_service_starts_without_an_engine_and_uses_it_when_it_comes() -> None:
    """It is prepared then, without a restart."""
    server = ExternalServer()
    server.stop()
    data_dir = new_data_dir()
    try:
        service = start_service(data_dir, env={"TUPLEGATE_ENGINES": f"late={server.url()}"})
        health = httpx.get(service.url + "/health", trust_env=False).json()
        assert (health["status"], health["checks"]["engine"]) == ("degraded", "ok")
        assert health["checks"]["engines"] == "failing"
        operator = Control(service, service.key)
        assert operator.sql().value("select 1") == 1
        server.start()
        eventually(lambda: httpx.get(service.url + "/health", trust_env=False).json()["status"] == "ok", SETTLED_S)
        operator.patch("/v1/engines/late", {"weight": 1000})
        made = operator.post("/v1/databases", {"name": "away"})
        assert made["engine"] == "late"
        assert operator.sql(database="away").value("select 1") == 1
        assert "secret" not in service.log
        assert service.stop() == 0
    finally:
        server.remove()
        remove(data_dir)


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        ("nonsense", "entry 1 is not of the form name=postgresql://"),
        ("first=postgresql://u:secret@h/d", "the name first is taken"),
        ("a=postgresql://u:secret@h/d a=postgresql://u:secret@i/d", "the name a is taken"),
        ("a=mysql://u:secret@h/d", "the URL of a: it is not of the form"),
    ],
)
def test_a_bad_list_of_engines(engines: str, said: str) -> None:
    with pytest.raises(BadUrl) as caught:
        read_engines(engines)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


# -- moves ----------------------------------------------------------------------------------------------------------

CONTENT = (
    "create schema inner_one",
    "create type mood as enum ('ok', 'sad')",
    "create table parent (id int primary key, feeling mood default 'ok')",
    "create table child (id int generated always as identity primary key, parent int references parent, note text)",
    "create table loose (a int, b json)",
    "create table inner_one.counted (id serial primary key, twice int generated always as (2) stored)",
    "create index on child (note)",
    "create view seen as select id from parent",
    "create materialized view kept as select count(*) as n from parent",
    "create function doubled(int) returns int language sql as 'select 2 * $1'",
    "create table hidden (a int)",
    "insert into parent select generate_series(1, 100)",
    "insert into child (parent, note) select id, 'note ' || id from parent",
    "insert into loose values (1, '{}'), (1, '{}')",
    "insert into inner_one.counted default values",
    "insert into inner_one.counted default values",
    "insert into hidden values (1)",
    "create table owned (who text, a int)",
    "alter table owned enable row level security",
    "create policy everybody on owned using (a > 1)",
    "insert into owned values ('x', 1), ('x', 2)",
    "alter default privileges revoke select on tables from {reader}",
    "revoke all on hidden from {reader}",
    "refresh materialized view kept",
    "comment on table parent is 'all of them'",
)

LOOK = (
    "select count(*), min(feeling::text) from parent",
    "select sum(id), max(note) from child",
    "select a, count(*) from loose group by a order by a",
    "select id, twice from inner_one.counted order by id",
    "select n from kept",
    "select doubled(21)",
    "select obj_description('parent'::regclass)",
    "select count(*) from owned",
    "select convert_from(lo_get(4711), 'UTF8')",
    "select last_value, is_called from inner_one.counted_id_seq",
    "select count(*) from pg_indexes where schemaname in ('public', 'inner_one')",
    "select count(*) from pg_class where relowner = current_user::regrole",
)


def fill(tenant: Organization) -> str:
    """Puts one of everything into the database; a key that only reads."""
    key: str = tenant.control.post("/v1/keys", {"name": "reader", "scopes": ["read"]})["key"]
    sql = tenant.control.sql()
    reader = tenant.control.sql(key).value("select current_user::text")
    for statement in CONTENT:
        sql(statement.replace("{reader}", str(reader)))
    sql("select lo_from_bytea(4711, 'large')")
    return key


def test_a_move_brings_everything(
    pair: Service, second: ExternalServer, operator: Control, tenant: Organization
) -> None:
    """Data, definitions, rights, keys, answers that are kept, outcomes; and back again."""
    read_key = fill(tenant)
    sql, read_sql = tenant.control.sql(), tenant.control.sql(read_key)
    before = [sql.rows(statement) for statement in LOOK]
    own = sql.client.post("/v1/transaction", json={"statements": ["insert into loose values (2, '{}')"]}).json()
    chosen = f"txn_{uuid.uuid4().hex}"
    once = {KEY: "only-once", "Tuplegate-Transaction-Id": chosen}
    body = {"statements": ["insert into loose values (3, '{}')"]}
    kept = sql.client.post("/v1/transaction", json=body, headers=once).json()
    ids = former_ids(pair, second, tenant)
    before[2] = sql.rows(LOOK[2])
    for to in ("second", "first"):
        moved = move(operator, tenant, to)
        assert (moved["engine"], moved["state"]) == (to, "active")
        assert (moved["way"], moved["reason"]) == ("dump", "it has large objects")
        assert where(tenant) == to
        assert [sql.rows(statement) for statement in LOOK] == before
        assert sql.client.get(f"/v1/transaction/{own['transaction_id']}").json()["state"] == "committed"
        assert sql.client.get(f"/v1/transaction/{chosen}").json()["state"] == "committed"
        assert {id: sql.client.get(f"/v1/transaction/{id}").json()["state"] for id in ids} == ids
        again = sql.client.post("/v1/transaction", json=body, headers=once)
        assert (again.json(), again.headers["idempotency-replayed"]) == (kept, "true")
        assert read_sql.value("select count(*) from parent") == 100
        assert read_sql.value("select count(*) from owned") == 1
        assert read_sql.fails("select a from hidden")["sqlstate"] == "42501"
        sql(f"create table later_{to} (a int)")
        assert read_sql.fails(f"select a from later_{to}")["sqlstate"] == "42501"
        sql(f"drop table later_{to}")
        assert sql.fails("insert into child (parent) values (101)")["sqlstate"] == "23503"
    assert sql.value("insert into inner_one.counted default values returning id") == 3
    assert [record["action"] for record in operator.all("/v1/audit")[:2]] == ["database.arrive", "database.move"]
    eventually(lambda: settled(pair, second), SETTLED_S)


def former_ids(service: Service, second: ExternalServer, tenant: Organization) -> dict[str, str]:
    """Ids from before a move, and what they stand for: of transactions that their worker lost while they were prepared,
    one that another worker has committed and one that was never prepared; and of one that was committed, with a number
    that the other engine has given to one that was aborted."""
    with psycopg.connect(second.url("postgres")) as other:
        aborted = other.execute("select pg_current_xact_id()::text::bigint").fetchone()
        other.rollback()
    assert aborted is not None
    with engine(service) as catalog:
        row = catalog.execute("select i.id, i.secret, d.id, d.engine_name from installation i, database d"
                              " where d.organization = %s", [tenant.id]).fetchone()  # fmt: skip
        assert row is not None
    with psycopg.connect(service.server_of(str(row[3]))) as home:
        home.execute("insert into engine.recovered (gid) values (%s)", [f"tuplegate_{row[0]}_{'w' * 10}"])
    mark = mark_of(str(row[3]))
    number = (7 << 32) + 1
    made = {
        TransactionId(IdKind.LOST, number, "w" * 10, mark): "committed",
        TransactionId(IdKind.LOST, number, "x" * 10, mark): "aborted",
        TransactionId(IdKind.NUMBERED, int(aborted[0]), "y" * 10, mark): "committed",
    }
    ids = TransactionIds(bytes(row[1]), os.urandom)
    return {ids.write(id, str(row[2])): state for id, state in made.items()}


class Writer:
    """Changes rows one after the other, without a pause, and keeps in mind what must be there in the end."""

    SCHEMA = (
        "create table parent (id int primary key, long text not null)",
        "alter table parent alter column long set storage external",
        "create table child (id bigint primary key, parent int references parent on update cascade on delete cascade)",
        "create table loose (a int)",
        "create table log (id serial primary key, a int)",
        "create function note() returns trigger language plpgsql as"
        " $$ begin insert into log (a) values (new.id); return new; end $$",
        "create trigger noting after insert on parent for each row execute function note()",
        "insert into parent select i, repeat('x', 4000) || i from generate_series(-2000, -1) i",
    )

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self.parents: dict[int, str] = {}
        self.children: dict[int, int] = {}
        self.loose = 0
        self.inserted = 0
        self.failures: list[str] = []
        self.rounds = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        for statement in self.SCHEMA:
            sql(statement)

    def __enter__(self) -> "Writer":
        self._thread.start()
        eventually(lambda: self.rounds > 1)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self, *statements: str) -> None:
        answer = self._sql.client.post("/v1/transaction", json={"statements": statements})
        if not answer.json()["success"]:
            self.failures.append(answer.text)

    def _write(self) -> None:
        while not self._stop.is_set():
            number = 10 * self.rounds
            self._run(f"insert into parent values ({number}, 'long'), ({number + 1}, repeat('y', 5000))")
            self._run(f"insert into child values ({number}, {number}), ({number + 1}, {number + 1})")
            self._run(f"update parent set id = {number + 2} where id = {number + 1}", "insert into loose values (1)")
            self._run(f"delete from parent where id = {number}")
            self._run(f"update parent set long = long || '!' where id = {-1 - self.rounds % 2000}")
            self.rounds += 1

    def check(self, sql: Sql) -> None:
        assert self.failures == []
        rounds = self.rounds
        assert sql.value("select count(*) from parent where id >= 0 and long = repeat('y', 5000)") == rounds
        assert sql.value("select count(*) from child where parent % 10 = 2 and id % 10 = 1") == rounds
        assert sql.value("select count(*) from child") == rounds
        assert sql.value("select count(*) from loose") == rounds
        assert sql.value("select sum(length(long) - 4000 - length(id::text)) from parent where id < 0") == rounds
        assert sql.value("select count(*) from log") == 2000 + 2 * rounds
        assert sql.value("insert into log (a) values (0) returning id") == 2001 + 2 * rounds


def test_writers_are_held_and_lose_nothing(operator: Control, tenant: Organization) -> None:
    """There and back, in use: every change is answered and brought over once, whatever triggers and keys do."""
    sql = tenant.control.sql()
    with Writer(sql) as writer:
        for to in ("second", "first"):
            moved = move(operator, tenant, to)
            assert (moved["way"], moved["reason"]) == ("replication", None)
            done = writer.rounds
            eventually(lambda: writer.rounds > done + 1)  # noqa: B023 - it is waited for at once
    writer.check(sql)


def test_definitions_that_change_meanwhile_are_not_lost(operator: Control, tenant: Organization) -> None:
    """Then all is brought over at the end, and the answer says so."""
    sql = tenant.control.sql()
    made: list[int] = []
    over = threading.Event()

    def define() -> None:
        while not over.is_set():
            sql(f"create table made_{len(made)} (a int)")
            made.append(len(made))

    thread = threading.Thread(target=define)
    thread.start()
    try:
        eventually(lambda: bool(made))
        moved = move(operator, tenant, "second")
    finally:
        over.set()
        thread.join()
    assert moved["way"] == "dump"
    assert moved["reason"]
    assert sql.value("select count(*) from pg_tables where tablename ~ '^made_'") == len(made)


# -- moves that are cut off -----------------------------------------------------------------------------------------


class HeldMove:
    """A move to the second engine, sent from another thread. `hold` keeps it from the change in the catalog."""

    def __init__(self, service: Service, tenant: Organization) -> None:
        self._service = service
        self._body = {"engine": "second", "organization": tenant.id}
        self._thread = threading.Thread(target=self._send)
        self._holder = engine(service)
        self._watcher = engine(service)
        self.answers: list[httpx.Response | None] = []

    def __enter__(self) -> "HeldMove":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._holder.close()
        self._thread.join()
        self._watcher.close()

    def _send(self) -> None:
        operator = Control(self._service, self._service.key)
        try:
            self.answers.append(operator.ask("POST", "/v1/databases/main/move", self._body))
        except httpx.TransportError:
            self.answers.append(None)  # it was cut off

    def wait_for(self, *steps: str) -> None:
        """Until the catalog shows one of these steps."""
        look = "select from move where step = any (%s)"
        deadline = time.monotonic() + SETTLED_S
        while self._watcher.execute(look, [list(steps)]).fetchone() is None:
            assert time.monotonic() < deadline
            assert not self.answers, self.answers[0]
            time.sleep(0.002)  # a step is over soon

    def hold(self) -> None:
        """Lets the move come to the change in the catalog and no further."""
        self.wait_for("finishing")
        self._holder.execute("begin")
        self._holder.execute("lock table audit in exclusive mode")  # where it would be noted
        waits = (
            "select from pg_locks l join pg_database d on d.oid = l.database"
            " where not l.granted and l.relation = 'audit'::regclass and d.datname = current_database()"
        )
        eventually(lambda: self._watcher.execute(waits).fetchone() is not None, SETTLED_S)


def kill_workers(service: Service) -> None:
    """All of them; whichever moves the database is one."""
    for pid in workers(service):
        os.kill(pid, signal.SIGKILL)


def answers(sql: Sql) -> bool:
    try:
        return sql.answer("select 1").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def written(tenant: Organization) -> Sql:
    sql = tenant.control.sql()
    sql("create table written (a int primary key)")
    sql("insert into written select generate_series(1, 1000)")
    return sql


@pytest.mark.parametrize("at", ["preparing", "copying", "finishing", "the change", "switched"])
def test_workers_killed_in_a_move(
    pair: Service, second: ExternalServer, tenant: Organization, written: Sql, at: str
) -> None:
    """It is undone before the change in the catalog, and is done after; either way it is used again at once, with all
    that was acknowledged, and nothing is left of the other one."""
    with HeldMove(pair, tenant) as moving:
        if at == "the change":
            moving.hold()
        else:
            moving.wait_for(at)
        kill_workers(pair)
        if at == "the change":  # the engine still waits with what a killed worker has sent, and must not do it later
            eventually(lambda: settled(pair, second), SETTLED_S)
    [answer] = moving.answers
    assert answer is None or answer.status_code == 503, answer.text  # it may have been too late to be cut off
    eventually(lambda: answers(written), SETTLED_S)
    eventually(lambda: settled(pair, second), SETTLED_S)
    assert where(tenant) == ("second" if at == "switched" else "first")
    written("insert into written values (1001)")
    assert written.value("select count(*) from written") == 1001


@pytest.mark.parametrize(("killed", "at"), [("second", "copying"), ("first", "finishing")])
def test_an_engine_killed_in_a_move(
    pair: Service, second: ExternalServer, tenant: Organization, written: Sql, killed: str, at: str
) -> None:
    """That where the database goes, or that where it is: it has arrived or not, as the answer says, and is whole."""
    with HeldMove(pair, tenant) as moving:
        moving.wait_for(at)
        if at == "copying":  # what is made for the copy alone is there as well
            roles = {f"{engine_name(pair, tenant)}_w", f"{engine_name(pair, tenant)}_r"}
            with psycopg.connect(second.url("postgres"), autocommit=True) as other:
                eventually(lambda: roles <= names(other))
        assert tenant.control.get("/v1/databases/main")["state"] == "moving"
        if killed == "first":
            os.kill(engine_pid(pair), signal.SIGKILL)
        else:
            second.crash()
            if at == "copying":
                eventually(lambda: bool(moving.answers), SETTLED_S)
                assert answers(written), "the source is not touched"
            second.start()
    [answer] = moving.answers
    assert answer is not None
    eventually(lambda: answers(written), SETTLED_S)
    eventually(lambda: settled(pair, second), SETTLED_S)
    if answer.status_code != 503:  # else the engine was lost, and with it what it would have said of the change
        assert where(tenant) == ("second" if answer.status_code == 200 else "first"), answer.text
    assert written.value("select count(*) from written") == 1000
