"""What measurements share: a line of the report, pgbench as the role of a tenant."""

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.service import Service

from tuplegate.engine.bundled.binaries import find_wheel_programs, find_wheel_site


@dataclass(frozen=True)
class Line:
    """One measurement. `better` compares the value with the bar."""

    name: str
    value: float
    bar: float
    at_most: bool
    note: str

    @property
    def passed(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def report(lines: Iterable[Line]) -> list[Line]:
    """Prints the lines as they come; all of them."""
    shown = []
    for line in lines:
        shown.append(line)
        sign, verdict = "<=" if line.at_most else ">=", "ok" if line.passed else "MISSED"
        print(f"{line.name:<44} {line.value:10.3f}  ({sign} {line.bar:g})  {verdict:<7} {line.note}", flush=True)
    return shown


def measure_memory(service: Service) -> int:
    """Bytes of the service's processes that they share with nobody; the engine is not counted."""
    pid = service.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ours = [pid, *(int(each) for each in children if Path(f"/proc/{each}/comm").read_text() != "postgres\n")]
    return sum(_read_private(each) for each in ours)


def _read_private(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def pgbench(service: Service, script: str, seconds: float, *options: str) -> float:
    """Transactions a second of a pgbench script, at SERIALIZABLE."""
    env = {"PGOPTIONS": "-c default_transaction_isolation=serializable"}
    return run_pgbench(script, seconds, "-d", service.writer, *options, env=env)


def run_pgbench(script: str, seconds: float, *options: str, env: Mapping[str, str]) -> float:
    """Transactions a second, wherever the options lead to."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        program = str(find_wheel_programs(find_wheel_site()) / "pgbench")
        command = [program, "-n", "-j", "1", "-T", f"{seconds:g}", "-f", file.name, *options]
        text = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    rate = re.search(r"tps = ([\d.]+)", text)
    assert rate is not None, text
    return float(rate.group(1))
