"""Dumps outside of the service: read by PostgreSQL's own tools, made of an engine elsewhere, cut off by a crash."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.cli.command import Command
from tests.control import Control, engine, engine_name
from tests.dumps import LARGE, PROGRAMS, begun, contents, dump_of, dumping, fill
from tests.external import PASSWORD, ExternalServer
from tests.processes import alive
from tests.servers import needs_linux
from tests.service import Service, needs_bundled, new_data_dir, remove, remove_installation, start_service
from tests.waiting import eventually

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ExternalServer]:
    """A PostgreSQL that knows nothing of the service."""
    server = ExternalServer()
    yield server
    server.remove()


@pytest.fixture
def own() -> Iterator[Service]:
    """A service of the test's own, with a database that takes a while to be dumped."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--stop-timeout-s", "0")
    Control(service, service.key).sql()(LARGE)
    yield service
    if service.process.poll() is None:
        service.stop()
    remove(data_dir)


def test_plain_pg_restore_reads_a_dump(service: Service, elsewhere: ExternalServer, tmp_path: Path) -> None:
    """Into a plain database, with its own role for the policy that names one; every row is the same."""
    control = Control(service, service.key)
    made = control.post("/v1/databases", {"name": "everything"})
    fill(control.sql(database="everything"))
    file = dump_of(control, "everything", tmp_path / "everything.dump")
    name = engine_name(service, made["id"])
    elsewhere.execute("create database plain template template0")
    elsewhere.execute(f"create role {name}_w")
    command = [
        str(PROGRAMS / "pg_restore"),
        "--no-owner",
        "--exit-on-error",
        f"--dbname={elsewhere.url('plain')}",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    with engine(service, name) as here, psycopg.connect(elsewhere.url("plain"), autocommit=True) as there:
        before, after = contents(here, without="tuplegate"), contents(there)
    assert before.keys() == after.keys()
    for place, expected in before.items():
        assert after[place] == expected, place
    control.delete("/v1/databases/everything")


@needs_linux
def test_an_engine_elsewhere_is_dumped_with_a_password_that_nobody_sees(
    elsewhere: ExternalServer, tmp_path: Path
) -> None:
    """And restored there: the same rows."""
    url = elsewhere.url("meta")
    running = start_service(new_data_dir(), env={"TUPLEGATE_ENGINE": url})
    try:
        control = Control(running, running.key)
        sql = control.sql()
        sql("create table t (id int generated always as identity primary key, a text, b jsonb[])")
        sql("insert into t (a, b) select 'x' || g, array[to_jsonb(g), 'null'] from generate_series(1, 6000) g")
        sql("select lo_from_bytea(4711, 'large')")
        control.post("/v1/databases", {"name": "large"})
        control.sql(database="large")(LARGE)
        with begun(control, "large"):
            [program] = dumping(running)
            said = Path(f"/proc/{program}/cmdline").read_bytes()
            variables = Path(f"/proc/{program}/environ").read_bytes().split(b"\0")
        [password] = [entry.split(b"=", 1)[1] for entry in variables if entry.startswith(b"PGPASSWORD=")]
        assert len(password) == 64, "that of the role, which nobody was told"
        assert password not in said
        assert PASSWORD.encode() not in said + b"".join(variables)
        command = Command(running, tmp_path)
        file = tmp_path / "main.dump"
        assert command("dump", str(file)).code == 0
        done = command("restore", str(file), "copy")
        assert done.code == 0, done.err
        ids = {record["name"]: record["id"] for record in control.all("/v1/databases")}
        both = []
        for name in ("main", "copy"):
            with psycopg.connect(elsewhere.url(engine_name(running, ids[name])), autocommit=True) as connection:
                both.append(contents(connection))
        assert both[0] == both[1]
        assert len(both[0]["public.t"]) == 6000
    finally:
        assert running.stop() == 0
        remove(running.data_dir)
        remove_installation(url)


@needs_linux
def test_no_program_outlives_a_service_that_was_killed(own: Service) -> None:
    """The kernel tells it; the bundled engine stops as always."""
    control = Control(own, own.key)
    with pytest.raises(httpx.TransportError), begun(control, "main") as rest:  # noqa: PT012 - it is one step
        [program] = dumping(own)
        own.kill()
        eventually(lambda: not alive(program), PATIENCE_S)
        for _ in rest:
            pass


@needs_linux
def test_no_program_outlives_its_worker(own: Service) -> None:
    """The next worker dumps the database again."""
    control = Control(own, own.key)
    with pytest.raises(httpx.TransportError), begun(control, "main") as rest:  # noqa: PT012 - it is one step
        [program] = dumping(own)
        parent = int(Path(f"/proc/{program}/stat").read_text().rsplit(")", 1)[1].split()[1])
        subprocess.run(["kill", "-9", str(parent)], check=True)
        eventually(lambda: not alive(program), PATIENCE_S)
        for _ in rest:
            pass

    def again() -> bool:
        try:
            return control.client.get("/v1/databases/main/dump").status_code == 200
        except httpx.TransportError:
            return False

    eventually(again, PATIENCE_S)


@needs_linux
def test_a_service_that_stops_ends_its_dumps(own: Service) -> None:
    """The client sees a cut, not a short file."""
    control = Control(own, own.key)
    with begun(control, "main") as rest:
        [program] = dumping(own)
        own.process.terminate()
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in rest:
                pass
        assert own.process.wait(60) == 0
        assert not alive(program)


def test_a_dump_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """By a limit of its own, while a table is locked: so it has not even begun."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--dump-timeout-s", "1")
    control = Control(service, service.key)
    control.sql()("create table locked (a int)")
    name = engine_name(service, control.get("/v1/databases/main")["id"])
    with engine(service, name) as holder, holder.transaction():
        holder.execute("lock table locked")
        error = control.refused(409, "dump_failed", "GET", "/v1/databases/main/dump")
    assert "longer than 1 s" in error["message"]
    assert service.stop() == 0
    remove(data_dir)


def _read_slowly(dump: Iterator[bytes]) -> None:
    for _ in dump:
        time.sleep(0.01)


def test_a_reader_that_takes_a_dump_too_slowly_is_cut_off() -> None:
    """It takes something all the while, and would keep a place for dumps for as long as it likes."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--reader-timeout-s", "2", "--dump-kib-s-min", "1000")
    control = Control(service, service.key)
    control.sql()(LARGE)
    with begun(control, "main") as rest, pytest.raises(httpx.ReadError):
        _read_slowly(rest)
    eventually(lambda: not dumping(service), PATIENCE_S)
    assert "too slowly" in service.log
    with begun(control, "main") as rest:
        assert sum(map(len, rest)) > 10_000_000, "whoever reads on gets all of it"
    assert service.stop() == 0
    remove(data_dir)


@needs_bundled
def test_programs_without_pg_dump_are_named_as_what_is_missing(tmp_path: Path) -> None:
    """As where only the server's package is installed."""
    bin_dir = new_data_dir().parent / "bin"
    bin_dir.mkdir()
    for program in PROGRAMS.iterdir():
        if program.name != "pg_dump":
            (bin_dir / program.name).symlink_to(program)
    data_dir = bin_dir.parent / "data"
    try:
        service = start_service(data_dir, "--engine-bin", str(bin_dir))
    except AssertionError as exc:
        pytest.skip(f"the engine's user cannot reach the wheel: {exc}")
    control = Control(service, service.key)
    error = control.refused(501, "not_supported", "GET", "/v1/databases/main/dump")
    assert "pg_dump" in error["message"]
    assert service.stop() == 0
    remove(data_dir)
