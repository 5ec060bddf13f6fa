"""The data directory: who may enter it, who may use it, and which ones are not taken."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import SOURCE, Open, alive, ask, close, mode, needs_root, snapshot, spawn_supervisor
from tuplegate.engine.bundled import data_directory
from tuplegate.engine.bundled.server import BundledEngineError, BundledServer, BundledSettings


def test_only_the_owner_can_enter(started: Open, data_dir: Path) -> None:
    """The data, the socket's directory and the socket are closed to others; parents above have default modes."""
    parent = data_dir.parent / "made"
    server = BundledServer(BundledSettings(data_dir=parent / "data"))
    umask = os.umask(0o022)
    try:
        server.prepare()
        server.start()
        socket = server.socket_dir / data_directory.SOCKET_NAME
        for path in (parent / "data", parent / "data" / "postgres", server.socket_dir, socket):
            assert mode(path) == 0o700, path
        for path in (parent / "data" / "postgres.log", parent / "data" / "tuplegate.lock"):
            assert mode(path) == 0o600, path
        assert mode(parent) == 0o755
    finally:
        os.umask(umask)
        server.stop()
        server.release()


@pytest.mark.usefixtures("copied")
def test_one_service_per_directory(prepared: Open, data_dir: Path) -> None:
    """A second service on the same directory learns which process has it, and gets it once that is released."""
    first = prepared()
    message = rf"another tuplegate \(pid {os.getpid()}\) is using {data_dir}; stop it or choose another --data-dir"
    with pytest.raises(BundledEngineError, match=message):
        prepared()
    first.release()
    prepared()


@pytest.mark.parametrize("content", ["file", "directory"])
def test_a_foreign_directory_stays_untouched(data_dir: Path, prepared: Open, content: str) -> None:
    """A directory that holds something not ours is refused, and neither its content, mode nor owner changes."""
    data_dir.mkdir(mode=0o755)
    if content == "file":
        (data_dir / "letter.txt").write_text("dear")
    else:
        (data_dir / "postgres").mkdir()
    before = snapshot(data_dir)
    with pytest.raises(BundledEngineError, match="is not empty and was not made by tuplegate"):
        prepared()
    assert snapshot(data_dir) == before


def test_a_shared_directory_is_not_taken(data_dir: Path, prepared: Open) -> None:
    """An empty directory that everyone may write to keeps its mode and is refused."""
    data_dir.mkdir()
    data_dir.chmod(0o1777)
    with pytest.raises(BundledEngineError, match="choose a --data-dir of its own"):
        prepared()
    assert mode(data_dir) == 0o1777


def test_too_long_a_path(data_dir: Path) -> None:
    """A directory too deep for a unix socket is refused with the bound before anything is made."""
    deep = data_dir / ("d" * 90)
    with pytest.raises(
        BundledEngineError, match=f"{data_directory.SOCKET_PATH_BYTES_MAX}: choose a shorter --data-dir"
    ):
        BundledServer(BundledSettings(data_dir=deep)).prepare()
    assert not data_dir.exists()


def test_a_path_with_a_comma(data_dir: Path) -> None:
    """A path that PostgreSQL would take for two is refused before anything is made."""
    with pytest.raises(BundledEngineError, match="comma"):
        BundledServer(BundledSettings(data_dir=data_dir / "a,b")).prepare()
    assert not data_dir.exists()


def test_a_path_with_a_blank(data_dir: Path) -> None:
    """A path with a blank works, in the server's settings and in conninfo."""
    server = BundledServer(BundledSettings(data_dir=data_dir / "my data"))
    try:
        server.prepare()
        server.start()
        assert ask(server, "select 1") == 1
    finally:
        server.stop()
        server.release()


@needs_root
def test_a_data_directory_out_of_reach(data_dir: Path) -> None:
    """When a parent keeps the engine's user out, the error names that parent and nothing is made or changed."""
    closed = data_dir.parent / "closed"
    (closed / "open").mkdir(parents=True)
    closed.chmod(0o700)
    with pytest.raises(BundledEngineError, match=f"who may not enter {closed}: choose another --data-dir"):
        BundledServer(BundledSettings(data_dir=closed / "open" / "data")).prepare()
    assert mode(closed) == 0o700
    assert not (closed / "open" / "data").exists()


@pytest.mark.usefixtures("copied")
@needs_root
def test_root_does_not_follow_planted_links(prepared: Open, data_dir: Path) -> None:
    """A link that the engine's user laid in place of the log is refused, and what it leads to stays as it is."""
    prize = data_dir.parent / "shadow"
    prize.write_text("secret")
    server = prepared()
    (data_dir / "postgres.log").symlink_to(prize)
    with pytest.raises(BundledEngineError, match="cannot start PostgreSQL"):
        server.start()
    assert prize.stat().st_uid == 0
    assert prize.read_text() == "secret"
    (data_dir / "postgres.log").unlink()


@needs_root
def test_an_ordinary_user_starts_it_too(data_dir: Path, started: Open) -> None:
    """An ordinary user runs it as themselves, and root goes on with that data as its owner."""
    probe = [sys.executable, "-c", "import tuplegate.engine.bundled.server"]
    nobody = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    environment = {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        usable = subprocess.run(probe, env=environment, **nobody).returncode == 0  # type: ignore[call-overload]
    except PermissionError:
        usable = False
    if not usable:
        pytest.skip("nobody cannot run this Python or read this checkout")
    data_dir.mkdir(mode=0o700)
    shutil.chown(data_dir, "nobody", "nogroup")
    supervisor, pid = spawn_supervisor(data_dir, **nobody)
    owner = data_dir.stat().st_uid
    assert Path(f"/proc/{pid}").stat().st_uid == owner
    close(supervisor)
    assert supervisor.returncode == 0
    assert not alive(pid)
    server = started()
    assert ask(server, "select 1") == 1
    assert Path(f"/proc/{server.pid}").stat().st_uid == owner
