"""Parquet files: the types of the answer when written, and the same values when read back."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.command import Command
from tests.service import Service
from tuplegate.client import Client


@pytest.fixture
def database(service: Service) -> Iterator[Client]:
    with Client(service.url, service.key) as opened:
        yield opened
        opened.query("drop table if exists load")


def test_a_table_comes_back(command: Command, database: Client, tmp_path: Path) -> None:
    """Every value as it was, NULLs and odd numbers included; typed in the file as the table types them."""
    database.query(
        "create table load as select g as id, g::int2 as small, g::int8 as big, g / 7.0::float8 as d, "
        "'NaN'::float4 as f, "
        "(g / 3.0)::numeric(10,4) as n, g::numeric / 7 as free, g % 2 = 0 as ok, 'x' || g || E'\\n\"' as t, "
        "date '2026-01-01' + g as day, timestamp '2026-01-01 00:00:00.000001' + g * interval '1 h' as at, "
        "timestamptz '2026-01-01' + g * interval '1 h' as atz, gen_random_uuid() as u, "
        "'{\"a\": [1.10]}'::jsonb as doc, "
        "'\\x00ff'::bytea as b, array[g, null] as a, array['a,b', null] as ta, case when g > 1 then 'v' end as maybe "
        "from generate_series(1, 3) g"
    )
    before = database.query("select load::text from load order by id").column()
    file = tmp_path / "load.parquet"
    done = command("export", "load", str(file))
    assert done.code == 0, done.err
    schema = pq.read_schema(file)
    assert {name: str(schema.field(name).type) for name in schema.names} == {
        "id": "int32", "small": "int16", "big": "int64", "d": "double", "f": "float", "n": "decimal128(10, 4)",
        "free": "string", "ok": "bool", "t": "string", "day": "date32[day]", "at": "timestamp[us]",
        "atz": "timestamp[us, tz=UTC]", "u": "string", "doc": "string", "b": "binary",
        "a": "list<element: int32>", "ta": "list<element: string>", "maybe": "string",
    }  # fmt: skip
    database.query("truncate load")
    done = command("import", str(file), "--table", "load")
    assert done.code == 0, done.err
    assert database.query("select load::text from load order by id").column() == before


def test_the_types_of_the_file_are_shown_and_used(command: Command, database: Client, tmp_path: Path) -> None:
    """Unsigned numbers get room; what has no type of its own becomes JSON or text."""
    file = tmp_path / "made.parquet"
    moment = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
    table = pa.table({
        "u8": pa.array([255, None], pa.uint8()), "u32": pa.array([2**32 - 1, None], pa.uint32()),
        "u64": pa.array([2**64 - 1, None], pa.uint64()), "h": pa.array([1.5, None], pa.float16()),
        "dec": pa.array([Decimal("-0.0000001"), None], pa.decimal128(10, 7)),
        "d64": pa.array([date(1, 1, 1), None], pa.date64()),
        "ns": pa.array([moment, None], pa.timestamp("ns", "Europe/Berlin")),
        "s": pa.array([datetime(2026, 1, 2), None], pa.timestamp("s")),
        "cat": pa.array(["a", None]).dictionary_encode(), "st": pa.array([{"k": [1, None]}, None]),
        "ls": pa.array([[[1], [2]], None]), "time": pa.array([5_000_000, None], pa.time64("us")),
        "ld": pa.array([[Decimal("1.50")], None], pa.list_(pa.decimal128(4, 2))), "bin": pa.array([b"\x00'", None]),
        "none": pa.nulls(2),
    })  # fmt: skip
    pq.write_table(table, file)
    dry = command("import", str(file), "--table", "load", "--create", "--dry-run")
    assert {row["column"]: row["guessed"] for row in dry.lines} == {
        "u8": "smallint", "u32": "bigint", "u64": "numeric", "h": "real", "dec": "numeric(10,7)", "d64": "date",
        "ns": "timestamptz", "s": "timestamp", "cat": "text", "st": "jsonb", "ls": "bigint[]", "time": "time",
        "ld": "numeric(4,2)[]", "bin": "bytea", "none": "text",
    }  # fmt: skip
    assert "2 rows; nothing was changed" in dry.err
    done = command("import", str(file), "--table", "load", "--create")
    assert done.code == 0, done.err
    row, empty = database.query("select * from load").tuples()
    assert row == (
        255, 2**32 - 1, Decimal(2**64 - 1), 1.5, Decimal("-0.0000001"), date(1, 1, 1), moment, datetime(2026, 1, 2),
        "a", {"k": [1, None]}, [[1], [2]], datetime(1, 1, 1, 0, 0, 5).time(), [Decimal("1.50")], b"\x00'", None,
    )  # fmt: skip
    assert set(empty) == {None}


def test_many_groups_are_read_and_written(command: Command, database: Client, tmp_path: Path) -> None:
    """However the file is cut into groups of rows, batches have rows of several."""
    file, back = tmp_path / "groups.parquet", tmp_path / "back.parquet"
    pq.write_table(pa.table({"id": pa.array(range(120_000), pa.int64())}), file, row_group_size=7_001)
    done = command("import", str(file), "--table", "load", "--create")
    assert (done.code, done.err.splitlines()[-1]) == (0, "120000 rows imported")
    assert command("export", "select * from load order by id", str(back)).code == 0
    found = pq.ParquetFile(back)
    assert found.metadata.num_row_groups == 3
    assert found.read()["id"].to_pylist() == list(range(120_000))


def test_a_broken_row_is_named_by_its_number(command: Command, database: Client, tmp_path: Path) -> None:
    """There are no lines to count."""
    database.query("create table load (id smallint)")
    file = tmp_path / "large.parquet"
    pq.write_table(pa.table({"id": [1] * 30_000 + [70_000] + [1] * 10}), file)
    done = command("import", str(file), "--table", "load")
    assert (done.code, "row 30001: " in done.err) == (11, True), done.err
    assert database.query("select count(*) from load").value() == 0


def test_a_file_that_is_no_parquet_is_refused(command: Command, tmp_path: Path) -> None:
    """Also one that was cut off."""
    file = tmp_path / "cut.parquet"
    pq.write_table(pa.table({"id": range(10)}), file)
    file.write_bytes(file.read_bytes()[:-10])
    done = command("import", str(file), "--table", "load", "--create")
    assert (done.code, "cannot be read as Parquet" in done.err) == (11, True), done.err


@pytest.mark.parametrize(
    "sql", ["select 'infinity'::timestamp as at", "select '{{1},{2}}'::int[] as a", "select 1 as a, 2 as a"]
)
def test_what_parquet_cannot_hold_is_said(command: Command, tmp_path: Path, sql: str) -> None:
    """And no file is left."""
    done = command("export", sql, str(tmp_path / "x.parquet"))
    assert done.code == 11, done.err
    assert list(tmp_path.glob("*parquet*")) == []
    assert list(tmp_path.glob(".*part")) == []


def test_without_pyarrow_the_extra_is_named(command: Command, tmp_path: Path) -> None:
    """Where the library is not installed."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "pyarrow.py").write_text("raise ImportError('hidden')\n")
    env = {**command.env, "PYTHONPATH": f"{hidden}:{command.env.get('PYTHONPATH', '')}"}
    line = [sys.executable, "-m", "tuplegate", "export", "select 1 as n", str(tmp_path / "x.parquet")]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "tuplegate[parquet]" in done.stderr) == (11, True), done.stderr
