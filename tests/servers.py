"""The bundled engine without the service: open it, ask the catalog's server, look at processes and files."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

import tuplegate
from tests.directories import new_directory
from tests.service import copy_initialized
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import Bundled, open_bundled

SOURCE = Path(tuplegate.__file__).parents[1]
WAIT_S = 30.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the engine as another user")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Opens the engine on the directory given, prints the pid of the catalog's server and waits to be killed.
SUPERVISOR = """
import sys
from pathlib import Path
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import open_bundled
with open_bundled(Settings(data_dir=Path(sys.argv[1]))) as bundled:
    print(bundled.catalog.pid, flush=True)
    sys.stdin.read()
"""

Open = Callable[..., Bundled]
"""Opens the bundled engine, with the settings given as keywords, until the end of the test."""


def connect(engine: Bundled, database: str = "postgres", **options: str) -> psycopg.Connection:
    """As the superuser of the catalog's server, which is a plain PostgreSQL to most tests."""
    return psycopg.connect(engine.conninfo, autocommit=True, dbname=database, **options)  # type: ignore[arg-type]


def ask(engine: Bundled, sql: str) -> object:
    with connect(engine) as connection:
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
    copy_initialized(data_dir)


@pytest.fixture
def started(data_dir: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def start(**settings: object) -> Bundled:
            return stack.enter_context(open_bundled(Settings(data_dir=data_dir, **settings)))  # type: ignore[arg-type]

        yield start
