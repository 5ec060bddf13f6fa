"""Control groups of servers: real groups of the kernel's, with the controllers that it has free."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cells import Cells, await_state, stop
from tests.processes import children
from tests.servers import needs_linux, needs_root
from tests.waiting import WAIT_S, eventually
from tuplegate.engine.bundled.sandbox import control_groups
from tuplegate.engine.bundled.sandbox.control_groups import CONTROLLERS, ControlGroups, GroupBounds, find_gaps
from tuplegate.engine.cells.server import CellSettings, ServerState


def find_top() -> Path | None:
    """Return the topmost control group of version 2, if one is mounted."""
    mounts = Path("/proc/self/mountinfo")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    return next((Path(line.split()[4]) for line in lines if " - cgroup2 " in line), None)


TOP = find_top()
FREE = () if TOP is None else tuple((TOP / "cgroup.controllers").read_text().split())
NOBODY = 65534

pytestmark = [needs_linux, needs_root, pytest.mark.skipif(TOP is None, reason="no control groups of version 2 here")]


def list_below(group: Path) -> list[Path]:
    """Return the groups below a group, the lowest first."""
    return sorted((Path(path) for path, _, _ in os.walk(group)), key=lambda path: -len(path.parts))


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of one's own, as a service manager would make it."""
    assert TOP is not None
    # Other processes of these tests would take away the controllers that this one has given.
    lock = os.open(TOP, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    made = TOP / f"tuplegate-test-{os.getpid()}"
    made.mkdir()
    shared = TOP / "cgroup.subtree_control"
    added = set(FREE) - set(shared.read_text().split())
    shared.write_text(" ".join(f"+{name}" for name in added))
    yield made
    remove_group(made)
    shared.write_text(" ".join(f"-{name}" for name in added))
    os.close(lock)


def remove_group(made: Path) -> None:
    with suppress(OSError):
        (made / "cgroup.kill").write_text("1")
    eventually(lambda: "populated 0" in (made / "cgroup.events").read_text())
    for path in list_below(made):
        path.rmdir()


@contextmanager
def member_of(group: Path) -> Iterator[int]:
    """Start a process in the group."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            (group / "cgroup.procs").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()


def list_processes(group: Path) -> set[int]:
    return set(map(int, (group / "cgroup.procs").read_text().split()))


@pytest.mark.parametrize("own_namespaces", [True, False])
def test_a_server_is_in_its_group_with_all_its_processes(cells: Cells, group: Path, own_namespaces: bool) -> None:
    """All processes of a server are in its group, nobody else is, and the group is gone when it has ended."""
    cells.make()
    server = cells.start(settings=CellSettings(groups=ControlGroups(group, ()), own_namespaces=own_namespaces))
    with cells.connect():
        assert list_processes(group / "cell-a") == {server.pid, *children(server.pid)}
    stop(server)
    assert [path.name for path in list_below(group)] == [group.name]


def test_what_a_killed_server_leaves_is_killed_with_its_group(cells: Cells, group: Path) -> None:
    """A backend that was stopped and outlives its server does not keep the next one waiting."""
    cells.make()
    settings = CellSettings(groups=ControlGroups(group, ()), own_namespaces=False)
    server = cells.start(settings=settings)
    with cells.connect() as connection:
        os.kill(connection.info.backend_pid, signal.SIGSTOP)
        server.kill()
        await_state(server, ServerState.ENDED)
    begun = time.monotonic()
    eventually(lambda: server.start(begun) is ServerState.STARTING)
    await_state(server, ServerState.READY)
    assert list_processes(group / "cell-a") == {server.pid, *children(server.pid)}


SERVICE = """
import os, sys
from pathlib import Path
from tuplegate.engine.bundled.sandbox import control_groups
controllers = tuple(sys.argv[2].split())
opened = control_groups.open_groups(Path(sys.argv[1]), controllers)
print(opened is not None, Path("/proc/self/cgroup").read_text().split("0::")[1].split("/")[-1].strip())
print((Path(sys.argv[1]) / "cgroup.subtree_control").read_text().split() == sorted(controllers))
if opened:
    again = control_groups.open_groups(Path(sys.argv[1]), controllers)
    made = opened.make("x", control_groups.GroupBounds(2**28, 50))
    print(again == opened, made.name, made.is_dir())
    opened.remove("x")
    print(made.is_dir())
"""


def run_service(group: Path, controllers: str, user: int = 0, python: str = sys.executable) -> list[str]:
    """Run the script as a service that was started in the group."""

    def become_service() -> None:
        (group / "cgroup.procs").write_text("0")
        os.setresuid(user, user, user)

    paths = [str(Path(control_groups.__file__).parents[4])] if user else [path for path in sys.path if path]
    done = subprocess.run(
        [python, "-c", SERVICE, str(group), controllers],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        preexec_fn=become_service,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("controllers", ["", *FREE])
def test_the_service_moves_into_a_leaf(group: Path, controllers: str) -> None:
    """It gives the controllers to groups beside its own, and opening them again finds it there."""
    assert run_service(group, controllers) == ["True tuplegate", "True", "True cell-x True", "False"]


@pytest.mark.skipif(not FREE, reason="no controller is free")
def test_a_group_with_others_in_it_is_left_as_it_was(group: Path) -> None:
    """The kernel gives no controllers to a group with processes: the service moves back then."""
    with member_of(group):
        assert run_service(group, FREE[0]) == [f"False {group.name}", "False"]
        assert [path.name for path in list_below(group)] == [group.name]


def test_a_group_that_was_marked_as_given_is_taken_whole(group: Path) -> None:
    """What was started with the service moves along, where the service manager says that the group is the service's."""
    os.setxattr(group, "trusted.delegate", b"1")
    with member_of(group) as other:
        assert run_service(group, " ".join(FREE[:1]))[0] == "True tuplegate"
        assert list_processes(group / "tuplegate") == {other}


def test_an_ordinary_user_divides_what_was_given_to_it(group: Path) -> None:
    """A service manager gives the directory and two of its files."""
    for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
        os.chown(path, NOBODY, NOBODY)
    python = next(filter(is_reachable, (Path(sys.executable).resolve(), Path("/usr/bin/python3"))), None)
    if python is None or not is_reachable(Path(control_groups.__file__)):
        pytest.skip("an ordinary user reaches no Python or not these sources")
    assert run_service(group, " ".join(FREE[:1]), NOBODY, str(python))[0] == "True tuplegate"


def is_reachable(path: Path) -> bool:
    """Return whether everybody may read a file, and pass through all directories above."""
    return path.exists() and all(there.stat().st_mode & 0o001 for there in path.parents)


@pytest.mark.skipif("pids" not in FREE, reason="the controller of processes is not free")
def test_processes_are_bounded_together(group: Path) -> None:
    """A member cannot fork beyond the bound of its group."""
    (group / "cgroup.subtree_control").write_text("+pids")
    made = ControlGroups(group, ("pids",)).make("x", GroupBounds(2**28, 5))
    script = "import os\nfor n in range(9):\n  if os.fork() == 0: os.execv('/bin/sleep', ['sleep', '600'])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        stderr=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
        check=False,
        preexec_fn=lambda: (made / "cgroup.procs").write_text("0") and None,
    )
    assert "BlockingIOError" in done.stderr
    assert len(list_processes(made)) == 4


@pytest.mark.skipif("memory" not in FREE, reason="the controller of memory is not free")
def test_memory_is_bounded_in_sum(group: Path) -> None:
    """The kernel ends a member where all of a group together take more than its bound."""
    (group / "cgroup.subtree_control").write_text("+memory")
    made = ControlGroups(group, ("memory",)).make("x", GroupBounds(2**27, 5))
    script = "import os\nos.fork()\nheld = b'x' * (100 << 20)\nos.wait()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        timeout=WAIT_S,
        check=False,
        preexec_fn=lambda: (made / "cgroup.procs").write_text("0") and None,
    )
    assert done.returncode != 0
    assert "oom_kill 0" not in (made / "memory.events").read_text()


@pytest.mark.parametrize(("marked", "is_leaf"), [(True, False), (True, True), (False, False)])
def test_finds_what_was_given(group: Path, monkeypatch: pytest.MonkeyPatch, marked: bool, is_leaf: bool) -> None:
    """Root takes only what it was given: marked, and with all controllers; from within its leaf, too."""
    monkeypatch.setattr(control_groups, "CONTROLLERS", ())
    if marked:
        os.setxattr(group, "trusted.delegate", b"1")
    member = group / "tuplegate" if is_leaf else group
    member.mkdir(exist_ok=True)
    with member_of(member) as process:
        # Not marked, it is the topmost group that counts, where this group is right below it.
        assert control_groups.find_delegated(process) == (group if marked else TOP)
        assert (find_gaps(process) == []) == is_leaf


@pytest.mark.skipif(set(CONTROLLERS) <= set(FREE), reason="all controllers are free")
def test_a_gap_is_told_where_controllers_are_missing() -> None:
    [gap] = find_gaps()
    assert gap.endswith("one database can take memory and processors from all")
