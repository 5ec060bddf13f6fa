"""Commits of open transactions that have written: the last statement, the record and PREPARE go in one write."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest

from tests.http.test_open_transactions import Open, error_of, rows
from tests.http.test_serializable_pool import SLOTS, fill, shut
from tests.metrics import scrape
from tests.service import Service, Sql, needs_bundled
from tests.waiting import eventually

PREPARED = "select gid from pg_prepared_xacts"
WAITING = "select pid from pg_stat_activity where datname = %s and wait_event_type = 'Lock'"


@pytest.fixture
def notes(client: httpx.Client) -> Iterator[None]:
    client.post("/v1/query", json={"sql": "create table notes (id int primary key, text text)"})
    client.post("/v1/query", json={"sql": "create table gate (id int)"})
    wait_for_two_phases(client)
    yield
    client.post("/v1/query", json={"sql": "drop table notes, gate"})


def wait_for_two_phases(client: httpx.Client) -> None:
    """Wait until the service knows that the database has no code of its own, which it asks after a table was made."""
    eventually(lambda: Open(client).commit(statement="insert into gate values (0)")["commit"] == "two_phase")


@pytest.fixture
def database(sql: Sql) -> str:
    return str(sql.value("select current_database()"))


@contextmanager
def stuck(service: Service, opened: Open, database: str, **body: Any) -> Iterator[list[httpx.Response]]:
    """Send a commit whose last statement waits, for as long as the block lasts, for a lock of somebody else."""
    answers: list[httpx.Response] = []

    def commit() -> None:
        with service.client() as other:
            last = {"statement": "insert into gate values (1)", **body}
            answers.append(other.post(f"/v1/transaction/{opened.id}/commit", json=last))

    thread = threading.Thread(target=commit)
    with psycopg.connect(service.server_of(), autocommit=True) as engine:
        with shut(service.conninfo(database), "gate"):
            thread.start()
            eventually(lambda: engine.execute(WAITING, [database]).fetchall())
            yield answers
        thread.join()


def test_the_last_statement_is_applied_and_counted(client: httpx.Client, notes: None) -> None:
    opened = Open(client, statement="insert into notes values (1, 'a')")
    done = opened.commit(statement={"sql": "update notes set text = $1", "params": ["b"]})
    assert (done["commit"], done["affected_rows"]) == ("two_phase", 1)
    assert done["results"][0]["affected_rows"] == 1
    assert opened.state["state"] == "committed"
    assert rows(client, "select text from notes") == ["b"]


def test_rows_of_the_last_statement(client: httpx.Client, notes: None) -> None:
    """One that gives rows is looked at before anything is prepared."""
    opened = Open(client, statement="insert into notes values (1, 'a')")
    done = opened.commit(statement="update notes set text = 'b' returning id, text")
    assert (done["commit"], done["results"][0]["rows"]) == ("two_phase", [{"id": 1, "text": "b"}])


def test_what_has_written_nothing_says_so(client: httpx.Client, notes: None) -> None:
    opened = Open(client, statement="update notes set text = 'b'")
    assert opened.commit(statement="delete from notes")["commit"] == "read_only"


def test_a_last_statement_that_fails_leaves_nothing(client: httpx.Client, service: Service, notes: None) -> None:
    opened = Open(client, statement="insert into notes values (1, 'a')")
    failed = opened.commit(statement="insert into notes values (1, 'b')")
    assert (failed["success"], failed["error"]["sqlstate"], failed["state"]) == (False, "23505", "aborted")
    divided = Open(client, statement="insert into notes values (1, 'a')")
    failed = divided.commit(statement="insert into notes select 1 / 0")
    assert (failed["error"]["sqlstate"], failed["state"]) == ("22012", "aborted")
    assert rows(client) == []
    with psycopg.connect(service.server_of()) as engine:
        assert engine.execute(PREPARED).fetchall() == []


def test_a_check_that_was_put_off_fails_the_commit(client: httpx.Client, notes: None) -> None:
    client.post("/v1/query", json={"sql": "alter table notes add unique (text) deferrable initially deferred"})
    wait_for_two_phases(client)
    opened = Open(client, statement="insert into notes values (1, 'a'), (2, 'a')")
    failed = opened.commit()
    assert (failed["error"]["sqlstate"], failed["state"]) == ("23505", "aborted")
    assert rows(client) == []


def test_the_time_limit_of_the_last_statement_holds(
    client: httpx.Client, service: Service, database: str, notes: None
) -> None:
    opened = Open(client, statement="insert into notes values (1, 'a')")
    with stuck(service, opened, database, timeout_ms=300) as answers:
        eventually(lambda: answers)
    assert answers[0].json()["error"]["sqlstate"] == "57014"
    assert opened.state["state"] == "aborted"
    assert rows(client) == []


def test_an_abort_reaches_the_last_statement(
    client: httpx.Client, service: Service, database: str, notes: None
) -> None:
    opened = Open(client, statement="insert into notes values (1, 'a')")
    with stuck(service, opened, database) as answers:
        assert client.post(f"/v1/transaction/{opened.id}/abort").json()["state"] == "aborted"
        eventually(lambda: answers)
    assert answers[0].json()["success"] is False
    assert rows(client) == []


def test_a_connection_that_is_lost_before_it_is_prepared(
    client: httpx.Client, service: Service, database: str, notes: None
) -> None:
    opened = Open(client, statement="insert into notes values (1, 'a')")
    with stuck(service, opened, database) as answers, psycopg.connect(service.server_of()) as engine:
        for (pid,) in engine.execute(WAITING, [database]).fetchall():
            engine.execute("select pg_terminate_backend(%s)", [pid])
        eventually(lambda: answers)
    assert error_of(answers[0]) == (503, "engine_unavailable")
    assert opened.state == {"success": True, "transaction_id": opened.id, "state": "aborted", "reason": "lost"}
    assert rows(client) == []


def test_one_that_somebody_has_settled_is_not_committed(
    client: httpx.Client, service: Service, database: str, notes: None
) -> None:
    """Whoever could not reach its holder has made it aborted."""
    opened = Open(client, statement="insert into notes values (1, 'a')")
    with psycopg.connect(service.conninfo(database)) as engine:
        engine.execute("insert into tuplegate.verdict (id, state) values (%s, 'aborted')", [opened.id])
    assert error_of(opened.post("commit", statement="delete from gate"))[1] in ("conflict", "transaction_aborted")
    assert opened.state["state"] == "aborted"
    assert rows(client) == []


@needs_bundled  # on another engine the guard is asked when the statement is through
def test_write_skew_is_found_while_the_last_statement_waits(
    client: httpx.Client, service: Service, sql: Sql, database: str, notes: None
) -> None:
    """So many transactions begin meanwhile that the engine forgets the one that it would conflict with."""
    sql("insert into notes values (1, 'on'), (2, 'on')")
    with psycopg.connect(service.server_of()) as engine:
        row = engine.execute(SLOTS).fetchone()
        assert row is not None
    opened = Open(client, idle_timeout_ms=60000, statement="select count(*) from notes where text = 'on'")
    opened.query("update notes set text = 'off' where id = 1")
    ended = scrape(service).value("guard_conflicts_total")
    with stuck(service, opened, database, timeout_ms=60000) as answers:
        sql("update notes set text = 'off' where id = 2 and (select count(*) from notes where text = 'on') = 2")
        fill(service, int(row[0]) + 100)
        eventually(lambda: answers)
    failed = answers[0].json()
    assert (failed["error"]["sqlstate"], failed["error"]["retryable"]) == ("40001", True)
    assert scrape(service).value("guard_conflicts_total") > ended
    assert rows(client, "select id from notes where text = 'on'") == [1]
