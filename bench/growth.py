"""`make bench-growth`: what things cost as there are more of them. Fails when a cost grows faster than it may.

A line says what it may grow like: as its cause does (rows, columns, clients that share two cores), or not at all (keys
and databases that are merely there).
"""

import argparse
import json
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

import httpx
import psycopg
from tests.service import Service, new_data_dir, remove, start_service

from bench.load import Load, generator_name, run_load
from bench.peers.exchange import exchange
from bench.peers.processes import cpu_seconds
from bench.peers.report import table
from bench.peers.servers import COUNTED
from bench.svg import Chart, line_charts
from bench.svg import Line as Plotted
from tuplegate.access.tokens import RANDOM_BYTES, TokenKind, make_token

OUT = Path(__file__).parent / "out"
REPEATS = 9
KEYS_TRIED = 21
DATABASES_TRIED = 7
LOAD_TURNS = 10
IDLE_S, IDLE_TRIES = 5.0, 6
IDLE_CPU_MAX = 0.05  # seconds a second, of the service and the engine together, with every database idle
LINEAR_SLACK, FLAT_SLACK = 1.5, 3.0
APART = 5


@dataclass(frozen=True)
class Line:
    """Costs in ms by size, of each turn. `linear`: whether it may grow as its cause does; if not, it may not grow at
    all."""

    axis: str
    name: str
    linear: bool
    turns: list[dict[int, float]]

    @property
    def points(self) -> list[tuple[int, float]]:
        return [(size, median(turn[size] for turn in self.turns)) for size in self.turns[0]]

    @property
    def worst(self) -> float:
        """How much more the larger of two sizes costs than it may; 1 and below is good. What is compared comes from one
        turn, and the median of the turns counts: the machine's own speed changes from one to the next."""
        return max((median(self._growth(turn, *pair) for turn in self.turns) for pair in self.pairs()), default=0.0)

    def _growth(self, turn: dict[int, float], few: int, more: int) -> float:
        return turn[more] / turn[few] / (more / few if self.linear else 1)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Sizes that are far enough apart for the growth between them to be more than noise."""
        return (pair for pair in combinations(self.turns[0], 2) if pair[1] >= APART * pair[0])

    @property
    def passed(self) -> bool:
        return self.worst <= (LINEAR_SLACK if self.linear else FLAT_SLACK)


@dataclass(frozen=True)
class Check:
    name: str
    value: float
    at_most: float

    @property
    def passed(self) -> bool:
        return self.value <= self.at_most


Axis = Callable[[Service, int], tuple[list[Line], list[Check]]]


def post(service: Service, sql: str, key: str = "", **headers: str) -> float:
    """Milliseconds of one statement over a connection of its own. It must succeed."""
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = {"Content-Type": "application/json", "Authorization": f"Bearer {key or service.key}", **more}
    answer = exchange(service.url, "POST", "/v1/query", lines, json.dumps({"sql": sql}), keep=False)
    assert answer.status == 200, answer.body
    assert b'"success":false' not in answer.body, answer.body
    return answer.seconds * 1000


def least(service: Service, sql: str) -> float:
    """The least of several: noise of the machine only adds."""
    return min(post(service, sql) for _ in range(REPEATS))


# -- axes ---------------------------------------------------------------------------------------------------------


def sizes(most: int, *steps: int) -> list[int]:
    """Powers of ten, or the given steps, up to the most."""
    return [size for size in steps or [10**power for power in range(7)] if size <= most]


def rows(service: Service, most: int) -> tuple[list[Line], list[Check]]:
    sql = "select g as id, 'name' || g as name, g * 1.5 as score from generate_series(1, {}) g"
    lines = []
    for name, hint in (("buffered", ""), ("streamed", "/*+ STREAM */ ")):
        costs = {size: least(service, hint + sql.format(size)) for size in sizes(most)}
        lines.append(Line("rows", name, True, [costs]))
    return lines, []


def columns(service: Service, most: int) -> tuple[list[Line], list[Check]]:
    costs = {}
    for size in sizes(most, 1, 2, 5, 10, 20, 50, 100, 200):
        names = ", ".join(f"g as column_{index}" for index in range(size))
        costs[size] = least(service, f"select {names} from generate_series(1, 100) g")
    return [Line("columns", "100 rows", True, [costs])], []


def connections(service: Service, most: int) -> tuple[list[Line], list[Check]]:
    """There and back, several times: a machine that grows slower meanwhile does so for many as for few."""
    body = json.dumps({"sql": "select %"})
    turns = []
    errors = 0
    for number in range(LOAD_TURNS):
        turn = dict.fromkeys(sizes(most), 0.0)
        for size in sizes(most)[:: -1 if number % 2 else 1]:
            outcome = run_load(Load(service.url, service.key, body, 1000, size, 2))
            turn[size] = outcome.p50_us / 1000
            errors += outcome.errors
        turns.append(turn)
    return [Line("connections", "p50 of a statement", True, turns)], [Check("connections, errors", errors, 0)]


def keys(service: Service, most: int) -> tuple[list[Line], list[Check]]:
    """The first use of a key, which is looked up; written straight into the catalog, as making them takes longer."""
    insert = (
        "insert into api_key (id, organization, name, digest, hint, scopes)"
        " select %s, o.id, 'bench', %s, %s, array['read'] from organization o where o.name = 'default'"
    )
    costs = {}
    there = 1
    with psycopg.connect(service.conninfo("tuplegate"), autocommit=True) as catalog:
        for size in sizes(most):
            catalog.execute(
                "insert into api_key (id, organization, name, digest, hint, scopes)"
                " select md5(random()::text || g), o.id, 'bench', decode(md5(g::text) || md5(g::text), 'hex'), 'bench',"
                " array['read'] from organization o, generate_series(%s::int, %s::int) g where o.name = 'default'",
                (there + 1, size),
            )
            catalog.execute("vacuum analyze api_key")
            tokens = [make_token(TokenKind.KEY, secrets.token_bytes(RANDOM_BYTES)) for _ in range(KEYS_TRIED)]
            for token in tokens:
                catalog.execute(insert, (token.id, token.digest, token.hint))
            costs[size] = min(post(service, "select 1", token.text) for token in tokens)
            there = size
    return [Line("keys", "first use of a key", False, [costs])], []


def databases(service: Service, most: int) -> tuple[list[Line], list[Check]]:
    """Statements in one of many databases, and what those cost that nobody uses."""
    first, again = {}, {}
    used = {"main"}
    there = 1
    headers = {"Authorization": f"Bearer {service.key}"}
    with (
        httpx.Client(base_url=service.control_url, headers=headers, timeout=60, trust_env=False) as control,
        psycopg.connect(service.conninfo("tuplegate"), autocommit=True) as catalog,
    ):
        for size in sizes(most):
            for number in range(there, size):
                answer = control.post("/v1/databases", json={"name": f"bench-{number}"})
                assert answer.status_code == 201, answer.text
            # Of the last ones made, none has been used.
            names = [f"bench-{number}" for number in range(size - 1, there - 1, -1)][:DATABASES_TRIED] or ["main"]
            there = size
            cost = min(_in_database(service, name) for name in names)
            if size > 1:  # the one that was there has been used
                first[size] = cost
            again[size] = min(_in_database(service, names[0]) for _ in range(REPEATS))
            used |= set(names)
        row = catalog.execute(
            "select count(distinct datname) from pg_stat_activity where usename like 'tg%'"
        ).fetchone()
        assert row is not None
    lines = [
        Line("databases", "first statement in one", False, [first]),
        Line("databases", "further statement in one", False, [again]),
    ]
    return lines, [
        Check(f"databases with a connection, of {most} of which {len(used)} were used", int(row[0]), len(used)),
        Check(f"CPU seconds a second, with {most} idle databases", idle_cpu(service), IDLE_CPU_MAX),
    ]


def idle_cpu(service: Service) -> float:
    """Seconds a second, once the engine has come to rest: it writes out and vacuums what was just made."""
    idle = 1.0
    for _ in range(IDLE_TRIES):
        before = cpu_seconds([service.process.pid])
        time.sleep(IDLE_S)
        idle = (cpu_seconds([service.process.pid]) - before) / IDLE_S
        if idle < IDLE_CPU_MAX:
            break
    return idle


def _in_database(service: Service, name: str) -> float:
    return post(service, "select 1", Tuplegate_Database=name)


AXES: Mapping[str, tuple[Axis, int, int]] = {  # the axis, its most, and its most in a quick run
    "rows": (rows, 100_000, 1_000),
    "columns": (columns, 200, 20),
    "connections": (connections, 1_000, 100),
    "keys": (keys, 100_000, 1_000),
    "databases": (databases, 1_000, 10),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-growth ARGS=…", description=__doc__)
    parser.add_argument("--axes", nargs="+", choices=list(AXES), default=list(AXES))
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work, not how does it grow")
    chosen = parser.parse_args()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    lines: list[Line] = []
    checks: list[Check] = []
    data_dir = new_data_dir()
    try:
        service = start_service(data_dir, "--databases-per-organization", "100000", env=COUNTED)
        try:
            print(f"load generator: {generator_name()}", flush=True)
            for name in chosen.axes:
                axis, most, most_quick = AXES[name]
                more_lines, more_checks = axis(service, most_quick if chosen.quick else most)
                lines += more_lines
                checks += more_checks
                print(report(more_lines, more_checks), flush=True)
        finally:
            service.stop()
    finally:
        remove(data_dir)
    OUT.mkdir(exist_ok=True)
    (OUT / "growth.md").write_text(report(lines, checks))
    (OUT / "growth.svg").write_text(plot(lines))
    print("written to bench/out: growth.md, growth.svg")
    return 0 if all(line.passed for line in lines) and all(check.passed for check in checks) else 1


def report(lines: list[Line], checks: list[Check]) -> str:
    rows = [
        (
            f"{line.axis}: {line.name}",
            ", ".join(f"{size:,}: {cost:.2f}" for size, cost in line.points),
            "linear" if line.linear else "flat",
            f"{line.worst:.2f}",
            "ok" if line.passed else "TOO FAST",
        )
        for line in lines
    ]
    rows += [(c.name, f"{c.value:g}", f"≤ {c.at_most:g}", "", "ok" if c.passed else "TOO MUCH") for c in checks]
    return table(("what", "ms by size", "may grow", "worst", ""), rows) + "\n"


def plot(lines: list[Line]) -> str:
    charts = []
    for axis in dict.fromkeys(line.axis for line in lines):
        drawn = [Plotted(line.name, line.points) for line in lines if line.axis == axis and line.points]
        charts.append(Chart(f"As there are more {axis}", axis, "ms", drawn))
    return line_charts("What things cost as there are more of them", charts)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
