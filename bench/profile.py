"""`make bench-profile`: where the time of a point read goes. Prints tables; judges nothing.

The processor time of worker, engine and load generator for each request, by /proc; and, where perf is installed and may
be used, the libraries and functions in which worker and engine spend it. `docs/profile.md` has a run of it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.service import Service, new_data_dir, remove, start_service

from bench.__main__ import POINT_READ, prepare
from bench.load import Load, generator_name, run_load
from tuplegate.data_plane.workloads import ROWS

SECONDS = 6.0
SHOWN = 12
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


def main() -> int:
    data_dir = new_data_dir()
    service = start_service(data_dir)
    try:
        prepare(service)
        load(service, 2.0)
        before = cpu_ticks(service)
        served = load(service, SECONDS)
        after = cpu_ticks(service)
        print(f"{served / SECONDS:,.0f} point reads a second over 32 connections; load generator: {generator_name()}\n")
        print("| process | us a request, own code | us a request, kernel |\n|---|---|---|")
        for name, (user, system) in after.items():
            cost = [(now - then) * TICK_US / served for now, then in zip((user, system), before[name], strict=True)]
            print(f"| {name} | {cost[0]:.1f} | {cost[1]:.1f} |")
        if shutil.which("perf"):
            for name in ("worker", "engine"):
                print(f"\n{name}, by perf:\n\n| share | library | function |\n|---|---|---|")
                for line in sampled(service, name):
                    print(line)
    finally:
        service.stop()
        remove(data_dir)
    return 0


def load(service: Service, seconds: float) -> int:
    body = json.dumps({"sql": POINT_READ})
    outcome = run_load(Load(service.url, service.key, body, ROWS, 32, seconds))
    assert outcome.errors == 0
    return outcome.requests


def processes(service: Service) -> dict[str, list[int]]:
    """The worker, and every process of the engine."""
    found: dict[str, list[int]] = {"worker": [], "engine": []}
    for stat in stats():
        pid, name, parent = int(stat[0]), stat[1], int(stat[3])
        if name.startswith("postgres"):
            found["engine"].append(pid)
        elif parent == service.process.pid:
            found["worker"].append(pid)
    return found


def stats() -> Iterator[list[str]]:
    """The fields of /proc/PID/stat of all processes; the name may have blanks and parentheses."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            matched = re.fullmatch(r"(\d+) \((.*)\) (.*)\n", path.read_text(), re.DOTALL)
        except OSError:
            continue  # it has ended meanwhile
        if matched is not None:
            yield [matched[1], matched[2], *matched[3].split()]


def cpu_ticks(service: Service) -> dict[str, tuple[int, int]]:
    """Own and kernel's time so far; of the load generator that of all children that have ended."""
    pids = {pid: name for name, some in processes(service).items() for pid in some}
    sums: dict[str, tuple[int, int]] = {"worker": (0, 0), "engine": (0, 0)}
    for stat in stats():
        name = pids.get(int(stat[0]))
        if name is not None:
            sums[name] = (sums[name][0] + int(stat[13]), sums[name][1] + int(stat[14]))
    ended = os.times()
    ticks = os.sysconf("SC_CLK_TCK")
    sums["load generator"] = (int(ended.children_user * ticks), int(ended.children_system * ticks))
    return sums


def sampled(service: Service, name: str) -> list[str]:
    """Lines of a table, the largest shares first."""
    loading = threading.Thread(target=load, args=(service, SECONDS))
    loading.start()
    time.sleep(1)
    with tempfile.NamedTemporaryFile() as file:
        of = ",".join(map(str, processes(service)[name]))
        record = ["perf", "record", "-F", "1999", "-p", of, "-o", file.name, "--", "sleep", f"{SECONDS - 2:g}"]
        recorded = subprocess.run(record, capture_output=True, text=True)
        loading.join()
        if recorded.returncode:
            return [f"| | perf may not be used here: {recorded.stderr.strip().splitlines()[-1]} | |"]
        report = ["perf", "report", "-i", file.name, "--no-children", "--field-separator", "|"]
        by_library = subprocess.run([*report, "--sort", "dso"], capture_output=True, text=True).stdout
        by_function = subprocess.run([*report, "--sort", "dso,symbol"], capture_output=True, text=True).stdout
    return [*lines(by_library, 8), *lines(by_function, SHOWN)]


def lines(text: str, count: int) -> list[str]:
    found = [line.split("|") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [[part.strip() for part in row] for row in found[:count]]
    return [f"| {row[0]} | `{row[1]}` | {'`' + row[2] + '`' if len(row) > 2 else 'all'} |" for row in rows]


if __name__ == "__main__":
    sys.exit(main())
