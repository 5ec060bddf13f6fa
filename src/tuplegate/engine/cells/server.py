"""One PostgreSQL server of a cell: its settings; start it, look at it, stop it, all without waiting.

Contract: one CellServer runs one server at a time. No method of it blocks for longer than it takes to start a process;
the caller looks at the server again and again, with the current time. The server's processes hold a lock on the cell's
`server.lock`, so no second server starts on the same data, not even after the supervisor was killed.

The cell can write all of its directory, so a lie there must harm nobody but the cell. A false "ready", for example,
leads workers to a server of the cell's own that does not answer.
"""

import os
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from tuplegate.engine.bundled.binaries import Binaries, run_program
from tuplegate.engine.bundled.data_directory import SOCKET_NAME
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.bundled.sandbox.control_groups import ControlGroups, GroupBounds
from tuplegate.engine.bundled.sandbox.process import StartOptions, start
from tuplegate.engine.bundled.sandbox.walls import Sandbox
from tuplegate.engine.cells.layout import (
    DATA,
    LOG,
    RUN,
    CellError,
    find_account,
    find_service,
    lock_server,
    make_file,
    open_directory,
    read_file,
)

SUPERUSER = "tuplegate"
WAL_MB_MAX = 256
"""How much log the engine keeps, about, before it makes a checkpoint."""
MAPPED_BESIDES_MB = 256
"""For programs, libraries, and statistics of all tables, which grow with their number."""
NOTIFY_PAGES_PER_MB = 2 * 128
"""Pages of 8 KiB in the queue of notifications, for each MiB that a process may take: one transaction keeps its own
notifications in memory, so it can fill half of the queue at most."""
_SUPERUSER_CONNECTIONS = 3
_WORKERS, _VACUUM_WORKERS, _SENDERS = 8, 3, 10
_PROCESSES_BESIDES = 64
"""The server's own, those that read and write files for others, and connections that it turns away."""
LOG_BYTES_MAX = 2**20
LOG_TAIL_BYTES = 2000
HELD_S_MAX = 30.0
HELD_KINDLY_S = 1.0
"""Processes of an earlier server end by themselves when they notice that it is gone. Busy ones do not look, and are
killed after this time."""
START_S_MAX = 900.0
"""A server that crashed replays its log before it is ready."""
STOP_S_MAX = 10.0
"""The time for statements to end; then the server ends its processes as in a crash."""
STOP_AT_ONCE_S_MAX = 6.0
"""PostgreSQL gives its processes 5 s before it kills them."""

_PID_FILE = "postmaster.pid"
_PID_FILE_BYTES_MAX = 1024
_STATUS_LINE = 7
_READY = b"ready"
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class CellSettings:
    """The operator's choices for all servers."""

    max_connections: int = 100
    max_prepared_transactions: int = 500
    shared_buffers_mb: int = 32
    process_memory_mb: int = 512
    mapped_mb: int | None = None
    temp_mb: int = 2048
    memory_mb: int = 2048
    groups: ControlGroups | None = None
    own_namespaces: bool = True
    oom_score: int = 500
    """The kernel ends a server of a tenant before the service, where memory is short."""
    extensions: Path | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def group_bounds(self) -> GroupBounds:
        """Return the bounds on all processes of a server together, for its control group."""
        memory_mb = max(self.memory_mb, self.shared_buffers_mb + self.process_memory_mb)
        backends = self.max_connections + _SUPERUSER_CONNECTIONS + _WORKERS + _VACUUM_WORKERS + _SENDERS
        return GroupBounds(memory_mb * 2**20, backends + _PROCESSES_BESIDES)


def make_cell_settings(settings: CellSettings, major: int) -> dict[str, str]:
    """Return the settings of a server, for its command line, where its superuser cannot override them."""
    values = {
        "listen_addresses": "",
        "unix_socket_permissions": "0700",
        # Nobody but whoever looks after it logs in as superuser: what is kept for that comes on top.
        "max_connections": str(settings.max_connections + _SUPERUSER_CONNECTIONS),
        "superuser_reserved_connections": str(_SUPERUSER_CONNECTIONS),
        "shared_buffers": f"{settings.shared_buffers_mb}MB",
        "huge_pages": "off",
        "max_worker_processes": str(_WORKERS),
        "max_wal_senders": str(_SENDERS),
        # Each would be a process that waits.
        "max_logical_replication_workers": "0",
        # Sizes the pool of serializable transactions: too small a pool lets write skew commit.
        "max_prepared_transactions": str(settings.max_prepared_transactions),
        # How long the engine remembers what became of a transaction: a day of 17,000 writes a second.
        "autovacuum_freeze_max_age": "1500000000",
        # These size tables by the number of connections and prepared transactions together, of which there can be many
        # and hardly ever are: the tables are three times as large as PostgreSQL's own defaults make them.
        "max_locks_per_transaction": "16",
        "max_pred_locks_per_transaction": "16",
        # By default this is half of the last one. It is more, so that fewer transactions conflict for no reason.
        "max_pred_locks_per_relation": "128",
        "temp_file_limit": f"{settings.temp_mb}MB",
        "default_transaction_isolation": "serializable",
        # A deadlock is a conflict that the service tries again; the default would let everybody behind it wait for 1 s.
        "deadlock_timeout": "20ms",
        "fsync": "on",
        "synchronous_commit": "on",
        # So that databases can move to another engine while they are in use: see postgres/following.py.
        "wal_level": "logical",
        "autovacuum": "on",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "client_connection_check_interval": "1000",
        "idle_in_transaction_session_timeout": "0",
        "cursor_tuple_fraction": "1.0",
        "jit": "off",
        "password_encryption": "scram-sha-256",
        # Statements carry literals, and a tenant can RAISE LOG without end.
        "log_min_messages": "fatal",
        "log_min_error_statement": "panic",
        "log_destination": "stderr",
        "logging_collector": "off",
        "lc_messages": "C",
        "dynamic_shared_memory_type": "mmap",  # other types share a directory, or numbers, with other servers
        # After a crash: one call for the file system, not one for each file.
        "recovery_init_sync_method": "syncfs",
        # What a cell keeps of its log counts for its size.
        "min_wal_size": "32MB",
        "max_wal_size": f"{WAL_MB_MAX}MB",
    }
    if major >= 17:
        # The queue of notifications is in no database's size. The default is 8 GiB.
        values["max_notify_queue_pages"] = str(settings.process_memory_mb * NOTIFY_PAGES_PER_MB)
    if major >= 18:
        values["io_method"] = "sync"
        values["autovacuum_worker_slots"] = str(_VACUUM_WORKERS)
        if settings.extensions is not None:
            values["extension_control_path"] = f"{settings.extensions}:$system"
    if reserved := sorted(values.keys() & settings.extra.keys()):
        raise CellError(f"the service sets {', '.join(reserved)} of cells itself: remove it from their settings")
    return values | dict(settings.extra)


class ServerState(Enum):
    """The state of a cell's server, as its CellServer sees it."""

    DOWN = "down"
    HELD = "held"
    """Processes of an earlier server of the cell still run, so no other can be started."""
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The state of a server. An ended server has an exit status, and the last lines of its log."""

    state: ServerState
    status: int = 0
    log_tail: str = ""


def bound_mapped_memory(settings: CellSettings, programs: Binaries, template: Path) -> CellSettings:
    """Return the settings with a bound on the memory that a process may map: the memory that all processes of a cell
    share, its own, and as much again for parallel queries, whose workers share memory that belongs to no process.

    The programs compute the shared memory, in a cell without a server. Raises BundledEngineError and OSError.
    """
    with open_directory(template) as cell:
        account = find_account(cell)
        _clear_stale_files(cell)
    question = [*_make_command(template, programs, settings), "-C", "shared_memory_size"]
    said = run_program(question, template, account, _make_sandbox(template, programs, settings))
    shared_mb = int(said.split()[-1])
    return replace(settings, mapped_mb=shared_mb + 2 * settings.process_memory_mb + MAPPED_BESIDES_MB)


def _make_command(cell: Path, programs: Binaries, settings: CellSettings) -> list[str]:
    command = [str(programs.path / "postgres"), "-D", str(cell / DATA), "-k", str(cell / RUN), "-p", "5432"]
    for name, value in make_cell_settings(settings, programs.major).items():
        command += ["-c", f"{name}={value}"]
    return command


def _make_sandbox(cell: Path, programs: Binaries, settings: CellSettings) -> Sandbox:
    extensions = () if settings.extensions is None else (settings.extensions,)
    readable = (*programs.readable, *extensions)
    return Sandbox((cell / DATA,), (cell / RUN,), (programs.path,), readable, hidden=(find_service(cell),))


class CellServer:
    """The server of one cell. It keeps the process id, the log and the deadline of the current step."""

    def __init__(self, cell: Path, programs: Binaries, settings: CellSettings) -> None:
        self._cell = cell
        self._programs = programs
        self._settings = settings
        self._state = ServerState.DOWN
        self._pid = 0
        self._log = -1
        self._step_ends_at = 0.0
        self._held_since: float | None = None
        self._stop_signals: list[tuple[signal.Signals, float]] = []

    @property
    def pid(self) -> int:
        """The process id of the server, which is our child; 0 while none runs."""
        return self._pid

    @property
    def cell(self) -> Path:
        return self._cell

    def start(self, now: float) -> ServerState:
        """Start the server and return STARTING, or return HELD: then the caller tries again at its next look.

        Raises CellError if the server cannot be started, or has been held for too long.
        """
        if self._pid:
            raise CellError(f"{self._cell}: its server runs already")
        try:
            with open_directory(self._cell) as cell:
                account = find_account(cell)
                lock = lock_server(cell, account)
                if lock is None:
                    return self._note_held(account, now)
                try:
                    _clear_stale_files(cell)
                    self._spawn(cell, account, lock)
                finally:
                    os.close(lock)
        except (OSError, CellError) as exc:
            self._forget()
            raise CellError(f"{self._cell}: its server cannot be started: {exc}") from exc
        self._held_since = None
        self._state = ServerState.STARTING
        self._step_ends_at = now + START_S_MAX
        return self._state

    def look(self, now: float) -> ServerReport:
        """Return the server's state. Keep its log within the bound, and stop a server whose current step takes too
        long."""
        if not self._pid:
            return ServerReport(self._state)
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            report = ServerReport(ServerState.ENDED, os.waitstatus_to_exitcode(status), self._read_log_tail())
            self._forget()
            return report
        self._bound_log()
        if self._state is ServerState.STARTING and is_ready(self._cell):
            self._state = ServerState.READY
        elif self._state is not ServerState.READY and now >= self._step_ends_at:
            self.stop(now)
        return ServerReport(self._state)

    def stop(self, now: float) -> None:
        """Tell the server to stop. If it does not, `look` sends stronger signals, and in the end kills it."""
        if not self._pid:
            self._state = ServerState.DOWN
            return
        if self._state is not ServerState.STOPPING:
            self._state = ServerState.STOPPING
            self._stop_signals = [(signal.SIGQUIT, STOP_AT_ONCE_S_MAX), (signal.SIGINT, STOP_S_MAX)]
        elif now < self._step_ends_at:
            return
        number, bound_s = self._stop_signals.pop() if self._stop_signals else (signal.SIGKILL, 1.0)
        self._step_ends_at = now + bound_s
        os.kill(self._pid, number)

    def kill(self) -> None:
        """Kill the server at once; `look` says when it has ended. Its data are as after a crash."""
        if self._pid:
            self._state = ServerState.STOPPING
            self._stop_signals.clear()
            os.kill(self._pid, signal.SIGKILL)

    def _spawn(self, cell: int, account: Account, lock: int) -> None:
        self._log = make_file(LOG, os.O_RDWR | os.O_APPEND, cell, account)
        self._bound_log()
        groups = self._settings.groups
        options = StartOptions(
            account,
            self._cell / DATA,
            self._log,
            (lock,),
            process_bytes_max=_to_bytes(self._settings.process_memory_mb),
            mapped_bytes_max=_to_bytes(self._settings.mapped_mb),
            own_namespaces=self._settings.own_namespaces,
            group=None if groups is None else groups.make(self._cell.name, self._settings.group_bounds),
            oom_score=self._settings.oom_score,
        )
        command = _make_command(self._cell, self._programs, self._settings)
        self._pid = start(command, _make_sandbox(self._cell, self._programs, self._settings), options)

    def _note_held(self, account: Account, now: float) -> ServerState:
        if self._held_since is None:
            self._held_since = now
        held_s = now - self._held_since
        if held_s >= HELD_S_MAX:
            raise CellError("processes of an earlier server do not end")
        if held_s >= HELD_KINDLY_S:
            _kill_processes(account, self._cell / DATA)
        self._state = ServerState.HELD
        return self._state

    def _forget(self) -> None:
        if self._log >= 0:
            os.close(self._log)
        if self._settings.groups is not None:
            self._settings.groups.remove(self._cell.name)
        self._pid, self._log, self._state = 0, -1, ServerState.DOWN
        self._held_since = None

    def _bound_log(self) -> None:
        """Empty the log beyond its bound. The server appends, so it continues at the new end and leaves no hole."""
        if os.fstat(self._log).st_size > LOG_BYTES_MAX:
            os.ftruncate(self._log, 0)

    def _read_log_tail(self) -> str:
        size = os.fstat(self._log).st_size
        tail = os.pread(self._log, LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        return tail.decode("utf-8", "replace").strip()


@contextmanager
def running(server: CellServer) -> Iterator[None]:
    """Run a server until the block is left. Raises CellError if it does not start, or does not stop in order."""
    try:
        start_server(server)
        yield
        report = stop_server(server)
    finally:
        while server.pid:
            server.kill()
            server.look(time.monotonic())
            time.sleep(_POLL_S)
    if report.status != 0:
        raise CellError(f"the server ended with status {report.status}: {report.log_tail}")


def start_server(server: CellServer) -> None:
    """Start a server, and return when it takes connections. Raises CellError."""
    while server.start(time.monotonic()) is ServerState.HELD:
        time.sleep(_POLL_S)
    while (report := server.look(time.monotonic())).state is not ServerState.READY:
        if report.state is ServerState.ENDED:
            raise CellError(f"{server.cell}: its server ended with status {report.status}: {report.log_tail}")
        time.sleep(_POLL_S)


def stop_server(server: CellServer) -> ServerReport:
    """Stop a server, and return its last report. What does not end in time is killed."""
    server.stop(time.monotonic())
    while (report := server.look(time.monotonic())).state is ServerState.STOPPING:
        time.sleep(_POLL_S)
    return report


def is_ready(path: Path) -> bool:
    """Return whether the server of a cell says that it takes connections, by its pid file and its socket.

    A connection would be more certain, but a hostile cell can accept one and never answer, and the supervisor has one
    thread for all cells. A cell that lies here delays only its own users.
    """
    with suppress(OSError, CellError), open_directory(path) as cell:
        with open_directory(DATA, cell) as data:
            lines = read_file(_PID_FILE, data, _PID_FILE_BYTES_MAX).split(b"\n")
        with open_directory(RUN, cell) as run:
            socket = os.stat(SOCKET_NAME, dir_fd=run, follow_symlinks=False)
        return len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == _READY and stat.S_ISSOCK(socket.st_mode)
    return False


def _clear_stale_files(cell: int) -> None:
    """Remove files of an earlier server. We hold the lock, so their process ids now stand for other processes."""
    with open_directory(DATA, cell) as data, suppress(FileNotFoundError):
        os.unlink(_PID_FILE, dir_fd=data)
    with open_directory(RUN, cell) as run:
        for name in (SOCKET_NAME, f"{SOCKET_NAME}.lock"):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=run)


def _kill_processes(account: Account, data: Path) -> None:
    """Kill all processes of a cell that has no server: those of its account, or those of our own account that work in
    its data.

    A server with namespaces of its own leaves none, since all its processes end with it.
    """
    for entry in Path("/proc").glob("[1-9]*"):
        with suppress(OSError):  # It may end at any moment, and only root may look at those of other users.
            process = os.pidfd_open(int(entry.name))
            try:
                # The status names the user also for a process that hides from others by not being dumpable.
                is_of_account = f"\nUid:\t{account.uid}\t" in (entry / "status").read_text("utf-8", "replace")
                if is_of_account and (account.switch or os.readlink(entry / "cwd") == str(data)):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)


def _to_bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * 2**20
