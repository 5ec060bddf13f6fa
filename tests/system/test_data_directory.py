"""The data directory: who may enter it, who may use it, and which ones are not taken."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import alive
from tests.servers import SOURCE, Open, ask, close, mode, needs_root, snapshot, spawn_supervisor
from tuplegate.engine.bundled import data_directory
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import open_bundled
from tuplegate.supervisor.serve_error import ServeError


def test_only_the_owner_can_enter(data_dir: Path) -> None:
    """The data, the socket's directory and the socket are closed to others; parents above have default modes."""
    parent = data_dir.parent / "made"
    umask = os.umask(0o022)
    try:
        with open_bundled(Settings(data_dir=parent / "data")) as engine:
            catalog = engine.directory.catalog
            for path in (catalog, catalog / "data", catalog / "run", catalog / "run" / data_directory.SOCKET_NAME):
                assert mode(path) == 0o700, path
            # The accounts that root gives to cells pass through to what is theirs.
            assert mode(parent / "data") == (0o711 if os.geteuid() == 0 else 0o700)
            for path in (catalog / "server.log", parent / "data" / "tuplegate.lock"):
                assert mode(path) == 0o600, path
            assert mode(parent) == 0o755
    finally:
        os.umask(umask)


@pytest.mark.usefixtures("copied")
def test_one_service_per_directory(started: Open, data_dir: Path) -> None:
    """A second service on the same directory learns which process has it, and gets it once that is released."""
    message = rf"another tuplegate \(pid {os.getpid()}\) is using {data_dir}; stop it or choose another --data-dir"
    with open_bundled(Settings(data_dir=data_dir)), pytest.raises(ServeError, match=message):
        started()
    started()


@pytest.mark.parametrize("content", ["file", "directory"])
def test_a_foreign_directory_stays_untouched(data_dir: Path, started: Open, content: str) -> None:
    """A directory that holds something not ours is refused, and neither its content, mode nor owner changes."""
    data_dir.mkdir(mode=0o755)
    if content == "file":
        (data_dir / "letter.txt").write_text("dear")
    else:
        (data_dir / "postgres").mkdir()
    before = snapshot(data_dir)
    with pytest.raises(ServeError, match="is not empty and was not made by tuplegate"):
        started()
    assert snapshot(data_dir) == before


def test_a_shared_directory_is_not_taken(data_dir: Path, started: Open) -> None:
    """An empty directory that everyone may write to keeps its mode and is refused."""
    data_dir.mkdir()
    data_dir.chmod(0o1777)
    with pytest.raises(ServeError, match="choose a --data-dir of its own"):
        started()
    assert mode(data_dir) == 0o1777


def refusal(data_dir: Path) -> str:
    with pytest.raises(ServeError) as refused, open_bundled(Settings(data_dir=data_dir)):
        pass
    return str(refused.value)


def test_too_long_a_path(data_dir: Path) -> None:
    """A directory too deep for a unix socket is refused with the bound before anything is made."""
    said = refusal(data_dir / ("d" * 90))
    assert f"{data_directory.SOCKET_PATH_BYTES_MAX}: choose a shorter --data-dir" in said
    assert not data_dir.exists()


def test_a_path_with_a_comma(data_dir: Path) -> None:
    """A path that PostgreSQL would take for two is refused before anything is made."""
    assert "comma" in refusal(data_dir / "a,b")
    assert not data_dir.exists()


def test_a_path_with_a_blank(data_dir: Path) -> None:
    """A path with a blank works, in the server's settings and in conninfo."""
    with open_bundled(Settings(data_dir=data_dir / "my data")) as engine:
        assert ask(engine, "select 1") == 1


@needs_root
def test_a_data_directory_out_of_reach(data_dir: Path) -> None:
    """When a parent keeps the engine's user out, the error names that parent and nothing is made or changed."""
    closed = data_dir.parent / "closed"
    (closed / "open").mkdir(parents=True)
    closed.chmod(0o700)
    assert f"who may not enter {closed}: choose another --data-dir" in refusal(closed / "open" / "data")
    shutil.chown(closed, "nobody")
    assert f"who may not enter {closed}" in refusal(closed / "open" / "data"), "cells have users of their own"
    assert mode(closed) == 0o700
    assert not (closed / "open" / "data").exists()


def test_data_that_shared_one_server(data_dir: Path) -> None:
    """They are not touched, and the message says with which version they can be dumped."""
    (data_dir / "postgres").mkdir(parents=True)
    (data_dir / "tuplegate.lock").touch()
    before = snapshot(data_dir)
    assert "dump them (tuplegate dump) with Tuplegate of the commit 437ac0e7" in refusal(data_dir)
    assert snapshot(data_dir) == before


@needs_root
def test_an_ordinary_user_starts_it_too(data_dir: Path) -> None:
    """An ordinary user runs it as themselves, and root leaves it to them."""
    probe = [sys.executable, "-c", "import tuplegate.supervisor.engine_server"]
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
    assert f"{data_dir} belongs to nobody, and this is root: run the service as its owner" in refusal(data_dir)
