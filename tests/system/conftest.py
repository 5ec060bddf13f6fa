"""Servers of the bundled engine on a directory of their own, gone when the test is over."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.servers import Open
from tuplegate.engine.bundled.server import BundledServer, BundledSettings


@pytest.fixture
def data_dir() -> Iterator[Path]:
    # Under pytest's tmp_path a parent of mode 0700 would keep the engine's user out when the tests run as root.
    parent = Path(tempfile.mkdtemp(dir="/tmp"))
    parent.chmod(0o755)
    yield parent / "data"
    shutil.rmtree(parent)


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
