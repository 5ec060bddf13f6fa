"""Runs the workloads: all servers in turn, in rounds, so that noise of the machine hits all alike."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.load import Load, run_load
from bench.peers import engine, neon
from bench.peers.engine import Limit
from bench.peers.processes import Memory, MemoryPeak, memory_of, wait_until_quiet
from bench.peers.servers import Server, Tuplegate
from bench.peers.workloads import MARK, STREAMED, USERS, Workload

CONNECTIONS = (1, 32, 256)
OWN_TURNS = (1, 32, 256, 256, 32, 32, 256, 256, 32)  # there and back: a machine that grows slower does so for both
MAIN = 32  # the number of connections that most bars are about
SIZE_TOLERANCE = 0.05
Tell = Callable[[str], None]
PROBE = 7777  # a number of as many digits as most


@dataclass(frozen=True)
class Sample:
    """One measurement. `rate` is requests a second that went well; of a stream, rows a second."""

    rate: float
    errors: int
    p50_us: float
    p99_us: float
    memory: Memory


def mean(samples: Sequence[Sample]) -> Sample:
    """Of several loads that were alike; all their errors, and the most memory."""
    count = len(samples)
    return Sample(
        sum(sample.rate for sample in samples) / count,
        sum(sample.errors for sample in samples),
        sum(sample.p50_us for sample in samples) / count,
        sum(sample.p99_us for sample in samples) / count,
        max((sample.memory for sample in samples), key=lambda memory: memory.server),
    )


@dataclass(frozen=True)
class Case:
    server: str
    workload: Workload
    connections: int


@dataclass
class Results:
    """Samples by round; a round is an index into each list."""

    rounds: int = 0
    samples: dict[Case, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    limits: dict[Limit, list[float]] = field(default_factory=lambda: defaultdict(list))
    at_rest: dict[str, Memory] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    workloads: Sequence[Workload]
    rounds: int
    seconds: float
    deadline: float
    driver: Path | None
    """Where Neon's driver is installed, if one of the workloads is of it."""


class Wrong(Exception):
    """A server that does not do what is measured."""


def check(server: Server, workload: Workload) -> int:
    """Asks once and looks at the answer and the effect; returns the answer's size."""
    request = server.request(workload)
    assert request is not None
    if workload.writes:
        before = _writes(server, workload)
        size = server.ask(request, PROBE).size
        if _writes(server, workload) != before + 1:
            raise Wrong(f"{server.name}: {workload} did not write once")
        return size
    answer = server.ask(request, PROBE, keep=workload is not Workload.STREAM)
    text = answer.body.decode("utf-8", "replace")
    match workload:
        case Workload.STREAM:
            good = request.ends in text
        case Workload.ROWS:
            good = text.count("@example.org") == 1000 and "user1000@" in text
        case _:
            good = text.count("@example.org") == 1 and f"user{PROBE}@example.org" in text
    if answer.status != 200 or not good:
        raise Wrong(f"{server.name}: {workload} answered {answer.status} {text[-300:]}")
    return answer.size


def _writes(server: Server, workload: Workload) -> int:
    """How often the write has happened, by what is in the tables."""
    if workload is Workload.TRANSACTION:
        return server.value("select sum(count) as n from bench_counters")
    return server.value("select count(*) as n from bench_events")


def run(servers: Sequence[Server], plan: Plan, tell: Tell) -> Results:
    results = Results()
    service = next(server for server in servers if isinstance(server, Tuplegate))
    for server in servers:
        results.at_rest[server.name] = memory_of(server.roots())
    sizes = {
        (server.name, workload): check(server, workload)
        for server in servers
        for workload in plan.workloads
        if server.request(workload) is not None
    }
    longest = 0.0
    for index in range(plan.rounds):
        started = time.monotonic()
        if started + longest > plan.deadline:
            tell(f"time is up after {index} of {plan.rounds} rounds")
            break
        # Another server begins each round, so that none always comes after the same one.
        turn = [*servers[index % len(servers) :], *servers[: index % len(servers)]]
        for workload in plan.workloads:
            if workload is Workload.STREAM:
                _streams(turn, results)
                results.limits[Limit.PSQL].append(engine.measure(Limit.PSQL, service, plan.seconds))
                continue
            if workload is Workload.NEON:
                _run_driver(turn, plan, results)
                continue
            for server in turn:
                if (size := sizes.get((server.name, workload))) is None:
                    continue
                # What is compared is measured close together, and what is compared with itself in turns: the machine's
                # own speed changes within seconds.
                turns = OWN_TURNS if server is service else CONNECTIONS
                loads: dict[int, list[Sample]] = defaultdict(list)
                for connections in turns:
                    seconds = _seconds(plan, connections)
                    loads[connections].append(_load(server, workload, connections, seconds, size, tell))
                for connections, samples in loads.items():
                    results.samples[Case(server.name, workload, connections)].append(mean(samples))
                for limit in LIMITS.get(workload, ()) if server is service else ():
                    results.limits[limit].append(engine.measure(limit, service, plan.seconds))
        results.rounds = index + 1
        longest = max(longest, time.monotonic() - started)
        tell(f"round {index + 1} of {plan.rounds}: {time.monotonic() - started:.0f} s")
    return results


LIMITS = {
    Workload.POINT: (Limit.EXTENDED,),
    Workload.POINT_PARAMETER: (Limit.PREPARED,),
    Workload.INSERT: (Limit.INSERT,),
}


def _seconds(plan: Plan, connections: int) -> float:
    """The bars are about many connections, so most of the time is spent there."""
    return plan.seconds if connections >= MAIN else max(1.0, plan.seconds / 2)


def _load(server: Server, workload: Workload, connections: int, seconds: float, size: int, tell: Tell) -> Sample:
    request = server.request(workload)
    assert request is not None
    load = Load(
        url=server.url,
        key=server.key,
        body=request.text,
        random_max=USERS,
        connections=connections,
        seconds=seconds,
        method=request.method,
        path=request.path,
        headers=request.headers,
        mark=MARK,
    )
    before = _writes(server, workload) if workload.writes else 0
    with MemoryPeak(server.roots()) as memory:
        outcome = run_load(load)
    # What is still on its way would disturb this count, and the next server's load.
    quiet = wait_until_quiet(server.roots())
    errors = outcome.errors
    if workload.writes:
        # An answer of 200 can hold an error; what is not in the table did not happen.
        errors = max(errors, before + outcome.requests - _writes(server, workload))
    elif outcome.requests and abs(outcome.size - size) > size * SIZE_TOLERANCE:
        # Nor is an answer right that is much shorter or longer than the one that was looked at.
        errors = max(errors, outcome.requests)
    if not quiet:
        tell(f"{server.title} still works on {workload} of {connections} connections: it is started anew")
        server.restart()
    rate = outcome.per_second * (1 - min(1.0, errors / max(1, outcome.requests)))
    return Sample(rate, errors, outcome.p50_us, outcome.p99_us, memory.peak)


def _run_driver(servers: Sequence[Server], plan: Plan, results: Results) -> None:
    assert plan.driver is not None
    for server in servers:
        if server.request(Workload.NEON) is None:
            continue
        with MemoryPeak(server.roots()) as memory:
            outcome = neon.run_load(plan.driver, server, MAIN, plan.seconds)
        sample = Sample(outcome.per_second, outcome.errors, outcome.p50_us, outcome.p99_us, memory.peak)
        results.samples[Case(server.name, Workload.NEON, MAIN)].append(sample)


def _streams(servers: Sequence[Server], results: Results) -> None:
    for server in servers:
        request = server.request(Workload.STREAM)
        if request is None:
            continue
        with MemoryPeak(server.roots()) as memory:
            answer = server.ask(request, keep=False)
        errors = int(request.ends.encode() not in answer.body)
        sample = Sample(STREAMED / answer.seconds, errors, answer.seconds * 1e6, answer.seconds * 1e6, memory.peak)
        results.samples[Case(server.name, Workload.STREAM, 1)].append(sample)
