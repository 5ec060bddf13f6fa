"""`make bench-cockroach`: point reads and inserts through the service on one node of CockroachDB, as ratios in one run.

    make bench-cockroach ARGS="--engine-binary /path/to/cockroach"

Each is compared with psycopg from one process: the same statements, over as many connections. Rounds of both come one
after the other, so that noise of the machine hits both alike.

The service runs an insert in a block of its own (BEGIN, INSERT, COMMIT), since only there a cancelled one is surely not
applied. So does psycopg, which begins a block by itself. What the block costs the engine is shown beside it, without a
bar: the same with psycopg, over the statement alone.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import psycopg
from tests.cockroach_cluster import CockroachCluster
from tests.service import Service, Sql, new_data_dir, remove, start_service

from bench.load import Load, generator_name, run_load
from bench.measure import Line, report

ROUNDS = 7
SECONDS = 3
CONNECTIONS = 16
ROWS = 10_000
BAR = 0.7
POINT_READ = "select id, name from users where id = %"
INSERT = "insert into noted (name) values ('name %')"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.cockroach", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine-binary", type=Path, required=True, help="the program of CockroachDB")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    with CockroachCluster(given.engine_binary, nodes=1) as cluster:
        data_dir = new_data_dir()
        service = start_service(data_dir, env={"TUPLEGATE_ENGINE": cluster.url()})
        try:
            print(f"load generator: {generator_name()}", flush=True)
            _prepare(service)
            conninfo = _find_tenant(service)
            lines = [
                *report(_compare("point read", service, conninfo, POINT_READ, given.rounds)),
                *report(_compare("insert", service, conninfo, INSERT, given.rounds, in_block=True)),
                *report(_compare_blocks(conninfo, given.rounds)),
            ]
        finally:
            service.stop()
            remove(data_dir)
    return 0 if all(line.passed for line in lines) else 1


def _prepare(service: Service) -> None:
    with service.client() as client:
        sql = Sql(client)
        sql("create table users (id int primary key, name text)")
        sql("create table noted (id uuid primary key default gen_random_uuid(), name text)")
        sql(f"insert into users select i, 'name ' || i::text from generate_series(1, {ROWS}) i")


def _find_tenant(service: Service) -> str:
    """Return the address of the first database, as the cluster's owner."""
    with psycopg.connect(service.engine) as catalog:
        row = catalog.execute("select engine_name from database where is_default").fetchone()
    assert row is not None
    return service.conninfo(str(row[0]))


def _compare(
    name: str, service: Service, conninfo: str, sql: str, rounds: int, *, in_block: bool = False
) -> list[Line]:
    load = Load(service.url, service.key, json.dumps({"sql": sql}), ROWS, CONNECTIONS, SECONDS)
    ours, direct, errors = [], [], 0
    for _ in range(rounds):
        outcome = run_load(load)
        ours.append(outcome.per_second)
        errors += outcome.errors
        direct.append(asyncio.run(_run_directly(conninfo, sql, in_block=in_block)))
    ratios = [a / b for a, b in zip(ours, direct, strict=True)]
    note = (
        f"{statistics.median(ours):,.0f}/s against {statistics.median(direct):,.0f}/s of psycopg;"
        f" rounds {min(ratios):.2f} to {max(ratios):.2f}"
    )
    return [
        Line(f"{name}, {CONNECTIONS} connections / psycopg", statistics.median(ratios), BAR, False, note),
        Line(f"{name}, errors", errors, 0, True, ""),
    ]


def _compare_blocks(conninfo: str, rounds: int) -> list[Line]:
    ratios = []
    for _ in range(rounds):
        in_block = asyncio.run(_run_directly(conninfo, INSERT, in_block=True))
        ratios.append(in_block / asyncio.run(_run_directly(conninfo, INSERT, in_block=False)))
    return [
        Line("insert with psycopg, in a block / alone", statistics.median(ratios), 0, False, "what the engine gives")
    ]


async def _run_directly(conninfo: str, sql: str, *, in_block: bool) -> float:
    """Return how many statements a second psycopg gets answered."""
    connections = [await psycopg.AsyncConnection.connect(conninfo, autocommit=True) for _ in range(CONNECTIONS)]
    started = time.perf_counter()
    until = started + SECONDS
    counts = await asyncio.gather(*(_repeat(connection, sql, until, in_block=in_block) for connection in connections))
    took = time.perf_counter() - started
    for connection in connections:
        await connection.close()
    return sum(counts) / took


async def _repeat(
    connection: "psycopg.AsyncConnection[tuple[object, ...]]", sql: str, until: float, *, in_block: bool
) -> int:
    count = 0
    while time.perf_counter() < until:
        async with connection.transaction() if in_block else nullcontext():
            cursor = await connection.execute(sql.replace("%", str(random.randint(1, ROWS))).encode())
            if cursor.description:
                await cursor.fetchall()
        count += 1
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
