"""Three PostgreSQL nodes under Patroni with etcd, on loopback and in a directory of their own.

The programs are those of the bundled engine. Everything ends with the `with` block, also what was stopped or orphaned;
after a `kill -9` of this process the kernel tells etcd and Patroni to end, and Patroni ends PostgreSQL. Start nodes in
the thread that lives longest: the kernel counts from the thread that started them.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.external import free_port, make_own
from tests.faults import send_signal
from tests.processes import alive, children
from tests.waiting import eventually

from failover.sessions import Unanswered, ask
from tuplegate.engine.bundled.binaries import Binaries, before_exec, choose_wheel, make_child_options
from tuplegate.engine.bundled.data_directory import DataDirectory

PATRONI = Path(__file__).parents[1] / ".failover" / "bin" / "python"
"""The interpreter that has Patroni; `make failover` makes it."""
NODES = 3
SUPERUSER, PASSWORD = "postgres", "not-a-secret"
START_S = 60.0
WHOLE_S = 120.0
ASK_S = 2.0
EXECUTE_S = 5.0
PAUSE_S = 0.2
STOP_S = 30.0

# Patroni takes no shorter ttl, and what must be below it follows from that.
_DYNAMIC = {"ttl": 20, "loop_wait": 2, "retry_timeout": 3}
_WAITING = {"synchronous_mode": True, "synchronous_mode_strict": True}
_LAGGING = {"maximum_lag_on_failover": 2**30}
"""Where commits do not wait, a standby takes over whatever it lacks."""
_PARAMETERS = {
    # As docs/operations.md wants them.
    "max_connections": 300,
    "max_prepared_transactions": 1000,
    "max_locks_per_transaction": 256,
    "max_pred_locks_per_transaction": 256,
    "autovacuum_freeze_max_age": 1500000000,
    "fsync": "on",
    "full_page_writes": "on",
    "wal_log_hints": "on",
    "shared_buffers": "32MB",
    "wal_sender_timeout": "5s",
    "wal_receiver_timeout": "5s",
    "deadlock_timeout": "20ms",
}


class NotInTime(Exception):
    """What was waited for did not come."""


class NotInstalled(Exception):
    """A program that the cluster needs is not there; the message says which, and what to install."""


def find_programs() -> Path:
    """The path of etcd; raises NotInstalled where it, or Patroni, is missing."""
    etcd = shutil.which("etcd")
    if etcd is None:
        raise NotInstalled("etcd is not on the path: install it (on Debian: apt-get install etcd-server)")
    if not PATRONI.exists():
        raise NotInstalled(f"Patroni is not in {PATRONI.parents[1]}: make failover installs it there")
    return Path(etcd)


@dataclass
class Node:
    """A PostgreSQL server and the Patroni that looks after it."""

    name: str
    home: Path
    port: int
    rest_port: int
    entry: int = 0
    """The port of the gate through which it is reached, by all that use the cluster."""
    patroni: "subprocess.Popen[bytes] | None" = None

    @property
    def pgdata(self) -> Path:
        return self.home / "data"

    @property
    def url(self) -> str:
        """For the superuser, to this node alone."""
        return f"postgresql://{SUPERUSER}:{PASSWORD}@127.0.0.1:{self.port}/postgres?sslmode=disable"

    @property
    def entry_url(self) -> str:
        """The same through the gate."""
        return self.url.replace(f":{self.port}/", f":{self.entry}/")

    def processes(self) -> list[int]:
        """PostgreSQL's processes, the first one first."""
        try:
            postmaster = int((self.pgdata / "postmaster.pid").read_text().split("\n", 1)[0])
            # The file may be left over, and the number another's by now.
            if str(self.pgdata).encode() not in Path(f"/proc/{postmaster}/cmdline").read_bytes():
                return []
            return [postmaster, *children(postmaster)]
        except (OSError, ValueError):
            return []

    def signal_postgres(self, number: signal.Signals) -> list[int]:
        """Sends it to all of PostgreSQL's processes, and returns them."""
        sent: list[int] = []
        # The first process makes the others: after it has stopped there are no new ones.
        if number in (signal.SIGSTOP, signal.SIGKILL) and (found := self.processes()):
            send_signal(found[0], signal.SIGSTOP)
        for pid in self.processes():
            send_signal(pid, number)
            sent.append(pid)
        return sent

    def kill_postgres(self) -> None:
        """Returns when all of its processes are dead."""
        dead = self.signal_postgres(signal.SIGKILL)
        eventually(lambda: not any(alive(pid) for pid in dead))

    def signal_patroni(self, number: signal.Signals) -> None:
        """Sends it to Patroni and to what it runs just now, but not to PostgreSQL."""
        if self.patroni is not None and self.patroni.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.patroni.pid, number)

    def kill_patroni(self) -> None:
        self.signal_patroni(signal.SIGKILL)
        if self.patroni is not None:
            self.patroni.wait(STOP_S)
            self.patroni = None

    def execute(self, sql: str, database: str = "postgres") -> list[Sequence[str | None]]:
        """The rows, as text."""
        return ask(self.url.replace("/postgres?", f"/{database}?"), sql, EXECUTE_S)


@dataclass
class Cluster:
    """`with` starts it and ends it. `waits`: commits wait for a standby."""

    waits: bool = True
    nodes: list[Node] = field(default_factory=list)

    def __enter__(self) -> "Cluster":
        etcd = find_programs()
        self.home = Path(tempfile.mkdtemp(prefix="tgf-", dir="/tmp"))
        self.home.chmod(0o755)
        self._directory = DataDirectory(self.home / "data")
        self._etcd: subprocess.Popen[bytes] | None = None
        try:
            self._directory.take(None)
            self._binaries: Binaries = choose_wheel(self._directory)
            self._start_etcd(etcd)
            for number in range(1, NODES + 1):
                node = Node(f"n{number}", self._directory.path / f"n{number}", free_port(), free_port())
                make_own(node.home, self._directory.account)
                self.nodes.append(node)
            for node in self.nodes:
                self.start(node)
            self.wait_whole()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for node in self.nodes:
            node.kill_patroni()
        for node in self.nodes:
            node.kill_postgres()
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait(STOP_S)
        self._directory.release()
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, database: str, *, turned: int = 0) -> str:
        """All hosts through their gates, for the superuser; `turned` says which comes first."""
        turned %= NODES
        hosts = ",".join(f"127.0.0.1:{node.entry}" for node in [*self.nodes[turned:], *self.nodes[:turned]])
        return f"postgresql://{SUPERUSER}:{PASSWORD}@{hosts}/{database}?sslmode=disable"

    @property
    def log(self) -> str:
        """What Patroni and PostgreSQL said, node by node."""
        return "\n".join(f"== {node.name}\n{(node.home / 'log').read_text()}" for node in self.nodes)

    def start(self, node: Node) -> None:
        """Starts Patroni, which starts PostgreSQL."""
        (node.home / "patroni.json").write_text(json.dumps(self._settings(node), indent=1))
        (node.home / "patroni.json").chmod(0o644)
        node.patroni = self._spawn([str(PATRONI), "-m", "patroni", str(node.home / "patroni.json")], node.home / "log")

    # -- what it is like --------------------------------------------------------------------------------------------

    def members(self) -> list[dict[str, Any]]:
        """The members as the first Patroni that answers sees them; none where none answers."""
        for node in self.nodes:
            with suppress(httpx.HTTPError, ValueError):
                answer = httpx.get(f"http://127.0.0.1:{node.rest_port}/cluster", timeout=ASK_S, trust_env=False)
                return list(answer.json()["members"])
        return []

    def leader(self) -> Node:
        """The node that Patroni calls the leader; waits until there is one."""
        found: list[Node] = []

        def is_there() -> bool:
            named = [member["name"] for member in self.members() if member["role"] == "leader"]
            found[:] = [node for node in self.nodes if node.name in named]
            return bool(found)

        until(is_there, WHOLE_S, lambda: "Patroni names no leader")
        return found[0]

    def standbys(self, leader: Node) -> list[Node]:
        return [node for node in self.nodes if node is not leader]

    def is_whole(self) -> bool:
        """Whether a leader runs, all others follow it, and it waits for one of them where commits do."""
        members = self.members()
        roles = sorted(member["role"] for member in members)
        states = sorted(member["state"] for member in members)
        whole = ["running", *["streaming"] * (NODES - 1)]
        last = "sync_standby" if self.waits else "replica"
        return roles == ["leader", *["replica"] * (NODES - 2), last] and states == whole

    def wait_whole(self) -> None:
        until(self.is_whole, WHOLE_S, lambda: f"the cluster is not whole again: {self.members()}")

    def wait_promoted(self, former: Node) -> None:
        """Until another node than the former leader is the leader, and accepts writes."""

        def is_promoted() -> bool:
            return any(_is_primary(node) for node in self.standbys(former))

        until(is_promoted, WHOLE_S, lambda: f"no other node took over from {former.name}: {self.members()}")

    def switch_over(self, leader: Node) -> None:
        """Asks Patroni for a switchover until it agrees to one."""

        def is_agreed() -> bool:
            url = f"http://127.0.0.1:{leader.rest_port}/switchover"
            answer = httpx.post(url, json={"leader": leader.name}, timeout=WHOLE_S, trust_env=False)
            return answer.status_code == 200

        until(is_agreed, WHOLE_S, lambda: f"Patroni makes no switchover: {self.members()}")

    def forget_prepared(self) -> None:
        """Rolls back what nobody will ever finish, since its services are gone."""
        leader = self.leader()
        for gid, database in leader.execute("select gid, database from pg_prepared_xacts"):
            leader.execute(f"rollback prepared '{gid}'", str(database))

    # -- how it is made ---------------------------------------------------------------------------------------------

    def _start_etcd(self, program: Path) -> None:
        home = self._directory.path / "etcd"
        make_own(home, self._directory.account)
        self._etcd_port, peer_port = free_port(), free_port()
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{peer_port}"
        command = [str(program), "--name=e", f"--data-dir={home}/data", f"--initial-cluster=e={peer}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        self._etcd = self._spawn(command, home / "log")

        def is_healthy() -> bool:
            return bool(httpx.get(f"{client}/health", timeout=ASK_S, trust_env=False).json()["health"] == "true")

        until(is_healthy, START_S, lambda: f"etcd did not start: {(home / 'log').read_text()[-2000:]}")

    def _settings(self, node: Node) -> dict[str, Any]:
        """Patroni's settings; YAML takes JSON."""
        rest, server = f"127.0.0.1:{node.rest_port}", f"127.0.0.1:{node.port}"
        superuser = {"username": SUPERUSER, "password": PASSWORD}
        parameters = {"use_pg_rewind": True, "use_slots": True, "parameters": _PARAMETERS}
        return {
            "scope": "failover",
            "name": node.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {
                "dcs": {**_DYNAMIC, **(_WAITING if self.waits else _LAGGING), "postgresql": parameters},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
            },
            "postgresql": {
                "listen": server,
                "connect_address": server,
                "data_dir": str(node.pgdata),
                "bin_dir": str(self._binaries.path),
                "pgpass": str(node.home / "pgpass"),
                "authentication": {"superuser": superuser, "replication": superuser, "rewind": superuser},
                "parameters": {"unix_socket_directories": str(node.home)},
                "pg_hba": [f"host {what} all 127.0.0.1/32 scram-sha-256" for what in ("all", "replication")],
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }

    def _spawn(self, command: list[str], log: Path) -> "subprocess.Popen[bytes]":
        """Starts it as the user that the engine runs as."""
        account = self._directory.account
        options = {**make_child_options(self._directory.path, account), "cwd": log.parent}
        # etcd 3.4 wants to be told on machines that its makers do not test.
        options["env"] |= {"ETCD_UNSUPPORTED_ARCH": "arm64", "PYTHONDONTWRITEBYTECODE": "1"}
        if account.switch and account.blocked_by(Path(command[0]).resolve()):
            # An interpreter in root's home: who runs it may look into every directory, and has no other right.
            for name in ("user", "group", "extra_groups"):
                del options[name]
            look = "+dac_read_search"
            become = ["setpriv", f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"]
            command = [*become, f"--inh-caps={look}", f"--ambient-caps={look}", "--pdeathsig=TERM", *command]
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                preexec_fn=before_exec(signal.SIGTERM),  # noqa: PLW1509 - it does nothing that needs a lock
                **options,
            )


def until(condition: Callable[[], bool], seconds: float, complaint: Callable[[], str]) -> None:
    """Waits for the condition. Whoever does not answer is asked again; what does not come in time is an error."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(httpx.HTTPError, Unanswered):
            if condition():
                return
        if time.monotonic() > deadline:
            raise NotInTime(complaint())
        time.sleep(PAUSE_S)


def _is_primary(node: Node) -> bool:
    try:
        return node.execute("select pg_is_in_recovery()") == [["f"]]
    except Unanswered:
        return False
