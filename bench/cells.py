"""`make bench-cells`: what it costs that each database has a server of its own. Fails when a bar is missed.

- Making a database, and the first request to one that sleeps.
- Many woken at once, and what a neighbour that is awake notices.
- Many awake and idle: their memory (PSS) and processor time, with the service's own.
- Many asleep: the time to start the service, and its processor time.

`make bench-cells ARGS="100 1000"` gives how many are awake, and asleep. A sleeping one takes some 45 MB of disk.
"""

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
from tests.service import Service, new_data_dir, remove, start_service

from bench.load import Load, run_load
from bench.measure import Line, report

AWAKE, ASLEEP = 40, 40
AT_ONCE = 16
WAKES = 20
ROUNDS = 5
IDLE_S = 10.0
SELECT_ONE = '{"sql": "select 1"}'
BOUNDS = ("--databases-per-organization", "100000", "--cells-awake-max", "1000")


def main(arguments: list[str]) -> int:
    awake, asleep = (int(argument) for argument in arguments) if arguments else (AWAKE, ASLEEP)
    data_dir = new_data_dir()
    try:
        service = start_service(data_dir, *BOUNDS, "--cell-idle-s", "1")
        lines = [*report(make(service, max(awake, asleep))), *report(wake(service)), *report(wake_many(service))]
        key = service.key
        service.stop()
        lines += report(stay_awake(data_dir, key, awake))
        lines += report(sleep(data_dir, asleep))
    finally:
        remove(data_dir)
    return 0 if all(line.passed for line in lines) else 1


def make(service: Service, count: int) -> list[Line]:
    took = []
    with httpx.Client(base_url=service.control_url, headers=_headers(service.key), timeout=120) as control:
        for number in range(count):
            started = time.perf_counter()
            answer = control.post("/v1/databases", json={"name": f"d{number}"})
            assert answer.status_code == 201, answer.text
            took.append(time.perf_counter() - started)
    return [Line("a new database, median, s", statistics.median(took), 0.5, True, f"at most {max(took):.2f}")]


def wake(service: Service) -> list[Line]:
    took = []
    with service.client() as client:
        for number in range(WAKES):
            name = f"d{number % 4}"
            _await_sleep(service, [name])
            took.append(_ask(client, name))
    note = f"at most {max(took):.2f}"
    return [
        Line("first request to a sleeping database, median, s", statistics.median(took), 0.5, True, note),
        Line("first request to a sleeping database, at most, s", max(took), 1.0, True, ""),
    ]


def wake_many(service: Service) -> list[Line]:
    """Measure a neighbour in turns alone and beside wakes: what else runs on the machine disturbs both."""
    names = [f"d{number}" for number in range(AT_ONCE)]
    load = Load(service.url, service.key, SELECT_ONE, 1, 1, 4.0)
    took, ratios, notes = [], [], []
    for _ in range(ROUNDS):
        _await_sleep(service, names)
        alone = run_load(load)
        with service.client() as client, ThreadPoolExecutor(AT_ONCE + 1) as pool:
            beside = pool.submit(run_load, load)
            time.sleep(1.0)
            took.append(max(pool.map(partial(_ask, client), names)))
            found = beside.result()
        ratios.append(found.p99_us / alone.p99_us)
        notes.append(f"{alone.p99_us:,.0f}/{found.p99_us:,.0f}")
    return [
        Line(
            f"{AT_ONCE} woken at once, the last after, median, s",
            statistics.median(took),
            3.0,
            True,
            f"at most {max(took):.2f}",
        ),
        Line("p99 of a neighbour meanwhile / alone", statistics.median(ratios), 2.0, True, f"us: {', '.join(notes)}"),
    ]


def stay_awake(data_dir: Path, key: str, count: int) -> list[Line]:
    service = start_service(data_dir, *BOUNDS, "--connection-idle-s", "1")
    try:
        with httpx.Client(base_url=service.url, headers=_headers(key), timeout=60) as client:
            for number in range(count):
                _ask(client, f"d{number}")
        time.sleep(5.0)  # workers close their connections
        processes = _list_processes(service.process.pid)
        memory = sum(_read_pss(process) for process in processes) / 2**30
        share = _measure_share(service.process.pid)
        per = 1.5 * count / 100
        return [
            Line(f"{count} awake and idle, PSS of everything, GiB", memory, per, True, f"{len(processes)} processes"),
            Line(f"{count} awake and idle, share of a core", share, 0.03 * max(1.0, count / 100), True, ""),
        ]
    finally:
        service.stop()


def sleep(data_dir: Path, count: int) -> list[Line]:
    started = time.perf_counter()
    service = start_service(data_dir, *BOUNDS)
    took = time.perf_counter() - started
    try:
        time.sleep(2.0)
        share = _measure_share(service.process.pid)
    finally:
        service.stop()
    return [
        Line(f"start with {count} asleep, s", took, 5.0, True, ""),
        Line(f"{count} asleep, share of a core", share, 0.01, True, ""),
    ]


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _ask(client: httpx.Client, database: str) -> float:
    started = time.perf_counter()
    answer = client.post("/v1/query", json={"sql": "select 1"}, headers={"Tuplegate-Database": database})
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - started


def _await_sleep(service: Service, names: list[str]) -> None:
    with httpx.Client(base_url=service.control_url, headers=_headers(service.key), timeout=60) as control:
        deadline = time.monotonic() + 60
        for name in names:
            while control.get(f"/v1/databases/{name}").json()["activity"] != "asleep":
                assert time.monotonic() < deadline, f"{name} does not fall asleep"
                time.sleep(0.05)


def _list_processes(top: int) -> list[int]:
    """Return a process and all below it."""
    found, parents = [top], {top}
    stats = [path.read_text().rsplit(")", 1) for path in Path("/proc").glob("[0-9]*/stat")]
    children = [(int(head.split()[0]), int(tail.split()[1])) for head, tail in stats]
    while more := [pid for pid, parent in children if parent in parents and pid not in found]:
        found += more
        parents = set(more)
    return found


def _read_pss(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _measure_share(top: int) -> float:
    """Return the processor time that all processes take, as a share of one core."""

    def read() -> int:
        stats = [Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split() for process in processes]
        return sum(int(fields[11]) + int(fields[12]) for fields in stats)

    processes = _list_processes(top)
    before = read()
    time.sleep(IDLE_S)
    return (read() - before) / 100 / IDLE_S


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
