"""One run: a cluster, two service nodes, a workload, probes, faults from a seed, and a verdict on all of it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from random import Random

from tests.external import free_port
from tests.histories import check
from tests.list_append import ListAppend, create_table, final_lists, save_history
from tests.service import Sql, remove

from failover.cluster import Cluster, NotInTime, until
from failover.faults import FAULTS, FaultKind, Stage
from failover.probes import TABLE, Probe, Probes, running_probes
from failover.timeline import Span, lies, longest_gap, merged

LISTS = "lists"
SERVICES = 2
BAR_S = 2.0
"""The service may be away for that much longer than the cluster itself."""
BACK_S = 60.0
DOUBT_S = 30.0
JOIN_S = 300.0
FAULTY = ("Traceback", "unexpected failure", "a background task failed", "the worker stands still", "the worker died")
"""What a service logs only where it has a fault of its own."""

CHOSEN_IDS = 0.8
QUERIES = 0.4
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


@dataclass
class Verdict:
    """`figures` has a line for every fault. `wrong` is what was promised and not kept; `late` is what came later than
    it should, which a busy machine may excuse. Both are empty where all held."""

    figures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Window:
    """A fault and the calm after it."""

    kind: FaultKind
    span: Span


def run(trial: Trial, say: Say) -> Verdict:
    """Raises NotInstalled where a program is missing, and NotInTime where the cluster itself does not come back."""
    with Cluster() as cluster:
        say("the cluster is whole")
        with running_services(cluster, trial.seed, trial.url_options) as stage:
            say("both service nodes serve")
            _prepare(stage)
            verdict = Verdict()
            try:
                _run(trial, stage, say, verdict)
            except Exception as exc:  # noqa: BLE001 - the logs are needed to see why
                verdict.wrong.append(f"the run was given up: {exc!r}")
            verdict.wrong += stage.failed_starts
            if verdict.wrong or verdict.late:
                say(f"what was logged is in {_keep_logs(stage, trial.seed)}")
            return verdict


@contextmanager
def running_services(cluster: Cluster, seed: int, url_options: str = "") -> Iterator[Stage]:
    """The service nodes, each with another host first in its URL."""
    more = f"&{url_options}" if url_options else ""
    stage = Stage([], Random(f"{seed}-faults"), cluster=cluster)
    try:
        for number in range(SERVICES):
            flags = ("--data-port", str(free_port()), "--engine-connections-max", "60")
            stage.add_node(*flags, env={"TUPLEGATE_ENGINE": cluster.url(turned=number) + more})
        yield stage
    finally:
        for service in stage.services:
            service.kill()
            remove(service.data_dir)


def _prepare(stage: Stage) -> None:
    stage.cluster.leader().execute(f"create table {TABLE} (n bigint)")
    with stage.services[0].client() as client:
        create_table(Sql(client), LISTS)
        Sql(client)(f"create table {TABLE} (n bigint)")


def _run(trial: Trial, stage: Stage, say: Say, verdict: Verdict) -> None:
    first, *others = stage.services
    work = ListAppend(first, LISTS, trial.seed, trial.transactions, trial.clients, CHOSEN_IDS, tuple(others), QUERIES,
                      TIMEOUT_MS, ANSWER_S)  # fmt: skip
    thread = threading.Thread(target=work.run, daemon=True)
    windows: list[Window] = []
    with running_probes(stage.cluster, stage.services) as probes:
        _wait_served(probes)
        thread.start()
        try:
            for kind in _order(trial):
                _close(windows, stage, probes, verdict, say)
                say(f"{work.done:,} transactions, {dict(work.counts)}; {kind.name}: {kind.sentence}")
                windows.append(_harm(kind, stage, probes, verdict, trial.calm_s))
            _judge_gaps(windows[-1], stage, probes, verdict, say)
        finally:
            work.stopping.set()
        thread.join(JOIN_S)
    if thread.is_alive():
        verdict.wrong.append(f"clients still wait for answers after {JOIN_S:g} s")
    verdict.counts |= work.counts
    verdict.wrong += work.wrong
    _judge_health(stage, probes, verdict)
    _judge_logs(stage, verdict)
    _judge_writes(trial, stage, work, probes, verdict)


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
        verdict.wrong.append(f"{kind.name}: {exc}")
    time.sleep(calm_s)
    return Window(kind, Span(began, time.monotonic()))


def _close(windows: list[Window], stage: Stage, probes: Probes, verdict: Verdict, say: Say) -> None:
    """Waits until the cluster is whole again; what the last fault did is then known."""
    stage.cluster.wait_whole()
    _wait_served(probes)
    if windows:
        windows[-1] = replace(windows[-1], span=Span(windows[-1].span.began, time.monotonic()))
        _judge_gaps(windows[-1], stage, probes, verdict, say)


def _wait_served(probes: Probes) -> None:
    """Until each probe was served anew."""
    began = time.monotonic()

    def late() -> list[str]:
        return [name for name, at in probes.latest().items() if at <= began]

    until(lambda: not late(), BACK_S, lambda: f"{', '.join(late())}: not served within {BACK_S:g} s")


# -- the verdict ------------------------------------------------------------------------------------------------------


def _judge_gaps(window: Window, stage: Stage, probes: Probes, verdict: Verdict, say: Say) -> None:
    """The longest times without service, and what is wrong with them."""
    parts = []
    for what, direct, served in (
        ("writes", probes.direct_writes, probes.writes),
        ("reads", probes.direct_reads, probes.reads),
    ):
        own = longest_gap(merged(probe.served for probe in direct), window.span).seconds
        gaps = []
        for number, probe in enumerate(served):
            if any(window.span.has(down.began) for down in stage.down[number]):
                gaps.append("killed")
                continue
            gap = longest_gap(probe.served, window.span).seconds
            gaps.append(f"{gap:.1f} s")
            if gap - own > BAR_S:
                gone = f"served no {what} for {gap:.1f} s, the cluster none for {own:.1f} s"
                verdict.late.append(f"{window.kind.name}: node {number} {gone}")
        parts.append(f"no {what}: cluster {own:.1f} s, nodes {', '.join(gaps)}")
    verdict.figures.append(f"{window.kind.name:12} {'; '.join(parts)}")
    say(verdict.figures[-1])


def _judge_health(stage: Stage, probes: Probes, verdict: Verdict) -> None:
    writes = merged(probe.served for probe in probes.direct_writes)
    for number, probe in enumerate(probes.health):
        found = lies(probe.said, writes, stage.down[number])
        if found:
            verdict.late.append(f"/health of node {number} {found[0]} (and {len(found) - 1} times more)")


def _judge_logs(stage: Stage, verdict: Verdict) -> None:
    """No fault may make the service fail in a way that nobody expected."""
    for number, service in enumerate(stage.services):
        log = service.log
        verdict.wrong += [f"node {number} logged {sign!r} {log.count(sign)} times" for sign in FAULTY if sign in log]


def _judge_writes(trial: Trial, stage: Stage, work: ListAppend, probes: Probes, verdict: Verdict) -> None:
    leader = stage.cluster.leader()
    in_doubt = "select gid from pg_prepared_xacts where gid like 'tuplegate%'"
    try:
        until(lambda: leader.execute(in_doubt) == [], DOUBT_S, lambda: "prepared transactions are left over")
    except NotInTime as exc:
        verdict.wrong.append(str(exc))
    with stage.services[0].client() as client:
        final = final_lists(Sql(client), LISTS)
        there = {row[0] for row in Sql(client).rows(f"select n from {TABLE}", row_mode="arrays", max_rows=1_000_000)}
    _judge_acknowledged("by the service", probes.writes, there, verdict)
    directly = {int(row[0] or 0) for row in leader.execute(f"select n from {TABLE}")}
    _judge_acknowledged(
        "by the cluster itself, so it is not set up to keep them", probes.direct_writes, directly, verdict
    )
    anomalies = check(work.history, final, real_time=True)
    verdict.wrong += [str(anomaly) for anomaly in anomalies]
    if anomalies:
        save_history(work.history, _kept_path(trial.seed))


def _judge_acknowledged(by: str, probes: list[Probe], there: set[int], verdict: Verdict) -> None:
    acknowledged = set(chain.from_iterable(probe.acknowledged for probe in probes))
    if lost := sorted(acknowledged - there):
        verdict.wrong.append(f"{len(lost)} writes of probes were acknowledged {by}, and are lost: {lost[:5]}")


def _kept_path(seed: int) -> Path:
    return Path(f"/tmp/failover-{seed}.jsonl")  # it outlives the run on purpose


def _keep_logs(stage: Stage, seed: int) -> Path:
    path = _kept_path(seed).with_suffix(".log")
    services = "\n".join(f"== service node {n}\n{service.log}" for n, service in enumerate(stage.services))
    path.write_text(f"{services}\n{stage.cluster.log}")
    return path
