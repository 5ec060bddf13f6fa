"""The limit: what the engine behind the service does by itself, asked by its own programs as the tenant's role."""

import re
import subprocess
import tempfile
import time
from enum import StrEnum

from bench.peers import workloads
from bench.peers.servers import Tuplegate
from bench.peers.workloads import MARK, STREAMED, USERS
from tuplegate.engine.bundled.binaries import find_wheel_programs, find_wheel_site

_PROGRAMS = find_wheel_programs(find_wheel_site())
_SERIALIZABLE = {"PGOPTIONS": "-c default_transaction_isolation=serializable", "PATH": "/usr/bin:/bin"}
PSQL_S = 60.0


class Limit(StrEnum):
    EXTENDED = "pgbench point read, extended"
    PREPARED = "pgbench point read, prepared"
    INSERT = "pgbench insert, extended"
    PSQL = "psql --csv"


_SCRIPTS = {
    Limit.EXTENDED: ("extended", workloads.POINT),
    Limit.PREPARED: ("prepared", workloads.POINT),
    Limit.INSERT: ("extended", workloads.INSERT),
}


def measure(limit: Limit, service: Tuplegate, seconds: float) -> float:
    """Transactions a second; of psql, rows a second."""
    return _psql(service) if limit is Limit.PSQL else _pgbench(service, *_SCRIPTS[limit], seconds)


def _pgbench(service: Tuplegate, protocol: str, statement: str, seconds: float) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"\\set number random(1, {USERS})\n{statement.replace(MARK, ':number')};\n")
        script.flush()
        command = [*_program("pgbench", service), "-n", "-c", "8", "-j", "1", "-M", protocol]
        command += ["-T", str(max(1, round(seconds))), "-f", script.name]
        done = subprocess.run(command, capture_output=True, text=True, env=_SERIALIZABLE, timeout=seconds + 60)
    rate = re.search(r"tps = ([\d.]+)", done.stdout)
    assert rate is not None, done.stderr
    return float(rate.group(1))


def _psql(service: Tuplegate) -> float:
    command = [*_program("psql", service), "-X", "--csv", "-c", workloads.STREAM]
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=_SERIALIZABLE, timeout=PSQL_S)
    return STREAMED / (time.perf_counter() - started)


def _program(name: str, service: Tuplegate) -> list[str]:
    assert service.service is not None
    return [str(_PROGRAMS / name), "-d", service.service.writer]
