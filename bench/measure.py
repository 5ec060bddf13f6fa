"""What measurements share: a line of the report, the tenant's names in the engine, pgbench as the tenant's role."""

import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
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


def tenant(service: Service) -> tuple[str, str]:
    """The engine's names of the first database and of its writing role."""
    with psycopg.connect(f"host={service.data_dir}/run user=tuplegate dbname=tuplegate") as connection:
        row = connection.execute("select engine_name from database where is_default").fetchone()
        assert row is not None
    return str(row[0]), f"{row[0]}_w"


def pgbench(service: Service, script: str, seconds: float, *options: str) -> float:
    """Transactions a second of a pgbench script, at SERIALIZABLE."""
    database, role = tenant(service)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        program = str(find_wheel_programs(find_wheel_site()) / "pgbench")
        command = [program, "-n", "-h", str(service.data_dir / "run"), "-U", role, "-d", database, "-j", "1"]
        command += ["-T", f"{seconds:g}", "-f", file.name, *options]
        env = {"PGOPTIONS": "-c default_transaction_isolation=serializable"}
        text = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    rate = re.search(r"tps = ([\d.]+)", text)
    assert rate is not None, text
    return float(rate.group(1))
