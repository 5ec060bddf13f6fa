"""What a run found, as Markdown for people and as JSON for programs."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict

from bench.load import generator_name
from bench.peers.bars import ERRORS_MAX, Ratio, errors
from bench.peers.rounds import CONNECTIONS, Case, Results
from bench.peers.servers import Server
from bench.peers.workloads import LOADS, Workload


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Median (least to most)."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up, so that it also reads well in a terminal."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    first = "| " + " | ".join(cell.ljust(w) for cell, w in zip(head, widths, strict=True)) + " |"
    return "\n".join([first, "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines])


def markdown(
    results: Results,
    servers: Sequence[Server],
    versions: dict[str, str],
    found: Sequence[Ratio],
    missing: dict[str, str],
    busy: float,
) -> str:
    parts = [
        "# Tuplegate and its peers",
        f"{results.rounds} rounds, {os.cpu_count()} cores ({platform.machine()}), of which others used {busy:.0%} just"
        f" before the run. Load by {generator_name()}.",
        "Figures are medians over the rounds, with the least and the most.",
    ]
    if missing:
        parts += ["## Missing", "\n".join(f"- {name}: {why}" for name, why in missing.items())]
    parts += ["## Servers", _servers(servers, versions)]
    parts += ["## Ratios", _ratios(found), f"Errors of Tuplegate: {errors(results)} (at most {ERRORS_MAX})."]
    for connections in CONNECTIONS:
        parts += [f"## Requests a second, {connections} connection{'s' * (connections > 1)}"]
        parts += [_rates(results, servers, connections)]
    parts += ["## p50 in ms, 1 connection", _latencies(results, servers)]
    if streams := _streams(results, servers):
        parts += ["## Stream, rows a second", streams]
    parts += ["## The engine alone", _limits(results)]
    parts += [
        "## Memory in MB",
        "Resident, the most seen: of the server's own processes, and after the plus sign of the PostgreSQL behind it.",
        _memory(results, servers),
    ]
    return "\n\n".join(parts) + "\n"


def _servers(servers: Sequence[Server], versions: dict[str, str]) -> str:
    rows = [(server.title, versions[server.name], server.durability) for server in servers]
    return table(("server", "version", "a commit is"), rows)


def _ratios(found: Sequence[Ratio]) -> str:
    verdicts = {True: "ok", False: "MISSED", None: ""}
    rows = [
        (
            ratio.bar.title,
            spread(ratio.values, ".2f"),
            "" if ratio.bar.at_least is None else f"{ratio.bar.at_least:g}",
            verdicts[ratio.passed],
            ratio.other,
        )
        for ratio in found
    ]
    return table(("ratio", "median (least–most)", "bar", "", "against"), rows)


def _rates(results: Results, servers: Sequence[Server], connections: int) -> str:
    rows = []
    for workload in (*LOADS, Workload.NEON):
        cells = []
        for server in servers:
            samples = results.samples.get(Case(server.name, workload, connections))
            wrong = sum(sample.errors for sample in samples or ())
            text = spread([sample.rate for sample in samples]) if samples else "—"
            cells.append(f"{text}, {wrong} errors" if wrong else text)
        rows.append((workload.label, *cells))
    return table(("workload", *(server.title for server in servers)), [row for row in rows if set(row[1:]) != {"—"}])


def _latencies(results: Results, servers: Sequence[Server]) -> str:
    rows = []
    for workload in LOADS:
        cases = [results.samples.get(Case(server.name, workload, 1)) for server in servers]
        if any(cases):
            cells = [spread([s.p50_us / 1000 for s in samples], ".2f") if samples else "—" for samples in cases]
            rows.append((workload.label, *cells))
    return table(("workload", *(server.title for server in servers)), rows)


def _streams(results: Results, servers: Sequence[Server]) -> str:
    cases = {server.title: results.samples.get(Case(server.name, Workload.STREAM, 1)) for server in servers}
    if not any(cases.values()):
        return ""
    rows = [(name, spread([s.rate for s in samples]) if samples else "—") for name, samples in cases.items()]
    return table(("server", "rows a second"), rows)


def _limits(results: Results) -> str:
    return table(("program", "a second"), [(limit.value, spread(rates)) for limit, rates in results.limits.items()])


def _memory(results: Results, servers: Sequence[Server]) -> str:
    def cell(server: float, engine: float) -> str:
        return f"{server:.0f} + {engine:.0f}" if engine else f"{server:.0f}"

    rows = [("at rest", *(cell(**asdict(results.at_rest[server.name])) for server in servers))]
    cases = {(case.workload, case.connections) for case in results.samples}
    for workload, connections in sorted(cases, key=lambda case: (list(Workload).index(case[0]), case[1])):
        cells = []
        for server in servers:
            samples = results.samples.get(Case(server.name, workload, connections))
            peak = max((sample.memory for sample in samples or ()), key=lambda memory: memory.total, default=None)
            cells.append(cell(peak.server, peak.engine) if peak else "—")
        rows.append((f"{workload.label}, {connections} conn.", *cells))
    return table(("load", *(server.title for server in servers)), rows)


def as_json(
    results: Results, versions: dict[str, str], found: Sequence[Ratio], missing: dict[str, str], busy: float
) -> str:
    return json.dumps(
        {
            "rounds": results.rounds,
            "generator": generator_name(),
            "busy_before": busy,
            "missing": missing,
            "versions": versions,
            "errors": errors(results),
            "ratios": [
                {"name": r.bar.title, "values": r.values, "bar": r.bar.at_least, "passed": r.passed, "against": r.other}
                for r in found
            ],
            "samples": [
                {**asdict(case), "rounds": [asdict(sample) for sample in samples]}
                for case, samples in results.samples.items()
            ],
            "engine": results.limits,
            "at_rest": {name: asdict(memory) for name, memory in results.at_rest.items()},
        },
        indent=1,
    )
