"""`make bench-import`: files into a table, against `psql \\copy` on the same engine. Fails when the bar is missed.

Both load the same 1,000,000 rows of five columns into an empty table, in turn, as whole commands: the interpreter's
start counts. So do they write the same rows back into a file. Only the import of CSV has a bar.
"""

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from tests.service import Service, Sql, new_data_dir, remove, start_service

from bench.measure import Line, report
from tuplegate.engine.bundled.binaries import find_wheel_programs, find_wheel_site

ROUNDS = 5
ROWS = 1_000_000
BAR = 4.0
_COLUMNS = "id bigint, label text, amount numeric(12,2), at timestamptz, active boolean"
_QUERY = (
    "select g as id, 'row ' || g as label, (g * 37 % 1000003) / 100.0 as amount, "
    "timestamptz '2026-01-01' + g * interval '1 s' as at, g % 2 = 0 as active from generate_series(1, {rows}) g"
)


class Table:
    """The table that both fill, and the ways to fill and to read it."""

    def __init__(self, service: Service, sql: Sql, rows: int) -> None:
        self._service = service
        self._sql = sql
        self._rows = rows
        self._jobs = 0
        self.directory = service.home / "files"
        self.directory.mkdir()
        sql(f"create table load ({_COLUMNS})")

    def make_files(self) -> None:
        """The rows as CSV by psql, and in the other formats by `export`."""
        self._sql("insert into load " + _QUERY.format(rows=self._rows), timeout_ms=60_000)
        self.psql("\\copy load to '{file}' csv header", "load.csv")
        for format in ("ndjson", "parquet"):
            self.tuplegate("export", "load", f"load.{format}")

    def psql(self, command: str, name: str) -> float:
        """Seconds of a command of psql, as the tenant's role over the engine's own socket."""
        program = str(find_wheel_programs(find_wheel_site()) / "psql")
        line = [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", self._service.writer]
        return _seconds([*line, "-c", command.format(file=self.directory / name)], {})

    def tuplegate(self, *arguments: str) -> float:
        """Seconds of a command of tuplegate; its last argument is a file."""
        *words, name = arguments
        line = [sys.executable, "-m", "tuplegate", *words, str(self.directory / name)]
        return _seconds(line, {"TUPLEGATE_URL": self._service.url, "TUPLEGATE_API_KEY": self._service.key})

    def copy_in(self) -> float:
        return self._filled(lambda: self.psql("\\copy load from '{file}' csv header", "load.csv"))

    def import_(self, name: str) -> float:
        self._jobs += 1
        return self._filled(lambda: self.tuplegate("import", "--table", "load", "--job", str(self._jobs), name))

    def copy_out(self) -> float:
        return self.psql("\\copy load to '{file}' csv header", "copied.csv")

    def export(self, name: str) -> float:
        return self.tuplegate("export", "load", name)

    def _filled(self, fill: Callable[[], float]) -> float:
        """From the same state each time: an empty table, and no log of an earlier run still to be written."""
        self._sql("truncate load")
        subprocess.run(["sync"], check=True)
        seconds = fill()
        found = self._sql.value("select count(*) from load")
        assert found == self._rows, f"{found} rows, not {self._rows}"
        return seconds


def _seconds(command: list[str], env: dict[str, str]) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    return seconds


def in_turn(rounds: int, one: Callable[[], float], other: Callable[[], float]) -> tuple[float, str]:
    """The median of the ratios other / one, and a note with the spread."""
    pairs = [(one(), other()) for _ in range(rounds)]
    ratios = [b / a for a, b in pairs]
    a, b = sorted(pairs, key=lambda pair: pair[1] / pair[0])[len(pairs) // 2]
    return statistics.median(ratios), f"{b:.2f} s / {a:.2f} s; rounds {min(ratios):.2f} to {max(ratios):.2f}"


def measured(table: Table, rounds: int) -> Iterator[Line]:
    for format in ("csv", "ndjson", "parquet"):
        value, note = in_turn(rounds, table.copy_in, partial(table.import_, f"load.{format}"))
        bar = BAR if format == "csv" else math.inf
        yield Line(f"import of {format} / psql \\copy of csv", value, bar, True, note)
    for format in ("csv", "ndjson", "parquet"):
        value, note = in_turn(rounds, table.copy_out, partial(table.export, f"out.{format}"))
        yield Line(f"export of {format} / psql \\copy of csv", value, math.inf, True, note)


def main(arguments: list[str]) -> int:
    rows = int(arguments[0]) if arguments else ROWS
    rounds = int(arguments[1]) if len(arguments) > 1 else ROUNDS
    data_dir = new_data_dir()
    service = start_service(data_dir)
    try:
        with service.client() as client:
            table = Table(service, Sql(client), rows)
            table.make_files()
            lines = report(measured(table, rounds))
    finally:
        service.stop()
        remove(data_dir)
    return 0 if all(line.passed for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
