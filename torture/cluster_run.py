"""The run on a cluster of CockroachDB: three nodes of it, two service nodes, and faults of both, from a seed.

The program is not part of this repository; `--engine-binary` names it. A fault begins with a whole cluster. The next
one comes when the cluster is whole again and some transactions have passed.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from random import Random

from failover.service_nodes import ServiceNodes
from failover.sessions import Session, Unanswered
from failover.timeline import Span, longest_gap, merged
from tests.cockroach_cluster import CockroachCluster, CockroachNode, NotInTime
from tests.external import free_port
from tests.faults import once_back, serves
from tests.histories import Outcome, check
from tests.list_append.statements import create_table, final_lists, save_history
from tests.list_append.workload import ListAppend, Shares
from tests.service import Sql

LISTS = "lists"
SERVICES = 2
DEAD_S = 5.0
"""How long a killed node stays dead; that of the lists for longer than its leases hold."""
LEASE_S = 15.0
FROZEN_S = 30.0
QUORUM_S = 20.0
SERVICE_S = 3.0
BACK_S = 120.0
JOIN_S = 600.0
STILL_S = 240.0
CHOSEN_IDS = 0.8
QUERIES = 0.3
INTERACTIVE = 0.2
TIMEOUT_MS = 10_000
ANSWER_S = 120.0
LOOK_S = 0.2
REPORT_S = 5.0
PROBE_S = 2.0
PROBE_EVERY_S = 0.2
NEEDED = (
    f"{LISTS} where k = -1",
    "tuplegate.begun where id = '-'",
    "tuplegate.outcome where key = '-'",
    "tuplegate.answer where key = '-'",
    "tuplegate.engine.lock where name = '-'",
    *(f"tuplegate.public.{table} where id = '-'" for table in ("api_key", "database", "organization", "session")),
    "tuplegate.public.revision",
)
"""A row of every table that a request may need: each can be decided over by another node."""
PROBE = " union all ".join(f"select 1 from {rows}" for rows in NEEDED)
FAULTY = ("Traceback", "unexpected failure", "a background task failed", "the worker stands still", "the worker died")
"""What a service logs only where it has a fault of its own."""

Say = Callable[[str], None]


@dataclass
class Stage:
    """The part of a run that faults harm."""

    cluster: CockroachCluster
    services: ServiceNodes
    rng: Random

    def choose(self, count: int = 1) -> list[CockroachNode]:
        return self.rng.sample(self.cluster.nodes, count)


def kill_node(stage: Stage) -> None:
    _kill(stage, stage.choose(), DEAD_S)


def kill_leaseholder(stage: Stage) -> None:
    _kill(stage, [stage.cluster.find_leaseholder(LISTS)], LEASE_S)


def kill_most(stage: Stage) -> None:
    _kill(stage, stage.choose(2), QUORUM_S)


def kill_all(stage: Stage) -> None:
    _kill(stage, stage.cluster.nodes, 0)


def freeze(stage: Stage) -> None:
    [node] = stage.choose()
    node.freeze()
    try:
        time.sleep(FROZEN_S)  # the fault itself
    finally:
        node.thaw()


def drain(stage: Stage) -> None:
    [node] = stage.choose()
    node.stop()
    stage.cluster.start(node)


def kill_service(stage: Stage) -> None:
    number = stage.services.kill_node()
    time.sleep(SERVICE_S)  # the fault itself
    stage.services.start_node(number)


def _kill(stage: Stage, nodes: list[CockroachNode], seconds: float) -> None:
    for node in nodes:
        node.kill()
    time.sleep(seconds)  # the fault itself
    for node in nodes:
        stage.cluster.start(node)


FAULTS: dict[str, Callable[[Stage], None]] = {
    "node": kill_node,
    "leaseholder": kill_leaseholder,
    "freeze": freeze,
    "drain": drain,
    "quorum": kill_most,
    "all": kill_all,
    "service": kill_service,
}


@dataclass(frozen=True)
class ClusterRun:
    """What is asked of a run. `fault_every`: transactions between two faults, at least. After `seconds` no more are
    begun."""

    program: Path
    seed: int
    transactions: int
    clients: int
    faults: tuple[str, ...]
    fault_every: int
    seconds: float


def run(asked: ClusterRun, say: Say) -> list[str]:
    """Return what is wrong."""
    with CockroachCluster(asked.program) as cluster:
        say("the cluster is whole")
        with _running_services(cluster, asked.seed) as services:
            say("both service nodes serve")
            stage = Stage(cluster, services, Random(f"{asked.seed}-faults"))
            with services.services[0].client() as client:
                create_table(Sql(client), LISTS)
            wrong = _run(asked, stage, say)
            if wrong:
                wrong.append(f"what was logged is in {_keep_logs(stage, asked.seed)}")
            return wrong


@contextmanager
def _running_services(cluster: CockroachCluster, seed: int) -> Iterator[ServiceNodes]:
    nodes = ServiceNodes([], Random(f"{seed}-services"))
    try:
        for number in range(SERVICES):
            flags = ("--data-port", str(free_port()), "--engine-connections-max", "60")
            nodes.add_node(*flags, env={"TUPLEGATE_ENGINE": cluster.url(turned=number)})
        yield nodes
    finally:
        for service in nodes.services:
            service.kill()


def _run(asked: ClusterRun, stage: Stage, say: Say) -> list[str]:
    first, *others = stage.services.services
    work = ListAppend(first, LISTS, asked.seed, asked.transactions, asked.clients)
    work.shares = Shares(QUERIES, INTERACTIVE, chosen_ids=CHOSEN_IDS, keys=0.5)
    work.others, work.timeout_ms, work.answer_s, work.askers = tuple(others), TIMEOUT_MS, ANSWER_S, 1
    thread = threading.Thread(target=work.run, daemon=True)
    thread.start()
    reporting = threading.Thread(target=_report, args=(thread, work, say), daemon=True)
    reporting.start()
    ending = threading.Timer(asked.seconds, work.stopping.set)
    ending.daemon = True
    ending.start()
    done: Counter[str] = Counter()
    lasting: list[str] = []
    with _running_probes(stage) as served:
        try:
            _harm(asked, stage, work, thread, served, say, done)
        except NotInTime as never:
            lasting.append(str(never))
    thread.join(JOIN_S)
    say(f"faults: {dict(done)}; transactions: {dict(work.counts)}; refusals: {dict(work.refusals)}")
    if thread.is_alive():
        waiting = f"clients still wait for answers after {JOIN_S:g} s"
        return [waiting, *lasting, *work.describe_waiting(0), *work.wrong]
    once_back(lambda: all(map(serves, stage.services.services)), BACK_S)
    with first.client() as client:
        final = final_lists(Sql(client), LISTS)
    anomalies = check(work.history, final, real_time=True)
    wrong = [*lasting, *work.wrong, *map(str, anomalies), *stage.services.failed_starts]
    if len(work.history) != (work.done if work.stopping.is_set() else asked.transactions):
        wrong.append(f"only {len(work.history)} transactions have an end")
    for number, service in enumerate(stage.services.services):
        log = service.log
        wrong += [f"node {number} logged {sign!r} {log.count(sign)} times" for sign in FAULTY if sign in log]
    if anomalies:
        save_history(work.history, _kept_path(asked.seed))
    return wrong


def _harm(
    asked: ClusterRun,
    stage: Stage,
    work: ListAppend,
    thread: threading.Thread,
    served: list[list[float]],
    say: Say,
    done: Counter[str],
) -> None:
    """Do one fault after the other, each once before one comes again, until all transactions are done. Raises NotInTime
    where the cluster does not become whole again."""
    rest: list[str] = []
    while asked.faults and thread.is_alive():
        wanted, deadline = work.done + asked.fault_every, time.monotonic() + STILL_S
        while thread.is_alive() and work.done < wanted and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        if work.done < wanted:
            break
        rest = rest or stage.rng.sample(asked.faults, len(asked.faults))
        name = rest.pop()
        say(f"fault: {name}")
        began = time.monotonic()
        FAULTS[name](stage)
        done[name] += 1
        stage.cluster.wait_whole()
        window = Span(began, time.monotonic())
        own = longest_gap(merged(served), window).seconds
        ended = sorted(one.ended for one in work.history if one.outcome is Outcome.OK and isfinite(one.ended))
        ours = f"{longest_gap(ended, window).seconds:.1f} s" if thread.is_alive() else "not known, nobody asked it"
        say(f"whole again after {name}; not served: by the cluster {own:.1f} s, by the service {ours}")


@contextmanager
def _running_probes(stage: Stage) -> Iterator[list[list[float]]]:
    """Read what a request needs directly through every node, and note when that was answered."""
    nodes = stage.cluster.nodes
    [(database,)] = nodes[0].ask("SELECT database_name FROM crdb_internal.tables WHERE name = %s LIMIT 1", [LISTS])
    served: list[list[float]] = [[] for _ in nodes]
    stopping = threading.Event()
    threads = [
        threading.Thread(
            target=_probe, args=(f"host=127.0.0.1 port={node.port} user=root dbname={database}", times, stopping)
        )
        for node, times in zip(nodes, served, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield served
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def _probe(conninfo: str, times: list[float], stopping: threading.Event) -> None:
    session: Session | None = None
    while not stopping.wait(PROBE_EVERY_S):
        try:
            session = session or Session.opened(conninfo, PROBE_S)
            session.execute(PROBE, PROBE_S)
            times.append(time.monotonic())
        except Unanswered:
            session = None
    if session is not None:
        session.close()


def _report(thread: threading.Thread, work: ListAppend, say: Say) -> None:
    while thread.is_alive():
        thread.join(REPORT_S)
        say(f"{work.done:,} done, {dict(work.counts)}")
        for line in work.describe_waiting(2 * REPORT_S):
            say(f"  {line}")


def _kept_path(seed: int) -> Path:
    return Path(f"/tmp/torture-{seed}.jsonl")  # noqa: S108 - it outlives the run on purpose


def _keep_logs(stage: Stage, seed: int) -> Path:
    path = _kept_path(seed).with_suffix(".log")
    services = "\n".join(f"== service node {n}\n{one.log}" for n, one in enumerate(stage.services.services))
    path.write_text(f"{services}\n{stage.cluster.log}")
    return path
