"""Child processes that end with the run, and what they use.

Each child has a process group of its own: the terminal's Ctrl-C reaches only the bench, which then ends every child
and what that child started.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

START_S = 30.0
STOP_S = 5.0
SAMPLE_S = 0.1
QUIET_S = 30.0
QUIET_SAMPLES = 2

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class NotStarted(Exception):
    """A server that ended, or that did not answer in time."""


def _end_with_parent() -> None:
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Child:
    """One program with its log. Constructing it starts nothing."""

    def __init__(self, command: list[str], home: Path, env: dict[str, str] | None = None) -> None:
        self.command = command
        self.home = home
        self.env = {**os.environ, **(env or {})}
        self.out = home / "out.log"
        self.err = home / "err.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.env,
                cwd=self.home,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509  # no other thread runs while a child is started
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def wait_for(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not ready():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = " ".join((self.err.read_text("utf-8", "replace") + self.out.read_text()).split())[-300:]
                raise NotStarted(f"did not start: {tail}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                pass  # The group is killed below.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # Everything of the group has ended already, as it should.
        self.process.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Memory:
    """Megabytes of resident memory: of the server's own processes, and of the PostgreSQL behind it.

    Of PostgreSQL's processes the private memory is added up, and the shared buffers counted once.
    """

    server: float
    engine: float

    @property
    def total(self) -> float:
        return self.server + self.engine


def memory_of(roots: list[int]) -> Memory:
    server = engine = shared = 0
    for pid in {pid for root in roots for pid in tree(root)}:
        try:
            comm = Path(f"/proc/{pid}/comm").read_text().strip()
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        except OSError:
            continue  # It has just ended.
        if "VmRSS" not in status:
            continue
        if comm == "postgres":
            engine += _kilobytes(status["RssAnon"])
            shared = max(shared, _kilobytes(status["RssShmem"]))
        else:
            server += _kilobytes(status["VmRSS"])
    return Memory(server / 1024, (engine + shared) / 1024)


def tree(pid: int) -> list[int]:
    """A process and everything below it."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # It has just ended.
    return found


def cpu_seconds(roots: list[int]) -> float:
    """What the processes have used so far, with those of their children that have ended."""
    ticks = 0
    for pid in {pid for root in roots for pid in tree(root)}:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # It has just ended; then its parent has its time.
        ticks += sum(int(ticks) for ticks in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def machine_busy() -> float:
    """The share of the machine's cores that others use, looked at for a second."""

    def jiffies() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4], sum(fields)

    busy, total = jiffies()
    time.sleep(1)
    busy_after, total_after = jiffies()
    return (busy_after - busy) / max(1, total_after - total)


def wait_until_quiet(roots: list[int]) -> bool:
    """Until a server has nothing left to do of what it was asked before; False if that takes too long.

    Several of them go on with requests whose clients have left.
    """
    deadline = time.monotonic() + QUIET_S
    used = cpu_seconds(roots)
    quiet = 0
    while quiet < QUIET_SAMPLES:
        if time.monotonic() > deadline:
            return False
        time.sleep(SAMPLE_S)
        before, used = used, cpu_seconds(roots)
        quiet = quiet + 1 if used - before <= SAMPLE_S / 5 else 0
    return True


def _kilobytes(text: str) -> int:
    return int(text.split()[0])


class MemoryPeak:
    """The most memory that a server had between enter and exit, looked at ten times a second."""

    def __init__(self, roots: list[int]) -> None:
        self.roots = roots
        self.peak = memory_of(roots)
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.peak = max(self.peak, memory_of(self.roots), key=lambda memory: memory.total)

    def __enter__(self) -> "MemoryPeak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
