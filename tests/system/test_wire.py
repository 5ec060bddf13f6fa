"""PostgreSQL's own protocol on a service of its own: short limits, a stop, TLS, and cancel requests between workers."""

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from tests.http.test_wire import Connection, Hand, query, value
from tests.service import Service, new_data_dir, remove, start_service
from tests.tunnel import Tunnel
from tests.waiting import eventually


@pytest.fixture(scope="module")
def short() -> Iterator[Service]:
    """Two workers, over TLS, with little time for everything. The last test stops it."""
    data_dir = new_data_dir()
    limits = ("--wire-idle-s", "4", "--statement-timeout-ms", "2000", "--stop-timeout-s", "5")
    life = ("--open-life-ms-max", "6000")
    running = start_service(data_dir, "--workers", "2", "--tls", "self-signed", *limits, *life)
    yield running
    assert running.stop() == 0
    remove(data_dir)


@pytest.fixture(scope="module")
def tunnel(short: Service) -> Iterator[Tunnel]:
    with Tunnel(short) as opened:
        yield opened


def test_a_cancel_reaches_the_worker_that_runs_the_statement(tunnel: Tunnel) -> None:
    """Requests to cancel come to either worker; here each of them has some of the statements."""
    for _ in range(4):
        with tunnel.connect() as connection:
            done = threading.Event()

            def cancel(connection: Connection = connection, done: threading.Event = done) -> None:
                while not done.wait(0.05):
                    connection.cancel_safe()

            canceller = threading.Thread(target=cancel)
            canceller.start()
            try:
                with pytest.raises(errors.QueryCanceled, match="user request"):
                    connection.execute("select pg_sleep(20)")
            finally:
                done.set()
                canceller.join()


def test_the_time_of_a_statement(tunnel: Tunnel) -> None:
    """It holds whatever the client sets. The time of a client that copies rows slowly does not count."""
    with tunnel.connect() as connection:
        connection.execute("set statement_timeout = 0")
        with pytest.raises(errors.QueryCanceled, match="2000 ms, its time limit"):
            connection.execute("select pg_sleep(20)")
        connection.execute("create temp table rows (n int)")
        with connection.cursor().copy("copy rows from stdin") as copy:
            copy.write(b"1\n")
            assert not threading.Event().wait(2.5)
            copy.write(b"2\n")
        assert value(connection, "select count(*) from rows") == 2


def test_the_life_of_a_transaction(tunnel: Tunnel) -> None:
    """It ends whatever the client does meanwhile. The connection itself, and what commits, go on."""
    with tunnel.connect() as connection, tunnel.connect(autocommit=False) as opened:
        with pytest.raises(errors.AdminShutdown, match="open for longer than 6 s"):
            ask_without_end(opened, connection)
        assert value(connection, "select 1") == 1


def ask_without_end(*connections: Connection) -> None:
    while True:
        for connection in connections:
            connection.execute("select pg_sleep(0.1)")


def test_an_idle_connection_is_closed(short: Service) -> None:
    client = Hand(short)
    client.start(short.key)
    assert b"57P05" in client.last_words()


def test_through_the_alias(short: Service) -> None:
    with Tunnel(short.alias, short.key) as tunnel, tunnel.connect() as connection:
        with connection.cursor() as cursor:
            total = sum(len(row[0]) for row in cursor.stream("select repeat('x', 1000) from generate_series(1, 5000)"))
        assert total == 5_000_000


def test_a_stop_lets_what_runs_finish(short: Service) -> None:
    """Then the client is told why; who is idle is told at once."""
    idle, busy = Hand(short), Hand(short)
    idle.start(short.key)
    busy.start(short.key)
    busy.send(query("select pg_sleep(0.8)"))
    with psycopg.connect(short.server_of(), autocommit=True) as outside:
        sleeping = "select 1 from pg_stat_activity where wait_event = 'PgSleep'"
        eventually(lambda: outside.execute(sleeping).fetchone() is not None)
    short.process.terminate()
    assert b"57P01" in idle.last_words()
    assert [busy.next()[0] for _ in range(4)] == ["T", "D", "C", "Z"]
    assert b"57P01" in busy.last_words()
    assert short.process.wait(20) == 0
