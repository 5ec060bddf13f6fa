"""The bundled server: real servers on real directories. Kills are in tests/extended/test_bundled_kills.py."""

import os
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.servers import (
    Open,
    ask,
    connect,
    needs_linux,
)
from tuplegate.engine.bundled import data_directory
from tuplegate.engine.bundled import server as bundled
from tuplegate.engine.bundled.sandbox.walls import find_gaps
from tuplegate.engine.bundled.server import BundledEngineError, BundledSettings, make_server_settings


def test_serves_a_query(started: Open) -> None:
    """A fresh directory becomes a server of the bundled version that answers on its socket as superuser."""
    server = started()
    assert server.version == "18.6"
    assert server.poll() is None
    assert server.warnings == find_gaps()
    assert ask(server, "select current_user") == "tuplegate"
    assert ask(server, "select count(*) from pg_settings where name = 'listen_addresses' and setting = ''") == 1
    assert (
        ask(server, "select format('%s %s', datlocprovider, datlocale) from pg_database where datname = 'template1'")
        == "b C.UTF-8"
    )


@pytest.mark.usefixtures("copied")
def test_data_survives_a_stop(started: Open) -> None:
    """What was committed is there after a stop and a start on the same directory, and a second stop is harmless."""
    first = started()
    with connect(first) as connection:
        connection.execute("create table kept as select 7 as n")
    first.stop()
    first.stop()
    first.release()
    assert first.poll() is None
    assert ask(started(), "select n from kept") == 7


@pytest.mark.usefixtures("copied")
@needs_linux
def test_the_engine_stands_apart(started: Open) -> None:
    """The server is never root, leads a session of its own, does not preempt, and gets neither our lock nor PG*."""
    os.environ["PGOPTIONS"] = "-c jit=on"
    try:
        server = started()
    finally:
        del os.environ["PGOPTIONS"]
    assert server.pid is not None
    process = Path(f"/proc/{server.pid}")
    assert process.stat().st_uid != 0
    assert os.getsid(server.pid) == server.pid
    assert os.sched_getscheduler(server.pid) == os.SCHED_BATCH
    names = {entry.split(b"=")[0] for entry in (process / "environ").read_bytes().split(b"\0") if entry}
    assert {b"PATH", b"LANG", b"HOME"} <= names
    assert b"PGOPTIONS" not in names
    assert not [fd for fd in (process / "fd").iterdir() if "tuplegate.lock" in os.readlink(fd)]


@pytest.mark.usefixtures("copied")
def test_stale_pid_files_do_not_stop_a_start(prepared: Open, data_dir: Path) -> None:
    """Pid files of a dead server whose pid now belongs to another process neither stop us nor harm that process."""
    first = prepared()
    first.start()
    record = (data_dir / "postgres" / "postmaster.pid").read_text()
    first.stop()
    owner = (data_dir / "postgres").stat()
    # PostgreSQL refuses only when the pid is a process of its own user.
    options = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    stranger = subprocess.Popen(["sleep", "600"], **options)  # type: ignore[call-overload]
    try:
        stale = "\n".join([str(stranger.pid), *record.split("\n")[1:]])
        for path in (data_dir / "postgres" / "postmaster.pid", data_dir / "run" / f"{data_directory.SOCKET_NAME}.lock"):
            path.write_text(stale)
            os.chown(path, owner.st_uid, owner.st_gid)
        first.start()
        assert ask(first, "select 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def write_programs(path: Path, initdb: str) -> Path:
    """A directory of programs that say they are PostgreSQL, with the initdb given."""
    path.mkdir()
    (path / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.6'\n")
    (path / "initdb").write_text(f"#!/bin/sh\n{initdb}\n")
    for program in path.iterdir():
        program.chmod(0o755)
    return path


def test_a_failed_initdb_leaves_nothing(data_dir: Path, started: Open) -> None:
    """An initdb that fails is reported in its own words, and its half-made data is removed."""
    programs = write_programs(data_dir.parent / "bin", 'echo 18 > "$2/PG_VERSION"; echo disk full; exit 1')
    with pytest.raises(BundledEngineError, match="disk full"):
        started(bin_dir=programs)
    assert sorted(path.name for path in data_dir.iterdir()) == ["run", "tuplegate.lock"]
    assert ask(started(), "select 1") == 1


@pytest.mark.usefixtures("copied")
def test_data_of_another_major_version(prepared: Open, data_dir: Path) -> None:
    """Data of another major version is refused with what to do, and the lock is given back."""
    prepared().release()
    (data_dir / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(BundledEngineError, match=r"was made by PostgreSQL 17, these binaries are 18: .*--engine-bin"):
        prepared()
    (data_dir / "postgres" / "PG_VERSION").write_text("18\n")
    prepared()


@pytest.mark.usefixtures("copied")
def test_a_start_that_fails_says_why(prepared: Open) -> None:
    """When the server refuses to start, the error carries its own words and no process is left."""
    server = prepared(extra={"shared_preload_libraries": "no_such_library"})
    with pytest.raises(BundledEngineError, match="no_such_library"):
        server.start()
    assert server.poll() is not None


@pytest.mark.usefixtures("copied")
def test_the_log_is_bounded(started: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that outgrew its bound is cut while the server runs, its last part kept, and the server writes on."""
    server = started()
    log = data_dir / "postgres.log"

    def complain(name: str) -> None:
        with pytest.raises(psycopg.OperationalError):
            connect(server, name)

    complain("first_missing")
    monkeypatch.setattr(bundled, "LOG_BYTES_MAX", 4096)
    server.bound_log()
    assert b"first_missing" in log.read_bytes(), "a log within its bound stays"
    with log.open("ab") as file:
        file.write(b"x" * 10000 + b"the end\n")
    server.bound_log()
    older = data_dir / "postgres.log.1"
    assert log.stat().st_size == 0
    assert older.stat().st_size == 4096
    assert older.read_bytes().endswith(b"the end\n")
    complain("second_missing")
    assert b"second_missing" in log.read_bytes()
    assert b"\0" not in log.read_bytes()
    with log.open("ab") as file:
        file.write(b"y" * 5000)
    server.stop()
    server.start()
    assert b"yyyy" not in log.read_bytes(), "a start cuts it too"


@pytest.mark.usefixtures("copied")
def test_statements_stay_out_of_the_log(started: Open, data_dir: Path) -> None:
    """Neither a failing statement nor RAISE LOG writes to the server's log."""
    server = started()
    before = (data_dir / "postgres.log").stat().st_size
    with connect(server) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1/0 as my_secret")
        connection.execute("do $$ begin raise log 'my secret'; end $$")
    assert (data_dir / "postgres.log").stat().st_size == before


@pytest.mark.usefixtures("copied")
def test_settings_are_what_the_server_runs_with(started: Open) -> None:
    """Each setting of the table reaches the server from its command line."""
    settings = {"max_connections": 37, "shared_buffers_mb": 24, "extra": {"work_mem": "5MB"}}
    server = started(**settings)
    with connect(server) as connection:
        rows = connection.execute("select name, source from pg_settings where source = 'command line'").fetchall()
    wanted = make_server_settings(BundledSettings(Path("/d"), extra={"work_mem": "5MB"}), 18, Path("/d/extensions"))
    names = {name.lower() for name, _ in rows}
    assert {name.lower() for name in wanted} <= names
    assert ask(server, "show max_connections") == "40"  # with those that are for superusers
    assert ask(server, "show shared_buffers") == "24MB"
    assert ask(server, "show work_mem") == "5MB"
    assert ask(server, "show default_transaction_isolation") == "serializable"


def test_the_table_of_settings() -> None:
    """The operator's figures and further settings are in the table, version 18's path only there."""
    settings = BundledSettings(Path("/d"), max_connections=7, shared_buffers_mb=64, extra={"jit": "on"})
    values = make_server_settings(settings, 18, Path("/d/extensions"))
    assert values["max_connections"] == "10"
    assert values["shared_buffers"] == "64MB"
    assert values["max_prepared_transactions"] == "1000"
    assert values["default_transaction_isolation"] == "serializable"
    assert values["listen_addresses"] == ""
    assert values["jit"] == "on"
    assert values["extension_control_path"] == "/d/extensions:$system"
    assert "extension_control_path" not in make_server_settings(settings, 17, Path("/d/extensions"))
    assert "extension_control_path" not in make_server_settings(settings, 18, None)
    assert make_server_settings(settings, 17, None)["max_notify_queue_pages"] == str(2 * 512 * 128)
    assert "max_notify_queue_pages" not in make_server_settings(settings, 16, None)


def test_the_settings_that_are_ours() -> None:
    """A setting that would open the server to the network is refused."""
    with pytest.raises(BundledEngineError, match="listen_addresses"):
        make_server_settings(BundledSettings(Path("/d"), extra={"listen_addresses": "*"}), 18, None)
