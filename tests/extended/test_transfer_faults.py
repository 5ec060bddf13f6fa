"""An import while the engine, the service or the import itself is killed."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.cli.command import Command
from tests.client.faults import PASS, relay
from tests.service import Service, needs_bundled, new_data_dir, remove, start_service
from tests.transfers.conftest import ROWS, database, numbers
from tests.transfers.test_transfer import REQUESTS, kill_and_start_again
from tests.transfers.test_transfer_trouble import staging
from tests.waiting import eventually
from tuplegate.client import Client

__all__ = ["database", "numbers"]  # fixtures


@pytest.mark.parametrize("request_number", range(1, REQUESTS + 1))
@pytest.mark.parametrize("applied", [True, False])
def test_an_import_killed_anywhere_and_started_again_is_complete(
    service: Service, database: Client, tmp_path: Path, numbers: Path, request_number: int, applied: bool
) -> None:
    """At each of its requests, before or after the service has acted on it."""
    kill_and_start_again(service, database, tmp_path, numbers, request_number, applied)


@pytest.mark.parametrize("victim", [pytest.param("engine", marks=needs_bundled), "service"])
def test_a_crash_in_the_middle_loses_and_doubles_nothing(tmp_path: Path, numbers: Path, victim: str) -> None:
    """The engine forgets what is staged, and it is staged again; without the service one starts the import again."""
    data_dir = new_data_dir()
    running = start_service(data_dir)
    try:
        with Client(running.url, running.key) as database:
            database.query("create table load (id int, label text)")

        def crash() -> str:
            if victim == "service":
                running.kill()
            else:
                with suppress(psycopg.OperationalError), psycopg.connect(running.conninfo("tuplegate")) as connection:
                    os.kill(connection.info.backend_pid, signal.SIGKILL)
                    connection.execute("select 1")
            return PASS

        with relay(running.url, staging(3, crash)) as cut:
            command = Command(running, tmp_path, TUPLEGATE_URL=cut.url)
            done = command("import", str(numbers), "--table", "load")
        if victim == "service":
            key = running.key
            running = start_service(data_dir)
            running.key = key
        with Client(running.url, running.key) as database:
            while done.code != 0:  # the engine may need longer to start than a call is repeated
                assert done.code in (3, 7, 8), done.err
                assert "start it again and it goes on" in done.err
                eventually(lambda: database.health().get("status") == "ok")
                done = Command(running, tmp_path)("import", str(numbers), "--table", "load")
            assert database.query("select count(*), count(distinct id) from load").tuples() == [(ROWS, ROWS)]
            assert database.query("select count(*) from pg_class where relname like 'tuplegate_import%'").value() == 0
    finally:
        running.stop()
        remove(data_dir)
