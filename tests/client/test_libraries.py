"""Values of numpy, pandas, polars and pyarrow as parameters, and their frames as rows."""

import asyncio
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tests.service import Service
from tuplegate.client import AsyncClient, Client, NotNullViolation, TooLarge

NOON = datetime(2026, 11, 14, 12, 30, 45, 123456)

VALUES: list[tuple[str, Any, Any]] = [
    ("bool", np.True_, True),
    ("int2", np.int16(-7), -7),
    ("int8", np.int64(2**63 - 1), 2**63 - 1),
    ("numeric", np.uint64(2**64 - 1), Decimal(2**64 - 1)),
    ("float8", np.float64(0.1), 0.1),
    ("float4", np.float32(0.1), 0.1),
    ("float8", np.float64("nan"), "NaN"),
    ("float8", np.float16("inf"), float("inf")),
    ("float8", np.longdouble("0.5"), 0.5),
    ("text", np.str_("é"), "é"),
    ("bytea", np.bytes_(b"\x00\xff"), b"\x00\xff"),
    ("date", np.datetime64("2026-11"), date(2026, 11, 1)),
    ("timestamp", np.datetime64("2026-11-14T12"), datetime(2026, 11, 14, 12)),
    ("timestamp", np.datetime64("2026-11-14T12:30:45.123456789"), NOON),
    ("timestamp", np.datetime64("NaT"), None),
    ("interval", np.timedelta64(90_000, "s"), timedelta(days=1, hours=1)),
    ("interval", np.timedelta64(1_000, "ns"), timedelta(microseconds=1)),
    ("interval", np.timedelta64(3, "M"), "3 mons"),
    ("interval", np.timedelta64("NaT", "s"), None),
    ("int4[]", np.array([[1, 2], [3, 4]], dtype="int32"), [[1, 2], [3, 4]]),
    ("int4[]", np.ma.array([1, 2], mask=[False, True]), [1, None]),
    ("float8[]", np.array([0.1, np.inf]), [0.1, float("inf")]),
    ("text[]", np.array(["a,b", ""]), ["a,b", ""]),
    ("timestamp[]", np.array([str(NOON), "NaT"], dtype="datetime64[ns]"), [NOON, None]),
    ("int4", np.array(7), 7),
    ("jsonb", {"a": np.arange(3), "b": np.float64(1.5), "c": pd.NA}, {"a": [0, 1, 2], "b": 1.5, "c": None}),
    ("text", pd.NA, None),
    ("timestamptz", pd.NaT, None),
    ("timestamptz", pd.Timestamp("2026-11-14T12:30:45.123456789+02:00"), NOON.replace(hour=10, tzinfo=UTC)),
    ("interval", pd.Timedelta(hours=25), timedelta(days=1, hours=1)),
    ("int8[]", pd.Series([1, None], dtype="Int64"), [1, None]),
    ("date[]", pd.DatetimeIndex(["2026-11-14"]), [date(2026, 11, 14)]),
    ("text[]", pd.Categorical(["a", "b"]), ["a", "b"]),
    ("numeric[]", pl.Series([Decimal("1.10"), None]), [Decimal("1.10"), None]),
    ("int8[]", pa.array([1, None]), [1, None]),
    ("int8", pa.scalar(5), 5),
]


@pytest.mark.parametrize(
    ("type_name", "value", "expected"), VALUES, ids=[f"{name}-{type(value).__name__}" for name, value, _ in VALUES]
)
def test_a_value_is_sent_as_what_it_stands_for(database: Client, type_name: str, value: Any, expected: Any) -> None:
    """Alone; what is missing is NULL."""
    found = database.query(f"select $1::{type_name}", [value]).value()
    assert (str(found) if expected == "NaN" else found) == (expected.lower() if expected == "NaN" else expected)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.complex128(1), r"parameter \$2: a complex cannot be sent"),
        (pd.Period("2026-11"), r"parameter \$2: a Period cannot be sent"),
        (pd.DataFrame({"a": [1]}), r"parameter \$2: a DataFrame is no value: write_frame"),
        (np.timedelta64(1), "without a unit"),
    ],
)
def test_what_stands_for_no_value_is_said(database: Client, value: Any, said: str) -> None:
    """With its number, and nothing is sent."""
    with pytest.raises(TypeError, match=said):
        database.query("select $1, $2", [1, value])


def test_the_parameters_may_be_an_array(database: Client) -> None:
    """As rows of a matrix are."""
    params: Any = np.array([40, 2])
    assert database.query("select $1::int + $2::int", params).value() == 42


def test_a_statement_runs_with_many_lists_of_parameters(database: Client, table: str) -> None:
    """All or nothing; in batches, what was committed before a failure stays."""
    insert = f"insert into {table} values ($1)"
    assert database.executemany(insert, ([n] for n in range(5))) == 5
    assert database.executemany(f"update {table} set n = n + $1 where n >= $2", [(10, 3), (100, 13)]) == 4
    assert database.executemany(insert, []) == 0
    assert database.executemany(insert, np.arange(1001)[:, None], batch_size=500) == 1001
    database.query(f"truncate {table}")
    database.query(f"alter table {table} alter n set not null")
    with pytest.raises(NotNullViolation):
        database.executemany(insert, [[1], [2], [None]])
    assert database.query(f"select count(*) from {table}").value() == 0
    with pytest.raises(NotNullViolation):
        database.executemany(insert, [[1], [2], [None]], batch_size=2)
    assert database.query(f"select count(*) from {table}").value() == 2
    with pytest.raises(ValueError, match="at least 1"):
        database.executemany(insert, [[1]], batch_size=0)


COLUMNS: dict[str, list[Any]] = {
    "id": [1, 2],
    "big": [2**62, None],
    "ratio": [0.1, None],
    "price": [Decimal("12345678901234567890.10"), None],
    "ok": [True, None],
    'the "t"': ['é"\\\n', None],
    "data": [b"\x00\xff", None],
    "day": [date(2026, 11, 14), None],
    "at": [NOON.replace(tzinfo=UTC), None],
    "took": [timedelta(hours=25), None],
    "list": [[1, None, 3], None],
    "doc": [{"a": [1.5, None]}, None],
}


def frame_of(library: str) -> Any:
    if library == "pandas":
        # Plain columns, where what is missing is NaN or NaT, and those of pandas' own types, where it is NA.
        return pd.DataFrame(COLUMNS).astype({"big": "Int64", "ok": "boolean"})
    return pl.DataFrame(COLUMNS, strict=False) if library == "polars" else pa.table(COLUMNS)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_frame_becomes_rows(database: Client, library: str) -> None:
    """Every type as it is, what is missing as NULL, and columns that it lacks by their defaults."""
    database.query(
        'create table written (id int, big int8, ratio float8, price numeric, ok bool, "the ""t""" text, data bytea, '
        "day date, at timestamptz, took interval, list int[], doc jsonb, made text default 'by itself')"
    )
    try:
        assert database.write_frame("written", frame_of(library)) == 2
        names = [*COLUMNS, "made"]
        found = database.query("select * from written order by id")
        assert found.columns == names
        assert found.tuples() == [(*row, "by itself") for row in zip(*COLUMNS.values(), strict=True)]
        assert database.write_frame("written", frame_of(library)[:0]) == 0
    finally:
        database.query("drop table written")


def test_a_frame_is_written_whole_or_in_batches(database: Client, table: str) -> None:
    """One that is larger than a request may be needs batches; a row that does not fit leaves nothing."""
    database.query(f"alter table {table} alter n set not null, add t text")
    large = pd.DataFrame({"n": range(11), "t": "x" * 2**20})
    with pytest.raises(TooLarge):
        database.write_frame(table, large)
    assert database.write_frame(table, large, batch_size=6) == 11
    with pytest.raises(NotNullViolation):
        database.write_frame(table, pd.DataFrame({"n": [12, None]}))
    assert database.query(f"select count(*) from {table}").value() == 11
    database.query(f"alter table {table} alter n drop not null")
    assert database.write_frame(table, pd.DataFrame({"n": [12, None]})) == 2, "pandas makes floats of these"
    for wrong, said in (([1], "is no data frame"), (pd.Series([1]), "a Series is no data frame")):
        with pytest.raises(TypeError, match=said):
            database.write_frame(table, wrong)
    with pytest.raises(ValueError, match="need names"):
        database.write_frame(table, pd.DataFrame([[1]]))


def test_the_asynchronous_client_writes_many_rows_too(service: Service, table: str) -> None:
    """By the same methods."""

    async def work() -> tuple[int, int]:
        async with AsyncClient(service.url, service.key) as client:
            many = await client.executemany(f"insert into {table} values ($1)", [[np.int32(1)], [pd.NA]])
            return many, await client.write_frame(table, pl.DataFrame({"n": [2]}))

    assert asyncio.run(work()) == (2, 1)


def test_the_client_imports_none_of_these_libraries() -> None:
    """They are for whoever has them."""
    code = "import sys, tuplegate.client; print(sorted({'numpy', 'pandas', 'polars', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
