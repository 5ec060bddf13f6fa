"""What is done to the cluster and to the service nodes: a table of faults, and the state they work on.

A fault begins with a whole cluster and returns when what it has stopped runs again. What it has killed is started by
it too, as whoever looks after a machine would. It does not wait until the cluster is whole.
"""

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.service import Service, new_data_dir, start_service

from failover.cluster import Cluster, Node, NotInTime
from failover.timeline import Span

CUT_S = 8.0
"""How long commits wait for a standby: longer than the time limit of the workload's requests."""
CUT_LONG_S = 60.0
"""Longer than the service asks for the outcome of a transaction."""
FROZEN_S = 3.0
"""How long a former leader stays stopped after another was promoted."""
START_S = 60.0
START_FROZEN_S = 15.0
"""How long a node is tried to be started while a host of its URL stands still."""
NODE_S = 3.0
"""How long a service node stays dead."""


@dataclass
class Stage:
    """What a fault works on. `down` tells when which service node was dead."""

    cluster: Cluster
    services: list[Service]
    rng: Random
    flags: list[tuple[str, ...]] = field(default_factory=list)
    environments: list[dict[str, str]] = field(default_factory=list)
    down: list[list[Span]] = field(default_factory=list)
    failed_starts: list[str] = field(default_factory=list)
    """Starts of a service node that did not succeed although the cluster had a leader."""

    def add_node(self, *flags: str, env: dict[str, str]) -> None:
        """Starts a new service node; all have the key that the first one made."""
        self.flags.append(flags)
        self.environments.append(env)
        self.down.append([])
        service = self._start(len(self.services), new_data_dir(), START_S)
        if service is None:
            raise NotInTime(f"a service node did not start within {START_S:g} s: {self.failed_starts[-1]}")
        service.key = service.key or self.services[0].key
        self.services.append(service)

    def kill_node(self) -> int:
        """Kills one of the service nodes with all of its processes; returns its number."""
        number = self.rng.randrange(len(self.services))
        self.down[number].append(Span(time.monotonic(), math.inf))
        self.services[number].kill()
        return number

    def start_node(self, number: int, seconds: float = START_S) -> bool:
        """Starts it again, at the same addresses; whether it did within the time."""
        service = self.services[number]
        started = self._start(number, service.data_dir, seconds)
        if started is not None:
            service.process = started.process
            self.down[number][-1] = Span(self.down[number][-1].began, time.monotonic())
        return started is not None

    def _start(self, number: int, data_dir: Path, seconds: float) -> Service | None:
        """Tries until it starts, as whoever looks after a service would."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                return start_service(data_dir, *self.flags[number], env=self.environments[number])
            except AssertionError as exc:
                self.failed_starts.append(f"node {number} did not start: {str(exc).splitlines()[-1]}")
        return None


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
        FaultKind("cut-long", f"the same for {CUT_LONG_S:g} s", cut_long),
        FaultKind("cut-and-back", f"no standby is reached for {CUT_S:g} s, and all goes on", cut_and_back),
        FaultKind("node", "kill -9 of one service node", node),
        FaultKind(
            "all", "SIGSTOP of the leader and of the standbys, and kill -9 of a service node, at once", everything
        ),
    )
}
