"""The verdict on a run: what was promised and not kept, and what came later than it should."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import httpx
from tests.histories import Append, check
from tests.list_append.sayings import check_snapshots
from tests.list_append.statements import final_lists, save_history
from tests.list_append.workload import ListAppend
from tests.service import Sql

from failover.cluster import NotInTime, until
from failover.faults import FaultKind, Stage
from failover.probes import TABLE, Probe, Probes
from failover.taken_back import TakenBack
from failover.timeline import Span, lies, longest_gap, merged

LISTS = "lists"
BAR_S = 2.0
"""The service may be away for that much longer than the cluster itself."""
DOUBT_S = 30.0
FAULTY = ("Traceback", "unexpected failure", "a background task failed", "the worker stands still")
"""What a service logs only where it has a fault of its own."""
DIED = "the worker died"
WORDS_MAX = 3000


@dataclass
class Verdict:
    """`figures` has a line for every fault. `wrong` is what was promised and not kept; `late` is what came later than
    it should, which a busy machine may excuse; `logged` are failures that the service did not expect itself; `broken`
    is what kept the run from its end. All are empty where all held."""

    figures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        kinds = {"WRONG": self.wrong, "LOGGED": self.logged, "BROKEN": self.broken, "LATE": self.late}
        return [f"{kind:6} {line}" for kind, lines in kinds.items() for line in lines]


@dataclass(frozen=True)
class Window:
    """A fault and the calm after it."""

    kind: FaultKind
    span: Span


def judge(seed: int, stage: Stage, work: ListAppend, probes: Probes, verdict: Verdict, *, waits: bool) -> None:
    """Judge a run that is over, but for its gaps. Where commits do not wait for a standby, acknowledged ones may be
    lost, and so only the outcomes are judged that are told in the end."""
    verdict.counts |= work.counts
    tallies = {"sent": work.sent, "refused": work.refusals, "told": work.asked}
    verdict.figures += [f"{name}: {dict(tally)}" for name, tally in tallies.items()]
    _judge_logs(stage, verdict)
    _judge_prepared(stage, verdict)
    with stage.services[0].client() as client:
        final = final_lists(Sql(client), LISTS)
        if not waits:
            _judge_words(client, work, final, verdict)
            return
        there = {row[0] for row in Sql(client).rows(f"select n from {TABLE}", row_mode="arrays", max_rows=1_000_000)}
    _judge_health(stage, probes, verdict)
    _judge_acknowledged("by the service", probes.writes, there, verdict)
    directly = {int(row[0] or 0) for row in stage.cluster.leader().execute(f"select n from {TABLE}")}
    _judge_acknowledged(
        "by the cluster itself, so it is not set up to keep them", probes.direct_writes, directly, verdict
    )
    _judge_history(seed, stage, work, final, verdict)


def _judge_history(
    seed: int, stage: Stage, work: ListAppend, final: dict[str, tuple[int, ...]], verdict: Verdict
) -> None:
    taken = TakenBack(work.history, final, stage.cut_waits)
    history, snapshots = taken.right_history(), taken.right_snapshots(work.snapshots)
    work.lacks = taken.right_lacks(work.lacks)
    anomalies = [*check(history, final, real_time=True), *check_snapshots(history, final, snapshots)]
    verdict.wrong += [*work.wrong, *map(str, anomalies), *([taken.excess] if taken.excess else [])]
    for cut in stage.cut_waits:
        verdict.figures.append(f"{cut.cancelled} waits were cancelled in {cut.span.seconds:.1f} s")
    if taken.shown:
        verdict.figures.append(f"{taken.reads} reads have shown {len(taken.shown)} appends that were taken back then")
    if anomalies:
        save_history(work.history, _kept_path(seed))


def judge_gaps(window: Window, stage: Stage, probes: Probes, verdict: Verdict, say: Callable[[str], None]) -> None:
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


def keep_logs(stage: Stage, seed: int) -> Path:
    path = _kept_path(seed).with_suffix(".log")
    services = "\n".join(f"== service node {n}\n{service.log}" for n, service in enumerate(stage.services))
    path.write_text(f"{services}\n{stage.cluster.log}")
    return path


def _kept_path(seed: int) -> Path:
    return Path(f"/tmp/failover-{seed}.jsonl")  # it outlives the run on purpose


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
        verdict.logged += [f"node {number} logged {sign!r} {log.count(sign)} times" for sign in FAULTY if sign in log]
        if (died := log.count(DIED)) > stage.killed_workers[number]:
            verdict.logged.append(f"{died} workers of node {number} died, {stage.killed_workers[number]} were killed")


def _judge_prepared(stage: Stage, verdict: Verdict) -> None:
    leader = stage.cluster.leader()
    in_doubt = "select gid from pg_prepared_xacts where gid like 'tuplegate%'"
    try:
        until(lambda: leader.execute(in_doubt) == [], DOUBT_S, lambda: "prepared transactions are left over")
    except NotInTime as exc:
        verdict.wrong.append(str(exc))


def _judge_acknowledged(by: str, probes: list[Probe], there: set[int], verdict: Verdict) -> None:
    acknowledged = set(chain.from_iterable(probe.acknowledged for probe in probes))
    if lost := sorted(acknowledged - there):
        verdict.wrong.append(f"{len(lost)} writes of probes were acknowledged {by}, and are lost: {lost[:5]}")


def _judge_words(client: httpx.Client, work: ListAppend, final: dict[str, tuple[int, ...]], verdict: Verdict) -> None:
    """What is said of a transaction when all is over agrees with what is there. Not to know is no lie."""
    words = {"committed": True, "aborted": False}
    for one in [one for one in work.history if one.id in work.ids][-WORDS_MAX:]:
        answer = client.get(f"/v1/transaction/{work.ids[one.id]}")
        said = str(answer.json()["state"]) if answer.status_code == 200 else str(answer.status_code)
        work.asked[f"in the end {said}"] += 1
        appends = [op for op in one.ops if isinstance(op, Append)]
        there = [op.value in final.get(op.key, ()) for op in appends]
        if said in words and any(is_there is not words[said] for is_there in there):
            verdict.wrong.append(f"{work.ids[one.id]} is said to be {said}, and of {appends} there are {there}")
    verdict.figures.append(f"in the end: { {name: n for name, n in work.asked.items() if name.startswith('in the')} }")
