"""The server of a cell: real servers of the bundled programs, looked at as the supervisor does."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.cells import Cells, await_state, stop
from tests.processes import alive, children
from tests.servers import needs_linux, needs_root
from tests.waiting import eventually
from tuplegate.engine.bundled.data_directory import SOCKET_NAME
from tuplegate.engine.bundled.sandbox.walls import find_gaps
from tuplegate.engine.cells import server as servers
from tuplegate.engine.cells.layout import CellError
from tuplegate.engine.cells.making import copy_cell, remove_cell
from tuplegate.engine.cells.server import CellServer, CellSettings, ServerState, make_cell_settings

pytestmark = needs_linux
needs_whole_sandbox = pytest.mark.skipif(bool(find_gaps()), reason="the kernel has no whole sandbox")
OUR_OOM_SCORE = int(Path("/proc/self/oom_score_adj").read_text()) if sys.platform == "linux" else 0


@pytest.fixture
def cell(cells: Cells) -> Path:
    return cells.make()


@pytest.fixture
def stranger(cells: Cells, cell: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the service's own user that has nothing to do with the cell."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def own(path: Path, cell: Path) -> None:
    """Make a file belong to the cell's account."""
    os.chown(path, cell.stat().st_uid, cell.stat().st_gid)


def test_serves_with_a_password_only(cells: Cells, cell: Path) -> None:
    """A cell's server answers whoever knows the password, as the cell's account, on its socket alone."""
    server = cells.start()
    assert cells.ask("select current_user") == "tuplegate"
    with pytest.raises(psycopg.OperationalError, match="password"):
        cells.connect(password="wrong")
    with pytest.raises(psycopg.OperationalError, match="no password"):
        cells.connect(password="", passfile="/nowhere")
    assert Path(f"/proc/{server.pid}").stat().st_uid == cell.stat().st_uid
    assert os.getsid(server.pid) == server.pid
    assert (cell / "run" / SOCKET_NAME).lstat().st_mode & 0o777 == 0o700
    report = stop(server)
    assert report.status == 0
    assert server.pid == 0
    assert server.look(0).state is ServerState.DOWN


def test_a_stop_keeps_the_data_and_a_start_follows(cells: Cells, cell: Path) -> None:
    """Committed rows are there after a stop and a start, and after a kill and a start."""
    server = cells.start()
    with cells.connect() as connection:
        connection.execute("create table kept as select 7 as n")
    stop(server)
    cells.start()
    with cells.connect() as connection:
        connection.execute("insert into kept values (8)")
    cells.servers[-1].kill()
    assert await_state(cells.servers[-1], ServerState.ENDED).status == -signal.SIGKILL
    again = cells.server()
    eventually(lambda: again.start(time.monotonic()) is ServerState.STARTING)
    await_state(again, ServerState.READY)
    assert cells.ask("select sum(n) from kept") == 15


def test_no_two_servers_on_one_cell(cells: Cells, cell: Path) -> None:
    """While any process of a server runs another start is held, also when that server has ended, and is given up."""
    first = cells.start()
    second = cells.server()
    assert second.start(0.0) is ServerState.HELD
    assert second.look(0.0).state is ServerState.HELD
    with pytest.raises(CellError, match="runs already"):
        first.start(0.0)
    with pytest.raises(CellError, match="do not end"):
        second.start(servers.HELD_S_MAX)
    assert second.look(0.0).state is ServerState.DOWN
    stop(first)
    assert second.start(time.monotonic()) is ServerState.STARTING
    await_state(second, ServerState.READY)


def test_a_process_of_a_killed_server_holds_the_lock(cells: Cells, cell: Path) -> None:
    """A backend that outlives its server keeps the next one from starting on the same data until it ends."""
    server = cells.start(settings=CellSettings(own_namespaces=False))
    with cells.connect() as connection:
        backend = connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        server.kill()
        await_state(server, ServerState.ENDED)
        assert server.start(time.monotonic()) is ServerState.HELD
        os.kill(backend, signal.SIGCONT)
    eventually(lambda: server.start(time.monotonic()) is ServerState.STARTING)
    await_state(server, ServerState.READY)


def test_a_process_that_does_not_end_is_killed(cells: Cells, cell: Path, stranger: subprocess.Popen[bytes]) -> None:
    """A backend that takes no notice of its server's end is killed after a moment; processes of others are not."""
    server = cells.start(settings=CellSettings(own_namespaces=False))
    with cells.connect() as connection:
        os.kill(connection.info.backend_pid, signal.SIGSTOP)
        server.kill()
        await_state(server, ServerState.ENDED)
        held_since = time.monotonic()
        assert server.start(held_since) is ServerState.HELD
        assert server.start(held_since + servers.HELD_KINDLY_S - 0.1) is ServerState.HELD
        assert alive(connection.info.backend_pid)
        held_s = servers.HELD_KINDLY_S
        eventually(lambda: server.start(held_since + held_s) is ServerState.STARTING)
        assert stranger.poll() is None


SUPERVISOR = """
import sys, time
from pathlib import Path
from tuplegate.engine.bundled.binaries import Binaries
from tuplegate.engine.cells.server import CellServer, CellSettings
server = CellServer(Path(sys.argv[1]), Binaries(Path(sys.argv[2]), 18, 6), CellSettings())
server.start(time.monotonic())
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_a_server_ends_with_its_supervisor(cells: Cells, cell: Path) -> None:
    """When the supervisor is killed its servers end, and the next supervisor can start them."""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(cell), str(cells.programs.binaries.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    with supervisor:
        assert supervisor.stdout is not None
        assert int(supervisor.stdout.readline()) > 0
        supervisor.kill()
    server = cells.server()
    eventually(lambda: server.start(time.monotonic()) is ServerState.STARTING)
    await_state(server, ServerState.READY)


def test_stale_files_do_not_stop_a_start(cells: Cells, cell: Path) -> None:
    """Pid files that name a process of the cell's user do not keep the server from starting."""
    options = {"user": cell.stat().st_uid, "group": cell.stat().st_gid} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "600"], **options) as living:  # type: ignore[call-overload]
        try:
            for path in (cell / "data/postmaster.pid", cell / "run" / f"{SOCKET_NAME}.lock"):
                path.write_text(f"{living.pid}\n{cell / 'data'}\n0\n5432\n{cell / 'run'}\n\n0 0\nready   \n")
                own(path, cell)
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(cell / "run" / SOCKET_NAME))
            server = cells.server()
            server.start(time.monotonic())
            assert server.look(time.monotonic()).state is ServerState.STARTING, "what is stale says ready"
            await_state(server, ServerState.READY)
            assert living.poll() is None
        finally:
            living.kill()


def test_a_start_that_fails_says_why(cells: Cells, cell: Path) -> None:
    """The report of a server that ended by itself has its status and its last words."""
    server = cells.server(settings=CellSettings(extra={"shared_preload_libraries": "no_such_library"}))
    server.start(time.monotonic())
    report = await_state(server, ServerState.ENDED)
    assert report.status == 1
    assert "no_such_library" in report.log_tail
    with pytest.raises(CellError, match="cannot be started"):
        cells.server("missing").start(0.0)


def test_a_server_that_does_not_stop_is_killed(cells: Cells, cell: Path) -> None:
    """A server that takes no notice of a stop is told more firmly at each deadline, and killed after the last one."""
    server = cells.start()
    os.kill(server.pid, signal.SIGSTOP)
    server.stop(0.0)
    server.stop(1.0)
    assert server.look(servers.STOP_S_MAX - 1).state is ServerState.STOPPING
    assert server.look(servers.STOP_S_MAX).state is ServerState.STOPPING
    assert server.pid
    server.look(servers.STOP_S_MAX + servers.STOP_AT_ONCE_S_MAX)
    assert await_state(server, ServerState.ENDED).status == -signal.SIGKILL


def test_a_server_that_does_not_get_ready_is_stopped(cells: Cells, cell: Path) -> None:
    """A start has a deadline, since a hostile cell could take a place forever without ever being ready."""
    server = cells.server()
    server.start(0.0)
    os.kill(server.pid, signal.SIGSTOP)
    (cell / "data/postmaster.pid").unlink(missing_ok=True)
    assert server.look(servers.START_S_MAX - 1).state is ServerState.STARTING
    assert server.look(servers.START_S_MAX).state is ServerState.STOPPING


@pytest.fixture
def asleep(cells: Cells, cell: Path) -> Iterator[CellServer]:
    """A server that was started and stands still before it is ready, so that a test can write its files."""
    server = cells.server()
    server.start(time.monotonic())
    os.kill(server.pid, signal.SIGSTOP)
    (cell / "data/postmaster.pid").unlink(missing_ok=True)
    (cell / "run" / SOCKET_NAME).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(cell / "run" / SOCKET_NAME))
        yield server


STATUS = "\n" * 7 + "ready   \n"


def test_ready_is_read_from_ordinary_files_only(asleep: CellServer, cell: Path) -> None:
    """A pid file that is a link, a pipe or a directory, or far away, neither counts nor holds us up."""

    def find_state() -> ServerState:
        return asleep.look(time.monotonic()).state

    pid_file, elsewhere = cell / "data/postmaster.pid", cell / "elsewhere"
    elsewhere.write_text(STATUS)
    pid_file.symlink_to(elsewhere)
    assert find_state() is ServerState.STARTING
    pid_file.unlink()
    os.mkfifo(pid_file)
    assert find_state() is ServerState.STARTING
    pid_file.unlink()
    pid_file.mkdir()
    assert find_state() is ServerState.STARTING
    pid_file.rmdir()
    os.link(elsewhere, pid_file)
    assert find_state() is ServerState.STARTING
    pid_file.unlink()
    pid_file.write_text("x" * 2**20 + STATUS)
    assert find_state() is ServerState.STARTING
    pid_file.write_text(STATUS.replace("ready", "starting"))
    assert find_state() is ServerState.STARTING
    pid_file.write_text(STATUS)
    (cell / "data").rename(cell / "d")
    (cell / "data").symlink_to(cell / "d")
    assert find_state() is ServerState.STARTING
    (cell / "data").unlink()
    (cell / "d").rename(cell / "data")
    (cell / "run" / SOCKET_NAME).rename(cell / "run" / "s")
    assert find_state() is ServerState.STARTING
    (cell / "run" / SOCKET_NAME).symlink_to(cell / "run" / "s")
    assert find_state() is ServerState.STARTING
    (cell / "run" / "s").rename(cell / "run" / SOCKET_NAME)
    assert find_state() is ServerState.READY


@pytest.mark.parametrize("name", ["server.lock", "server.log", "data", "run"])
def test_a_cell_that_laid_a_link_is_not_started(cells: Cells, cell: Path, name: str) -> None:
    """Nothing is written or started through a link that a cell put in place of one of its files."""
    victim = cells.directory.path / "victim"
    victim.write_text("untouched")
    (cell / name).rename(cell / "old") if (cell / name).exists() else None
    (cell / name).symlink_to(victim)
    with pytest.raises(CellError):
        cells.server().start(0.0)
    assert victim.read_text() == "untouched"
    assert victim.stat().st_uid == os.geteuid()


@needs_root
def test_a_server_never_runs_as_root(cells: Cells, cell: Path) -> None:
    """A cell's directory that belongs to root, or to a user of the system, is refused."""
    for uid in (0, 65534):
        os.chown(cell, uid, uid)
        with pytest.raises(CellError, match="no cell's account"):
            cells.server().start(0.0)


def test_the_log_is_bounded(cells: Cells, cell: Path) -> None:
    """A log beyond its bound is emptied in place, and the server writes on at its new end."""
    server = cells.start()
    log = cell / "server.log"
    log.write_bytes(b"x" * servers.LOG_BYTES_MAX)
    server.look(time.monotonic())
    assert log.stat().st_size == servers.LOG_BYTES_MAX
    with log.open("ab") as file:
        file.write(b"x")
    server.look(time.monotonic())
    assert log.stat().st_size == 0
    with pytest.raises(psycopg.OperationalError):
        cells.connect(dbname="missing")
    said = log.read_bytes()
    assert b"missing" in said
    assert b"\0" not in said


def test_a_server_gets_nothing_of_ours_but_its_lock(cells: Cells, cell: Path) -> None:
    """A server inherits its own lock, and no lock of another cell's."""
    other = cells.make("b")
    cells.start("a")
    server = cells.start("b")
    held = {os.readlink(path) for path in Path(f"/proc/{server.pid}/fd").iterdir()}
    assert {path for path in held if path.endswith("server.lock")} == {str(other / "server.lock")}


@needs_whole_sandbox
@pytest.mark.parametrize("own_namespaces", [True, False])
def test_the_superuser_of_a_cell_reaches_no_other(cells: Cells, cell: Path, own_namespaces: bool) -> None:
    """With every right in its own engine a tenant reads and writes nothing of another cell, nor of the service."""
    other = cells.make("b")
    cells.start("a", CellSettings(own_namespaces=own_namespaces))
    (cells.directory.path / "secret").write_text("the service's")
    with cells.connect() as connection:
        for statement in (
            f"select pg_read_file('{other}/data/PG_VERSION')",
            f"select pg_ls_dir('{other}')",
            f"select pg_ls_dir('{cells.directory.cells}')",
            f"select pg_read_file('{cells.directory.path}/secret')",
            f"select pg_read_file('{cell}/server.log')",
            f"copy (select 1) to '{other}/data/base/1/1'",
            f"copy (select 1) to '{cell}/run/../mine'",
            "copy (select 1) to program 'true'",
        ):
            refusal = r"Permission denied|No such file|Read-only file system|could not execute command"
            with pytest.raises(psycopg.Error, match=refusal):
                connection.execute(statement.encode())
        connection.execute(f"copy (select 1) to '{cell}/data/mine'".encode())


@needs_whole_sandbox
def test_nothing_of_the_service_exists_in_a_cell_but_itself(cells: Cells, cell: Path) -> None:
    """A server finds its data and its socket where they are outside, and nothing else of the service."""
    cells.make("b")
    (cells.directory.path / "secret").write_text("the service's")
    server = cells.start()
    there = Path(f"/proc/{server.pid}/root{cells.directory.path}")
    assert sorted(path.relative_to(there).as_posix() for path in there.glob("*")) == ["cells"]
    assert sorted(path.relative_to(there).as_posix() for path in there.glob("*/*")) == ["cells/a"]
    assert sorted(path.name for path in (there / "cells/a").iterdir()) == ["data", "run"]
    assert (there / "cells/a/data").stat().st_ino == (cell / "data").stat().st_ino
    assert (there / "cells/a/run" / SOCKET_NAME).lstat().st_ino == (cell / "run" / SOCKET_NAME).lstat().st_ino
    assert sorted(os.listdir(cells.directory.cells)) == ["a", "b"]


def test_cells_are_copied_and_removed_beside_servers(cells: Cells, cell: Path) -> None:
    """Directories that lie in the namespace of a server, or did until just now, are renamed and removed."""
    cells.make("b")
    first, second = cells.start("a"), cells.start("b")
    stop(first)
    copy_cell(cells.directory, "a", "c")
    remove_cell(cells.directory, "a")
    assert sorted(os.listdir(cells.directory.cells)) == ["b", "c"]
    cells.start("c")
    assert cells.ask("select 1", "b") == 1
    assert cells.ask("select 1", "c") == 1
    second.kill()
    await_state(second, ServerState.ENDED)
    remove_cell(cells.directory, "b")
    assert os.listdir(cells.directory.cells) == ["c"]


@pytest.mark.parametrize("own_namespaces", [True, False])
def test_a_server_has_no_power_of_the_system(cells: Cells, cell: Path, own_namespaces: bool) -> None:
    """A server and its processes lead a session of their own, have no capability and get none, and end before us."""
    server = cells.start(settings=CellSettings(own_namespaces=own_namespaces))
    with cells.connect():
        helpers = children(server.pid)
        assert len(helpers) >= 4
        for pid in (server.pid, *helpers):
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            assert status["NoNewPrivs"] == "1"
            assert status["Groups"].strip() == ("" if os.geteuid() == 0 else " ".join(map(str, os.getgroups())))
            assert {int(status[kind], 16) for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
            assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == max(500, OUR_OOM_SCORE + 100)
    assert os.getsid(server.pid) == server.pid != os.getsid(0)


def test_settings_are_what_the_server_runs_with(cells: Cells, cell: Path) -> None:
    """The command line has the settings of a small server, which its superuser cannot change."""
    cells.start()
    with cells.connect() as connection:
        connection.execute("alter system set shared_buffers = '1GB'")
        rows: dict[str, str] = dict(
            connection.execute("select name, setting from pg_settings where source = 'command line'")
        )
        assert connection.execute("show shared_buffers").fetchone() == ("32MB",)
    wanted = make_cell_settings(CellSettings(), 18)
    assert {name.lower() for name in wanted} <= {name.lower() for name in rows}
    assert rows["dynamic_shared_memory_type"] == "mmap"
    assert rows["max_connections"] == "103"  # with those that are for superusers
    assert rows["wal_level"] == "logical"
    assert rows["fsync"] == "on"
    assert rows["listen_addresses"] == ""


def test_a_group_has_room_for_what_the_settings_allow() -> None:
    """The bound of a control group is never below what one process and the page cache may take, or all connections."""
    small = CellSettings(memory_mb=128, shared_buffers_mb=100, process_memory_mb=200, max_connections=50).group_bounds
    assert small.memory_bytes_max == 300 * 2**20
    assert CellSettings(memory_mb=1024).group_bounds.memory_bytes_max == 2**30
    assert small.processes_max > 50 + 3 + 8 + 3 + 10


def test_the_settings_that_are_ours() -> None:
    """A further setting cannot replace one of the service's."""
    with pytest.raises(CellError, match="fsync"):
        make_cell_settings(CellSettings(extra={"fsync": "off"}), 18)
    assert make_cell_settings(CellSettings(extra={"work_mem": "5MB"}), 18)["work_mem"] == "5MB"


def test_a_clone_cannot_be_made_while_its_source_starts(cells: Cells, cell: Path) -> None:
    """The lock of a cell that is copied holds its server."""
    lock = os.open(cell / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(CellError):
        copy_cell(cells.directory, "a", "b")
    assert cells.server().start(0.0) is ServerState.HELD
    os.close(lock)
    copy_cell(cells.directory, "a", "b")
