"""The sandbox of a server's processes: nothing inside reaches a neighbour, and a server lacks nothing in it."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.engine import intruder
from tests.processes import alive
from tests.servers import Open, ask, connect
from tests.waiting import WAIT_S, eventually
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.bundled.sandbox.process import StartOptions, start
from tuplegate.engine.bundled.sandbox.walls import Sandbox, find_gaps

pytestmark = pytest.mark.skipif(bool(find_gaps()), reason="the kernel has no whole sandbox: " + "; ".join(find_gaps()))

OURSELVES = Account(os.geteuid(), os.getegid(), switch=False)
PYTHON = Path(sys.executable).resolve()
PYTHON_READS = (Path(sys.base_prefix), Path(sys.prefix), Path("/etc/ssl"))
SHARED_MEMORY_KEY = 0x7475706C
_NEW_SHARED_MEMORY = 0o1600


class Inside:
    """A program in a sandbox of its own, with a neighbour beside it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.data, self.sockets, self.there = (place / name for name in ("data", "run", "there"))
        for directory in (self.data, self.sockets, self.there):
            directory.mkdir()
        (self.there / "secret").write_text("a secret")
        (self.there / "secret").chmod(0o640)
        readable = (Path(intruder.__file__).parent, *PYTHON_READS)
        self.sandbox = Sandbox((self.data,), (self.sockets,), (PYTHON,), readable, hidden=(place,))

    def start(self, *command: str, own_namespaces: bool = True, inherited: tuple[int, ...] = ()) -> int:
        with (self.place / "said").open("wb") as said:
            options = StartOptions(OURSELVES, self.data, said.fileno(), inherited, own_namespaces=own_namespaces)
            return start([sys.executable, "-I", *command], self.sandbox, options)

    @property
    def said(self) -> str:
        said = self.place / "said"
        return said.read_text() if said.exists() else ""

    def run(self, *command: str, own_namespaces: bool = True) -> str:
        pid = self.start(*command, own_namespaces=own_namespaces)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, self.said
        return self.said


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    return Inside(tmp_path)


@pytest.fixture
def neighbour(inside: Inside) -> Iterator[list[str]]:
    """A neighbour of the same user with sockets, shared memory and a process; the arguments that tell where."""
    with ExitStack() as stack:
        path = str(inside.there / "socket")
        addresses: tuple[str | tuple[str, int], ...] = (path, "\0" + inside.there.name, ("127.0.0.1", 0))
        families = (socket.AF_UNIX, socket.AF_UNIX, socket.AF_INET)
        listening = [stack.enter_context(socket.socket(family)) for family in families]
        for sock, address in zip(listening, addresses, strict=True):
            sock.bind(address)
            sock.listen()
        process = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(process.kill)
        shared = intruder.call("shmget", SHARED_MEMORY_KEY, 4096, _NEW_SHARED_MEMORY)
        stack.callback(intruder.LIBC.shmctl, shared, 0, None)
        port = listening[2].getsockname()[1]
        yield [str(inside.there), path, str(process.pid), str(port), str(SHARED_MEMORY_KEY)]


def read_answers(said: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in said.splitlines())


@pytest.mark.parametrize("own_namespaces", [True, False])
def test_nothing_inside_reaches_a_neighbour(inside: Inside, neighbour: list[str], own_namespaces: bool) -> None:
    """A program of any kind reaches no file, socket or process outside, with namespaces of its own and without."""
    before = (inside.there / "secret").stat()
    said = inside.run(intruder.__file__, *neighbour, str(inside.sockets), own_namespaces=own_namespaces)
    answers = read_answers(said)
    needed = intruder.list_needs(inside.sockets)
    forbidden = intruder.list_attempts(inside.there, neighbour[1], 0, 0, 0)
    hidden, glances = intruder.list_hidden(inside.there), intruder.list_glances(inside.there)
    forbidden |= hidden
    assert answers.keys() == needed.keys() | forbidden.keys() | glances.keys()
    assert {name: answers[name] for name in needed if answers[name] != "done"} == {}
    reached = {name for name in forbidden if answers[name] == "done"}
    # System V's shared memory is told apart by namespaces alone.
    assert reached == (set() if own_namespaces else {"find shared memory"})
    # Landlock opens nothing. It lets paths be asked for, which are not there in a namespace of mounts.
    assert {answers[name] for name in glances} == ({"ENOENT"} if own_namespaces else {"done"})
    assert ({answers[name] for name in hidden} == {"ENOENT"}) == own_namespaces
    after = (inside.there / "secret").stat()
    assert (inside.there / "secret").read_text() == "a secret"
    assert (before.st_mode, before.st_mtime, before.st_ino) == (after.st_mode, after.st_mtime, after.st_ino)
    assert sorted(path.name for path in inside.there.iterdir()) == ["secret", "socket"]
    assert alive(int(neighbour[2]))


def test_the_neighbour_is_there_to_be_reached(inside: Inside, neighbour: list[str]) -> None:
    """Outside of a sandbox the same attempts succeed, so that their refusal inside says something."""
    forbidden = intruder.list_attempts(inside.there, neighbour[1], int(neighbour[2]), int(neighbour[3]), 0)
    for name in (
        "read a file",
        "age a file",
        "connect to a socket",
        "connect over TCP",
        "send over UDP",
        "run a shell",
    ):
        assert intruder.attempt(forbidden[name]) == "done", name
    for name in ("connect to an abstract socket", "see a process", "limit a process"):
        assert intruder.attempt(forbidden[name]) == "done", name
    assert intruder.attempt(lambda: intruder.call("shmget", SHARED_MEMORY_KEY, 0, 0)) == "done"


def has_ended(pipe: int) -> bool:
    """Return whether all processes that have the other end of the pipe end in time; close it."""
    with open(pipe, "rb", buffering=0) as reading:
        return bool(select.select([reading], [], [], WAIT_S)[0]) and reading.read(1) == b""


def test_killing_it_ends_everything_that_it_started(inside: Inside) -> None:
    """A grandchild that has left the session and ignores signals ends with process 1 of the namespace."""
    script = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        print("hidden", flush=True)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""
    read, write = os.pipe()
    pid = inside.start("-c", script, inherited=(write,))
    os.close(write)
    try:
        eventually(lambda: "hidden" in inside.said)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert has_ended(read), "a process that inherited the pipe still runs"


STAYS = """
import ctypes, time
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
print("stays", flush=True)
time.sleep(600)
"""


def test_it_ends_with_whoever_started_it(inside: Inside) -> None:
    """A program in a sandbox does not outlive the process that started it, whatever it asks the kernel for."""
    read, write = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        try:
            inside.start("-c", STAYS, inherited=(write,))
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(write)
    try:
        eventually(lambda: "stays" in inside.said)
    finally:
        os.kill(supervisor, signal.SIGKILL)
        os.waitpid(supervisor, 0)
    assert has_ended(read), "the program still runs"


REFUSED = """
import ctypes, os, sys
from pathlib import Path
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.bundled.sandbox import namespaces
from tuplegate.engine.bundled.sandbox.process import StartOptions, start
from tuplegate.engine.bundled.sandbox.walls import Sandbox

kind, place, data, program = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
account = Account(os.geteuid(), os.getegid(), False)
if kind != "nothing":
    assert ctypes.CDLL(None).unshare(namespaces.Namespaces.USER) == 0
    namespaces.map_user(account)
    Path("/proc/sys/user", kind).write_text("0")
print("; ".join(namespaces.find_gaps()).partition(" (")[0])
sandbox = Sandbox((data,), (), (Path(program).resolve().parent,), hidden=(place,))
pid = start([program, "600"], sandbox, StartOptions(account, data, 1))
print(*sorted(path.name for path in Path("/proc", str(pid), "root", str(place)[1:]).iterdir()))
os.kill(pid, 9)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(
    ("refused", "said", "seen"),
    [
        ("nothing", "", "data"),
        ("max_mnt_namespaces", "no namespaces of mounts", "data run there"),
        ("max_pid_namespaces", "no namespaces", "data run there"),
    ],
)
def test_it_starts_without_what_is_refused(inside: Inside, refused: str, said: str, seen: str) -> None:
    """What a system refuses is told, and a program starts all the same, with what there is."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    given = (refused, str(inside.place), str(inside.data), shutil.which("sleep") or "sleep")
    command = [sys.executable, "-c", REFUSED, *given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [said, seen]


POWERS = """
import os, sys
from pathlib import Path
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.bundled.sandbox.process import StartOptions, start
from tuplegate.engine.bundled.sandbox.walls import Sandbox

place, program = Path(sys.argv[1]), sys.argv[2]
Path("/proc/self/oom_score_adj").write_text(sys.argv[3])
options = StartOptions(Account(os.geteuid(), os.getegid(), False), place, 1, own_namespaces=False, oom_score=500)
pid = start([program, "600"], Sandbox((place,), (), (Path(program).resolve().parent,)), options)
status = Path("/proc", str(pid), "status").read_text().splitlines()
print([line.split()[1] for line in status if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNew"))])
print(Path("/proc", str(pid), "oom_score_adj").read_text().strip())
os.kill(pid, 9)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(("ours", "its"), [(0, "500"), (450, "550"), (950, "1000")])
def test_the_powers_and_the_rank_of_the_service_stay_outside(inside: Inside, ours: int, its: str) -> None:
    """No capability of whoever starts a program is left to it, and the kernel ends it before them."""
    ours = max(ours, int(Path("/proc/self/oom_score_adj").read_text()))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", POWERS, str(inside.data), shutil.which("sleep") or "sleep", str(ours)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [str(["0" * 16] * 4 + ["1"]), its]


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.bundled.sandbox.process import StartOptions, start
from tuplegate.engine.bundled.sandbox.walls import Sandbox

class Interrupted(Exception):
    pass

def interrupt(number, frame):
    if os.getpid() != ourselves:
        print("a handler runs in the child", flush=True)
        os._exit(1)
    raise Interrupted

ourselves, place = os.getpid(), Path(sys.argv[1])
options = StartOptions(Account(os.geteuid(), os.getegid(), False), place, 1)
signal.signal(signal.SIGALRM, interrupt)
for number in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00005 * (1 + number % 40))
        try:
            start(["/no-such-program"], Sandbox((), (), ()), options)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (Interrupted, FileNotFoundError):
        pass
print("done")
"""


def test_a_signal_meanwhile_is_handled_by_the_supervisor_alone(tmp_path: Path) -> None:
    """No handler of the supervisor's runs in the child, which would go on in the supervisor's code."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


OWN_THINGS = """
import os
def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
print([descriptor for descriptor in range(256) if is_open(descriptor)])
print("TUPLEGATE_SECRET" in os.environ, os.getuid(), os.getsid(0) == os.getpid())
"""


def test_it_gets_nothing_of_the_supervisor(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors and variables stay outside. The user is the same, and the session is its own."""
    monkeypatch.setenv("TUPLEGATE_SECRET", "secret")
    with (inside.there / "secret").open() as secret:
        os.set_inheritable(secret.fileno(), True)
        assert inside.run("-c", OWN_THINGS).splitlines() == ["[0, 1, 2]", f"False {os.getuid()} True"]


def list_children() -> set[str]:
    """Return the numbers of this process's children; other tests may have left some to others."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def test_a_program_that_cannot_start_is_told(inside: Inside) -> None:
    """An error of any kind before the program runs is raised, and no child or descriptor is left."""
    children, descriptors = list_children(), os.listdir("/proc/self/fd")
    with (inside.place / "said").open("wb") as said:
        options = StartOptions(OURSELVES, inside.data, said.fileno())
        with pytest.raises(OSError, match=r"no-such-program could not be started: .*No such file"):
            start(["/no-such-program"], inside.sandbox, options)
        with pytest.raises(OSError, match=r"could not be started: embedded null byte"):
            start([sys.executable, "a\0b"], inside.sandbox, options)
    assert list_children() <= children
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors)


ESCAPES = (
    "select pg_read_file('/etc/hostname')",
    "select pg_ls_dir('/proc')",
    "copy (select 1) to '/tmp/tuplegate-intruder'",
    "copy (select 1) to program 'true'",
    "select lo_export(7, '/var/tmp/tuplegate-intruder')",
    "load '/etc/hostname'",
)


def test_the_superuser_of_the_bundled_server_stays_inside(started: Open) -> None:
    """With every right in the engine there is no way to the files and programs of the machine."""
    server = started()
    with connect(server) as connection:
        connection.execute("select lo_from_bytea(7, 'x')")
        for statement in ESCAPES:
            with pytest.raises(psycopg.Error, match=r"Permission denied|could not execute command"):
                connection.execute(statement.encode())
    assert ask(server, "select count(*) from pg_ls_waldir()") != 0


def test_the_bundled_server_works_inside(started: Open) -> None:
    """Parallel queries, large sorts, vacuum, checkpoints and extensions need nothing from outside."""
    server = started()
    with connect(server) as connection:
        for statement in (
            "create table t as select g, md5(g::text) as m from generate_series(1, 200000) g",
            "set min_parallel_table_scan_size = 0",
            "set parallel_setup_cost = 0",
            "set work_mem = '64kB'",
            "select count(*) from (select m from t order by m) s",
            "vacuum full t",
            "create extension vector",
            "select '[1,2]'::vector",
            "select now() at time zone 'Europe/Berlin'",
            "checkpoint",
        ):
            connection.execute(statement.encode())
        plan = connection.execute("explain analyze select count(*) from t where m like 'a%'").fetchall()
    assert "Workers Launched" in str(plan)
