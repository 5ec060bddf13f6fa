"""The catalog's server, killed with its supervisor or without, and started again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.processes import alive
from tests.servers import SOURCE, SUPERVISOR, Open, ask, close, connect, needs_linux, spawn_supervisor
from tests.system.test_bundled import write_programs
from tests.waiting import eventually
from tuplegate.engine.cells import catalog

pytestmark = needs_linux


@pytest.mark.usefixtures("copied")
def test_it_starts_again_when_it_was_killed(started: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its data, though a start fails at first; nobody waits for that."""
    monkeypatch.setattr(catalog, "_RESTART_PAUSE_S", 0.05)
    engine = started(disk_free_mb_min=0)
    with connect(engine) as connection:
        connection.execute("create table kept as select 7 as n")
    log = engine.directory.catalog / "server.log"
    moved = log.rename(log.with_suffix(".moved"))
    log.mkdir()
    os.kill(engine.catalog.pid, signal.SIGKILL)
    with capture_logs() as logs:

        def has_said(event: str) -> bool:
            engine.catalog.watch(time.monotonic())
            return event in [entry["event"] for entry in logs]

        eventually(lambda: has_said("the engine did not start"))
        log.rmdir()
        moved.rename(log)
        eventually(lambda: has_said("the engine is back"))
    assert logs[0]["event"] == "the engine died, starting it again"
    assert logs[0]["status"] == -signal.SIGKILL
    assert logs[-1]["pid"] == engine.catalog.pid
    assert ask(engine, "select n from kept") == 7


@pytest.mark.usefixtures("copied")
def test_ends_with_a_killed_supervisor(data_dir: Path, started: Open) -> None:
    """After kill -9 of the process that started it the server ends, and the next one starts."""
    supervisor, pid = spawn_supervisor(data_dir)
    supervisor.kill()
    close(supervisor)
    eventually(lambda: not alive(pid))
    assert ask(started(), "select 1") == 1


def test_a_killed_initdb_is_cleaned_up(data_dir: Path, started: Open) -> None:
    """After kill -9 in the midst of initdb the next start removes the half-made data and makes it anew."""
    programs = write_programs(data_dir.parent / "bin", 'echo 18 > "$2/PG_VERSION"; exec sleep 600')
    script = SUPERVISOR.replace("Path(sys.argv[1])", f"Path(sys.argv[1]), engine_bin={str(programs)!r}")
    supervisor = subprocess.Popen([sys.executable, "-c", script, str(data_dir)], env={"PYTHONPATH": str(SOURCE)})
    try:
        eventually(lambda: bool(list(data_dir.glob("prepared/*/data/PG_VERSION"))))
    finally:
        supervisor.kill()
        supervisor.wait()
    assert ask(started(), "select 1") == 1
    assert list(data_dir.glob("prepared/making-*")) == []
