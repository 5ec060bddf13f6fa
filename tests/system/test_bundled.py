"""The bundled engine as the supervisor opens it: the catalog's server on a first start, later ones and failed ones."""

import os
from pathlib import Path

import psycopg
import pytest
from structlog.testing import capture_logs

from tests.servers import Open, ask, connect, mode, needs_linux
from tuplegate.engine.bundled.sandbox.walls import find_gaps
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import open_bundled
from tuplegate.supervisor.serve_error import ServeError

pytestmark = needs_linux


def test_starts_on_an_empty_directory(started: Open, data_dir: Path) -> None:
    """A first start makes the catalog's server with the deterministic locale. It says what the sandbox lacks."""
    with capture_logs() as logs:
        engine = started()
    assert [entry["event"] for entry in logs] == find_gaps()
    assert ask(engine, "select current_user") == "tuplegate"
    assert ask(engine, "select count(*) from pg_settings where name = 'listen_addresses' and setting = ''") == 1
    assert (
        ask(engine, "select format('%s %s', datlocprovider, datlocale) from pg_database where datname = 'template1'")
        == "b C.UTF-8"
    )
    assert list((data_dir / "prepared").iterdir()) == [data_dir / "prepared" / "template"]


@pytest.mark.usefixtures("copied")
def test_the_superuser_of_the_catalog_has_a_password(started: Open, data_dir: Path) -> None:
    """Nobody gets in without it. It is in a file for the service's user alone, and that of no other server."""
    engine = started()
    for options in ({"password": "wrong"}, {"password": engine.template.password}):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            connect(engine, **options)
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        connect(engine, password="")
    password = data_dir / "catalog.password"
    assert mode(password) == 0o600
    assert password.stat().st_uid == os.geteuid()
    others = "select count(*) from pg_hba_file_rules where auth_method not in ('scram-sha-256', 'reject')"
    assert ask(engine, others) == 0


@pytest.mark.usefixtures("copied")
def test_the_catalog_has_an_account_of_its_own(started: Open, data_dir: Path) -> None:
    """Its server is never root, and no cell has its user id where root starts the service. It does not preempt, and
    gets neither our lock nor PG*."""
    os.environ["PGOPTIONS"] = "-c jit=on"
    try:
        pid = started().catalog.pid
    finally:
        del os.environ["PGOPTIONS"]
    process = Path(f"/proc/{pid}")
    assert process.stat().st_uid == (data_dir / "catalog").stat().st_uid != 0
    if os.geteuid() == 0:
        assert process.stat().st_uid not in {path.stat().st_uid for path in (data_dir / "cells").iterdir()}
    assert os.getsid(pid) == pid
    assert os.sched_getscheduler(pid) == os.SCHED_BATCH
    assert (process / "oom_score_adj").read_text() == "0\n", "a cell goes before it"
    names = {entry.split(b"=")[0] for entry in (process / "environ").read_bytes().split(b"\0") if entry}
    assert b"PGOPTIONS" not in names
    assert not [fd for fd in (process / "fd").iterdir() if "tuplegate.lock" in os.readlink(fd)]


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
    with pytest.raises(ServeError, match="disk full"):
        started(engine_bin=str(programs))
    assert sorted(path.name for path in data_dir.iterdir()) == ["cells", "prepared", "tuplegate.lock"]
    assert list((data_dir / "prepared").iterdir()) == []
    assert ask(started(), "select 1") == 1


@pytest.mark.usefixtures("copied")
def test_data_of_another_major_version(started: Open, data_dir: Path) -> None:
    """Data of another major version is refused with what to do, and the lock is given back."""
    (data_dir / "catalog" / "data" / "PG_VERSION").write_text("17\n")
    with pytest.raises(ServeError, match=r"was made by PostgreSQL 17, these binaries are 18: .*--engine-bin"):
        started()
    (data_dir / "catalog" / "data" / "PG_VERSION").unlink()
    with pytest.raises(ServeError, match=r"is not PostgreSQL's data"):
        started()
    (data_dir / "catalog" / "data" / "PG_VERSION").write_text("18\n")
    started()


@pytest.mark.usefixtures("copied")
def test_a_start_that_fails_says_why(started: Open, data_dir: Path) -> None:
    """When the server refuses to start, the error carries its own words, and the next start works."""
    own = data_dir / "catalog" / "data" / "postgresql.auto.conf"
    own.write_text("shared_preload_libraries = 'no_such_library'\n")
    with pytest.raises(ServeError, match="no_such_library"):
        started()
    own.write_text("")
    assert ask(started(), "select 1") == 1


@pytest.mark.usefixtures("copied")
def test_the_settings_of_the_operator_reach_the_server(data_dir: Path) -> None:
    settings = Settings(data_dir=data_dir, engine_connections_max=37, engine_shared_buffers_mb=24, engine_temp_mb=9)
    with open_bundled(settings) as engine:
        assert ask(engine, "show max_connections") == "40"  # with those that are for superusers
        assert ask(engine, "show shared_buffers") == "24MB"
        assert ask(engine, "show temp_file_limit") == "9MB"
