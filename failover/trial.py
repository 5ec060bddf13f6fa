"""One run: a cluster, two service nodes, a workload, probes, and faults from a seed. `verdict` judges it."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random

from tests.external import free_port
from tests.list_append.statements import create_table
from tests.list_append.workload import ListAppend, Shares
from tests.service import Sql, remove

from failover.cluster import Cluster, NotInTime, until
from failover.faults import FAULTS, FaultKind, Stage
from failover.mutations import MIXED
from failover.network import Mode, Network
from failover.probes import TABLE, Probes, running_probes
from failover.timeline import Span
from failover.tunnels import running_tunnels
from failover.verdict import LISTS, Verdict, Window, judge, judge_gaps, keep_logs

SERVICES = 2
DURABILITY = ("engine", "replicated")
"""Of the service nodes, where commits wait for a standby."""
BACK_S = 60.0
JOIN_S = 300.0
ENOUGH_S = 120.0
LOOK_S = 0.2

ASKERS = 2
TIMEOUT_MS = 4000
ANSWER_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """`faults` come in an order that the seed decides, each once before one comes again, while there is time.

    With `rounds`, all of them come that often and the time is not looked at.
    """

    seed: int
    faults: tuple[str, ...] = tuple(FAULTS)
    seconds: float = 600.0
    rounds: int | None = None
    transactions: int = 200_000
    clients: int = 8
    calm_s: float = 6.0
    """Time after a fault in which nothing happens, so that it is seen what health says then."""
    url_options: str = ""
    """Further parameters of the URL that the service nodes are given, as `target_session_attrs=primary`."""
    shares: Shares = MIXED
    mutation: str = ""
    """The name of a way to weaken the service nodes."""
    transactions_min: int = 0
    """So many have committed before the end, if that takes no longer than two minutes."""
    waits: bool = True
    """Commits wait for a standby. Where they do not, acknowledged ones may be lost, and only outcomes are judged."""


def run(trial: Trial, say: Say) -> Verdict:
    """Raises NotInstalled where a program is missing, and NotInTime where the cluster itself does not come back."""
    [verdict] = run_all([trial], say)
    return verdict


def run_all(trials: Sequence[Trial], say: Say) -> Iterator[Verdict]:
    """The same for several of the same kind, on one cluster, each in an installation of its own."""
    with Cluster(trials[0].waits) as cluster, Network([node.port for node in cluster.nodes]) as network:
        for node, entry in zip(cluster.nodes, network.entries, strict=True):
            node.entry = entry
        say("the cluster is whole")
        for number, trial in enumerate(trials):
            yield _run_one(trial, cluster, network, f"tuplegate_{number}", say)
            network.set_mode(Mode.OPEN)
            network.set_delay(0)
            cluster.wait_whole()
            cluster.forget_prepared()


def _run_one(trial: Trial, cluster: Cluster, network: Network, database: str, say: Say) -> Verdict:
    with running_services(cluster, network, database, trial) as stage:
        say("both service nodes serve")
        _prepare(stage)
        verdict = Verdict()
        try:
            _run(trial, stage, say, verdict)
        except Exception as exc:  # noqa: BLE001 - the logs are needed to see why
            verdict.broken.append(f"the run was given up: {exc!r}")
        verdict.broken += stage.failed_starts
        if verdict.failed and (verdict.broken or not trial.mutation):
            say(f"what was logged is in {keep_logs(stage, trial.seed)}")
        return verdict


@contextmanager
def running_services(cluster: Cluster, network: Network, database: str, trial: Trial) -> Iterator[Stage]:
    """The service nodes, each with another host first in its URL."""
    more = f"&{trial.url_options}" if trial.url_options else ""
    stage = Stage([], Random(f"{trial.seed}-faults"), cluster=cluster, network=network, program="failover.node")
    replicas = ",".join(f"postgresql://127.0.0.1:{node.entry}?sslmode=disable" for node in cluster.nodes)
    try:
        for number in range(SERVICES):
            flags = ("--data-port", str(free_port()), "--engine-connections-max", "60", "--wire-connections-max", "32")
            env = {
                "TUPLEGATE_ENGINE": cluster.url(database, turned=number) + more,
                "TUPLEGATE_REPLICAS": replicas,
                "TUPLEGATE_DURABILITY": DURABILITY[number] if trial.waits else "engine",
                "FAILOVER_TRAP": str(stage.trap(number)),
                "FAILOVER_MUTATION": trial.mutation,
            }
            stage.add_node(*flags, env=env)
        yield stage
    finally:
        for service in stage.services:
            service.kill()
            remove(service.data_dir)


def _prepare(stage: Stage) -> None:
    leader = stage.cluster.leader()
    leader.execute(f"drop table if exists {TABLE}")
    leader.execute(f"create table {TABLE} (n bigint)")
    with stage.services[0].client() as client:
        create_table(Sql(client), LISTS)
        Sql(client)(f"create table {TABLE} (n bigint)")


def _run(trial: Trial, stage: Stage, say: Say, verdict: Verdict) -> None:
    first, *others = stage.services
    work = ListAppend(first, LISTS, trial.seed, trial.transactions, trial.clients, trial.shares, tuple(others))
    work.timeout_ms, work.answer_s, work.askers, work.may_forget = TIMEOUT_MS, ANSWER_S, ASKERS, not trial.waits
    thread = threading.Thread(target=work.run, daemon=True)
    windows: list[Window] = []
    with running_tunnels(stage.services) as work.wire_ports, running_probes(stage.cluster, stage.services) as probes:
        _wait_served(probes)
        thread.start()
        try:
            for kind in _order(trial):
                _close(windows, stage, probes, verdict, say)
                say(f"{work.done:,} transactions, {dict(work.counts)}; {kind.name}: {kind.sentence}")
                windows.append(_harm(kind, stage, probes, verdict, trial.calm_s))
            _await_transactions(trial.transactions_min, work)
            if windows:
                judge_gaps(windows[-1], stage, probes, verdict, say)
        finally:
            work.stopping.set()
        thread.join(JOIN_S)
    if thread.is_alive():
        waiting = f"clients still wait for answers after {JOIN_S:g} s"
        verdict.broken += [waiting, *work.describe_waiting(0)]
    judge(trial.seed, stage, work, probes, verdict, waits=trial.waits)


def _await_transactions(count: int, work: ListAppend) -> None:
    deadline = time.monotonic() + ENOUGH_S
    while work.counts["ok"] < count and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def _order(trial: Trial) -> Iterator[FaultKind]:
    rng = Random(f"{trial.seed}-order")
    ends = time.monotonic() + trial.seconds
    round = 0
    while trial.rounds is None or round < trial.rounds:
        for name in rng.sample(trial.faults, len(trial.faults)):
            if trial.rounds is None and time.monotonic() > ends:
                return
            yield FAULTS[name]
        round += 1


def _harm(kind: FaultKind, stage: Stage, probes: Probes, verdict: Verdict, calm_s: float) -> Window:
    began = time.monotonic()
    kind.run(stage)
    try:
        _wait_served(probes)
    except NotInTime as exc:
        verdict.broken.append(f"{kind.name}: {exc}")
    time.sleep(calm_s)
    return Window(kind, Span(began, time.monotonic()))


def _close(windows: list[Window], stage: Stage, probes: Probes, verdict: Verdict, say: Say) -> None:
    """Waits until the cluster is whole again; what the last fault did is then known."""
    stage.cluster.wait_whole()
    _wait_served(probes)
    if windows:
        windows[-1] = replace(windows[-1], span=Span(windows[-1].span.began, time.monotonic()))
        judge_gaps(windows[-1], stage, probes, verdict, say)


def _wait_served(probes: Probes) -> None:
    """Until each probe was served anew."""
    began = time.monotonic()

    def late() -> list[str]:
        return [name for name, at in probes.latest().items() if at <= began]

    until(lambda: not late(), BACK_S, lambda: f"{', '.join(late())}: not served within {BACK_S:g} s")
