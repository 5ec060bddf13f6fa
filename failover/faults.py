"""What is done to the cluster and to the service nodes: a table of faults, and the state they work on.

A fault begins with a whole cluster and returns when what it has stopped runs again. What it has killed is started by
it too, as whoever looks after a machine would. It does not wait until the cluster is whole.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from failover.cluster import Cluster, Node
from failover.service_nodes import ServiceNodes

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


@dataclass
class Stage(ServiceNodes):
    """The cluster and the service nodes that a fault works on."""

    cluster: Cluster = field(kw_only=True)


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


def cut_and_back(stage: Stage) -> None:
    _cut_off(stage, CUT_S, fail_over=False)


def node(stage: Stage) -> None:
    number = stage.kill_node()
    time.sleep(NODE_S)  # the fault itself
    stage.start_node(number)


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


def _cut_off(stage: Stage, seconds: float, *, fail_over: bool) -> None:
    """Both standbys are away while the leader serves, and then it is killed, or all goes on.

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
        time.sleep(seconds)  # the fault itself: commits that wait
        if fail_over:
            _kill(leader)
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
        FaultKind("node", "kill -9 of one service node", node),
        FaultKind(
            "all", "SIGSTOP of the leader and of the standbys, and kill -9 of a service node, at once", everything
        ),
    )
}
