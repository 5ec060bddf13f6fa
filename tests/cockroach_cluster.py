"""A cluster of CockroachDB on loopback, whose nodes can be killed, frozen, drained and started again.

Its program is not part of this repository: `TUPLEGATE_TEST_COCKROACH` names it. Stores are in a directory of the
cluster's own, so that what was acknowledged outlives a killed node. Start nodes in the thread that lives longest: the
kernel ends them with the thread that started them.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from tests.directories import new_directory
from tests.external import free_port
from tuplegate.engine.bundled.binaries import before_exec

PROGRAM = os.environ.get("TUPLEGATE_TEST_COCKROACH", "")
START_S = 120.0
WHOLE_S = 240.0
STOP_S = 60.0
PAUSE_S = 0.2

_FEWEST_REPLICAS = "SELECT min(array_length(replicas, 1)) FROM crdb_internal.ranges_no_leases"
_LIVE = "SELECT count(*) FROM crdb_internal.gossip_nodes WHERE is_live"
_LEASEHOLDER = """
SELECT crdb_internal.lease_holder(start_key) FROM
 (SELECT start_key FROM crdb_internal.ranges_no_leases WHERE table_name = %s ORDER BY range_id LIMIT 1)
"""


class NotInTime(Exception):
    """What was waited for did not come."""


class CockroachNode:
    """One process of the program, with a store of its own."""

    def __init__(self, program: Path, home: Path, number: int) -> None:
        self._program = program
        self._home = home
        self._number = number
        self.port = free_port()
        self._http_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self._home / f"log{self._number}").read_text()

    def start(self, join: str) -> None:
        command = [str(self._program), "start", "--insecure", f"--join={join}", f"--listen-addr={self.address}"]
        command += [f"--http-addr=127.0.0.1:{self._http_port}", "--cache=128MiB", "--max-sql-memory=256MiB"]
        command += [f"--store=path={self._home}/store{self._number},ballast-size=0"]
        command += ["--log={sinks: {stderr: {filter: WARNING}}}"]
        with (self._home / f"log{self._number}").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                cwd=self._home,
                start_new_session=True,
                preexec_fn=before_exec(signal.SIGKILL),  # noqa: PLW1509 - it does nothing that needs a lock
            )

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Let it drain, and wait until it has ended; one that takes too long is killed."""
        try:
            self._end(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self._end(signal.SIGKILL)

    def drain(self) -> None:
        """Tell it to end; it goes on while it drains."""
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        """From now on it takes connections and answers nobody."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def ask(self, sql: str, params: list[str] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement on this node as its owner. Raises psycopg.OperationalError."""
        conninfo = f"host=127.0.0.1 port={self.port} user=root dbname=defaultdb connect_timeout=5"
        with psycopg.connect(f"{conninfo} options='-c statement_timeout=5s'", autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), params)
            return cursor.fetchall() if cursor.description else []

    @property
    def id(self) -> int:
        return int(self.ask("SELECT crdb_internal.node_id()")[0][0])

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        self._signal(number)
        if self._process is not None:
            self._process.wait(STOP_S)
            self._process = None


class CockroachCluster:
    """`with` starts the nodes, three as a rule, and ends them."""

    def __init__(self, program: Path | None = None, nodes: int = 3) -> None:
        self._program = (program or Path(PROGRAM)).absolute()
        self._count = nodes

    def __enter__(self) -> "CockroachCluster":
        self.home = new_directory("tgc-")
        self.nodes = [CockroachNode(self._program, self.home, number) for number in range(1, self._count + 1)]
        try:
            for node in self.nodes:
                self.start(node)
            command = [str(self._program), "init", "--insecure", f"--host={self.nodes[0].address}"]
            self._until(lambda: subprocess.run(command, capture_output=True).returncode == 0, START_S)
            self.wait_whole()
            self.ids = {node.id: node for node in self.nodes}
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, *, turned: int = 0) -> str:
        """All nodes, for the owner; `turned` says which comes first."""
        hosts = ",".join(node.address for node in [*self.nodes[turned:], *self.nodes[:turned]])
        return f"postgresql://root@{hosts}/tuplegate?sslmode=disable"

    @property
    def log(self) -> str:
        return "\n".join(f"== node at {node.address}\n{node.log}" for node in self.nodes)

    def start(self, node: CockroachNode) -> None:
        node.start(",".join(one.address for one in self.nodes))

    def wait_whole(self) -> None:
        """Wait until all nodes are live and every range has all of its replicas. One that has ended by itself, as some
        do that were frozen, is started again, as any supervisor would."""

        def is_whole() -> bool:
            for node in self.nodes:
                if node.has_ended:
                    self.start(node)
            live = all(node.ask(_LIVE) == [(self._count,)] for node in self.nodes)
            return live and self.nodes[0].ask(_FEWEST_REPLICAS)[0][0] >= self._count

        self._until(is_whole, WHOLE_S)

    def find_leaseholder(self, table: str) -> CockroachNode:
        """Return the node that decides over the first rows of a table."""
        found: list[CockroachNode] = []

        def is_found() -> bool:
            rows = self.nodes[0].ask(_LEASEHOLDER, [table])
            found[:] = [self.ids[row[0]] for row in rows if row[0] in self.ids]
            return bool(found)

        self._until(is_found, WHOLE_S)
        return found[0]

    def count_sessions(self) -> dict[int, int]:
        """Return how many connections of tenants each node has, by the number of its node."""
        for node in self.nodes:
            try:
                rows = node.ask(
                    "SELECT node_id, count(*) FROM crdb_internal.cluster_sessions"
                    " WHERE application_name = 'tuplegate' AND status <> 'CLOSED' GROUP BY node_id"
                )
                return {int(id): int(count) for id, count in rows}
            except psycopg.OperationalError:
                continue
        return {}

    def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except psycopg.Error:
                pass  # it is starting, or has no quorum yet
            if time.monotonic() > deadline:
                raise NotInTime(f"the cluster is not as it should be: {self.log[-3000:]}")
            time.sleep(PAUSE_S)
