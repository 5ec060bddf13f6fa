"""`POST /admin/reset`: everything in the database goes, for all readers at once; what belongs to the service stays."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.activity import Activity
from tests.needs import Abilities
from tests.service import Service, Sql
from tests.waiting import eventually


@dataclass
class Database:
    """A database of its own, so that other tests are left alone."""

    name: str
    client: httpx.Client
    control: httpx.Client

    @property
    def sql(self) -> Sql:
        return Sql(self.client)

    def reset(self) -> httpx.Response:
        return self.client.post("/admin/reset")


@pytest.fixture
def database(service: Service, request: pytest.FixtureRequest) -> Iterator[Database]:
    name = "reset-" + request.node.name.replace("_", "-")[5:50].rstrip("-")
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(
        base_url=service.control_url, headers=headers, timeout=60, trust_env=False, verify=False
    ) as control:
        assert control.post("/v1/databases", json={"name": name}).status_code == 201
        key = control.post("/v1/keys", json={"name": name, "scopes": ["admin"], "database": name}).json()["key"]
        with service.client(key) as client:
            yield Database(name, client, control)
        control.patch(f"/v1/databases/{name}", json={"delete_protection": False})
        assert control.delete(f"/v1/databases/{name}").status_code == 200


def test_everything_of_the_tenant_goes(database: Database, abilities: Abilities) -> None:
    """Schemas, types, functions, large objects, extensions; a new table can be made at once under the same key."""
    sql = database.sql
    for statement in (
        "create schema s",
        "create type s.mood as enum ('ok')",
        "create table s.t (m s.mood)",
        "create table t (id int primary key)",
        "insert into t values (1)",
    ):
        sql(statement)
    others = {
        "function_sql": (
            "create function f() returns int language sql as 'select 1'",
            "select count(*) from pg_proc where proname = 'f'",
        ),
        "trigram_index": (
            "create extension if not exists pg_trgm",
            "select count(*) from pg_extension where extname = 'pg_trgm'",
        ),
        "large_object": ("select lo_from_bytea(0, 'x')", "select count(*) from pg_largeobject_metadata"),
    }
    counts = ["select count(*) from pg_namespace where nspname = 's'"]
    for ability, (making, counting) in others.items():
        if abilities.can(ability):
            sql(making)
            counts.append(counting)
    answer = database.reset()
    assert answer.status_code == 200, answer.text
    assert answer.json()["success"] is True
    assert [sql.value(counting) for counting in counts] == [0] * len(counts)
    assert sql.fails("select * from t")["sqlstate"] == "42P01"
    sql("create table t as select 7 as n")
    assert sql.value("select n from t") == 7


def test_outcomes_stay_answerable(database: Database) -> None:
    """Of ids that the service made and of those that a client chose; and a chosen one stays used."""
    client, sql = database.client, database.sql
    sql("create table t (n int)")
    body = {"statements": ["insert into t values (1)"]}
    made = client.post("/v1/transaction", json=body).json()["transaction_id"]
    chosen = {"Tuplegate-Transaction-Id": f"txn_chosen_before_{database.name}"}
    assert client.post("/v1/transaction", json=body, headers=chosen).json()["success"]
    assert database.reset().status_code == 200
    for id in (made, chosen["Tuplegate-Transaction-Id"]):
        assert client.get(f"/v1/transaction/{id}").json()["state"] == "committed"
    sql("create table t (n int)")
    assert client.post("/v1/transaction", json=body, headers=chosen).status_code == 409
    assert sql.value("select count(*) from t") == 0


def test_an_answer_kept_before_is_replayed(database: Database) -> None:
    """An Idempotency-Key that was used before the reset runs nothing after it."""
    client, sql = database.client, database.sql
    sql("create table t (n int)")
    key = {"Idempotency-Key": "before-the-reset"}
    first = client.post("/v1/query", json={"sql": "insert into t values (1)"}, headers=key)
    assert database.reset().status_code == 200
    sql("create table t (n int)")
    again = client.post("/v1/query", json={"sql": "insert into t values (1)"}, headers=key)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json()["affected_rows"] == first.json()["affected_rows"] == 1
    assert sql.value("select count(*) from t") == 0


def test_a_running_statement_is_cancelled(service: Service, database: Database) -> None:
    """It gets its error, promptly, and the reset does not wait for it."""
    answers: list[httpx.Response] = []

    def run() -> None:
        answers.append(database.client.post("/v1/query", json={"sql": "select pg_sleep(25)"}))

    activity = Activity(service, str(database.sql.value("select current_database()")))
    running = threading.Thread(target=run)
    running.start()
    with activity.connection, service.client() as other:
        eventually(lambda: activity.count_running("pg_sleep(25") == 1)
        assert other.post("/admin/reset", headers={"Tuplegate-Database": database.name}).status_code == 200
    running.join(timeout=20)
    body = answers[0].json()
    assert body["success"] is False
    assert body["error"]["sqlstate"] == "57014" or answers[0].status_code == 503


def test_a_protected_database_is_not_reset(database: Database) -> None:
    """409, and nothing is lost."""
    sql = database.sql
    sql("create table t as select 1 as n")
    path = f"/v1/databases/{database.name}"
    assert database.control.patch(path, json={"delete_protection": True}).status_code == 200
    refused = database.reset()
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "delete_protected")
    assert sql.value("select n from t") == 1


def test_it_needs_the_admin_scope_and_is_audited(service: Service, database: Database) -> None:
    """A key that writes may not; what was done is on record."""
    body = {"name": "writer", "scopes": ["write"], "database": database.name}
    key = database.control.post("/v1/keys", json=body).json()["key"]
    with service.client(key) as writer:
        assert writer.post("/admin/reset").status_code == 403
    done = database.reset()
    items = database.control.get("/v1/audit").json()["items"]
    entry = next(item for item in items if item["action"] == "database.reset")
    assert entry["subject"] == database.name
    assert entry["request_id"] == done.headers["X-Request-Id"]


def test_readers_see_all_or_nothing(database: Database) -> None:
    """While resets go on, a reader of two tables that are filled together sees both or neither."""
    sql = database.sql
    stop = threading.Event()
    seen: list[object] = []

    def read() -> None:
        while not stop.is_set():
            answer = database.client.post(
                "/v1/query", json={"sql": "select (select count(*) from a) as a, (select count(*) from b) as b"}
            )
            body = answer.json()
            seen.append(body["rows"][0] if body["success"] else body["error"]["sqlstate"] or answer.status_code)

    def fill() -> None:
        done = database.client.post(
            "/v1/transaction",
            json={"statements": ["create table a as select generate_series(1, 50)", "create table b as table a"]},
        )
        assert done.json()["success"], done.text

    fill()
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(3):
            assert database.reset().status_code == 200
            fill()
    finally:
        stop.set()
        reader.join()
    whole = {"a": 50, "b": 50}
    assert whole in seen
    assert all(entry == whole or entry in ("42P01", "57014", 503) for entry in seen), seen
    assert sql.value("select count(*) from a") == 50
