"""An engine that is reached over TLS only: clients of PostgreSQL speak to it as to any other."""

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.external import OWNER, PASSWORD, ExternalServer
from tests.service import Service, Sql, running_service
from tests.system.test_tls import make_certificate
from tests.tls_proxy import TlsProxy
from tests.tunnel import Tunnel
from tests.unit.test_tls_of_libpq import find_openssl

MANY = 200_000


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    server = ExternalServer()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def environment(server: ExternalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    certificate, key = make_certificate(tmp_path_factory.mktemp("tls"), "engine")
    with TlsProxy(server.port, certificate, key) as proxy:
        address = f"postgresql://{OWNER}@127.0.0.1:{proxy.port}/tuplegate?sslmode=verify-ca&sslrootcert={certificate}"
        yield {"TUPLEGATE_ENGINE": address, "PGPASSWORD": PASSWORD}


@pytest.fixture(scope="module")
def over_tls(environment: dict[str, str]) -> Iterator[Service]:
    with running_service(env=environment) as service:
        yield service


@pytest.fixture
def connection(over_tls: Service) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    with Tunnel(over_tls) as tunnel, tunnel.connect() as opened:
        yield opened


def test_many_rows_and_wide_ones_come_whole(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
    rows = connection.execute("select g, repeat('x', 50) from generate_series(1, %s) g", [MANY]).fetchall()
    assert rows == [(number, "x" * 50) for number in range(1, MANY + 1)]
    assert connection.execute("select repeat('x', 5000000)").fetchall() == [("x" * 5_000_000,)]


def test_much_is_sent_in_one_message_and_in_many(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
    assert connection.execute("select length(%s)", ["x" * 5_000_000]).fetchall() == [(5_000_000,)]
    connection.execute("create temporary table copied (n int, t text)")
    with connection.cursor() as cursor:
        with cursor.copy("copy copied from stdin") as copy:
            for number in range(MANY):
                copy.write_row((number, "some words"))
        assert cursor.execute("select count(*), sum(n) from copied").fetchall() == [(MANY, sum(range(MANY)))]
        with cursor.copy("copy copied to stdout") as copy:
            assert sum(1 for _ in copy.rows()) == MANY


def test_a_reader_that_rests_gets_the_rest_later(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
    count = 0
    for _ in connection.cursor().stream("select repeat('x', 1000) from generate_series(1, 50000)"):
        count += 1
        if count == 10:
            time.sleep(0.5)  # what is on the way fills up meanwhile
    assert count == 50_000


def test_a_statement_is_cancelled(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
    threading.Timer(0.3, connection.cancel_safe).start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("select pg_sleep(60)")
    assert connection.execute("select 1").fetchall() == [(1,)]


def test_a_server_process_that_ends_ends_the_connection(
    connection: "psycopg.Connection[tuple[object, ...]]", server: ExternalServer, over_tls: Service
) -> None:
    [(process,)] = connection.execute("select pg_backend_pid()").fetchall()
    server.execute(f"select pg_terminate_backend({process})")
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")
    with over_tls.client() as client:
        assert Sql(client).value("select 1") == 1


def test_connections_come_and_go(over_tls: Service) -> None:
    for _ in range(20):
        with Tunnel(over_tls) as tunnel, tunnel.connect() as opened:
            assert opened.execute("select 1").fetchall() == [(1,)]


def test_where_it_is_not_certain_whose_openssl_is_called_clients_are_refused(
    environment: dict[str, str], over_tls: Service, tmp_path: Path
) -> None:
    """A second service at the same engine, in which another one is loaded for all. Requests need nothing of that."""
    another = shutil.copy(find_openssl(), tmp_path / "libssl_of_others.so")
    with running_service(env={**environment, "LD_PRELOAD": str(another)}) as service:
        for _ in range(2):
            with (
                Tunnel(service, over_tls.key) as tunnel,
                pytest.raises(psycopg.OperationalError, match="cannot tell which OpenSSL"),
            ):
                tunnel.connect()
        with service.client(over_tls.key) as client:
            assert Sql(client).value("select 1") == 1
