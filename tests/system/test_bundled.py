"""The bundled server: real servers on real directories, started, killed and started again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.servers import (
    SOURCE,
    SUPERVISOR,
    Open,
    alive,
    ask,
    close,
    connect,
    needs_linux,
    spawn_supervisor,
    wait_until,
)
from tuplegate.engine.bundled import data_directory
from tuplegate.engine.bundled import server as bundled
from tuplegate.engine.bundled.server import BundledEngineError, BundledSettings, make_server_settings


def test_serves_a_query(started: Open) -> None:
    """A fresh directory becomes a server of the bundled version that answers on its socket as superuser."""
    server = started()
    assert server.version == "18.6"
    assert server.poll() is None
    assert server.warnings == []
    assert ask(server, "select current_user") == "tuplegate"
    assert ask(server, "select count(*) from pg_settings where name = 'listen_addresses' and setting = ''") == 1
    assert (
        ask(server, "select format('%s %s', datlocprovider, datlocale) from pg_database where datname = 'template1'")
        == "b C.UTF-8"
    )


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


@needs_linux
def test_restarts_after_kill_of_the_server(started: Open, request: pytest.FixtureRequest) -> None:
    """After kill -9 of the server it starts again with its data, though a backend is still busy with a statement."""
    server = started()
    with connect(server) as connection:
        connection.execute("create table kept as select 7 as n")
    busy = connect(server)
    request.addfinalizer(busy.close)
    backend = busy.info.backend_pid
    busy.pgconn.send_query(b"do $$ begin loop end loop; end $$")
    wait_until(lambda: ask(server, f"select state from pg_stat_activity where pid = {backend}") == "active")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: server.poll() is not None)
    assert server.poll() == -signal.SIGKILL
    assert alive(backend), "the backend ended by itself, so this test shows nothing"
    log = server.socket_dir.parent / "postgres.log"
    moved = log.rename(log.with_suffix(".moved"))
    log.mkdir()
    with pytest.raises(BundledEngineError, match=r"cannot start"):
        server.restart()
    assert server.poll() is not None, "one that could not be started is tried again"
    log.rmdir()
    moved.rename(log)
    server.restart()
    assert server.poll() is None
    assert not alive(backend)
    assert ask(server, "select n from kept") == 7


@needs_linux
def test_ends_with_a_killed_supervisor(data_dir: Path, started: Open) -> None:
    """After kill -9 of the process that started it the server shuts down by itself and leaves no pid file."""
    supervisor, pid = spawn_supervisor(data_dir)
    supervisor.kill()
    close(supervisor)
    wait_until(lambda: not alive(pid))
    assert not (data_dir / "postgres" / "postmaster.pid").exists()
    assert ask(started(), "select 1") == 1


@pytest.fixture
def stopped_orphan(data_dir: Path) -> Iterator[int]:
    """A server whose supervisor was killed, held by SIGSTOP so that it cannot act on that yet."""
    supervisor, pid = spawn_supervisor(data_dir)
    os.kill(pid, signal.SIGSTOP)
    supervisor.kill()
    close(supervisor)
    yield pid
    if alive(pid):
        os.kill(pid, signal.SIGCONT)


@needs_linux
def test_takes_over_from_a_killed_supervisor(stopped_orphan: int, prepared: Open) -> None:
    """While the orphan still runs a new service gets the lock at once, and its start waits for the orphan's end."""
    server = prepared()
    assert alive(stopped_orphan)
    os.kill(stopped_orphan, signal.SIGCONT)
    server.start()
    assert not alive(stopped_orphan)
    assert ask(server, "select 1") == 1


@needs_linux
def test_kills_an_orphan_that_does_not_end(stopped_orphan: int, started: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """An orphan that ignores a fast and an immediate shutdown is killed when their bounds are over."""
    with monkeypatch.context() as patch:
        patch.setattr(bundled, "STOP_FAST_S", 0.1)
        patch.setattr(bundled, "STOP_IMMEDIATE_S", 1.0)
        server = started()
    assert not alive(stopped_orphan)
    assert ask(server, "select 1") == 1


@needs_linux
def test_stop_reaps_a_server_that_does_not_end(started: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that acts on no signal is killed and reaped, with its children."""
    server = started()
    pid = server.pid
    assert pid is not None
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    assert children
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(bundled, "STOP_FAST_S", 0.1)
        patch.setattr(bundled, "STOP_IMMEDIATE_S", 1.0)
        server.stop()
    assert not Path(f"/proc/{pid}").exists()
    # One that has given up its memory and its directory may be the kernel's to finish for some milliseconds.
    wait_until(lambda: not any(alive(child) for child in children))


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


def test_a_killed_initdb_is_cleaned_up(data_dir: Path, started: Open) -> None:
    """After kill -9 in the midst of initdb the next start removes the half-made data and makes it anew."""
    programs = write_programs(data_dir.parent / "bin", 'echo 18 > "$2/PG_VERSION"; exec sleep 600')
    script = SUPERVISOR.replace("Path(sys.argv[1])", f"Path(sys.argv[1]), bin_dir=Path({str(programs)!r})")
    supervisor = subprocess.Popen([sys.executable, "-c", script, str(data_dir)], env={"PYTHONPATH": str(SOURCE)})
    try:
        wait_until(lambda: bool(list(data_dir.glob("*/PG_VERSION"))))
    finally:
        supervisor.kill()
        supervisor.wait()
    assert ask(started(), "select 1") == 1
    assert not list(data_dir.glob("initdb-*"))


def test_data_of_another_major_version(prepared: Open, data_dir: Path) -> None:
    """Data of another major version is refused with what to do, and the lock is given back."""
    prepared().release()
    (data_dir / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(BundledEngineError, match=r"was made by PostgreSQL 17, these binaries are 18: .*--engine-bin"):
        prepared()
    (data_dir / "postgres" / "PG_VERSION").write_text("18\n")
    prepared()


def test_a_start_that_fails_says_why(prepared: Open) -> None:
    """When the server refuses to start, the error carries its own words and no process is left."""
    server = prepared(extra={"shared_preload_libraries": "no_such_library"})
    with pytest.raises(BundledEngineError, match="no_such_library"):
        server.start()
    assert server.poll() is not None


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


def test_statements_stay_out_of_the_log(started: Open, data_dir: Path) -> None:
    """Neither a failing statement nor RAISE LOG writes to the server's log."""
    server = started()
    before = (data_dir / "postgres.log").stat().st_size
    with connect(server) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1/0 as my_secret")
        connection.execute("do $$ begin raise log 'my secret'; end $$")
    assert (data_dir / "postgres.log").stat().st_size == before


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


def test_the_settings_that_are_ours() -> None:
    """A setting that would open the server to the network is refused."""
    with pytest.raises(BundledEngineError, match="listen_addresses"):
        make_server_settings(BundledSettings(Path("/d"), extra={"listen_addresses": "*"}), 18, None)
