"""`make bench`: the service against its own engine, in one run, as ratios. Fails when a ratio misses its bar."""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from psycopg import pq
from tests.service import Service, Sql, new_data_dir, remove, start_service

from bench import accepting, driver, open_transactions, transactions, wire
from bench.load import Load, generator_name, run_load
from bench.measure import Line, pgbench, report
from tuplegate.data_plane import workloads
from tuplegate.data_plane.workloads import ROWS

ROUNDS = 5
READ_ROUNDS, READ_SECONDS = 11, 2
SCHEMA = "public"
POINT_READ = workloads.POINT_READ.format(schema=SCHEMA, id="%")
THOUSAND = workloads.SCAN.format(schema=SCHEMA)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"what to measure of {', '.join(MEASUREMENTS)}; all of it by default")
    names = parser.parse_args().names or list(MEASUREMENTS)
    if not set(names) <= set(MEASUREMENTS):
        parser.error(f"choose from {', '.join(MEASUREMENTS)}")
    data_dir = new_data_dir()
    service = start_service(data_dir, "--open-transactions-max", "64")
    try:
        prepare(service)
        print(f"load generator: {generator_name()}", flush=True)
        lines: list[Line] = []
        for name in names:
            lines += report(MEASUREMENTS[name](service))
    finally:
        service.stop()
        remove(data_dir)
    return 0 if all(line.passed for line in lines) else 1


def prepare(service: Service) -> None:
    with service.client() as client:
        sql = Sql(client)
        for text in (*workloads.SETUP, workloads.TIDY):
            sql(text.format(schema=SCHEMA))


# -- measurements -------------------------------------------------------------------------------------------------


def point_read(service: Service) -> list[Line]:
    """Rounds of both, one after the other, so that noise of the machine hits both alike."""
    body = json.dumps({"sql": POINT_READ})
    script = f"\\set id random(1, {ROWS})\n{POINT_READ.replace('%', ':id')};\n"
    ours, engine, errors = [], [], 0
    for _ in range(READ_ROUNDS):
        outcome = run_load(Load(service.url, service.key, body, ROWS, 32, READ_SECONDS))
        ours.append(outcome.per_second)
        errors += outcome.errors
        engine.append(pgbench(service, script, READ_SECONDS, "-c", "8", "-M", "extended"))
    ratios = [a / b for a, b in zip(ours, engine, strict=True)]
    note = (
        f"{statistics.median(ours):,.0f}/s against {statistics.median(engine):,.0f}/s of pgbench;"
        f" rounds {min(ratios):.2f} to {max(ratios):.2f}"
    )
    return [
        Line("point read, 32 connections / engine", statistics.median(ratios), 0.3, False, note),
        Line("point read, errors", errors, 0, True, ""),
    ]


def alias(service: Service) -> list[Line]:
    """The same point read, through the extra hop and without it."""
    body = json.dumps({"sql": POINT_READ})
    rates: dict[str, list[float]] = {service.url: [], service.alias_url: []}
    for _ in range(ROUNDS):
        for url, measured in rates.items():
            measured.append(run_load(Load(url, service.key, body, ROWS, 32, READ_SECONDS)).per_second)
    ratios = [b / a for a, b in zip(*rates.values(), strict=True)]
    note = f"{statistics.median(rates[service.alias_url]):,.0f}/s; rounds {min(ratios):.2f} to {max(ratios):.2f}"
    return [Line("point read, alias / data plane", statistics.median(ratios), 0.5, False, note)]


def sql_route(service: Service) -> list[Line]:
    """The same point read as Neon's driver sends it, beside our own route. Both are asked in each round."""
    headers = {
        "Neon-Connection-String": f"postgresql://any:{service.key}@localhost/main",
        "Neon-Raw-Text-Output": "true",
        "Neon-Array-Mode": "true",
    }
    loads = [
        Load(service.url, service.key, json.dumps({"sql": POINT_READ}), ROWS, 32, READ_SECONDS),
        Load(service.url, "", json.dumps({"query": POINT_READ}), ROWS, 32, READ_SECONDS, path="/sql", headers=headers),
    ]
    outcomes = [[run_load(load) for load in loads] for _ in range(READ_ROUNDS)]
    ratios = [theirs.per_second / ours.per_second for ours, theirs in outcomes]
    note = (
        f"{statistics.median(theirs.per_second for _, theirs in outcomes):,.0f}/s;"
        f" rounds {min(ratios):.2f} to {max(ratios):.2f}"
    )
    return [
        Line("point read, /sql / /v1/query", statistics.median(ratios), 0.9, False, note),
        Line("point read, /sql, errors", sum(theirs.errors for _, theirs in outcomes), 0, True, ""),
    ]


def thousand_rows(service: Service) -> list[Line]:
    """The whole request over one kept connection, against the engine's answer to the same statement over libpq."""
    connection = pq.PGconn.connect(f"{service.writer} options='-c default_transaction_isolation=serializable'".encode())
    with service.client() as client:
        body = json.dumps({"sql": THOUSAND})
        headers = {"Content-Type": "application/json"}

        def engine() -> float:
            started = time.perf_counter()
            result = connection.exec_params(THOUSAND.encode(), None)
            assert result.ntuples == 1000
            return time.perf_counter() - started

        def ours() -> float:
            """The service's own account of the request: the client's work is not ours."""
            answer = client.post("/v1/query", content=body, headers=headers)
            return float(re.findall(rb'"total_us":(\d+)', answer.content[-200:])[0]) / 1e6

        ratios, engine_ms = [], []
        for _ in range(ROUNDS):
            pairs = [(ours(), engine()) for _ in range(100)]
            b = statistics.median(b for _, b in pairs)
            ratios.append(statistics.median(a for a, _ in pairs) / b)
            engine_ms.append(b * 1000)
    connection.finish()
    note = f"engine {statistics.median(engine_ms):.2f} ms; rounds {min(ratios):.2f} to {max(ratios):.2f}"
    return [Line("1,000 rows x 5 columns / engine's time", statistics.median(ratios), 2.2, True, note)]


def streaming(service: Service) -> list[Line]:
    """A million rows: the first one soon, and no memory for the rest."""
    before = worker_memory_mb(service)
    peak = before
    statement = "/*+ STREAM */ select g as id, 'name' || g as name from (select generate_series(1, 1000000) as g)"
    started = time.perf_counter()
    first_ms = 0.0
    size = 0
    with service.client() as client, client.stream("POST", "/query", content=statement) as answer:
        tail = b""
        for chunk in answer.iter_raw():
            size += len(chunk)
            if not first_ms and b"event: row" in chunk:
                first_ms = (time.perf_counter() - started) * 1000
            if size % 7 == 0:
                peak = max(peak, worker_memory_mb(service))
            tail = (tail + chunk)[-300:]
    elapsed = time.perf_counter() - started
    assert b'"row_count":1000000' in tail, tail
    note = f"{1_000_000 / elapsed:,.0f} rows/s, {size / elapsed / 2**20:.0f} MiB/s"
    return [
        Line("stream, first row, ms", first_ms, 150, True, ""),
        Line("stream of 1,000,000 rows, memory grown, MB", peak - before, 30, True, note),
    ]


def stalled_reader(service: Service) -> list[Line]:
    """A reader that stops reading stops the engine's work, not the service's health."""
    statement = "/*+ STREAM */ select g, repeat('x', 100) from generate_series(1, 100000000) g"
    with service.client() as client, client.stream("POST", "/query", content=statement) as answer:
        next(answer.iter_raw())
        time.sleep(1)
        cpu = engine_cpu_seconds(service)
        time.sleep(1)
        spent = engine_cpu_seconds(service) - cpu
        with service.client() as other:
            started = time.perf_counter()
            Sql(other)("select 1")
            took_ms = (time.perf_counter() - started) * 1000
    return [
        Line("stalled reader, engine CPU seconds per second", spent, 0.2, True, ""),
        Line("stalled reader, another query, ms", took_ms, 1000, True, ""),
    ]


def worker_memory_mb(service: Service) -> float:
    status = Path(f"/proc/{worker_pid(service)}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def worker_pid(service: Service) -> int:
    for pid in _children(service.process.pid):
        if (
            "tuplegate" in Path(f"/proc/{pid}/cmdline").read_text()
            and "postgres" not in Path(f"/proc/{pid}/comm").read_text()
        ):
            return pid
    raise AssertionError("the service has no worker")


def engine_cpu_seconds(service: Service) -> float:
    """What all processes of the engine have used, of those that live."""
    postmaster = next(p for p in _children(service.process.pid) if "postgres" in Path(f"/proc/{p}/comm").read_text())
    ticks = 0
    for pid in [postmaster, *_children(postmaster)]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


MEASUREMENTS: dict[str, Callable[[Service], list[Line]]] = {
    "point-read": point_read,
    "alias": alias,
    "sql": sql_route,
    "rows": thousand_rows,
    "driver": driver.measure,
    "transactions": transactions.measure,
    "open-transactions": open_transactions.measure,
    "wire": wire.measure,
    "accepting": accepting.measure,
    "streaming": streaming,
    "stalled-reader": stalled_reader,
}


if __name__ == "__main__":
    sys.exit(main())
