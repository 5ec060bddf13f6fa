"""Directories of cells: made, copied and removed as a whole or not at all, with real programs and real kills."""

import errno
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cells import Cells, Programs, stop
from tests.servers import mode, needs_linux, needs_root
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.cells import making, trees
from tuplegate.engine.cells.layout import FIRST_UID, CellError, CellsDirectory, lock_server, open_directory
from tuplegate.engine.cells.making import (
    copy_cell,
    list_spares,
    make_catalog,
    make_cell,
    make_spare,
    remove_cell,
    remove_leftovers,
    remove_old_spares,
    take_spare,
)
from tuplegate.engine.cells.trees import CopyMethod, TreeCopy, remove_tree

pytestmark = needs_linux

FORM = "this"
OURSELVES = Account(os.geteuid(), os.getegid(), switch=False)


def list_tree(top: Path) -> dict[str, int]:
    """Return all files below a directory with their sizes."""
    return {str(path.relative_to(top)): path.stat().st_size for path in top.rglob("*") if path.is_file()}


@pytest.mark.parametrize("cell_id", ["", "A", "a-b", "..", "a/b", "a\n", "é", "a" * 41])
def test_an_id_is_checked(cell_id: str) -> None:
    """An id that could leave the directory of cells, or be an unfinished cell's name, is refused."""
    with pytest.raises(CellError, match="is no id"):
        CellsDirectory(Path("/d")).locate(cell_id)


def test_a_path_too_long_for_a_socket_is_refused() -> None:
    """The longest id fits below a short directory, and not below a long one."""
    assert CellsDirectory(Path("/d")).locate("a" * 40) == Path("/d/cells") / ("a" * 40)
    with pytest.raises(CellError, match="shorter"):
        CellsDirectory(Path("/d" * 40)).locate("a" * 40)
    with pytest.raises(CellError, match="ordinary"):
        CellsDirectory(Path("/d,e")).locate("a")


def test_the_prepared_directory_demands_a_password(cell_programs: Programs, cells: Cells) -> None:
    """Nobody gets in without a password: scram for all local connections, and no connection over the network."""
    rules = [
        line.split()
        for line in (cell_programs.prepared.data / "pg_hba.conf").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert {(rule[0], rule[-1]) for rule in rules} == {("local", "scram-sha-256"), ("host", "reject")}
    place = cell_programs.prepared.data.parent
    assert mode(place) == 0o700
    assert place.stat().st_uid == os.geteuid()
    assert mode(place / "password") == 0o600
    assert (place / "password").stat().st_uid == os.geteuid()
    assert len(cell_programs.prepared.password) >= 40


def test_a_cell_is_a_copy(cell_programs: Programs, cells: Cells) -> None:
    """A new cell has the files of the prepared directory, belongs to its account alone, and exists once."""
    method = make_cell(cells.directory, cell_programs.prepared.data, "a")
    assert method in CopyMethod
    cell = cells.directory.locate("a")
    assert list_tree(cell / "data") == list_tree(cell_programs.prepared.data)
    assert (cell / "data/global/pg_control").read_bytes() == (
        cell_programs.prepared.data / "global/pg_control"
    ).read_bytes()
    assert sorted(path.name for path in cell.iterdir()) == ["data", "run"]
    owners = {(path.stat().st_uid, mode(path)) for path in (cell, *cell.rglob("*"))}
    assert owners == {(cell.stat().st_uid, 0o700), (cell.stat().st_uid, 0o600)}
    assert cells.directory.list_cells() == ["a"]
    with pytest.raises(CellError, match="exists already"):
        cells.make("a")
    assert [path.name for path in cells.directory.cells.iterdir()] == ["a"]


@needs_root
def test_each_cell_has_an_account_of_its_own(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though chance would give it that of another one, or of the catalog's."""
    numbers = iter([5, 5, 6, 6, 7, 7, 8])
    monkeypatch.setattr("secrets.randbelow", lambda _: next(numbers))
    owners = [cells.make(cell_id).stat().st_uid for cell_id in ("a", "b", "c")]
    assert owners == [FIRST_UID + 5, FIRST_UID + 6, FIRST_UID + 7]
    cells.directory.locate("c").rename(cells.directory.catalog)
    assert cells.make("d").stat().st_uid == FIRST_UID + 8


def test_a_spare_becomes_a_cell(cells: Cells) -> None:
    """Whoever wants one has another one, with an account of its own; without any there is none to have."""
    data = cells.programs.prepared.data
    for _ in range(2):
        make_spare(cells.directory, data, FORM)
    assert cells.directory.list_cells() == []
    assert [take_spare(cells.directory, FORM, cell_id) for cell_id in ("a", "b", "c")] == [True, True, False]
    assert cells.directory.list_cells() == ["a", "b"]
    owners = {cells.directory.locate(cell_id).stat().st_uid for cell_id in ("a", "b")}
    assert len(owners) == (2 if os.geteuid() == 0 else 1)
    assert list_tree(cells.directory.locate("a") / "data") == list_tree(data)
    make_spare(cells.directory, data, FORM)
    with pytest.raises(CellError, match="exists already"):
        take_spare(cells.directory, FORM, "a")


def test_spares_of_another_form_are_removed(cells: Cells) -> None:
    """Those of this version stay for the next start."""
    for form in ("other", FORM):
        make_spare(cells.directory, cells.programs.prepared.data, form)
    [spare] = list_spares(cells.directory, FORM)
    assert remove_old_spares(cells.directory, FORM) == []
    assert list(cells.directory.prepared.iterdir()) == [spare]


@needs_root
def test_a_directory_that_cells_cannot_enter_is_refused(cells: Cells) -> None:
    cells.directory.path.chmod(0o700)
    with pytest.raises(CellError, match="may not enter"):
        cells.make()
    assert list(cells.directory.cells.iterdir()) == []


def test_a_clone_has_the_data(cells: Cells) -> None:
    """The clone of a stopped cell has its rows, and neither its log nor its pid file; one that runs is not cloned."""
    cells.make("a")
    server = cells.start("a")
    with cells.connect("a") as connection:
        connection.execute("create table kept as select 7 as n")
    with pytest.raises(CellError, match="stop them first"):
        copy_cell(cells.directory, "a", "b")
    stop(server)
    (cells.directory.locate("a") / "data/postmaster.pid").write_text("1\n")
    copy_cell(cells.directory, "a", "b")
    copied = cells.directory.locate("b")
    assert sorted(path.name for path in copied.iterdir()) == ["data", "run"]
    assert not (copied / "data/postmaster.pid").exists()
    cells.start("b")
    assert cells.ask("select n from kept", "b") == 7


def lay_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def lay_pipe(path: Path) -> None:
    os.mkfifo(path)


def lay_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def lay_second_name(path: Path) -> None:
    os.link(path.with_name("PG_VERSION"), path)


def lay_deep_directories(path: Path) -> None:
    Path(path, *["d"] * (trees.DEPTH_MAX + 1)).mkdir(parents=True)


@pytest.mark.parametrize("lay", [lay_link, lay_pipe, lay_socket, lay_second_name, lay_deep_directories])
def test_a_clone_refuses_other_kinds_of_files(cells: Cells, lay: Callable[[Path], None]) -> None:
    """A file that may lead out of the cell fails the copy, which leaves nothing."""
    cells.make("a")
    lay(cells.directory.locate("a") / "data" / "x")
    with pytest.raises(CellError):
        copy_cell(cells.directory, "a", "b")
    assert [path.name for path in cells.directory.cells.iterdir()] == ["a"]


def test_a_data_directory_that_is_a_link_is_not_copied(cells: Cells, cell_programs: Programs) -> None:
    """A cell that puts a link in place of its data gets no copy of the data of others."""
    cell = cells.make("a")
    (cell / "data").rename(cell / "elsewhere")
    (cell / "data").symlink_to(cell_programs.prepared.data)
    with pytest.raises(CellError):
        copy_cell(cells.directory, "a", "b")


@pytest.mark.parametrize("can_copy_range", [True, False])
def test_every_way_to_copy_gives_the_same(
    cells: Cells, monkeypatch: pytest.MonkeyPatch, *, can_copy_range: bool
) -> None:
    """Content is the same where the kernel copies and where we read and write, with holes and over several reads."""
    source, target = cells.directory.path / "s", cells.directory.path / "t"
    source.mkdir()
    target.mkdir()
    content = os.urandom(3000) + bytes(5000) + os.urandom(7)
    (source / "f").write_bytes(content)
    (source / "empty").touch()
    monkeypatch.setattr(trees, "_READ_BYTES", 1024)
    if not can_copy_range:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    with open_directory(source) as reading, open_directory(target) as writing:
        method = TreeCopy(OURSELVES).copy(reading, writing)
    assert method is CopyMethod.COPY or can_copy_range
    assert (target / "f").read_bytes() == content
    assert (target / "empty").read_bytes() == b""


def refuse(*_: object) -> None:
    raise OSError(errno.EXDEV, "another file system")


def test_a_reflink_is_reported(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system shares blocks nothing else is copied. The kernel's answer is played: tests have no such
    file system for sure."""
    source, target = cells.directory.path / "s", cells.directory.path / "t"
    source.mkdir()
    target.mkdir()
    (source / "f").write_bytes(b"content")
    asked: list[int] = []
    monkeypatch.setattr(fcntl, "ioctl", lambda _writing, request, _reading: asked.append(request))
    with open_directory(source) as reading, open_directory(target) as writing:
        assert TreeCopy(OURSELVES).copy(reading, writing) is CopyMethod.REFLINK
    assert asked == [0x40049409]
    assert (target / "f").stat().st_size == 0


def test_a_running_cell_is_not_removed(cells: Cells) -> None:
    """A cell whose lock a process holds stays as it is; without one it goes, and a second removal finds none."""
    cell = cells.make("a")
    account = Account(cell.stat().st_uid, cell.stat().st_gid, switch=os.geteuid() == 0)
    with open_directory(cell) as fd:
        lock = lock_server(fd, account)
    assert lock is not None
    with pytest.raises(CellError, match="stop them first"):
        remove_cell(cells.directory, "a")
    os.close(lock)
    remove_cell(cells.directory, "a")
    assert list(cells.directory.cells.iterdir()) == []
    with pytest.raises(CellError):
        remove_cell(cells.directory, "a")


def test_removing_follows_no_link_and_knows_no_depth(cells: Cells) -> None:
    """Directories nested deeper than descriptors and paths reach are removed, and no file that a link points to."""
    outside = cells.directory.path / "outside"
    outside.mkdir()
    (outside / "f").touch()
    top = cells.directory.path / "top"
    top.mkdir()
    (top / "link").symlink_to(outside)
    fd = os.open(top, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=fd)
        os.symlink(outside, "link_too", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.fchmod(fd, 0)
    os.close(fd)
    remove_tree(top)
    assert not top.exists()
    assert (outside / "f").exists()


KILLED_AT = ("os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.listdir", "os.chmod", "os.scandir", "os.chown")


def run_killed(work: Callable[[], object], step: int) -> int:
    """Do the work in a child that is killed at one of its steps. Return the number of steps, -1 if killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        seen = 0

        def count(event: str, _: object) -> None:
            nonlocal seen
            if event in KILLED_AT:
                if seen == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1

        try:
            sys.addaudithook(count)
            work()
            os.write(writing, b"%d" % seen)
        finally:
            os._exit(0)
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (0, -signal.SIGKILL)
    with open(reading, "rb") as said:
        return int(said.read() or -1)


def kill_at_many_steps(work: Callable[[], object], check: Callable[[], None]) -> None:
    """Kill the work at its first and last steps and at some between, and check what each kill leaves."""
    total = run_killed(work, -1)
    check()
    assert total > 3
    for step in sorted({*range(min(4, total)), *range(4, total - 4, total // 5 + 1), *range(max(0, total - 4), total)}):
        assert run_killed(work, step) == -1
        check()


def test_a_cell_is_made_as_a_whole_or_not_at_all(cells: Cells) -> None:
    """Whenever the maker is killed, the next start finds the whole cell or none, and removes the rest."""
    whole = list_tree(cells.programs.prepared.data)

    def check() -> None:
        for cell_id in cells.directory.list_cells():
            assert list_tree(cells.directory.locate(cell_id) / "data") == whole
            remove_cell(cells.directory, cell_id)
        assert remove_leftovers(cells.directory) == []
        assert list(cells.directory.cells.iterdir()) == []

    kill_at_many_steps(lambda: cells.make("a"), check)


def test_a_cell_is_removed_as_a_whole_or_not_at_all(cells: Cells) -> None:
    """Whenever the remover is killed, the next start finds the whole cell or none, and removes the rest."""
    whole = list_tree(cells.programs.prepared.data)
    cells.make("a")

    def check() -> None:
        for cell_id in cells.directory.list_cells():
            assert list_tree(cells.directory.locate(cell_id) / "data") == whole
        assert remove_leftovers(cells.directory) == []
        if not cells.directory.list_cells():
            assert list(cells.directory.cells.iterdir()) == []
            cells.make("a")

    kill_at_many_steps(lambda: remove_cell(cells.directory, "a"), check)


def test_the_catalog_is_made_as_a_whole_or_not_at_all(
    cell_programs: Programs, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the maker is killed, the next start finds the catalog's cell with its password, or makes it anew. initdb
    is played by a file."""

    def run_program(command: list[str], *_: object) -> str:
        [given] = [word for word in command if word.startswith("--pwfile=")]
        Path(command[2], "PG_VERSION").write_text(Path(given.removeprefix("--pwfile=")).read_text())
        return ""

    monkeypatch.setattr(making, "run_program", run_program)
    account = Account(FIRST_UID, FIRST_UID, switch=True) if os.geteuid() == 0 else OURSELVES
    catalog, password = cells.directory.catalog, cells.directory.catalog_password

    def make() -> None:
        make_catalog(cells.directory, cell_programs.binaries, account)

    def check() -> None:
        assert remove_leftovers(cells.directory) == []
        assert list(cells.directory.prepared.iterdir()) == []
        make()
        assert (catalog / "data/PG_VERSION").read_text() == password.read_text()
        assert len(password.read_text()) >= 40
        assert mode(password) == 0o600
        assert password.stat().st_uid == os.geteuid()
        assert mode(catalog) == 0o700
        assert (catalog.stat().st_uid >= FIRST_UID) is account.switch
        remove_tree(catalog)

    kill_at_many_steps(make, check)
