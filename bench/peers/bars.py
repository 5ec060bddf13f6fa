"""The bars: what the service must reach, as ratios in one run. Every ratio is above its bar when it is good."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from bench.peers.engine import Limit
from bench.peers.rounds import MAIN, Case, Results
from bench.peers.servers import Server, Tuplegate
from bench.peers.workloads import LOADS, Workload


class Against(Enum):
    """What the service is compared with. A ratio of times is turned over, so that more is better everywhere."""

    PEERS = "best peer"
    DURABLE = "best peer that is as durable"
    P50_PEERS = "p50 of the quickest peer"
    P50_DURABLE = "p50 of the quickest peer that is as durable"
    ITSELF = "itself at 32 connections"
    ENGINE = "the engine"


@dataclass(frozen=True)
class Bar:
    """`at_least` None: printed, not judged."""

    workload: Workload
    connections: int
    against: Against
    at_least: float | None
    limit: Limit | None = None

    @property
    def title(self) -> str:
        other = self.limit.value if self.limit else self.against.value
        return f"{self.workload.label}, {self.connections} conn. / {other}"


def _p50(workload: Workload) -> list[Bar]:
    """What is flushed cannot be as quick as what is not, so of writes only equals are judged."""
    if not workload.writes:
        return [Bar(workload, 1, Against.P50_PEERS, 1.0)]
    return [Bar(workload, 1, Against.P50_DURABLE, 1.0), Bar(workload, 1, Against.P50_PEERS, None)]


BARS: tuple[Bar, ...] = (
    Bar(Workload.POINT, MAIN, Against.PEERS, 3.5),
    Bar(Workload.POINT_PARAMETER, MAIN, Against.PEERS, 3.5),
    Bar(Workload.INSERT, MAIN, Against.PEERS, 3.5),
    Bar(Workload.ROWS, MAIN, Against.PEERS, 2.0),
    Bar(Workload.TRANSACTION, MAIN, Against.DURABLE, 1.5),
    Bar(Workload.TRANSACTION, MAIN, Against.PEERS, None),
    Bar(Workload.STREAM, 1, Against.ENGINE, 0.5, Limit.PSQL),
    Bar(Workload.STREAM, 1, Against.PEERS, None),
    Bar(Workload.NEON, MAIN, Against.PEERS, 3.0),
    *(bar for workload in LOADS for bar in _p50(workload)),
    *(Bar(workload, 256, Against.ITSELF, 0.85) for workload in LOADS),
    Bar(Workload.POINT, MAIN, Against.ENGINE, 0.45, Limit.EXTENDED),
    Bar(Workload.POINT_PARAMETER, MAIN, Against.ENGINE, 0.25, Limit.PREPARED),
    Bar(Workload.INSERT, MAIN, Against.ENGINE, 0.45, Limit.INSERT),
)
ERRORS_MAX = 0


@dataclass(frozen=True)
class Ratio:
    """A bar with what was measured: the ratio of each round, and whom it was reached against most often."""

    bar: Bar
    values: list[float]
    other: str

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def passed(self) -> bool | None:
        return None if self.bar.at_least is None else self.median >= self.bar.at_least


def ratios(results: Results, servers: Sequence[Server]) -> list[Ratio]:
    """Of the bars for which there is a measurement, in the order of the table."""
    found = []
    for bar in BARS:
        pairs = [_one(bar, results, servers, index) for index in range(results.rounds)]
        whole = [pair for pair in pairs if pair is not None]
        if whole:
            others = [other for _, other in whole]
            found.append(Ratio(bar, [value for value, _ in whole], max(set(others), key=others.count)))
    return found


def _one(bar: Bar, results: Results, servers: Sequence[Server], index: int) -> tuple[float, str] | None:
    samples = results.samples.get(Case(Tuplegate.name, bar.workload, bar.connections))
    if not samples:
        return None
    ours = samples[index]
    if bar.against is Against.ENGINE:
        assert bar.limit is not None
        return ours.rate / results.limits[bar.limit][index], bar.limit.value
    if bar.against is Against.ITSELF:
        main = results.samples[Case(Tuplegate.name, bar.workload, MAIN)][index]
        return ours.rate / main.rate if main.rate else 0.0, Tuplegate.title
    equals = bar.against in (Against.DURABLE, Against.P50_DURABLE)
    peers = {
        server.title: case[index]
        for server in servers
        if not isinstance(server, Tuplegate) and (server.durable or not equals)
        if (case := results.samples.get(Case(server.name, bar.workload, bar.connections))) and case[index].rate
    }
    if not peers:
        return None
    if not ours.rate:
        return 0.0, "nothing was answered"
    if bar.against in (Against.P50_PEERS, Against.P50_DURABLE):
        best = min(peers, key=lambda name: peers[name].p50_us)
        return peers[best].p50_us / ours.p50_us, best
    best = max(peers, key=lambda name: peers[name].rate)
    return ours.rate / peers[best].rate, best


def errors(results: Results) -> int:
    """How many requests to the service went wrong."""
    return sum(
        sample.errors
        for case, samples in results.samples.items()
        if case.server == Tuplegate.name
        for sample in samples
    )
