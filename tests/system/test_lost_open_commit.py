"""The engine is lost right behind PREPARE of an open transaction: it is committed, and its client is told so."""

import threading
from collections.abc import Iterator

import httpx
import psycopg
import pytest

from tests.http.test_open_commits import wait_for_two_phases
from tests.http.test_open_transactions import Open, rows
from tests.service import Service, needs_bundled, running_service
from tests.waiting import eventually

pytestmark = needs_bundled

WAITS = "select pid from pg_stat_activity where datname = %s and wait_event = 'SyncRep'"


@pytest.fixture
def alone() -> Iterator[Service]:
    with running_service() as running:
        yield running


def let_commits_wait(engine: psycopg.Connection, conninfo: str) -> None:
    """Let commits wait for a standby that there is none of; return when they do."""
    name_standby(engine, "nobody")
    eventually(lambda: has_to_wait(engine, conninfo))


def name_standby(engine: psycopg.Connection, name: str) -> None:
    engine.execute(f"alter system set synchronous_standby_names = '{name}'".encode())
    engine.execute("select pg_reload_conf()")


def has_to_wait(engine: psycopg.Connection, conninfo: str) -> bool:
    """Commit something; return whether that waits, and end it then."""
    with psycopg.connect(conninfo, autocommit=True) as probe:
        process = probe.info.backend_pid
        thread = threading.Thread(target=probe.execute, args=["select pg_logical_emit_message(true, 'probe', '')"])
        thread.start()
        waits = False
        while thread.is_alive() and not waits:
            waits = (process,) in engine.execute(WAITS, [probe.info.dbname]).fetchall()
            if waits:
                engine.execute("select pg_cancel_backend(%s)", [process])
        thread.join()
    return waits


@pytest.mark.parametrize("last", [None, "insert into notes values (2, 'b')"])
def test_it_is_committed(alone: Service, last: str | None) -> None:
    """PREPARE waits for a standby that is not there, when it has prepared already; there its server process ends."""
    answers: list[httpx.Response] = []
    with alone.client() as client, psycopg.connect(alone.server_of(), autocommit=True) as engine:
        client.post("/v1/query", json={"sql": "create table notes (id int primary key, text text)"})
        [database] = rows(client, "select current_database()")
        client.post("/v1/query", json={"sql": "create table gate (id int)"})
        wait_for_two_phases(client)
        opened = Open(client, statement="insert into notes values (1, 'a')")
        let_commits_wait(engine, alone.server_of())
        body = {} if last is None else {"statement": last}
        thread = threading.Thread(target=lambda: answers.append(opened.post("commit", **body)))
        thread.start()
        eventually(lambda: engine.execute(WAITS, [database]).fetchall())
        assert len(engine.execute("select from pg_prepared_xacts").fetchall()) == 1
        [(process,)] = engine.execute(WAITS, [database]).fetchall()
        engine.execute("select pg_terminate_backend(%s)", [process])
        eventually(lambda: (process,) not in engine.execute(WAITS, [database]).fetchall())
        name_standby(engine, "")
        thread.join()
        done = answers[0].json()
        assert (answers[0].status_code, done["success"], done["commit"]) == (200, True, "two_phase")
        assert opened.state["state"] == "committed"
        assert rows(client) == ([1] if last is None else [1, 2])
        assert engine.execute("select from pg_prepared_xacts").fetchall() == []
