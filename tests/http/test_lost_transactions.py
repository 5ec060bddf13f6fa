"""Open transactions whose connection or key is gone: they end then, not with the next request."""

import json
import threading
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from tests.activity import Activity
from tests.control import Control
from tests.http.test_open_transactions import Open, error_of, revoke, rows
from tests.needs import needs
from tests.service import Service, make_key
from tests.tenants import Tenant, undisturbed
from tests.waiting import eventually
from tests.workers import peak_mb

NDJSON = {"Accept": "application/x-ndjson"}
TAKEN = "insert into lost values (9, 'taken')"
"""Waits for whoever has inserted that row."""
FLOOD = 1_000
"""Begins that nobody ends."""


@pytest.fixture
def table(client: httpx.Client) -> Iterator[str]:
    client.post("/v1/query", json={"sql": "create table lost (id int primary key, text text)"})
    yield "lost"
    client.post("/v1/query", json={"sql": "drop table lost"})


@pytest.fixture
def activity(service: Service) -> Iterator[Activity]:
    found = Activity(service)
    with found.connection:
        yield found


def backend_of(activity: Activity, opened: Open) -> object:
    return opened.query(activity.own_backend)["rows"][0]["session_id"]


def test_it_is_aborted_when_its_connection_is_gone(activity: Activity, client: httpx.Client, table: str) -> None:
    """Before anybody sends a statement, also one that has failed; its place is free again."""
    for statement in ("insert into lost values (1, 'a')", "select unknown_column"):
        opened = Open(client, idle_timeout_ms=60_000)
        pid = backend_of(activity, opened)
        opened.query(statement)
        activity.terminate(pid)
        eventually(partial(opened.is_in, "aborted"))
        assert opened.state["reason"] == "lost"
        for what in ("query", "commit"):
            body = {"sql": "select 1"} if what == "query" else {}
            assert error_of(opened.post(what, **body)) == (409, "transaction_aborted")
        assert opened.rollback()["state"] == "aborted"
    assert rows(client, "select id from lost") == []


def test_the_last_answer_of_a_lost_one_is_repeated(activity: Activity, client: httpx.Client, table: str) -> None:
    opened = Open(client)
    pid = backend_of(activity, opened)
    first = opened.post("query", sql="insert into lost values (1, 'a') returning id", sequence=1)
    activity.terminate(pid)
    eventually(lambda: opened.state["state"] == "aborted")
    assert opened.post("query", sql="insert into lost values (1, 'a') returning id", sequence=1).json() == first.json()
    assert error_of(opened.post("commit", sequence=2)) == (409, "transaction_aborted")


def test_those_that_are_lost_make_room(activity: Activity, client: httpx.Client) -> None:
    """An organization has sixteen at most."""
    opened = [Open(client) for _ in range(16)]
    for one in opened:
        activity.terminate(backend_of(activity, one))
    eventually(lambda: all(one.state["state"] == "aborted" for one in opened))
    again = [Open(client) for _ in range(16)]
    for one in again:
        one.rollback()


def test_a_connection_lost_in_a_statement(activity: Activity, client: httpx.Client, table: str) -> None:
    """Nothing of it was applied, and that is what the client is told. Who sends it again is not told to come again."""
    opened = Open(client)
    pid = backend_of(activity, opened)
    opened.query("insert into lost values (1, 'a')")
    slow = "select pg_sleep(20)"
    answers: list[httpx.Response] = []
    running = threading.Thread(target=lambda: answers.append(opened.post("query", sql=slow, sequence=1)))
    running.start()
    eventually(lambda: activity.count_running("pg_sleep(20") == 1)
    activity.terminate(pid)
    running.join()
    assert error_of(answers[0]) == (503, "engine_unavailable")
    assert answers[0].json()["transaction"] == {"state": "aborted", "reason": "lost"}
    for _ in range(2):
        again = opened.post("query", sql=slow, sequence=1)
        assert error_of(again) == (409, "transaction_aborted")
        assert "reason: lost" in again.json()["error"]["message"]
    assert rows(client, "select id from lost") == []


def test_a_connection_lost_in_a_stream(activity: Activity, client: httpx.Client, table: str) -> None:
    """That the transaction was rolled back is certain, though the stream has begun."""
    opened = Open(client)
    pid = backend_of(activity, opened)
    opened.query("insert into lost values (1, 'a')")
    body = {"sql": "select i, pg_sleep(0.02) from generate_series(1, 10000) i"}
    with client.stream("POST", f"/v1/transaction/{opened.id}/query", json=body, headers=NDJSON) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["event"] == "columns"
        activity.terminate(pid)
        last = json.loads([*lines][-1])
    assert (last["event"], last["data"]["error"]["code"]) == ("error", "engine_unavailable")
    assert last["data"]["transaction"] == {"state": "aborted", "reason": "lost"}
    assert rows(client, "select id from lost") == []


def test_it_ends_when_its_key_expires(service: Service, operator: Control, client: httpx.Client, table: str) -> None:
    made = operator.post("/v1/keys", {"name": "short", "scopes": ["write"], "expires_in": 3})
    with service.client(made["key"]) as writer:
        opened = Open(writer, idle_timeout_ms=60_000)
        opened.query("insert into lost values (9, 'held')")
        # The row is free again long before the transaction would have expired.
        assert client.post("/v1/query", json={"sql": TAKEN, "timeout_ms": 15000}).json()["success"]
        assert writer.get(f"/v1/transaction/{opened.id}").status_code == 401


@needs("client_encodings")
def test_a_stream_leaves_the_encoding_as_it_was(client: httpx.Client, table: str) -> None:
    """Whatever it has set, what follows is sent and read as UTF-8."""
    for accept in ("application/x-ndjson", "application/json"):
        opened = Open(client)
        sql = "select set_config('client_encoding', 'latin1', false)"
        answer = client.post(f"/v1/transaction/{opened.id}/query", json={"sql": sql}, headers={"Accept": accept})
        assert answer.status_code == 200, answer.text
        opened.query("insert into lost values ($1, 'ä€') on conflict do nothing", 1)
        assert opened.query("select text, length(text) as n from lost")["rows"] == [{"text": "ä€", "n": 2}]
        opened.rollback()


def test_a_key_that_is_revoked_while_a_statement_runs(
    service: Service, activity: Activity, client: httpx.Client, table: str
) -> None:
    """The statement is cancelled, and its locks are free."""
    key = make_key(service, "write")
    with service.client(key) as writer:
        opened = Open(writer, idle_timeout_ms=60_000)
        opened.query("insert into lost values (9, 'held')")
        slow = "select pg_sleep(25)"
        answers: list[httpx.Response] = []
        running = threading.Thread(target=lambda: answers.append(opened.post("query", sql=slow)))
        running.start()
        eventually(lambda: activity.count_running("pg_sleep(25") == 1)
        revoke(service, key)
        assert client.post("/v1/query", json={"sql": TAKEN, "timeout_ms": 15000}).json()["success"]
        running.join()
    assert answers[0].json()["error"]["sqlstate"] == "57014", answers[0].text
    assert answers[0].json()["transaction"] == {"state": "aborted", "reason": "revoked"}


def test_begins_without_an_end_disturb_nobody(one: Tenant, two: Tenant) -> None:
    """Sixteen are open, the others are refused at once; they take no memory, and others work meanwhile."""
    client = one.write.client
    opened: list[str] = []

    def begin(times: int) -> None:
        for _ in range(times):
            answer = client.post("/v1/transaction/begin", json={"idle_timeout_ms": 60_000})
            if answer.status_code == 201:
                opened.append(answer.json()["transaction_id"])
            else:
                assert error_of(answer) == (503, "busy")

    with undisturbed(two):
        begin(200)
        before = peak_mb(one.service)
        begin(FLOOD)
        assert two.write.client.post("/v1/transaction/begin", json={"statement": "select 1"}).status_code == 201
        after = peak_mb(one.service)
    assert len(opened) == 16
    assert after - before < 4, (before, after)
    for id in opened:
        assert client.post(f"/v1/transaction/{id}/rollback").json()["state"] == "aborted"
