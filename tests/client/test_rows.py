"""The rows of an answer, and what can be asked of them."""

import sys
import warnings
from decimal import Decimal

import pytest

from tests.service import new_data_dir, remove, start_service
from tuplegate.client import Client, MissingLibrary, NotOneRow, RowsCut


def test_rows_are_a_sequence_of_dicts(database: Client) -> None:
    """With length, index, slices and iteration."""
    rows = database.query("select g as id, g * 10 as ten from generate_series(1, 3) g")
    assert len(rows) == 3
    assert rows[0] == {"id": 1, "ten": 10}
    assert rows[-1] == {"id": 3, "ten": 30}
    assert rows[1:] == [{"id": 2, "ten": 20}, {"id": 3, "ten": 30}]
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert {"id": 2, "ten": 20} in rows
    assert rows.columns == ["id", "ten"]
    assert rows.types == ["int4", "int4"]
    assert rows.column("ten") == [10, 20, 30]
    assert rows.first() == {"id": 1, "ten": 10}
    assert rows.timings["total_us"] > 0
    with pytest.raises(IndexError):
        rows[3]
    assert "'ten': 10" in repr(rows)


def test_columns_of_one_name_are_all_in_the_tuples(database: Client) -> None:
    """The later one wins in the dict."""
    rows = database.query("select 1 as a, 2 as a")
    assert rows.one() == {"a": 2}
    assert rows.tuples() == [(1, 2)]


def test_one_row_or_an_error(database: Client) -> None:
    """`one` and `value` take neither none nor two."""
    assert database.query("select 5 as n").value() == 5
    assert database.query("select 1 where false").first() is None
    for sql in ("select 1 where false", "select 1 union select 2"):
        with pytest.raises(NotOneRow):
            database.query(sql).one()
        with pytest.raises(NotOneRow):
            database.query(sql).value()


def test_a_write_says_how_many_rows_it_touched(database: Client, table: str) -> None:
    """And returns those it was asked for."""
    assert database.query(f"insert into {table} values (1), (2)").affected_rows == 2
    changed = database.query(f"update {table} set n = n + 1 returning n")
    assert (changed.affected_rows, sorted(changed.column())) == (2, [2, 3])


def test_notices_are_kept(database: Client) -> None:
    """Of statements that seem to read; in a transaction the service sends none."""
    rows = database.query("do $$ begin raise notice 'hello'; end $$", idempotent=False)
    assert rows.notices[0]["message"] == "hello"


def test_rows_that_were_asked_to_be_few_are_no_surprise(database: Client) -> None:
    """`max_rows` cuts, says so, and warns nobody."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = database.query("select generate_series(1, 10)", max_rows=3)
    assert len(rows) == 3
    assert rows.truncated


def test_rows_that_were_cut_unasked_are_a_warning() -> None:
    """An answer over the service's limit is not the whole result."""
    data_dir = new_data_dir()
    running = start_service(data_dir, "--answer-bytes-max", "1024")
    with Client(running.url, running.key) as client:
        with pytest.warns(RowsCut, match="stream"):
            rows = client.query("select repeat('x', 100) from generate_series(1, 1000)")
        assert rows.truncated
        assert sum(1 for _ in client.stream("select repeat('x', 100) from generate_series(1, 1000)")) == 1000
    assert running.stop() == 0
    remove(data_dir)


EVERY_KIND = """
    select true as b, 1::int2 as i2, 2 as i4, 3::int8 as i8, 1.5::float8 as f8, 1.25::numeric as n, 'x' as t,
      '2026-01-02'::date as d, '2026-01-02 03:04:05'::timestamp as ts, '2026-01-02 03:04:05+00'::timestamptz as tz,
      '01:02:03'::time as c, '1 day'::interval as i, '\\x00'::bytea as y, '{"a": 1}'::jsonb as j,
      '{1,null}'::int[] as ai, '{a}'::text[] as at, '{1.5}'::numeric[] as an, gen_random_uuid() as u
    union all
    select null, null, null, null, 'NaN', null, null, null, null, null, null, null, null, null, null, null, null, null
"""


def test_rows_become_an_arrow_table(database: Client) -> None:
    """With the types of the answer, also where there are no rows."""
    arrow = pytest.importorskip("pyarrow")
    made = database.query(EVERY_KIND).to_arrow()
    assert made.num_rows == 2
    assert made.schema.field("n").type == arrow.decimal128(3, 2)
    assert made.schema.field("tz").type == arrow.timestamp("us", tz="UTC")
    assert made.schema.field("ai").type == arrow.list_(arrow.int32())
    assert made.column("j")[0].as_py() == '{"a": 1}'
    empty = database.query(f"select * from ({EVERY_KIND}) t where false").to_arrow()
    assert (empty.num_rows, empty.schema.field("i8").type) == (0, arrow.int64())


def test_rows_become_a_polars_frame(database: Client) -> None:
    """Decimals keep their digits."""
    polars = pytest.importorskip("polars")
    made = database.query(EVERY_KIND).to_polars()
    assert made.shape == (2, 18)
    assert made["n"][0] == Decimal("1.25")
    assert made.schema["tz"] == polars.Datetime("us", "UTC")
    assert made.schema["ai"] == polars.List(polars.Int32)
    assert database.query(f"select * from ({EVERY_KIND}) t where false").to_polars().shape == (0, 18)


def test_rows_become_a_pandas_frame(database: Client) -> None:
    """Whole numbers with a NULL among them stay whole."""
    pytest.importorskip("pandas")
    made = database.query(EVERY_KIND).to_pandas()
    assert made.shape == (2, 18)
    assert str(made["i8"].dtype) == "Int64"
    assert str(made["tz"].dtype) == "datetime64[us, UTC]"
    assert made["n"][0] == Decimal("1.25")
    assert database.query(f"select * from ({EVERY_KIND}) t where false").to_pandas().shape == (0, 18)


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_what_a_frame_cannot_hold_becomes_text(database: Client, library: str) -> None:
    """Infinite dates, numbers with too many digits, arrays of different depth; a second column of one name too."""
    pytest.importorskip(library)
    rows = database.query(
        "select 'infinity'::date as a, 1e-90::numeric as a, '{1}'::int[] as c union all "
        "select '2026-01-01', 'NaN', '{{1}}'"
    )
    made = rows.to_arrow() if library == "pyarrow" else rows.to_polars()
    columns = made.to_pydict() if library == "pyarrow" else made.to_dict(as_series=False)
    assert columns["a"] == ["infinity", "2026-01-01"]
    assert columns["a_2"][1] == "NaN"
    assert columns["c"] == ["[1]", "[[1]]"]


@pytest.mark.parametrize("library", ["pyarrow", "polars", "pandas"])
def test_a_library_that_is_missing_is_named(database: Client, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, library, None)
    rows = database.query("select 1")
    convert = {"pyarrow": rows.to_arrow, "polars": rows.to_polars, "pandas": rows.to_pandas}[library]
    with pytest.raises(MissingLibrary, match=f"pip install {library}"):
        convert()
