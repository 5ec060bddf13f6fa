"""`make bench-processes`: what it costs that several service processes share one engine. Ratios in one run.

- Point reads through 2 and 4 services at once, each with as many connections: the processor time of a request in them,
  against one service alone.
- The processor time that a service takes while nobody asks.
- The time until another service has finished what a killed one had prepared and not yet committed.
"""

import contextlib
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from tests.external import ExternalServer
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.wire_proxy import At, Fault, PortProxy

from bench.load import Load, generator_name, run_load
from bench.measure import Line, report

COUNTS = (1, 2, 4)
ROUNDS = 3
SECONDS = 3.0
IDLE_S = 20.0
CONNECTIONS = 32
ROWS = 10_000
POINT_READ = json.dumps({"sql": "select id, name from users where id = %"})
COST_MAX = 1.15
IDLE_MAX = 0.01
FINISHED_S_MAX = 3.0


def main(_arguments: list[str]) -> int:
    engine = ExternalServer(max_connections="300")
    services: list[Service] = []
    try:
        for _ in range(max(COUNTS)):
            env = {"TUPLEGATE_ENGINE": engine.url("processes"), "TUPLEGATE_ENGINE_CONNECTIONS_MAX": "50"}
            services.append(start_service(new_data_dir(), env=env))
        for service in services:
            service.key = services[0].key
        print(f"load generator: {generator_name()}", flush=True)
        with services[0].client() as client:
            sql = Sql(client)
            sql("create table users (id int primary key, name text)")
            sql(f"insert into users select i, 'name ' || i from generate_series(1, {ROWS}) i")
        lines = [*report(reads(services)), *report(idle(services[0])), *report(finishing(engine, services[0]))]
    finally:
        for service in services:
            service.stop()
            remove(service.data_dir)
        engine.remove()
    return 0 if all(line.passed for line in lines) else 1


def reads(services: list[Service]) -> list[Line]:
    """Rounds of all counts, one after the other."""
    costs: dict[int, list[float]] = {count: [] for count in COUNTS}
    for count in COUNTS:
        _cost(services[:count])  # warms up
    for _ in range(ROUNDS):
        for count in COUNTS:
            costs[count].append(_cost(services[:count]))
    lines = []
    for count in COUNTS[1:]:
        ratios = [many / one for many, one in zip(costs[count], costs[COUNTS[0]], strict=True)]
        note = f"{statistics.median(costs[count]):.0f} us of a request; rounds {min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(Line(f"cost in {count} services / in one", statistics.median(ratios), COST_MAX, True, note))
    return lines


def _cost(services: list[Service]) -> float:
    """Microseconds of processor time of one request, in all of them together."""
    before = sum(_processor_us(service) for service in services)
    loads = [Load(service.url, service.key or "", POINT_READ, ROWS, CONNECTIONS, SECONDS) for service in services]
    with ThreadPoolExecutor(len(loads)) as pool:
        outcomes = list(pool.map(run_load, loads))
    assert not any(outcome.errors for outcome in outcomes)
    return (sum(_processor_us(service) for service in services) - before) / sum(each.requests for each in outcomes)


def idle(service: Service) -> list[Line]:
    time.sleep(2 * IDLE_S / 10)
    before, began = _processor_us(service), time.monotonic()
    time.sleep(IDLE_S)
    share = (_processor_us(service) - before) / 1e6 / (time.monotonic() - began)
    return [Line("idle service / one core", share, IDLE_MAX, True, "beside three others on the same engine")]


def finishing(engine: ExternalServer, other: Service) -> list[Line]:
    """The service is killed when its COMMIT PREPARED is on its way to the engine, which never gets it."""
    took = [_finished_after_s(engine, other, number) for number in range(ROUNDS)]
    note = f"rounds {min(took):.1f} to {max(took):.1f}"
    return [Line("seconds until another has finished it", max(took), FINISHED_S_MAX, True, note)]


def _finished_after_s(engine: ExternalServer, other: Service, number: int) -> float:
    with PortProxy(engine.url("processes")) as proxy, other.client() as client:
        sql = Sql(client)
        sql(f"create table finished_{number} (id int)")
        killed = start_service(new_data_dir(), env={"TUPLEGATE_ENGINE": proxy.url})
        try:
            fault = proxy.arm(Fault(lambda text: text.startswith("COMMIT PREPARED"), At.REQUEST, killed.kill))
            with killed.client(other.key) as doomed:
                statements = [f"insert into finished_{number} values (1)", f"insert into finished_{number} values (2)"]
                with contextlib.suppress(httpx.HTTPError):
                    doomed.post("/v1/transaction", json={"statements": statements})
            began = time.monotonic()
            assert fault.happened.wait(FINISHED_S_MAX)
            while sql.value(f"select count(*) from finished_{number}") != len(statements):
                assert time.monotonic() - began < 10 * FINISHED_S_MAX
                time.sleep(0.02)
            return time.monotonic() - began
        finally:
            killed.kill()
            remove(killed.data_dir)


def _processor_us(service: Service) -> float:
    """Of the supervisor and its workers (Linux)."""
    pid = service.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(int(Path(f"/proc/{each}/schedstat").read_text().split()[0]) / 1000 for each in (pid, *children))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
