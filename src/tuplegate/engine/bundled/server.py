"""The bundled PostgreSQL server: prepare its data directory, start it, watch it, stop it.

Contract: one BundledServer owns one data directory from `prepare` to `release`. The server listens on a unix socket
inside that directory and nowhere else, and ends when the process that started it ends, however that happened.
Everything here blocks and belongs to the supervisor's main thread: Linux delivers the parent-death signal when the
*thread* that started the server ends. A process forked from the supervisor without exec shares the lock and must not
outlive it.

It knows nothing of tenants or requests.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from psycopg import pq

from tuplegate.engine.bundled import binaries
from tuplegate.engine.bundled.data_directory import SOCKET_NAME, BundledEngineError, DataDirectory
from tuplegate.engine.bundled.disk import Reserve
from tuplegate.engine.bundled.extensions import trust_extensions
from tuplegate.engine.bundled.sandbox.walls import Sandbox, find_gaps

__all__ = ["BundledEngineError", "BundledServer", "BundledSettings", "make_server_settings"]

SUPERUSER = "tuplegate"
SUPERUSER_CONNECTIONS = 3
LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_TAIL_BYTES = 2000
ANSWER_S = 60.0  # a server that gives no answer at all
RECOVERY_S = 900.0  # a server that answers that it is still replaying its log after a crash
STOP_TOLD_S = 5.0  # for statements that end when they are told to
STOP_FAST_S = 30.0
STOP_IMMEDIATE_S = 5.0
SHARED_MEMORY_S = 30.0  # the server's refusal while processes of its predecessor still end
MAPPED_BESIDES_MB = 256  # programs, libraries, and statistics of all tables, which grow with their number
NOTIFY_PAGES_PER_MB = 2 * 128
"""Pages of 8 KiB in the queue of notifications, for each MiB that a process may take: one transaction keeps its own
notifications in memory, so it can fill half of the queue at most."""
POLL_S = 0.01
POLL_MAX_S = 0.5
_PID_LINE_BYTES_MAX = 100

RESERVED_SETTINGS = frozenset({"data_directory", "listen_addresses", "port", "unix_socket_directories"})


@dataclass(frozen=True)
class BundledSettings:
    """The operator's choices. None in `bin_dir` and `user` means that the service finds out."""

    data_dir: Path
    bin_dir: Path | None = None
    user: str | None = None
    max_connections: int = 100
    shared_buffers_mb: int = 128
    process_memory_mb: int = 512
    temp_mb: int = 2048
    disk_free_min: int = 0
    """Bytes that are to be free on the disk; without any nothing is kept in reserve."""
    extra: Mapping[str, str] = field(default_factory=dict)


def make_server_settings(settings: BundledSettings, major: int, extensions: Path | None) -> dict[str, str]:
    """Return the server's settings, for its command line: no configuration file and no ALTER SYSTEM overrides them."""
    if reserved := sorted(RESERVED_SETTINGS & settings.extra.keys()):
        raise BundledEngineError(f"the bundled engine sets {', '.join(reserved)} itself: remove it from its settings")
    values = {
        "listen_addresses": "",
        "unix_socket_permissions": "0700",
        # Nobody but whoever looks after it logs in as superuser: what is kept for that comes on top.
        "max_connections": str(settings.max_connections + SUPERUSER_CONNECTIONS),
        "superuser_reserved_connections": str(SUPERUSER_CONNECTIONS),
        "shared_buffers": f"{settings.shared_buffers_mb}MB",
        "huge_pages": "try",
        "max_worker_processes": "8",
        # Sizes the pool of serializable transactions: too small a pool lets write skew commit.
        "max_prepared_transactions": "1000",
        # How long the engine remembers what became of a transaction: a day of 17,000 writes a second.
        "autovacuum_freeze_max_age": "1500000000",
        # All databases share the tables that these size, so that one could fill them for all: see postgres/locks.py.
        "max_locks_per_transaction": "256",
        "max_pred_locks_per_transaction": "256",
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
        # start() recognizes one of the server's messages, so they must not be translated.
        "lc_messages": "C",
    }
    if sys.platform == "linux":
        # POSIX shared memory lies in a directory of all processes of a user.
        values["dynamic_shared_memory_type"] = "sysv"
        # After a crash: one call for the file system, not one for each file. A thousand databases have 300,000 of them.
        values["recovery_init_sync_method"] = "syncfs"
    if major >= 17:
        # All databases share the queue of notifications, and it is in no database's size. The default is 8 GiB.
        values["max_notify_queue_pages"] = str(settings.process_memory_mb * NOTIFY_PAGES_PER_MB)
    if extensions is not None and major >= 18:
        values["extension_control_path"] = f"{extensions}:$system"
    return values | dict(settings.extra)


def make_sandbox(directory: DataDirectory, programs: binaries.Binaries, extensions: Path | None) -> Sandbox:
    """Return the sandbox of the server: its data, its socket and its programs."""
    # An operator may have laid these on other disks.
    elsewhere = (directory.pgdata / "pg_wal", *(directory.pgdata / "pg_tblspc").iterdir())
    return Sandbox(
        data=(directory.pgdata, *(path.resolve() for path in elsewhere)),
        sockets=(directory.run,),
        programs=(programs.path,),
        readable=(*programs.readable, *(() if extensions is None else (extensions,))),
    )


def _read_postmaster(pgdata: Path) -> int | None:
    try:
        with (pgdata / "postmaster.pid").open("rb", buffering=0) as file:
            return int(file.read(_PID_LINE_BYTES_MAX).split(b"\n")[0])
    except (OSError, ValueError):
        return None


def _find_processes(directory: DataDirectory) -> list[int]:
    """Return PostgreSQL's processes on this data: the server and its children have it as current directory."""
    if sys.platform != "linux":
        # Elsewhere only the server is found, by its command line; start() waits for its children to end.
        lines = binaries.run_program(["ps", "-axo", "pid=,command="], directory, directory.account).splitlines()
        return [int(line.split()[0]) for line in lines if f"/postgres -D {directory.pgdata} " in line]
    found = []
    for entry in Path("/proc").glob("[1-9]*"):
        try:
            if (entry / "comm").read_text() != "postgres\n" or entry.stat().st_uid != directory.account.uid:
                continue
            where = _read_current_directory(entry / "cwd", directory)
        except (OSError, BundledEngineError):
            continue  # It ended while we looked, or waits to be reaped.
        if where == str(directory.pgdata):
            found.append(int(entry.name))
    return found


def _find_backends(directory: DataDirectory) -> list[int]:
    """Return the server's processes that run clients' statements; none on systems other than Linux."""
    found = []
    for pid in _find_processes(directory) if sys.platform == "linux" else ():
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # It ended while we looked.
        if b"[local]" in title or b"parallel worker" in title:
            found.append(pid)
    return found


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # It ended by itself meanwhile.


def _read_current_directory(link: Path, directory: DataDirectory) -> str:
    try:
        return str(link.readlink())
    except PermissionError:
        # Root without CAP_SYS_PTRACE, as in most containers, may not look; the engine's own user may.
        return binaries.run_program(["readlink", str(link)], directory, directory.account).strip()


class BundledServer:
    """One PostgreSQL server on one data directory: prepare, start, poll and restart, stop, release."""

    def __init__(self, settings: BundledSettings) -> None:
        self._settings = settings
        self._directory = DataDirectory(settings.data_dir)
        self._chosen: binaries.Binaries | None = None
        self._extensions: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_down = False
        self._reserve = Reserve(self._directory, settings.disk_free_min) if settings.disk_free_min else None
        self.warnings: list[str] = []

    @property
    def socket_dir(self) -> Path:
        return self._directory.run

    @property
    def conninfo(self) -> str:
        host = str(self.socket_dir)
        return f"host={repr(host) if ' ' in host else host} port=5432 user={SUPERUSER}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def version(self) -> str:
        return self._binaries.version

    @property
    def _binaries(self) -> binaries.Binaries:
        if self._chosen is None:
            raise BundledEngineError(f"{self._directory.path} is not prepared")
        return self._chosen

    @property
    def _log(self) -> Path:
        return self._directory.path / "postgres.log"

    @property
    def dump_tools(self) -> tuple[binaries.DumpTool, ...]:
        tool = binaries.find_dump_tool(self._binaries, self._directory)
        return () if tool is None else (tool,)

    def prepare(self) -> None:
        """Take the data directory and make it ready: lock, checks, a copy of the binaries if needed, initdb."""
        if self._directory.taken:
            raise BundledEngineError(f"{self._directory.path} is prepared already")
        try:
            self._directory.take(self._settings.user)
            for pattern in ("initdb-*", "copy-*", "probe-*"):
                for leftover in self._directory.path.glob(pattern):
                    # A killed initdb's last child may write for an instant yet; then the next start removes the rest.
                    shutil.rmtree(leftover, ignore_errors=True)
            self._choose_binaries()
            self._check_data()
            self._extensions = trust_extensions(self._binaries, self._directory)
            self._directory.own(self.socket_dir)
            if not self._directory.pgdata.exists():
                self._initialize()
        except OSError as exc:
            self.release()
            raise BundledEngineError(f"cannot prepare {self._directory.path}: {exc}") from exc
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give up the data directory; stop the server first."""
        self._directory.release()

    def _choose_binaries(self) -> None:
        self.warnings[:] = find_gaps()
        if self._settings.bin_dir is None:
            self._chosen = binaries.choose_wheel(self._directory)
            return
        self._chosen = binaries.choose_custom(self._settings.bin_dir, self._directory)
        if warning := self._chosen.warning:
            self.warnings.append(warning)

    def _check_data(self) -> None:
        pgdata = self._directory.pgdata
        if not pgdata.exists():
            return
        try:
            made_by = (pgdata / "PG_VERSION").read_text("ascii").strip()
        except FileNotFoundError:
            raise BundledEngineError(
                f"{pgdata} is not PostgreSQL's data (no PG_VERSION): restore it, or choose another --data-dir"
            ) from None
        if made_by != str(self._binaries.major):
            raise BundledEngineError(
                f"{pgdata} was made by PostgreSQL {made_by}, these binaries are {self._binaries.major}: point "
                f"--engine-bin at PostgreSQL {made_by} to go on with it, or to dump it with pg_dumpall for a new "
                "--data-dir"
            )

    def _initialize(self) -> None:
        """Run initdb beside the data's place and move the result there, so that a kill leaves no half of one."""
        fresh = Path(tempfile.mkdtemp(prefix="initdb-", dir=self._directory.path))
        self._directory.own(fresh)
        builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        locale = builtin if self._binaries.major >= 17 else ["--locale=C.UTF-8"]
        command = [str(self._binaries.path / "initdb"), "-D", str(fresh), "-U", SUPERUSER, "--encoding=UTF8", *locale]
        command += ["--auth-local=trust", "--auth-host=reject", "--no-instructions"]
        try:
            binaries.run_program(command, self._directory, self._directory.account)
        except BundledEngineError:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        fresh.rename(self._directory.pgdata)
        fd = os.open(self._directory.path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def start(self) -> None:
        """Start the server and return when it accepts connections; what an earlier run left of it is ended first."""
        if not self._directory.taken:
            raise BundledEngineError(f"{self._directory.path} is not prepared")
        if self._process is not None and self.poll() is None:
            raise BundledEngineError(f"the server on {self._directory.path} runs already (pid {self.pid})")
        deadline = time.monotonic() + SHARED_MEMORY_S
        while True:
            try:
                self._settle()
                if self._reserve is not None:
                    self._reserve.give_up_for_start()
                self.bound_log()
                log_offset = self._log.stat().st_size
                self._spawn()
                reason = self._await_ready()
            except OSError as exc:
                self.stop()
                raise BundledEngineError(f"cannot start PostgreSQL on {self._directory.path}: {exc}") from exc
            except BaseException:
                self.stop()
                raise
            if reason is None:
                return
            said = self._read_log(log_offset)
            if "shared memory block" not in said or time.monotonic() > deadline:
                raise BundledEngineError(f"PostgreSQL {reason}; {self._log} ends with:\n{said}")
            time.sleep(10 * POLL_S)

    def restart(self) -> None:
        """Start the server again after poll() said that it is dead. Where it fails, poll() says so again."""
        self._is_down = True
        self.start()
        self._is_down = False

    def poll(self) -> int | None:
        """Return the exit status of the server if it has died, else None; 1 where it could not be started again."""
        if self._process is None:
            return 1 if self._is_down else None
        return self._process.poll()

    def keep_reserve(self) -> bool | None:
        """Keep room on the disk for a start; call it often. Return whether it is there, where that has changed."""
        return None if self._reserve is None else self._reserve.keep()

    def stop(self) -> None:
        """End the server and reap it; its transactions are rolled back. Does nothing when none was started."""
        if self._process is None:
            return
        steps = ((signal.SIGINT, STOP_TOLD_S), (signal.SIGFPE, STOP_FAST_S), (signal.SIGQUIT, STOP_IMMEDIATE_S))
        for number, bound_s in steps:
            if number == signal.SIGFPE:
                # The server has told all statements to end, and waits for those that take no notice. The signal raises
                # an error in them. In a commit that would be a crash, as the next step is in any case.
                _send(_find_backends(self._directory), number)
            else:
                self._process.send_signal(number)
            try:
                self._process.wait(bound_s)
                break
            except subprocess.TimeoutExpired:
                continue
        else:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._settle()

    def bound_log(self) -> None:
        """Keep the server's log within its bound, and one older part of that size; call it every few seconds."""
        fd = self._directory.open(self._log.name, os.O_RDWR | os.O_APPEND)
        try:
            size = os.fstat(fd).st_size
            if size > LOG_BYTES_MAX:
                tail = os.pread(fd, LOG_BYTES_MAX, size - LOG_BYTES_MAX)
                with suppress(OSError):  # A full disk has no room for the older part.
                    self._directory.replace(f"{self._log.name}.1", tail)
                os.ftruncate(fd, 0)  # The server appends, so it goes on at the new end and leaves no hole.
        finally:
            os.close(fd)

    def _read_log(self, offset: int) -> str:
        with self._log.open("rb") as file:
            file.seek(max(offset, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read(LOG_TAIL_BYTES).decode("utf-8", "replace").strip()

    def _spawn(self) -> None:
        command = [str(self._binaries.path / "postgres"), "-D", str(self._directory.pgdata)]
        command += ["-k", str(self.socket_dir), "-p", "5432"]
        for name, value in make_server_settings(self._settings, self._binaries.major, self._extensions).items():
            command += ["-c", f"{name}={value}"]
        memory = self._settings.process_memory_mb * 2**20
        sandbox = make_sandbox(self._directory, self._binaries, self._extensions)
        limits = binaries.before_exec(signal.SIGINT, memory, self._mapped_bytes_max(command, sandbox), sandbox)
        log_fd = self._directory.open(self._log.name, os.O_WRONLY | os.O_APPEND)
        try:
            self._process = subprocess.Popen(  # noqa: S603 — the engine, with the operator's settings
                command,
                stdout=log_fd,
                stderr=log_fd,
                preexec_fn=limits,  # noqa: PLW1509 — the supervisor has one thread
                **binaries.make_child_options(self._directory, self._directory.account),
            )
        finally:
            os.close(log_fd)

    def _mapped_bytes_max(self, command: list[str], sandbox: Sandbox) -> int | None:
        """Return what a process may map: what all share, its own memory, and as much again for parallel queries.

        Their workers share memory that is no process's own. None where the server does not say what all share, which
        is as a rule because it will not start with these settings: then its log has the reason.
        """
        deadline = time.monotonic() + SHARED_MEMORY_S
        while sys.platform == "linux":
            try:
                question = [*command, "-C", "shared_memory_size"]
                said = binaries.run_program(question, self._directory, self._directory.account, sandbox)
                break
            except BundledEngineError as exc:
                if "shared memory block" not in str(exc) or time.monotonic() > deadline:
                    return None
                time.sleep(10 * POLL_S)
        else:
            return None
        shared_mb = int(said.split()[-1])
        return (shared_mb + 2 * self._settings.process_memory_mb + MAPPED_BESIDES_MB) * 2**20

    def _await_ready(self) -> str | None:
        """Return None when the server accepts connections, else what became of it."""
        assert self._process is not None
        # hostaddr is given, empty, so that PGHOSTADDR in our environment does not lead the question elsewhere.
        conninfo = f"{self.conninfo} hostaddr='' dbname=postgres connect_timeout=5".encode()
        started = time.monotonic()
        while True:
            status = self._process.poll()
            if status is not None:
                return f"ended with status {status}"
            answer = pq.PGconn.ping(conninfo)
            if answer == pq.Ping.OK:
                return None
            bound_s = RECOVERY_S if answer == pq.Ping.REJECT else ANSWER_S
            if time.monotonic() - started > bound_s:
                self.stop()
                return f"did not accept connections within {bound_s:.0f} s"
            # Every question is a process of the server's and a line in its log: the longer it takes, the fewer.
            time.sleep(max(POLL_S, min(POLL_MAX_S, (time.monotonic() - started) / 20)))

    def _settle(self) -> None:
        """End what still runs of an earlier server here; then its pid files are stale, whoever has those pids now.

        We hold the lock, so whatever runs here is an orphan. A postmaster gets the time of a fast shutdown (the
        signal changes nothing for one that is shutting down already); backends without one are ended at once, since
        a busy one would not notice for as long as its statement runs.
        """
        steps = (
            (signal.SIGINT, STOP_TOLD_S),
            (signal.SIGFPE, STOP_FAST_S),
            (signal.SIGQUIT, STOP_IMMEDIATE_S),
            (signal.SIGKILL, STOP_IMMEDIATE_S),
        )
        for number, bound_s in steps:
            strays = _find_processes(self._directory)
            if not strays:
                break
            postmaster = _read_postmaster(self._directory.pgdata)
            if number == signal.SIGINT:
                strays = [pid for pid in strays if pid == postmaster]
                _send(strays, number)
            elif number != signal.SIGFPE:
                _send(strays, number)
            elif postmaster in strays:
                _send(_find_backends(self._directory), number)
            else:
                continue
            deadline = time.monotonic() + bound_s
            while strays and time.monotonic() < deadline and _find_processes(self._directory):
                time.sleep(POLL_S)
        else:
            if strays := _find_processes(self._directory):
                raise BundledEngineError(
                    f"PostgreSQL's processes {strays} on {self._directory.pgdata} do not end: end them"
                )
        for stale in (self._directory.pgdata / "postmaster.pid", self.socket_dir / f"{SOCKET_NAME}.lock"):
            stale.unlink(missing_ok=True)
