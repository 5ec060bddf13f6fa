"""What is done to the cluster and to the service nodes: a table of faults, and the state they work on.

A fault begins with a whole cluster and returns when what it has stopped runs again. What it has killed is started by
it too, as whoever looks after a machine would. It does not wait until the cluster is whole.
"""

import math
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.faults import serves

from failover.cluster import Cluster, Node, until
from failover.network import Mode, Network
from failover.service_nodes import ServiceNodes
from failover.taken_back import CutWaits
from failover.timeline import Span
from failover.traps import Trap, lay, spring

CUT_S = 8.0
"""How long commits wait for a standby: longer than the time limit of the workload's requests."""
CUT_LONG_S = 60.0
"""Longer than the service asks for the outcome of a transaction."""
FROZEN_S = 3.0
"""How long a former leader stays stopped after another was promoted."""
START_FROZEN_S = 15.0
"""How long a node is tried to be started while a host of its URL stands still."""
NODE_S = 3.0
"""How long a service node stays dead."""
WORKERS = 6
"""How many workers are killed one after the other."""
CONNECTIONS = 20
"""How many connections are lost one after the other."""
TRAP_S = 20.0
LAG_S = 4.0
"""How long a standby replays nothing: a little less than makes the service pass it over."""
LAGS = 3
DELAY_S = 0.1
DELAYED_S = 8.0
RESETS = 5
RESET_EVERY_S = 2.0
SILENT_S = 8.0
HALF_OPEN_S = 4.0
HALF_OPENED = 2
CANCEL_EVERY_S = 0.5
_WAITS = "wait_event = 'SyncRep' and application_name = 'tuplegate'"
_CANCEL = f"select pg_cancel_backend(pid) from pg_stat_activity where {_WAITS}"


@dataclass
class Stage(ServiceNodes):
    """The cluster, the network before it and the service nodes that a fault works on."""

    cluster: Cluster = field(kw_only=True)
    network: Network = field(kw_only=True)
    killed_workers: Counter[int] = field(default_factory=Counter)
    """How many workers of which service node were killed."""
    cut_waits: list[CutWaits] = field(default_factory=list)

    def trap(self, number: int) -> Path:
        """The file that kills the next worker of a service node that has prepared a transaction."""
        return self.cluster.home / f"trap-{number}"

    def lay_traps(self, trap: Trap) -> list[int]:
        """Lays one for each node between PREPARE and COMMIT PREPARED; returns the numbers of those that were met."""
        traps = [self.trap(number) for number in range(len(self.services))]
        for path in traps:
            lay(path, trap)
        until(lambda: not all(map(Path.exists, traps)), TRAP_S, lambda: "no worker prepares a transaction")
        return [number for number, path in enumerate(traps) if spring(path) is None]

    def kill_workers(self) -> None:
        """Kills workers by these traps, and returns when their nodes serve again."""
        for number in self.lay_traps(Trap.WORKER):
            began = time.monotonic()
            self.killed_workers[number] += 1
            self.down[number].append(Span(began, math.inf))
            served = partial(serves, self.services[number])
            until(served, TRAP_S, lambda: "no worker is started again")
            self.down[number][-1] = Span(began, time.monotonic())


@dataclass(frozen=True)
class FaultKind:
    name: str
    sentence: str
    run: Callable[[Stage], None]


def switchover(stage: Stage) -> None:
    stage.cluster.switch_over(stage.cluster.leader())


def crash(stage: Stage) -> None:
    stage.cluster.leader().kill_postgres()


def kill(stage: Stage) -> None:
    leader = stage.cluster.leader()
    _kill(leader)
    stage.cluster.wait_promoted(leader)
    stage.cluster.start(leader)


def freeze(stage: Stage) -> None:
    leader = stage.cluster.leader()
    _freeze(leader)
    try:
        stage.cluster.wait_promoted(leader)
        time.sleep(FROZEN_S)  # the fault itself: clients that still hang on the former leader
    finally:
        _thaw(leader)


def cut(stage: Stage) -> None:
    _cut_off(stage, CUT_S, fail_over=True)


def cut_long(stage: Stage) -> None:
    _cut_off(stage, CUT_LONG_S, fail_over=True)


def cut_waits(stage: Stage) -> None:
    _cut_off(stage, CUT_S, fail_over=True, cancels=True)


def cut_and_back(stage: Stage) -> None:
    _cut_off(stage, CUT_S, fail_over=False)


def node(stage: Stage) -> None:
    number = stage.kill_node()
    time.sleep(NODE_S)  # the fault itself
    stage.start_node(number)


def worker(stage: Stage) -> None:
    for _ in range(WORKERS):
        stage.kill_workers()


def connection(stage: Stage) -> None:
    for _ in range(CONNECTIONS):
        stage.lay_traps(Trap.CONNECTION)


def lag(stage: Stage) -> None:
    standbys = stage.cluster.standbys(stage.cluster.leader())
    for _ in range(LAGS):
        try:
            for standby in standbys:
                standby.execute("select pg_wal_replay_pause()")
            time.sleep(LAG_S)  # the fault itself
        finally:
            for standby in standbys:
                standby.execute("select pg_wal_replay_resume()")
        time.sleep(LAG_S / 2)  # they catch up


def delay(stage: Stage) -> None:
    stage.network.set_delay(DELAY_S)
    try:
        time.sleep(DELAYED_S)  # the fault itself
    finally:
        stage.network.set_delay(0)


def reset(stage: Stage) -> None:
    for _ in range(RESETS):
        stage.network.reset()
        time.sleep(RESET_EVERY_S)  # some get a little further each time


def blackhole(stage: Stage) -> None:
    _harm_network(stage, Mode.SILENT, SILENT_S)


def half_open(stage: Stage) -> None:
    for _ in range(HALF_OPENED):
        _harm_network(stage, Mode.HALF_OPEN, HALF_OPEN_S)
        time.sleep(HALF_OPEN_S)  # all are served again


def _harm_network(stage: Stage, mode: Mode, seconds: float) -> None:
    stage.network.set_mode(mode)
    try:
        time.sleep(seconds)  # the fault itself
    finally:
        stage.network.set_mode(Mode.OPEN)


def everything(stage: Stage) -> None:
    cluster = stage.cluster
    leader = cluster.leader()
    standbys = cluster.standbys(leader)
    number = stage.kill_node()
    for standby in standbys:
        standby.signal_postgres(signal.SIGSTOP)
    _freeze(leader)
    try:
        time.sleep(NODE_S)  # the fault itself
        for standby in standbys:
            standby.signal_postgres(signal.SIGCONT)
        cluster.wait_promoted(leader)
        is_started = stage.start_node(number, START_FROZEN_S)
    finally:
        for standby in standbys:
            standby.signal_postgres(signal.SIGCONT)
        _thaw(leader)
    if not is_started:
        stage.start_node(number)


def _kill(leader: Node) -> None:
    """Patroni first, else it would see its server die and act."""
    leader.kill_patroni()
    leader.kill_postgres()


def _freeze(leader: Node) -> None:
    leader.signal_patroni(signal.SIGSTOP)
    leader.signal_postgres(signal.SIGSTOP)


def _thaw(leader: Node) -> None:
    leader.signal_postgres(signal.SIGCONT)
    leader.signal_patroni(signal.SIGCONT)


def _cut_off(stage: Stage, seconds: float, *, fail_over: bool, cancels: bool = False) -> None:
    """Both standbys are away while the leader serves, and then it is killed, or all goes on. `cancels`: an operator
    cancels the commits that wait meanwhile.

    Patroni on the leader stands still meanwhile: else it would note that no standby may take over.
    """
    leader = stage.cluster.leader()
    standbys = stage.cluster.standbys(leader)
    leader.signal_patroni(signal.SIGSTOP)
    try:
        for standby in standbys:
            standby.signal_postgres(signal.SIGSTOP)
        # What the leader sent before is in the sockets of the standbys; what comes now must not get there.
        leader.execute("select pg_terminate_backend(pid) from pg_stat_replication")
        began = time.monotonic()
        cancelled = 0
        while time.monotonic() < began + seconds:
            time.sleep(CANCEL_EVERY_S)  # the fault itself: commits that wait
            if cancels:
                cancelled += len(leader.execute(_CANCEL))
        if fail_over:
            _kill(leader)
        if cancels:
            stage.cut_waits.append(CutWaits(Span(began, time.monotonic()), cancelled))
    finally:
        for standby in standbys:
            standby.signal_postgres(signal.SIGCONT)
        leader.signal_patroni(signal.SIGCONT)
    if fail_over:
        stage.cluster.wait_promoted(leader)
        stage.cluster.start(leader)


FAULTS = {
    kind.name: kind
    for kind in (
        FaultKind("switchover", "Patroni makes a standby the leader, in order", switchover),
        FaultKind("crash", "kill -9 of the leader's PostgreSQL, which its Patroni starts again", crash),
        FaultKind("kill", "kill -9 of the leader's PostgreSQL and of its Patroni", kill),
        FaultKind("freeze", "SIGSTOP of the leader with its Patroni, SIGCONT after another was promoted", freeze),
        FaultKind("cut", f"no standby is reached for {CUT_S:g} s, then kill -9 of the leader", cut),
        FaultKind("cut-long", f"no standby is reached for {CUT_LONG_S:g} s, then kill -9 of the leader", cut_long),
        FaultKind("cut-and-back", f"no standby is reached for {CUT_S:g} s, and all goes on", cut_and_back),
        FaultKind(
            "cut-waits",
            f"no standby is reached for {CUT_S:g} s, commits that wait are cancelled, then kill -9 of the leader",
            cut_waits,
        ),
        FaultKind("node", "kill -9 of one service node", node),
        FaultKind("worker", f"kill -9 of a worker between PREPARE and COMMIT PREPARED, {WORKERS} times", worker),
        FaultKind(
            "connection", f"a connection is lost between PREPARE and COMMIT PREPARED, {CONNECTIONS} times", connection
        ),
        FaultKind("lag", f"no standby replays anything for {LAG_S:g} s, {LAGS} times", lag),
        FaultKind("delay", f"the network takes {DELAY_S:g} s each way, for {DELAYED_S:g} s", delay),
        FaultKind("reset", f"the network resets all connections, {RESETS} times", reset),
        FaultKind("blackhole", f"nothing passes the network for {SILENT_S:g} s", blackhole),
        FaultKind(
            "half-open", f"answers are lost in the network for {HALF_OPEN_S:g} s, {HALF_OPENED} times", half_open
        ),
        FaultKind(
            "all", "SIGSTOP of the leader and of the standbys, and kill -9 of a service node, at once", everything
        ),
    )
}
