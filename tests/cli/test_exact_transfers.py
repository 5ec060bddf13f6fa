"""Values that formats are prone to change go out and in again to the letter, or are refused by name.

tests/transfers/test_every_value.py takes every type.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cases import each_of
from tests.needs import needs
from tests.service import Service
from tuplegate.cli.remote import Failed, run_with
from tuplegate.cli.transfer.command import export, import_
from tuplegate.client import Client

pytestmark = needs("postgresql")

COLUMNS = {
    "f": "float8", "r": "float4[]", "j": "json", "b": "jsonb", "jb": "jsonb[]", "a": "int[]", "t": "text[]",
    "d": "exact_doc", "m": "exact_mood", "ms": "exact_mood[]", "c": "bpchar",
}  # fmt: skip
LONG = '\n{\r\n"b":12345678901234567890.123456789012345678901234567890}'
ROWS = [
    ("-0", "{-0}", '{"a":1 ,"a":-0}', "null", '{"null",null}', "[2:3]={1,2}", "[0:0]={null}", "null", "ok", "{}", "x "),
    ("0", None, "null", '"null"', '{"{\\"a\\": 1.10}","[]"}', "{{1},{2}}", '{"",NULL}', '"x"', "", '[3:3]={""}', ""),
    ("NaN", "{}", LONG, None, None, "{}", "{}", None, None, None, None),
    ("1e300", "{NaN}", '{"$text":"null"}', '{"$text": "a"}', "{}", None, None, "1.00", "ok", "{}", "  "),
]  # fmt: skip
PLAIN = {"a": "{1,2}", "t": '{"a,b",NULL}', "r": "{-0,1.5}", "ms": "{ok}"}
"""For Parquet: arrays that its lists can hold."""


@pytest.fixture(scope="module")
def database(service: Service) -> Iterator[Client]:
    with Client(service.url, service.key) as opened:
        for statement in (
            "create type exact_mood as enum ('ok', '', 'wrong')",
            "create domain exact_doc as jsonb",
            "create function exact_wrong(text) returns exact_mood language sql as $$ select 'wrong'::exact_mood $$",
            "create cast (text as exact_mood) with function exact_wrong(text)",
            f"create table exact (id int, {', '.join(f'{name} {type_}' for name, type_ in COLUMNS.items())})",
        ):
            opened.query(statement)
        yield opened
        opened.query("drop table exact")
        opened.query("drop type exact_mood cascade")
        opened.query("drop domain exact_doc")


def fill(database: Client, rows: Sequence[Sequence[str | None]]) -> None:
    database.query("truncate exact")
    for number, row in enumerate(rows):
        literals = ", ".join("null" if value is None else "'" + value.replace("'", "''") + "'" for value in row)
        database.query(f"insert into exact values ({number}, {literals})")


def texts(database: Client) -> list[tuple[str, ...]]:
    shown = ", ".join(f"format('%s', {name}), {name} is null" for name in COLUMNS)
    return database.query(f"select id, {shown} from exact order by id").tuples()


def go_through(database: Client, file: Path, sql: str = "exact") -> None:
    """Export and import; the values must be what they were."""
    before = texts(database)
    run_with(database, export, [sql, str(file)])
    database.query("truncate exact")
    run_with(database, import_, [str(file), "--table", "exact"])
    assert texts(database) == before


def refused(database: Client, sql: str, file: Path) -> str:
    with pytest.raises(Failed) as caught:
        run_with(database, export, [sql, str(file)])
    assert not file.exists()
    return caught.value.message


@each_of("ending", ["csv", "ndjson"])
def test_awkward_values_come_back(database: Client, tmp_path: Path, ending: str) -> None:
    """The sign of zero, JSON null beside NULL, repeated names, long numbers, bounds of arrays, blanks."""
    fill(database, ROWS)
    go_through(database, tmp_path / f"exact.{ending}")


def test_parquet_carries_what_lists_hold_and_names_the_rest(database: Client, tmp_path: Path) -> None:
    """Arrays with bounds or dimensions, and moments that Parquet lacks, are refused with column and type."""
    file = tmp_path / "exact.parquet"
    fill(database, [tuple(PLAIN.get(name, text) for name, text in zip(COLUMNS, row, strict=True)) for row in ROWS])
    go_through(database, file)
    kept = pq.read_table(file)
    assert (kept["a"][0].as_py(), kept["ms"][0].as_py(), kept["b"][0].as_py()) == ([1, 2], ["ok"], "null")
    file.unlink()
    for value, said in (
        (
            "'[2:3]={1,2}'::int[]",
            "column v of type int4[]: Parquet cannot carry an array with bounds, [2:3]={1,2}; CSV",
        ),
        ("'{{1},{2}}'::int[]", "column v of type int4[]: Parquet cannot carry an array of more than one dimension"),
        ("'infinity'::date", "column v of type date: Parquet cannot carry infinity as a date; CSV and NDJSON can"),
    ):
        assert said in refused(database, f"select {value} as v", file)
    assert "two columns have one name" in refused(database, "select 1 as a, 2 as a", file)


def test_other_programs_read_what_they_are_used_to(database: Client, tmp_path: Path) -> None:
    """NDJSON has numbers, lists and documents; a text stands only where JSON has no such value."""
    file = tmp_path / "plain.ndjson"
    sql = """select 1 as i, 1.50 as n, true as b, array[1,2] as a, array['x'] as t, '{"k": [1]}'::jsonb as doc,
      null::jsonb as no, '[2:3]={1,2}'::int[] as low, 'null'::jsonb as odd
      from generate_series(1, 2) g order by g; -- x"""
    run_with(database, export, [sql, str(file)])
    line, other = file.read_text().splitlines()
    assert line == other
    assert json.loads(line) == {
        "i": 1, "n": 1.5, "b": True, "a": [1, 2], "t": ["x"], "doc": {"k": [1]}, "no": None, "low": "[2:3]={1,2}",
        "odd": {"$text": "null"},
    }  # fmt: skip
    assert '"n":1.50' in line


def test_a_statement_that_is_no_select_is_exported_as_far_as_it_can_be(database: Client, tmp_path: Path) -> None:
    """EXPLAIN and SHOW as they are; a statement that writes is refused, and runs not at all."""
    file = tmp_path / "out.csv"
    run_with(database, export, ["explain select 1", str(file)])
    assert file.read_text().startswith("QUERY PLAN\n")
    file.unlink()
    assert "column QUERY PLAN of type json" in refused(database, "explain (format json) select 1", file)
    fill(database, [])
    assert "reads" in refused(database, "insert into exact (id) values (7) returning id", file)
    assert texts(database) == []
    assert "two columns have one name" in refused(database, "select 1 as a, 2 as a", tmp_path / "out.ndjson")
    run_with(database, export, ["select 1 as a, 2 as a", str(file)])
    assert file.read_text() == "a,a\n1,2\n"


def test_a_mistake_is_shown_where_it_is(database: Client, tmp_path: Path) -> None:
    """In the statement that was typed, and not in the one that would have been sent."""
    with pytest.raises(Failed) as caught:
        run_with(database, export, ["select '{}'::jsonb, nothing from exact", str(tmp_path / "out.csv")])
    assert 'column "nothing" does not exist' in caught.value.message
    assert any("select '{}'::jsonb, nothing from exact" in more for more in caught.value.more)


def test_a_name_that_stands_twice_in_a_line_is_refused(database: Client, tmp_path: Path) -> None:
    """Only one of its values could be kept. Names within a document may be repeated."""
    fill(database, [])
    file = tmp_path / "twice.ndjson"
    file.write_text('{"id":1,"j":{"a":1,"a":2}}\n\n{"id":2,"j":{"a":":"},"id":3}\n')
    with pytest.raises(Failed, match="line 3: a name stands twice"):
        run_with(database, import_, [str(file), "--table", "exact"])
    file.write_text('{"id":1,"j":{"a":1,"a":2}}\n{"id":-0}\n')
    run_with(database, import_, [str(file), "--table", "exact"])
    assert database.query("select id, j::text from exact order by id").tuples() == [(0, None), (1, '{"a":1,"a":2}')]
