"""`make bench-tenancy`: what it costs that many share an installation. Ratios in one run; fails when one misses.

- A quota: point reads of an organization with a limit of ten million a minute, against one without any.
- A neighbour: the p99 of an organization with one connection, while another floods the service, against its own alone.
- Many databases: point reads spread evenly over a thousand of them, against one.
"""

import json
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
from tests.service import Service, Sql, new_data_dir, remove, start_service

from bench.load import Load, Outcome, generator_name, run_load
from bench.measure import Line, report

ROUNDS = 5
QUOTA_ROUNDS = 20
SECONDS = 2.0
ROWS = 10_000
DATABASES = 1000
TIERS = "unlimited, metered=10000000, free=200"
ONE_READ = "select id, name, email from users where id = 7"
POINT_READ = json.dumps({"sql": "select id, name, email from users where id = %"})


@dataclass(frozen=True)
class Organization:
    id: str
    key: str


def main(arguments: list[str]) -> int:
    databases = int(arguments[0]) if arguments else DATABASES
    data_dir = new_data_dir()
    # A connection for every database that is in use, as docs/operations.md advises.
    bounds = ("--engine-connections-max", str(databases + 100), "--databases-per-organization", str(databases + 100))
    service = start_service(data_dir, "--tiers", TIERS, *bounds)
    try:
        print(f"load generator: {generator_name()}", flush=True)
        headers = {"Authorization": f"Bearer {service.key}"}
        with httpx.Client(base_url=service.control_url, headers=headers, timeout=120, trust_env=False) as control:
            lines = [
                *report(quota(service, control)),
                *report(neighbour(service, control)),
                *report(many_databases(service, control, databases)),
            ]
    finally:
        service.stop()
        remove(data_dir)
    return 0 if all(line.passed for line in lines) else 1


def organization(service: Service, control: httpx.Client, name: str, tier: str) -> Organization:
    """A new one, with the table that is read."""
    made = control.post("/v1/organizations", json={"name": name, "tier": tier})
    assert made.status_code == 201, made.text
    with service.client(made.json()["key"]) as client:
        sql = Sql(client)
        sql("create table users (id int primary key, name text, email text)")
        sql(f"insert into users select g, 'name' || g, g || '@example.org' from generate_series(1, {ROWS}) g")
        sql("vacuum analyze users")
    return Organization(made.json()["id"], made.json()["key"])


def read_load(service: Service, key: str, connections: int, seconds: float = SECONDS) -> Outcome:
    return run_load(Load(service.url, key, POINT_READ, ROWS, connections, seconds))


def quota(service: Service, control: httpx.Client) -> list[Line]:
    free = organization(service, control, "without-quota", "unlimited")
    metered = organization(service, control, "with-quota", "metered")
    ratios, errors = [], 0
    for number in range(QUOTA_ROUNDS):
        # Short rounds that begin with either in turn: what the machine does meanwhile hits both alike.
        order = (free, metered) if number % 2 else (metered, free)
        found = {one.id: read_load(service, one.key, 32, 1.0) for one in order}
        without, counted = found[free.id], found[metered.id]
        ratios.append(counted.per_second / without.per_second)
        errors += without.errors + counted.errors
    note = f"rounds {min(ratios):.2f} to {max(ratios):.2f}"
    return [
        Line("point reads with a quota / without", statistics.median(ratios), 0.95, False, note),
        Line("point reads with a quota, errors", errors, 0, True, ""),
    ]


def neighbour(service: Service, control: httpx.Client) -> list[Line]:
    """The flood comes over 64 connections, the neighbour asks over one."""
    flood = organization(service, control, "flood", "unlimited")
    quiet = organization(service, control, "quiet", "unlimited")
    ratios, errors, p99 = [], 0, []
    for _ in range(ROUNDS):
        alone = read_load(service, quiet.key, 1)
        flooding = threading.Thread(target=read_load, args=(service, flood.key, 64, SECONDS + 2))
        flooding.start()
        beside = read_load(service, quiet.key, 1)
        flooding.join()
        ratios.append(beside.p99_us / alone.p99_us)
        p99.append((alone.p99_us, beside.p99_us))
        errors += alone.errors + beside.errors
    middle = sorted(p99, key=lambda pair: pair[1] / pair[0])[len(p99) // 2]
    note = f"{middle[0]:,.0f} us alone, {middle[1]:,.0f} us beside; rounds {min(ratios):.1f} to {max(ratios):.1f}"
    return [
        Line("neighbour's p99 beside a flood / alone", statistics.median(ratios), 2.0, True, note),
        Line("neighbour, errors", errors, 0, True, ""),
    ]


def many_databases(service: Service, control: httpx.Client, count: int) -> list[Line]:
    """Each request to any of the databases, which answers a point read of its own table.

    One request to each comes first, which opens its connection; what that takes is told and not judged.
    """
    owner = organization(service, control, "many", "unlimited")
    own = {"Authorization": f"Bearer {owner.key}"}
    for number in range(1, count + 1):
        made = control.post("/v1/databases", json={"name": f"d{number}", "clone_of": "main"}, headers=own)
        assert made.status_code == 201, made.text
    one = read_load(service, owner.key, 32, SECONDS * 2)
    started = time.perf_counter()
    with service.client(owner.key) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: _first_read(client, f"d{number}"), range(1, count + 1)))
    opening_us = (time.perf_counter() - started) / count * 1e6
    each = Load(
        service.url, owner.key, json.dumps({"sql": ONE_READ}), count, 32,
        SECONDS * 5, headers={"Tuplegate-Database": "d%"},
    )  # fmt: skip
    spread = run_load(each)
    note = (
        f"{spread.per_second:,.0f}/s over {count} databases, {one.per_second:,.0f}/s over one;"
        f" {opening_us:,.0f} us to open each"
    )
    return [
        Line(f"point reads over {count} databases / one", spread.per_second / one.per_second, 0.1, False, note),
        Line("point reads over many databases, errors", one.errors + spread.errors, 0, True, ""),
    ]


def _first_read(client: httpx.Client, database: str) -> None:
    answer = client.post("/v1/query", json={"sql": ONE_READ}, headers={"Tuplegate-Database": database})
    assert answer.status_code == 200, answer.text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
