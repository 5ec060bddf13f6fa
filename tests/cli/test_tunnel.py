"""`tuplegate tunnel` and `tuplegate psql`, with PostgreSQL's own programs and drivers that know nothing of us."""

import os
import re
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.cli.command import Command
from tests.control import Control
from tests.dumps import contents, fill, schema_of
from tests.service import Service
from tuplegate.cli.tunnel.carrier import find_user
from tuplegate.cli.tunnel.packets import make_startup, write_message
from tuplegate.engine.bundled.binaries import find_wheel_programs, find_wheel_site

PROGRAMS = find_wheel_programs(find_wheel_site())
SLOW = "select pg_sleep(30)"


def run(*command: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)


def test_a_driver_reads_and_writes(address: str) -> None:
    with psycopg.connect(address) as connection:
        connection.execute("create temp table t (n int, s text, j jsonb, a int[], at timestamptz)")
        row = (1, "ä", Jsonb({"x": [1, None]}), [1, None, 3], None)
        connection.execute("insert into t values (%s, %s, %s, %s, %s)", row)
        assert connection.execute("select n, s, j, a, at from t").fetchone() == (
            1,
            "ä",
            {"x": [1, None]},
            [1, None, 3],
            None,
        )
        with pytest.raises(psycopg.errors.UndefinedColumn) as failed:
            connection.execute("select nothing")
        assert failed.value.diag.statement_position == "8"
        connection.rollback()
        assert len(connection.execute("select i from generate_series(1, 10000) i").fetchall()) == 10_000
        assert connection.execute("show transaction isolation level").fetchone() == ("serializable",)


def test_rows_are_copied_both_ways(address: str) -> None:
    with psycopg.connect(address) as connection:
        connection.execute("create temp table t (n int, s text)")
        with connection.cursor().copy("copy t from stdin") as copy:
            for number in range(50_000):
                copy.write_row((number, f"row {number}"))
        with connection.cursor().copy("copy t to stdout") as copy:
            assert sum(1 for _ in copy.rows()) == 50_000


def test_a_statement_is_cancelled(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        threading.Timer(0.5, connection.cancel_safe).start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(SLOW)
        assert connection.execute("select 1").fetchone() == (1,)


def test_several_clients_at_once(address: str) -> None:
    opened = [psycopg.connect(address, autocommit=True) for _ in range(6)]
    seen = {connection.execute("select pg_backend_pid()").fetchone() for connection in opened}
    for connection in opened:
        connection.close()
    assert len(seen) == 6


def test_a_table_is_dumped_and_restored(address: str, tmp_path: Path) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("create table dumped as select i, md5(i::text) from generate_series(1, 1000) i")
        file = tmp_path / "t.sql"
        done = run(PROGRAMS / "pg_dump", "--no-owner", "--no-privileges", "-t", "dumped", "-f", file, address)
        assert (done.returncode, done.stderr) == (0, "")
        connection.execute("drop table dumped")
        done = run(PROGRAMS / "psql", "-v", "ON_ERROR_STOP=1", "-qf", file, address)
        assert (done.returncode, done.stderr) == (0, "")
        assert connection.execute("select count(*) from dumped").fetchone() == (1000,)
        connection.execute("drop table dumped")


@pytest.fixture
def two_databases(service: Service, address: str) -> Iterator[list[str]]:
    """The addresses of two databases: one with something of everything in it, and an empty one."""
    control = Control(service, service.key)
    names = [f"tunnel-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        control.post("/v1/databases", {"name": name})
    fill(control.sql(database=names[0]))
    yield [f"{address.rpartition('/')[0]}/{name}" for name in names]
    for name in names:
        control.delete(f"/v1/databases/{name}")


def restore(text: str, source: str, target: str) -> None:
    """As a user does it who has policies for roles, whose names are other ones in every database."""
    with psycopg.connect(source) as one, psycopg.connect(target) as other:
        names = [
            str(*(connection.execute("select current_database()").fetchone() or ())) for connection in (one, other)
        ]
    text = text.replace(names[0], names[1])
    done = run(PROGRAMS / "psql", "-v", "ON_ERROR_STOP=1", "-qo", "/dev/null", target, given=text)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_whole_database_is_dumped_and_restored(two_databases: list[str], tmp_path: Path) -> None:
    """In the custom format, with all defaults of pg_dump: nothing is missing, and nothing is the service's own."""
    file = tmp_path / "whole.dump"
    source, target = two_databases
    done = run(PROGRAMS / "pg_dump", "-Fc", "-f", file, source)
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search(r"\btuplegate\b", schema_of(file))
    done = run(PROGRAMS / "pg_restore", "--no-owner", "--no-privileges", "-f", "-", file)
    assert (done.returncode, done.stderr) == (0, "")
    restore(done.stdout, source, target)
    with psycopg.connect(source) as one, psycopg.connect(target) as other:
        assert contents(one) == contents(other)


def test_a_whole_database_is_dumped_as_text(two_databases: list[str], tmp_path: Path) -> None:
    """And read by psql, without the names of roles, which are others elsewhere."""
    file = tmp_path / "whole.sql"
    source, target = two_databases
    done = run(PROGRAMS / "pg_dump", "--no-owner", "--no-privileges", "-f", file, source)
    assert (done.returncode, done.stderr) == (0, "")
    restore(file.read_text("utf-8"), source, target)
    with psycopg.connect(source) as one, psycopg.connect(target) as other:
        assert contents(one) == contents(other)


def test_psql_imports_and_exports_a_large_object(address: str, tmp_path: Path) -> None:
    """It calls functions past SQL for that."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_bytes(bytes(range(256)) * 500)
    commands = f"\\lo_import {before}\n\\lo_export :LASTOID {after}\n\\lo_unlink :LASTOID\n"
    done = run(PROGRAMS / "psql", "-v", "ON_ERROR_STOP=1", "-q", address, given=commands)
    assert (done.returncode, done.stderr) == (0, "")
    assert after.read_bytes() == before.read_bytes()


def test_pgbench_makes_its_tables_and_uses_them(address: str) -> None:
    """With its VACUUM before and behind."""
    done = run(PROGRAMS / "pgbench", "-i", "-s", "1", address)
    assert (done.returncode, "vacuuming" in done.stderr) == (0, True), done.stderr
    done = run(PROGRAMS / "pgbench", "-c", "2", "-t", "20", "--max-tries", "100", address)
    assert (done.returncode, "40/40" in done.stdout) == (0, True), done.stderr
    done = run(PROGRAMS / "vacuumdb", "--analyze", "--table", "pgbench_branches", "-d", address)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(address, autocommit=True) as connection:
        assert connection.execute("select count(*) from pgbench_history").fetchone() == (40,)
        connection.execute("drop table pgbench_accounts, pgbench_branches, pgbench_history, pgbench_tellers")


@pytest.mark.parametrize("mode", ["simple", "extended", "prepared"])
def test_pgbench_runs(address: str, mode: str, tmp_path: Path) -> None:
    script = tmp_path / "s.sql"
    script.write_text("\\set n random(1, 100)\nselect :n + 1;\n")
    done = run(PROGRAMS / "pgbench", "-n", "-M", mode, "-f", script, "-c", "4", "-t", "50", address)
    assert (done.returncode, "200/200" in done.stdout) == (0, True), done.stderr


def test_psql_has_its_arguments(command: Command) -> None:
    done = command("psql", "-Atc", "select 1 + 1", "-c", "\\conninfo")
    assert (done.code, done.out.splitlines()[0]) == (0, "2"), done.err
    assert command("psql", "-c", "select nothing").code == 1


def test_a_port_that_is_taken(service: Service, tmp_path: Path, command: Command) -> None:
    """Another is found, unless that one was asked for."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = command("tunnel", "--port", port)
        assert (done.code, f"port {port} of this machine cannot be used" in done.err) == (2, True)


def test_what_is_wrong_is_told_at_once(service: Service, command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nobody = f"http://127.0.0.1:{silent.getsockname()[1]}"
    done = command("tunnel", "--url", nobody)
    assert (done.code, "cannot be reached" in done.err) == (3, True), done.err
    done = command("tunnel", "--database", "missing")
    assert (done.code, "missing" in done.err) == (6, True), done.err


def test_what_is_no_postgresql_gets_an_error(address: str) -> None:
    host, _, port = address.removeprefix("postgresql://").partition("/")[0].partition(":")
    with socket.create_connection((host, int(port))) as talker:
        talker.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"not the start of a PostgreSQL connection" in talker.recv(1000)


def _ask_as(user: int, host: str, family: socket.AddressFamily, port: int) -> bytes:
    """Ask for a row by the tunnel as that user; return all that comes back."""
    asked = make_startup({b"user": b"x"}) + write_message(b"Q", b"select 'you are' || ' in'" + bytes(1))
    program = f"""
import contextlib, os, socket
os.setuid({user})
with socket.socket({int(family)}) as end:
    end.settimeout(20)
    end.connect(({host!r}, {port}))
    with contextlib.suppress(ConnectionError):
        end.sendall({asked!r})
    said = b""
    with contextlib.suppress(ConnectionError):
        while b"you are in" not in said and (data := end.recv(65536)):
            said += data
    os.write(1, said)
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True).stdout


ENDS = [("127.0.0.1", socket.AF_INET), ("::ffff:127.0.0.1", socket.AF_INET6)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a program is")
@pytest.mark.parametrize(("host", "family"), ENDS)
def test_programs_of_its_own_user_alone_are_let_in(address: str, host: str, family: socket.AddressFamily) -> None:
    """By every address that leads to it."""
    port = int(address.partition("127.0.0.1:")[2].partition("/")[0])
    assert b"you are in" in _ask_as(os.getuid(), host, family, port)
    if os.getuid() == 0:  # only root can become another user
        refused = _ask_as(65534, host, family, port)
        assert (b"28000" in refused, b"you are in" in refused) == (True, False), refused


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a program is")
@pytest.mark.parametrize(("host", "family"), ENDS)
def test_an_end_that_was_closed_is_nobodys(host: str, family: socket.AddressFamily) -> None:
    """The kernel lists it as root's, who is let in."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(family) as end:
        end.connect((host, listener.getsockname()[1]))
        taken, peer = listener.accept()
        with taken:
            assert find_user(peer, taken.getsockname()) == os.getuid()
            assert find_user(peer, ("127.0.0.1", 1)) is None
            end.close()
            assert find_user(peer, taken.getsockname()) is None
