"""`dump` and `restore`: a database into a file and back, every row of it, or nothing at all."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.cli.command import Command
from tests.client.faults import LOSE, PASS, relay
from tests.control import Control, Organization, engine, engine_name, new_organization
from tests.dumps import LARGE, PROGRAMS, contents, fill, schema_of
from tests.inside import empty_database
from tests.service import Service


@pytest.fixture(scope="module")
def full(service: Service) -> Organization:
    """An organization whose database has something of everything."""
    made = new_organization(service)
    fill(made.control.sql())
    return made


@pytest.fixture
def command(service: Service, full: Organization, tmp_path: Path) -> Command:
    return Command(service, tmp_path, TUPLEGATE_API_KEY=full.key)


@pytest.fixture
def control(full: Organization) -> Iterator[Control]:
    """Databases that a test has made are gone after it."""
    yield full.control
    for record in full.control.all("/v1/databases"):
        if not record["default"]:
            full.control.delete(f"/v1/databases/{record['name']}")


@pytest.fixture(scope="module")
def large(service: Service, full: Organization, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of one large table, which takes a while to restore."""
    home = tmp_path_factory.mktemp("large")
    full.control.post("/v1/databases", {"name": "source"})
    full.control.sql(database="source")(LARGE)
    done = Command(service, home, TUPLEGATE_API_KEY=full.key)("dump", "source", str(home / "large.dump"))
    assert done.code == 0, done.err
    full.control.delete("/v1/databases/source")
    return home / "large.dump"


@pytest.fixture
def dump(command: Command, tmp_path: Path) -> Path:
    file = tmp_path / "main.dump"
    done = command("dump", str(file))
    assert done.code == 0, done.err
    return file


def names(control: Control) -> list[str]:
    return sorted(record["name"] for record in control.all("/v1/databases"))


def everything(service: Service, control: Control, name: str) -> dict[str, list[object]]:
    id = control.get(f"/v1/databases/{name}")["id"]
    with engine(service, engine_name(service, id)) as connection:
        return contents(connection)


def test_what_was_dumped_comes_back_row_by_row(
    service: Service, command: Command, control: Control, dump: Path, tmp_path: Path
) -> None:
    """Every row of every table, large objects and sequences; and a dump of the copy would make the same things."""
    done = command("restore", str(dump), "copy")
    assert done.code == 0, done.err
    before = everything(service, control, "main")
    after = everything(service, control, "copy")
    assert before.keys() == after.keys()
    for place, rows in before.items():
        assert after[place] == rows, place
    assert sum(map(len, before.values())) > 13_000
    again = tmp_path / "copy.dump"
    assert command("dump", "copy", str(again)).code == 0
    assert schema_of(again) == schema_of(dump)


def test_a_restored_database_works_on(command: Command, control: Control, dump: Path) -> None:
    """Identities go on behind the last, triggers and policies are there, and a read key reads."""
    assert command("restore", str(dump), "copy").code == 0
    sql = control.sql(database="copy")
    new = sql.value("insert into app.values (t) values ('new') returning id")
    assert new == sql.value("select max(id) from app.values")
    assert sql.fails("insert into app.refers values (1, 1, 500)")["sqlstate"] == "23514"
    assert sql.value("select app.atomic(2)") == "a;"
    reader = control.post("/v1/keys", {"name": "r", "scopes": ["read"], "database": "copy"})["key"]
    assert control.sql(reader).value("select count(*) from app.parent") == 12_002


def test_lost_answers_lose_and_double_nothing(
    service: Service, full: Organization, control: Control, dump: Path, tmp_path: Path
) -> None:
    """Every other answer of the data plane is lost, and asked for again."""
    seen: list[bytes] = []

    def plan(request: bytes) -> str:
        seen.append(request)
        return LOSE if len(seen) % 2 else PASS

    with relay(service.url, plan) as lossy:
        done = Command(service, tmp_path, TUPLEGATE_URL=lossy.url, TUPLEGATE_API_KEY=full.key)(
            "restore", str(dump), "copy"
        )
    assert done.code == 0, done.err
    assert len(seen) > 20
    assert everything(service, control, "copy") == everything(service, control, "main")


def test_what_the_tenant_may_not_do_ends_a_restore_with_its_statement(
    service: Service, command: Command, control: Control, tmp_path: Path
) -> None:
    """A dump from elsewhere, with a function that only a superuser may make."""
    before = names(control)
    with psycopg.connect(empty_database(service), autocommit=True) as server:
        server.execute("create function public.root() returns int language c as '$libdir/plpgsql', 'plpgsql_validator'")
        try:
            file = tmp_path / "foreign.dump"
            program = [str(PROGRAMS / "pg_dump"), "--format=custom", f"--dbname={empty_database(service)}"]
            file.write_bytes(subprocess.run(program, capture_output=True, check=True).stdout)
        finally:
            server.execute("drop function public.root()")
    done = command("restore", str(file), "copy")
    assert done.code == 5, done.err
    assert "permission denied for language c (42501)" in done.err
    assert "statement: CREATE FUNCTION public.root()" in done.err
    assert "nothing was restored" in done.err
    assert names(control) == before


def test_the_file_is_the_owners_alone_and_whole(dump: Path, tmp_path: Path) -> None:
    """Nothing lies beside it."""
    assert dump.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if "dump" in path.name] == ["main.dump"]


def test_a_name_that_is_taken_is_refused_before_anything_happens(
    command: Command, control: Control, dump: Path
) -> None:
    before = names(control)
    done = command("restore", str(dump), before[0])
    assert done.code == 6
    assert "already" in done.err
    assert names(control) == before


def test_what_is_no_dump_makes_no_database(command: Command, control: Control, tmp_path: Path) -> None:
    """Garbage, an empty file, one that is not there, a dump as text, a directory."""
    before = names(control)
    garbage, empty, text = tmp_path / "garbage", tmp_path / "empty", tmp_path / "text"
    garbage.write_bytes(os.urandom(100_000))
    empty.touch()
    text.write_text("-- PostgreSQL database dump\nselect 1;\n")
    for file in (garbage, empty, text, tmp_path / "missing", tmp_path):
        done = command("restore", str(file), "copy")
        assert done.code in (2, 11), (file, done.err)
    assert names(control) == before


@pytest.mark.parametrize("share", [0.35, 0.9, 0.999])
def test_a_dump_that_was_cut_off_leaves_nothing(
    command: Command, control: Control, dump: Path, tmp_path: Path, share: float
) -> None:
    """Wherever it was."""
    before = names(control)
    cut = tmp_path / "cut"
    cut.write_bytes(dump.read_bytes()[: int(dump.stat().st_size * share)])
    done = command("restore", str(cut), "copy")
    assert done.code == 11, done.err
    assert names(control) == before


def test_a_flipped_byte_leaves_nothing_or_a_whole_database(
    command: Command, control: Control, dump: Path, tmp_path: Path
) -> None:
    """In the compressed rows it is found by their checksum."""
    content = bytearray(dump.read_bytes())
    content[len(content) // 2] ^= 0x55
    broken = tmp_path / "broken"
    broken.write_bytes(content)
    before = names(control)
    done = command("restore", str(broken), "copy")
    assert done.code != 0
    assert names(control) == before


def test_a_full_disk_leaves_no_file(command: Command, tmp_path: Path) -> None:
    """And says so, with a code of its own."""

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = command.start("dump", str(tmp_path / "x.dump"), stderr=subprocess.PIPE, preexec_fn=bounded)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 9, said
    assert [path.name for path in tmp_path.iterdir() if "x.dump" in path.name] == []


def test_a_place_that_cannot_be_written_is_named(command: Command, tmp_path: Path) -> None:
    done = command("dump", str(tmp_path / "nowhere" / "x.dump"))
    assert done.code == 11
    assert "nowhere" in done.err


def test_a_key_without_the_scope_is_refused(
    service: Service, command: Command, control: Control, dump: Path, tmp_path: Path
) -> None:
    writer = control.post("/v1/keys", {"name": "w", "scopes": ["write"]})["key"]
    as_writer = Command(service, tmp_path, TUPLEGATE_API_KEY=writer)
    assert as_writer("dump", "main", str(tmp_path / "x")).code == 4
    assert as_writer("restore", str(dump), "copy").code == 4


def test_ctrl_c_takes_back_what_was_restored(command: Command, control: Control, large: Path) -> None:
    """The message says what it is called meanwhile, and that nothing is left of it."""
    process, made = _restoring(command, control, large)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"nothing was restored" in said
    assert made not in names(control)
    assert "copy" not in names(control)


def test_what_a_killed_restore_leaves_is_seen_by_its_name(command: Command, control: Control, large: Path) -> None:
    """It was said at the start; the name that was asked for is free, and a second try works."""
    process, made = _restoring(command, control, large)
    process.kill()
    process.communicate(timeout=60)
    assert made in names(control)
    assert "copy" not in names(control)
    assert command("database", "delete", made, "--yes").code == 0
    assert command("restore", str(large), "copy").code == 0
    assert control.sql(database="copy").value("select count(*) from large") == 300


def _restoring(command: Command, control: Control, file: Path) -> "tuple[subprocess.Popen[bytes], str]":
    """A restore of a large table of which some rows are there, and the name of the database."""
    process = command.start("restore", str(file), "copy", stderr=subprocess.PIPE)
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    assert line.startswith("restoring into copy-restore-")
    assert "which becomes copy once it is whole" in line
    made = line.split()[2].rstrip(",")
    sql = control.sql(database=made)
    while not sql.answer("select 1 from large limit 1").json()["rows"]:
        assert process.poll() is None, "it was too fast to be caught"
        time.sleep(0.01)
    return process, made
