"""`import` and `export` when something goes wrong: what is said, the exit code, and nothing half-applied."""

import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.client.faults import HANG, PASS, relay
from tests.service import Service
from tests.transfers.conftest import ROWS
from tuplegate.client import Client


def is_staging(request: bytes) -> bool:
    return b"with mine as" in request


def staging(number: int, act: Callable[[], str]) -> Callable[[bytes], str]:
    """A plan that acts on the batch of this number, from 1, and lets everything else pass."""
    seen = [0]

    def plan(request: bytes) -> str:
        seen[0] += is_staging(request)
        return act() if is_staging(request) and seen[0] == number else PASS

    return plan


@pytest.mark.parametrize("what", ["missing.csv", "folder.csv", "empty.csv", "binary.csv", "image.ndjson", "x.xlsx"])
def test_a_wrong_file_is_refused_before_anything_is_sent(command: Command, tmp_path: Path, what: str) -> None:
    """It is named, and the code says that it is about a file."""
    file = tmp_path / what
    if what.startswith("folder"):
        file.mkdir()
    elif not what.startswith("missing"):
        file.write_bytes({"empty.csv": b"", "x.xlsx": b"PK"}.get(what, b"\x89PNG\r\n\x1a\n\xff\xfe\x00"))
    done = command("import", str(file), "--table", "load", "--create")
    assert done.code == (2 if what.startswith("folder") else 11), done.err
    assert done.err.startswith("error: ") or what.startswith("folder")


def test_row_700001_of_a_csv_is_named(command: Command, database: Client, tmp_path: Path) -> None:
    """Though it is far into the file, and everything before it was staged."""
    database.query("create table load (id int, t text)")
    file = tmp_path / "long.csv"
    with file.open("w") as out:
        out.write("id,t\n")
        out.writelines(f"{n if n != 700_000 else 'x'},a\n" for n in range(1, 700_100))
    done = command("import", str(file), "--table", "load")
    assert (done.code, 'line 700001: invalid input syntax for type integer: "x"' in done.err) == (11, True), done.err
    assert database.query("select count(*) from load").value() == 0
    assert database.query("select count(*) from pg_class where relname like 'tuplegate_import%'").value() == 0


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
def test_a_full_disk_ends_an_export_with_nothing_left(command: Command, tmp_path: Path, kind: str) -> None:
    """The file keeps what it had."""
    file = tmp_path / f"out.{kind}"
    file.write_text("precious")

    def little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    sql = "select g, md5(g::text) as t from generate_series(1, 100000) g"
    child = command.start("export", sql, str(file), stderr=subprocess.PIPE, preexec_fn=little_room)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 9, err
    assert b"cannot be written: File too large" in err
    assert b"Traceback" not in err
    assert file.read_text() == "precious"
    assert os.listdir(tmp_path) == [file.name]


@pytest.mark.parametrize("hangs", [True, False])
def test_ctrl_c_ends_an_import_at_once_and_it_goes_on_later(
    service: Service, database: Client, tmp_path: Path, numbers: Path, hangs: bool
) -> None:
    """Also where the service does not answer. It says how to go on, and does not begin anew."""
    database.query("create table load (id int, label text)")
    children: list[subprocess.Popen[bytes]] = []

    def interrupt() -> str:
        children[0].send_signal(signal.SIGINT)
        return HANG if hangs else PASS

    with relay(service.url, staging(2, interrupt)) as cut:
        command = Command(service, tmp_path, TUPLEGATE_URL=cut.url)
        children.append(command.start("import", str(numbers), "--table", "load", stderr=subprocess.PIPE))
        _, err = children[0].communicate(timeout=60)
    assert children[0].returncode == 130, err
    assert b"start it again and it goes on" in err
    assert b"Traceback" not in err
    assert database.query("select count(*) from load").value() == 0
    again = Command(service, tmp_path)("import", str(numbers), "--table", "load")
    assert (again.code, "by an earlier start" in again.err) == (0, True), again.err
    assert database.query("select count(*), count(distinct id) from load").tuples() == [(ROWS, ROWS)]


def test_ctrl_c_ends_an_export_with_nothing_left(service: Service, tmp_path: Path) -> None:
    """Half a file would look like a whole one."""
    children: list[subprocess.Popen[bytes]] = []

    def interrupt(request: bytes) -> str:
        children[0].send_signal(signal.SIGINT)
        return PASS

    with relay(service.url, interrupt) as cut:
        command = Command(service, tmp_path, TUPLEGATE_URL=cut.url)
        sql = "select g from generate_series(1, 100000000) g"
        children.append(command.start("export", sql, str(tmp_path / "x.csv"), stderr=subprocess.PIPE))
        _, err = children[0].communicate(timeout=60)
    assert (children[0].returncode, b"interrupted" in err) == (130, True), err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_changes_while_it_is_imported_is_refused(
    service: Service, database: Client, tmp_path: Path
) -> None:
    """Far behind what is read ahead. Nothing of it is imported, nor kept for later."""
    database.query("create table load (id int, label text)")
    file = tmp_path / "long.csv"
    file.write_text("id,label\n" + "".join(f"{n},row {n:>1000}\n" for n in range(ROWS)))

    def change() -> str:
        with file.open("r+b") as changed:
            changed.seek(-2, os.SEEK_END)
            changed.write(b"X")
        return PASS

    with relay(service.url, staging(1, change)) as cut:
        command = Command(service, tmp_path, TUPLEGATE_URL=cut.url)
        done = command("import", str(file), "--table", "load")
    assert (done.code, "was changed while it was read" in done.err) == (11, True), done.err
    assert database.query("select count(*) from load").value() == 0
    assert database.query("select count(*) from pg_class where relname like 'tuplegate_import%'").value() == 0


def test_rows_that_were_staged_of_a_changed_file_are_staged_again(
    service: Service, database: Client, tmp_path: Path, numbers: Path
) -> None:
    """A note with another digest is not believed."""
    database.query("create table load (id int, label text)")
    children: list[subprocess.Popen[bytes]] = []

    def kill() -> str:
        children[0].kill()
        children[0].wait()
        return PASS

    with relay(service.url, staging(3, kill)) as cut:
        command = Command(service, tmp_path, TUPLEGATE_URL=cut.url)
        children.append(command.start("import", str(numbers), "--table", "load"))
        assert children[0].wait(60) == -signal.SIGKILL
    [name] = database.query("select relname from pg_class where relname like 'tuplegate_import_%_batches'").column()
    database.query(f"update {name} set digest = 'another' where batch = 1")
    database.query(f"update {name.removesuffix('_batches')} set label = 'another'")
    done = Command(service, tmp_path)("import", str(numbers), "--table", "load")
    assert done.code == 0, done.err
    assert database.query("select count(*), count(distinct id) from load where label like 'row%'").tuples() == [
        (ROWS, ROWS)
    ]


def test_two_that_run_the_same_import_at_once_import_it_once(
    service: Service, database: Client, tmp_path: Path, numbers: Path
) -> None:
    """Both end well, whoever stages which batch: they meet at the first one."""
    database.query("create table load (id int, label text)")
    meeting = threading.Barrier(2, timeout=60)
    met = threading.local()

    def plan(request: bytes) -> str:
        if is_staging(request) and not getattr(met, "once", False):
            met.once = True
            meeting.wait()
        return PASS

    with relay(service.url, plan) as cut:
        command = Command(service, tmp_path, TUPLEGATE_URL=cut.url)
        both = [command.start("import", str(numbers), "--table", "load", stderr=subprocess.PIPE) for _ in range(2)]
        said = [child.communicate(timeout=120)[1] for child in both]
    assert [child.returncode for child in both] == [0, 0], said
    assert database.query("select count(*), count(distinct id) from load").tuples() == [(ROWS, ROWS)]
    assert database.query("select count(*) from pg_class where relname like 'tuplegate_import%'").value() == 0


def test_a_row_that_is_too_large_for_a_request_is_named(command: Command, database: Client, tmp_path: Path) -> None:
    """With its line."""
    database.query("create table load (id int, t text)")
    file = tmp_path / "wide.csv"
    file.write_text("id,t\n1," + "x" * 11 * 2**20 + "\n")
    done = command("import", str(file), "--table", "load")
    assert (done.code, "line 2" in done.err, "size" in done.err) == (11, True, True), done.err[:500]
    assert database.query("select count(*) from pg_class where relname like 'tuplegate_import%'").value() == 0
