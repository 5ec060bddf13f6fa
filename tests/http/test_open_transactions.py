"""Transactions that stay open between requests: begin, statements, savepoints, commit, rollback, and every end."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.activity import Activity
from tests.faults import backends
from tests.needs import needs
from tests.service import ENGINE, Service, make_key
from tests.waiting import eventually


class Open:
    """One open transaction, as a client of it."""

    def __init__(self, client: httpx.Client, **begin: Any) -> None:
        self.client = client
        answer = client.post("/v1/transaction/begin", json=begin)
        assert answer.status_code == 201, answer.text
        self.begun = answer.json()
        self.id = self.begun["transaction_id"]

    def post(self, what: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/v1/transaction/{self.id}/{what}", json=body)

    def query(self, sql: str, *params: Any, **more: Any) -> dict[str, Any]:
        answer = self.post("query", sql=sql, params=list(params), **more)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def commit(self, **body: Any) -> dict[str, Any]:
        answer = self.post("commit", **body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def is_in(self, *states: str) -> bool:
        return self.state["state"] in states

    def rollback(self) -> dict[str, Any]:
        answer = self.client.post(f"/v1/transaction/{self.id}/rollback")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v1/transaction/{self.id}").json()
        return found


@pytest.fixture
def table(client: httpx.Client) -> Iterator[str]:
    client.post("/v1/query", json={"sql": "create table notes (id int primary key, text text)"})
    yield "notes"
    client.post("/v1/query", json={"sql": "drop table notes"})


def rows(client: httpx.Client, sql: str = "select id from notes order by id") -> list[Any]:
    answer = client.post("/v1/query", json={"sql": sql, "row_mode": "arrays"}).json()
    return [row[0] for row in answer["rows"]]


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@needs("reads_beside_writes")
def test_what_it_writes_is_seen_when_it_is_committed(client: httpx.Client, table: str) -> None:
    opened = Open(client)
    assert opened.begun["state"] == "open"
    assert opened.query("insert into notes values ($1, $2)", 1, "one")["affected_rows"] == 1
    inside = opened.query("select text from notes")
    assert inside["rows"] == [{"text": "one"}]
    assert inside["transaction"]["state"] == "open"
    assert rows(client) == []
    done = opened.commit()
    assert (done["success"], done["transaction_id"]) == (True, opened.id)
    assert rows(client) == [1]
    assert opened.state["state"] == "committed"


@needs("two_phase_commit")
def test_it_is_committed_in_two_phases(client: httpx.Client, table: str) -> None:
    """Once the service knows that the database has no code of its own, which it asks after a table was made."""
    numbers = iter(range(1, 1000))

    def commit() -> str:
        return str(Open(client).commit(statement=f"insert into notes values ({next(numbers)}, 'a')")["commit"])

    eventually(lambda: commit() == "two_phase")


def test_two_requests_suffice(client: httpx.Client, table: str) -> None:
    """Begin with the first statement, commit with the last."""
    opened = Open(client, statement={"sql": "insert into notes values ($1, $2) returning id", "params": [1, "a"]})
    assert opened.begun["result"]["rows"] == [{"id": 1}]
    done = opened.commit(statement="insert into notes values (2, 'b') returning id")
    assert done["results"][0]["rows"] == [{"id": 2}]
    assert rows(client) == [1, 2]


def test_one_statement_with_many_lists_of_parameters(client: httpx.Client, table: str) -> None:
    insert = "insert into notes values ($1, $2) returning id, text"
    opened = Open(client, statement={"sql": insert, "params_list": [[1, "a"], [2, None]]}, row_mode="arrays")
    assert opened.begun["result"]["rows"] == [[1, "a"], [2, None]]
    assert opened.begun["result"]["affected_rows"] == 2
    answer = opened.post("query", sql="update notes set text = $1", params_list=[["x"], ["y"]], sequence=1).json()
    assert (answer["affected_rows"], answer["rows"], answer["transaction"]["state"]) == (4, [], "open")
    repeated = opened.post("query", sql="update notes set text = $1", params_list=[["x"], ["y"]], sequence=1)
    assert (repeated.json(), repeated.headers["tuplegate-replayed"]) == (answer, "true")
    opened.commit()
    assert rows(client, "select text from notes") == ["y", "y"]


@needs("reads_beside_writes")
def test_a_list_of_parameters_that_fails_is_named(client: httpx.Client, table: str) -> None:
    opened = Open(client)
    opened.query("savepoint before")
    insert = "insert into notes values ($1, 'a')"
    failed = opened.post("query", sql=insert, params_list=[[1], [2], [1], [3]]).json()
    assert (failed["error"]["sqlstate"], failed["error"]["statement"]) == ("23505", 2)
    assert failed["transaction"]["state"] == "failed"
    opened.query("rollback to before")
    wrong = opened.post("query", sql=insert, params_list=[[1], [2, 3]])
    assert error_of(wrong) == (400, "parameter_mismatch")
    assert wrong.json()["error"]["statement"] == 1
    opened.query("rollback to before")
    assert rows(client) == []
    assert opened.query("select count(*) as n from notes")["rows"] == [{"n": 0}]
    opened.rollback()


@pytest.mark.parametrize(
    "body",
    [
        {"params_list": []},
        {"params_list": [[1]], "params": [1]},
        {"params_list": [1]},
        {"params_list": [[1]] * 1001},
        {"params_list": [[1]], "max_rows": 1},
        {"params_list": [["x" * 100]] * 1001},
    ],
)
def test_lists_of_parameters_that_are_refused(client: httpx.Client, body: dict[str, Any]) -> None:
    opened = Open(client)
    assert error_of(opened.post("query", sql="select $1::text", **body)) == (400, "malformed_request")
    assert opened.query("select 1 as n")["rows"] == [{"n": 1}]
    opened.rollback()


def test_many_long_lists_of_parameters(client: httpx.Client, table: str) -> None:
    """A body that is read in pieces, also as the first statement."""
    lists = [[n, "x" * 200] for n in range(1000)]
    opened = Open(client, statement={"sql": "insert into notes values ($1, $2)", "params_list": lists})
    assert opened.begun["result"]["affected_rows"] == 1000
    update = "update notes set text = $2 where id = $1"
    assert opened.post("query", sql=update, params_list=lists).json()["affected_rows"] == 1000
    opened.rollback()


def test_rolled_back_it_leaves_nothing(client: httpx.Client, table: str) -> None:
    opened = Open(client)
    opened.query("insert into notes values (1, 'a')")
    assert opened.rollback()["state"] == "aborted"
    assert rows(client) == []
    assert opened.state == {
        "success": True, "transaction_id": opened.id, "state": "aborted", "reason": "rollback",
    }  # fmt: skip
    assert opened.rollback()["state"] == "aborted"
    assert error_of(opened.post("query", sql="select 1")) == (409, "transaction_aborted")
    assert error_of(opened.post("commit")) == (409, "transaction_aborted")


def test_a_failed_statement_leaves_it_failed_until_a_savepoint(client: httpx.Client, table: str) -> None:
    opened = Open(client)
    opened.query("insert into notes values (1, 'a')")
    opened.query("savepoint before")
    failed = opened.query("insert into notes values (1, 'again')")
    assert (failed["success"], failed["error"]["sqlstate"]) == (False, "23505")
    assert failed["transaction"]["state"] == "failed"
    assert opened.state["state"] == "failed"
    assert opened.query("select 1")["error"]["sqlstate"] == "25P02"
    assert opened.query("rollback to savepoint before")["transaction"]["state"] == "open"
    opened.query("insert into notes values (2, 'b')")
    opened.query("release before")
    assert opened.commit()["success"]
    assert rows(client) == [1, 2]


def test_a_failed_one_cannot_be_committed(client: httpx.Client, table: str) -> None:
    opened = Open(client)
    opened.query("insert into notes values (1, 'a')")
    opened.query("select unknown_column")
    failed = opened.commit()
    assert (failed["success"], failed["error"]["sqlstate"]) == (False, "25P02")
    assert opened.state["state"] == "aborted"
    assert rows(client) == []


def test_a_first_statement_that_fails_ends_it(client: httpx.Client) -> None:
    answer = client.post("/v1/transaction/begin", json={"statement": "select 1/0"})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["success"], body["state"], body["error"]["sqlstate"]) == (False, "aborted", "22012")
    assert client.get(f"/v1/transaction/{body['transaction_id']}").json()["state"] == "aborted"


@pytest.mark.parametrize(
    "sql", ["commit", "begin", "rollback", "abort", "end", "start transaction", "prepare transaction 'x'",
            "set transaction isolation level read committed", "rollback work", "/* to */ rollback"],
)  # fmt: skip
def test_only_savepoints_control_it(client: httpx.Client, sql: str) -> None:
    opened = Open(client)
    assert error_of(opened.post("query", sql=sql)) == (400, "transaction_control")
    assert opened.query("select 1 as n")["rows"] == [{"n": 1}]
    opened.rollback()


def test_a_conflict_ends_it(client: httpx.Client, table: str) -> None:
    client.post("/v1/query", json={"sql": "insert into notes values (1, 'a')"})
    one, two = Open(client), Open(client)
    for opened in (one, two):
        opened.query("select text from notes where id = 1")
    one.query("update notes set text = 'one' where id = 1")
    assert one.commit()["success"]
    lost = two.query("update notes set text = 'two' where id = 1")
    assert (lost["error"]["sqlstate"], lost["error"]["retryable"]) == ("40001", True)
    assert lost["transaction"] == {"state": "aborted", "reason": "conflict"}
    assert two.state["reason"] == "conflict"


def test_write_skew_is_found_at_the_commit(client: httpx.Client, table: str) -> None:
    client.post("/v1/query", json={"sql": "insert into notes values (1, 'on'), (2, 'on')"})
    one, two = Open(client), Open(client)
    for opened in (one, two):
        opened.query("select count(*) from notes where text = 'on'")
    one.query("update notes set text = 'off' where id = 1")
    two.query("update notes set text = 'off' where id = 2")
    ends = [one.commit(), two.commit()]
    assert sorted(end["success"] for end in ends) == [False, True]
    assert [end["error"]["code"] for end in ends if not end["success"]] == ["conflict"]


def test_it_only_reads_where_that_was_wanted(client: httpx.Client, table: str) -> None:
    opened = Open(client, read_only=True)
    assert opened.query("insert into notes values (1, 'a')")["error"]["sqlstate"] == "25006"
    opened.rollback()
    opened = Open(client, read_only=True, statement="select 1")
    assert opened.commit()["commit"] == "read_only"


def test_a_key_that_may_only_read_writes_nothing(service: Service, read_key: str, table: str) -> None:
    with service.client(read_key) as reader:
        opened = Open(reader)
        assert opened.query("select count(*) as n from notes")["rows"] == [{"n": 0}]
        assert opened.query("insert into notes values (1, 'a')")["success"] is False
        opened.rollback()


def test_a_stream_inside(client: httpx.Client, table: str) -> None:
    opened = Open(client)
    opened.query("insert into notes select i, 'x' from generate_series(1, 1000) i")
    for sql, count in (
        ("select id from notes order by id", 1000),
        ("insert into notes values (1001, 'y') returning id", 1),
        ("with a as (insert into notes values (1002, 'z') returning id) select id from a", 1),
    ):
        answer = client.post(
            f"/v1/transaction/{opened.id}/query", json={"sql": sql}, headers={"Accept": "application/x-ndjson"}
        )
        events = [json.loads(line) for line in answer.text.splitlines()]
        assert [event["event"] for event in events] == ["columns", *["row"] * count, "done"], events[-1]
        assert events[-1]["data"]["transaction"]["state"] == "open"
    assert opened.commit()["success"]
    assert len(rows(client)) == 1002


def test_a_stream_that_fails_leaves_it_failed(client: httpx.Client) -> None:
    opened = Open(client)
    opened.query("savepoint a")
    answer = client.post(
        f"/v1/transaction/{opened.id}/query",
        json={"sql": "select 1 / (3 - i) from generate_series(1, 5) i"},
        headers={"Accept": "application/x-ndjson"},
    )
    last = json.loads(answer.text.splitlines()[-1])
    assert last["event"] == "error"
    assert last["data"]["transaction"]["state"] == "failed"
    assert opened.query("rollback to a")["transaction"]["state"] == "open"
    opened.rollback()


def test_a_stream_whose_reader_leaves_ends_nothing_else(client: httpx.Client, table: str) -> None:
    opened = Open(client)
    opened.query("insert into notes values (1, 'a')")
    with client.stream(
        "POST",
        f"/v1/transaction/{opened.id}/query",
        json={"sql": "select i, pg_sleep(0.01) from generate_series(1, 100000) i"},
        headers={"Accept": "application/x-ndjson"},
    ) as answer:
        next(answer.iter_lines())
    eventually(lambda: opened.post("query", sql="savepoint a").status_code == 200)
    state = opened.state["state"]
    assert state in ("open", "failed")
    if state == "open":
        assert opened.commit()["success"]
        assert rows(client) == [1]
    else:  # it was cancelled in the middle of a row
        opened.rollback()


@needs("lock_table", "activity")
def test_a_reader_that_does_not_read_does_not_hold_locks(client: httpx.Client, service: Service, table: str) -> None:
    opened = Open(client, statement="lock table notes")
    stuck = """select 1 from pg_stat_activity where state = 'idle in transaction' and query like 'FETCH%'
               and state_change < clock_timestamp() - interval '1 s'"""
    with (
        service.client() as reader,
        reader.stream(
            "POST",
            f"/v1/transaction/{opened.id}/query",
            json={"sql": "select repeat('x', 1000) from generate_series(1, 1000000)"},
            headers={"Accept": "application/x-ndjson"},
        ) as answer,
    ):
        eventually(lambda: rows(client, stuck))
        assert client.post(f"/v1/transaction/{opened.id}/abort", timeout=15).json()["state"] == "aborted"
        assert rows(client) == []
        *_, last = answer.iter_lines()  # it is there as a whole, to its last word
        told = json.loads(last)
        assert (told["event"], told["data"]["error"]["code"]) == ("error", "transaction_aborted")


def test_a_number_sent_again_gets_its_own_answer_after_a_request_without_one(client: httpx.Client, table: str) -> None:
    opened = Open(client)
    first = opened.post("query", sql="insert into notes values (1, 'a')", sequence=1)
    assert opened.post("query", sql="select 7 as n").json()["rows"] == [{"n": 7}]
    assert opened.post("query", sql="insert into notes values (1, 'a')", sequence=1).content == first.content
    done = opened.post("commit")
    assert opened.post("commit").content == done.content
    assert rows(client) == [1]


def test_a_sequence_sent_again_is_not_run_again(client: httpx.Client, table: str) -> None:
    opened = Open(client)
    first = opened.post("query", sql="insert into notes values (1, 'a')", sequence=1)
    again = opened.post("query", sql="insert into notes values (1, 'a')", sequence=1)
    assert again.content == first.content
    assert again.headers["tuplegate-replayed"] == "true"
    for wrong in (3, 7):
        assert error_of(opened.post("query", sql="select 1", sequence=wrong)) == (409, "out_of_sequence")
    done = opened.post("commit", sequence=2)
    assert opened.post("commit", sequence=2).content == done.content
    assert opened.post("commit").content == done.content
    assert rows(client) == [1]


def runs(service: Service, sql: str) -> bool:
    """Return whether a statement with this beginning is running."""
    activity = Activity(service)
    with activity.connection:
        return activity.count_running(sql) == 1


def test_one_request_at_a_time(client: httpx.Client, service: Service) -> None:
    opened = Open(client)
    slow = "select pg_sleep(1.5)"
    with service.client() as other:
        running = threading.Thread(target=lambda: opened.query(slow))
        running.start()
        eventually(lambda: runs(service, slow))
        answer = other.post(f"/v1/transaction/{opened.id}/query", json={"sql": "select 1"})
        assert error_of(answer) == (409, "transaction_in_use")
        running.join()
    assert opened.query("select 1 as n")["rows"] == [{"n": 1}]
    opened.rollback()


def test_it_expires(client: httpx.Client, table: str) -> None:
    idle = Open(client, idle_timeout_ms=1000)
    old = Open(client, timeout_ms=1000)
    idle.query("insert into notes values (1, 'a')")
    eventually(lambda: idle.state["state"] == "aborted")
    assert idle.state["reason"] == "idle"
    assert error_of(idle.post("query", sql="select 1")) == (410, "transaction_expired")
    assert error_of(idle.post("commit")) == (410, "transaction_expired")
    eventually(lambda: old.state["state"] == "aborted")
    assert old.state["reason"] == "lifetime"
    assert rows(client) == []


@needs("activity")
@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_request_during_its_rollback_learns_why_it_ends(client: httpx.Client, service: Service, accept: str) -> None:
    """Also if it is sent again: the answer to a stream is not kept, but nothing else can be said."""
    opened = Open(client, idle_timeout_ms=1000)
    pid = opened.query("select pg_backend_pid() as pid")["rows"][0]["pid"]
    [process] = [pid] if ENGINE else backends(service, f"pid = {pid}")
    os.kill(process, signal.SIGSTOP)
    threading.Timer(2, os.kill, (process, signal.SIGCONT)).start()
    eventually(lambda: opened.state["state"] == "aborted")
    for _ in range(2):
        answer = client.post(
            f"/v1/transaction/{opened.id}/query", json={"sql": "select 1", "sequence": 1}, headers={"Accept": accept}
        )
        assert error_of(answer) == (410, "transaction_expired")


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ({"sql": "copy notes from stdin"}, "copy_not_supported"),
        ({"sql": "select $1::int", "params": ["x", 1]}, "parameter_mismatch"),
    ],
)
def test_what_the_service_itself_refuses_leaves_it_open(
    client: httpx.Client, table: str, refused: dict[str, Any], why: str, accept: str
) -> None:
    """Nothing of it has reached the engine, not even where it comes first."""
    opened = Open(client)
    answer = client.post(f"/v1/transaction/{opened.id}/query", json=refused, headers={"Accept": accept})
    assert (answer.json()["error"]["code"], answer.json()["transaction"]["state"]) == (why, "open")
    assert opened.state["state"] == "open"
    opened.query("insert into notes values (1, 'a')")
    assert opened.commit()["success"]
    assert rows(client) == [1]


def test_the_end_of_its_life_ends_what_it_runs(client: httpx.Client) -> None:
    opened = Open(client, timeout_ms=500)
    failed = opened.query("select pg_sleep(20)")
    assert failed["success"] is False
    assert failed["error"]["sqlstate"] == "57014"
    eventually(lambda: opened.state["state"] == "aborted")
    assert opened.state["reason"] == "lifetime"


def test_a_statement_whose_time_is_over_fails_alone(client: httpx.Client) -> None:
    opened = Open(client)
    opened.query("savepoint a")
    failed = opened.query("select pg_sleep(20)", timeout_ms=100)
    assert failed["error"]["code"] == "timeout"
    assert failed["transaction"]["state"] == "failed"
    assert opened.query("rollback to a")["success"]
    assert opened.query("select 1 as n")["rows"] == [{"n": 1}]
    opened.rollback()


def test_another_key_cannot_use_it(service: Service, client: httpx.Client) -> None:
    opened = Open(client)
    with service.client(make_key(service, "admin")) as other:
        for what, body in (("query", {"sql": "select 1"}), ("commit", {}), ("rollback", {})):
            answer = other.post(f"/v1/transaction/{opened.id}/{what}", json=body)
            assert error_of(answer) == (404, "not_found")
        assert other.get(f"/v1/transaction/{opened.id}").status_code == 404
    assert opened.query("select 1 as n")["rows"] == [{"n": 1}]
    opened.rollback()


def test_no_more_than_sixteen_of_an_organization(client: httpx.Client) -> None:
    opened = [Open(client) for _ in range(16)]
    answer = client.post("/v1/transaction/begin", json={})
    assert error_of(answer) == (503, "busy")
    assert client.post("/v1/query", json={"sql": "select 1 as n"}).json()["rows"] == [{"n": 1}]
    for one in opened:
        one.rollback()
    Open(client).rollback()


@needs("temporary_table", "setting work_mem = '77kB'")
def test_its_connection_is_clean_afterwards(client: httpx.Client) -> None:
    for _ in range(20):
        opened = Open(client)
        opened.query("set work_mem = '77kB'")
        opened.query("create temp table left_over (id int)")
        opened.query("select set_config('app.user', 'me', false)")
        opened.query("prepare mine as select 1")
        done = opened.commit()
        assert done["success"], done
    for _ in range(20):
        seen = client.post(
            "/v1/query",
            json={
                "sql": "select current_setting('work_mem') as work_mem, to_regclass('left_over') as temp,"
                " current_setting('app.user', true) as app, (select count(*) from pg_prepared_statements) as prepared"
            },
        ).json()["rows"]
        assert seen == [{"work_mem": seen[0]["work_mem"], "temp": None, "app": None, "prepared": 0}]
        assert seen[0]["work_mem"] != "77kB"


def test_an_abort_while_a_statement_runs(client: httpx.Client, service: Service, table: str) -> None:
    opened = Open(client)
    opened.query("insert into notes values (1, 'a')")
    seen: list[dict[str, Any]] = []
    slow = "select pg_sleep(20.5)"
    running = threading.Thread(target=lambda: seen.append(opened.query(slow)))
    running.start()
    with service.client() as other:
        eventually(lambda: runs(service, slow))
        assert other.post(f"/v1/transaction/{opened.id}/abort").json()["state"] == "aborted"
    running.join()
    assert seen[0]["success"] is False
    assert rows(client) == []


def test_strings_for_json(client: httpx.Client) -> None:
    """A parameter's type is known before the statement runs: it cannot be tried again."""
    opened = Open(client)
    found = opened.query("select $1::jsonb as a, $2::text as b", "one", "two")
    assert found["rows"] == [{"a": "one", "b": "two"}]
    opened.rollback()


@needs("lock_table")
def test_revoked_in_the_middle(service: Service, client: httpx.Client, table: str) -> None:
    key = make_key(service, "write")
    with service.client(key) as writer:
        opened = Open(writer)
        opened.query("insert into notes values (1, 'a')")
        opened.query("lock table notes")
        revoke(service, key)
        # The lock is free again long before the transaction would have expired.
        assert client.post("/v1/query", json={"sql": "select 1 from notes", "timeout_ms": 10000}).json()["success"]
        assert writer.get(f"/v1/transaction/{opened.id}").status_code == 401
    assert rows(client) == []


@pytest.mark.parametrize("rotated", [False, True])
def test_a_key_that_runs_out(service: Service, client: httpx.Client, table: str, rotated: bool) -> None:
    """What it has begun is rolled back, though nothing is changed in the catalog at that moment."""
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=service.control_url, headers=headers) as control:
        limit = {} if rotated else {"expires_in": 3}
        made = control.post("/v1/keys", json={"name": "short", "scopes": ["write"], **limit}).json()
        if rotated:
            control.post(f"/v1/keys/{made['id']}/rotate", json={"grace_seconds": 3}).raise_for_status()
    with service.client(made["key"]) as writer:
        opened = Open(writer)
        opened.query("insert into notes values (1, 'a')")
        freed = client.post("/v1/query", json={"sql": "insert into notes values (1, 'b')", "timeout_ms": 10000}).json()
        assert freed["success"], freed
        assert writer.get(f"/v1/transaction/{opened.id}").status_code == 401


def revoke(service: Service, key: str) -> None:
    """The first part of a key's text is its id."""
    with httpx.Client(base_url=service.control_url, headers={"Authorization": f"Bearer {service.key}"}) as control:
        keys = control.get("/v1/keys").json()["items"]
        [id] = [known["id"] for known in keys if known["id"].removeprefix("key_") in key]
        assert control.delete(f"/v1/keys/{id}").status_code in (200, 204)


@needs("lock_table")
def test_an_abort_is_answered_when_its_locks_are_free(client: httpx.Client, table: str) -> None:
    for _ in range(20):
        opened = Open(client, statement="lock table notes")
        assert client.post(f"/v1/transaction/{opened.id}/abort").json()["state"] == "aborted"
        taken = client.post("/v1/transaction", json={"statements": ["lock table notes nowait"]}).json()
        assert taken["success"], taken


def test_a_token_that_only_reads_cannot_use_one_that_writes(service: Service, client: httpx.Client, table: str) -> None:
    """A session has fewer rights than its key; it can do no more than roll back."""
    with httpx.Client(base_url=service.control_url, trust_env=False) as control:
        key = {"Authorization": f"Bearer {service.key}"}
        token = control.post("/v1/session", json={"scopes": ["read"]}, headers=key).json()["token"]
    opened = Open(client)
    with service.client(token) as reader:
        own = Open(reader)
        assert own.query("select 1 as n")["rows"] == [{"n": 1}]
        own.rollback()
        opened.client = reader
        for what, body in (("query", {"sql": "insert into notes values (1, 'a')"}), ("commit", {})):
            assert error_of(opened.post(what, **body)) == (403, "forbidden")
        assert opened.state["state"] == "open"
        assert opened.rollback()["state"] == "aborted"


def test_a_token_that_only_reads_can_abort_its_own(service: Service, read_key: str, client: httpx.Client) -> None:
    with service.client(read_key) as reader:
        opened = Open(reader, statement="select 1")
        aborted = reader.post(f"/v1/transaction/{opened.id}/abort")
        assert (aborted.status_code, aborted.json()["reason"]) == (200, "rollback")
        chosen = client.post("/v1/transaction/some-id-of-a-client/abort")
        assert reader.post("/v1/transaction/some-id-of-a-client/abort").status_code in (403, chosen.status_code)


def test_a_commit_does_not_wait_for_those_that_wait_for_it(service: Service, client: httpx.Client, table: str) -> None:
    """They fill every place that the organization has."""
    client.post("/v1/query", json={"sql": "insert into notes values (1, 'a')"})
    opened = Open(client, idle_timeout_ms=5000, statement="update notes set text = 'b'")
    answers: list[httpx.Response] = []

    def update() -> None:
        with service.client() as other:
            body = {"sql": "update notes set text = text || 'c'", "timeout_ms": 20000}
            answers.append(other.post("/v1/query", json=body, timeout=60))

    waiting = [threading.Thread(target=update) for _ in range(40)]
    for thread in waiting:
        thread.start()
    activity = Activity(service)
    eventually(lambda: activity.count_running("update notes") >= 2)
    activity.connection.close()
    opened.commit()
    for thread in waiting:
        thread.join()
    assert sum(answer.status_code == 200 for answer in answers) >= 16, [answer.text for answer in answers]


def test_an_answer_to_a_rollback_is_repeated_whole(client: httpx.Client) -> None:
    opened = Open(client)
    opened.post("query", sql="select 1", sequence=1)
    opened.rollback()
    for what in ("query", "commit"):
        answer = opened.post(what, sql="select 1", sequence=1) if what == "query" else opened.post(what, sequence=1)
        assert answer.json(), answer
