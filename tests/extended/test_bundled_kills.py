"""The bundled server, killed with its supervisor or without, and started again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
from tests.system.test_bundled import write_programs
from tuplegate.engine.bundled import server as bundled
from tuplegate.engine.bundled.server import BundledEngineError


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
