"""Servers of the bundled engine for tests: start one, ask it, look at its processes and files, kill its supervisor."""

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import tuplegate
from tests.directories import copy_data, make_once, new_directory
from tests.service import prepare_data
from tuplegate.engine.bundled.server import BundledServer, BundledSettings

SOURCE = Path(tuplegate.__file__).parents[1]
WAIT_S = 30.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the engine as another user")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Starts a server on the directory given, prints its pid and waits to be killed.
SUPERVISOR = """
import sys
from pathlib import Path
from tuplegate.engine.bundled.server import BundledServer, BundledSettings
server = BundledServer(BundledSettings(Path(sys.argv[1])))
server.prepare()
server.start()
print(server.pid, flush=True)
sys.stdin.read()
server.stop()
server.release()
"""

Open = Callable[..., BundledServer]
"""Gives a server, prepared or started, with the settings given as keywords."""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """A process that runs; on Linux one that has ended and was not reaped does not count."""
    try:
        os.kill(pid, 0)
        return sys.platform != "linux" or Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except PermissionError:
        return True
    except (FileNotFoundError, ProcessLookupError):
        return False


def connect(server: BundledServer, database: str = "postgres") -> psycopg.Connection:
    return psycopg.connect(f"{server.conninfo} dbname={database}", autocommit=True)


def ask(server: BundledServer, sql: str) -> object:
    with connect(server) as connection:
        row = connection.execute(sql.encode()).fetchone()
        assert row is not None
        return row[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def snapshot(top: Path) -> dict[Path, tuple[int, int, int]]:
    paths = [top, *top.rglob("*")]
    return {path: (status.st_mode, status.st_uid, status.st_gid) for path in paths for status in [path.lstat()]}


def spawn_supervisor(data_dir: Path, **options: object) -> tuple[subprocess.Popen[str], int]:
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
        **options,  # type: ignore[call-overload]
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the supervisor did not start its server"
    return process, int(line)


def close(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.wait(WAIT_S)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    parent = new_directory()
    yield parent / "data"
    shutil.rmtree(parent)


@pytest.fixture
def copied(data_dir: Path) -> None:
    """Data that were made before, for tests that are about something else."""
    copy_data(make_once("prepared", prepare_data), data_dir)


@pytest.fixture
def prepared(data_dir: Path) -> Iterator[Open]:
    servers: list[BundledServer] = []

    def prepare(**settings: object) -> BundledServer:
        server = BundledServer(BundledSettings(data_dir=data_dir, **settings))  # type: ignore[arg-type]
        servers.append(server)
        server.prepare()
        return server

    yield prepare
    for server in servers:
        server.stop()
        server.release()


@pytest.fixture
def started(prepared: Open) -> Open:
    def start(**settings: object) -> BundledServer:
        server = prepared(**settings)
        server.start()
        return server

    return start
