"""What values become on their way from a file into a table."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.service import Service
from tuplegate.cli.transfer.array_literals import array_literal
from tuplegate.client import Client


@pytest.fixture
def database(service: Service) -> Iterator[Client]:
    with Client(service.url, service.key) as opened:
        yield opened
        opened.query("drop table if exists load")
        opened.query("drop type if exists load_pair")


AWKWARD: list[str | None] = [
    "", " ", " a ", "a b", "NULL", "null", "nUlL", '"', '""', "\\", "\\\\", '\\"', "{", "}", "{}", "{a,b}", ",", "a,b",
    "\t", "a\nb", "\r\n", "\x01", "\x01\x01", "\x02", "'", "é", "日本", "😀", "\x7f", "\u2028", "\v", "\f", "0", "-",
]  # fmt: skip


@pytest.mark.parametrize("null", [None, "", "NULL", "a b", "\x01"])
def test_any_text_survives_as_an_element_of_an_array(database: Client, null: str | None) -> None:
    """Alone, beside each other one, and beside NULL; and what stands for NULL becomes NULL."""
    lists: list[list[str | None]] = [[text] for text in AWKWARD] + [[a, b] for a in AWKWARD for b in AWKWARD[::3]]
    lists += [AWKWARD[:], AWKWARD[::-1]] if null is not None else [[None, text, None] for text in AWKWARD]
    literals = [array_literal(texts, null) for texts in lists]
    back = database.query("select l::text[] from json_array_elements_text($1::text::json) l", [json.dumps(literals)])
    assert back.column() == [[None if text == null else text for text in texts] for texts in lists]
    assert array_literal([], null) == "{}"


def test_values_are_read_as_copy_reads_them(command: Command, database: Client, tmp_path: Path) -> None:
    """By the input function of the column's type, with its length and precision."""
    database.query(
        "create table load (n numeric(6,2), c char(4), v varchar(3), b bit(3), vb bit varying(4), i interval, p point, "
        "x box, y bytea, r int4range, ip inet, a int[], ta text[], j json, jb jsonb, m money, t time, f real, u uuid, "
        "ts timestamp(0))"
    )
    row = {
        "n": "1.005", "c": "ab", "v": "abc", "b": "101", "vb": "10", "i": "1 mon 2 days", "p": "(1,2)",
        "x": "(1,1),(0,0)", "y": "\\x00ff", "r": "[1,5)", "ip": "10.0.0.1/8", "a": "{1,NULL,3}",
        "ta": '{"a b",NULL,""}', "j": '{"a": [1.10]}', "jb": '"text"', "m": "3.50", "t": "24:00:00", "f": "1e10",
        "u": "{8a6e0804-2bd0-4672-b79d-d97027f9071a}",
        "ts": "2026-01-02 03:04:05.7",
    }  # fmt: skip
    file = tmp_path / "all.csv"
    quoted = ['"' + value.replace('"', '""') + '"' for value in row.values()]
    file.write_text(",".join(row) + "\n" + ",".join(quoted) + "\n" + "," * (len(row) - 1) + "\n")
    done = command("import", str(file), "--table", "load")
    assert done.code == 0, done.err
    literals = ", ".join("'" + value.replace("'", "''") + "'" for value in row.values())
    database.query(f"insert into load values ({literals})")
    found = database.query("select load::text from load").column()
    assert len(found) == 3
    assert found[0] == found[2], "as a literal of its type is read"
    assert database.query("select n, v, ta from load limit 1").one() == {
        "n": Decimal("1.01"), "v": "abc", "ta": ["a b", None, ""],
    }  # fmt: skip
    assert found[1] == "(" + "," * (len(row) - 1) + ")", "empty fields are NULL"


@pytest.mark.parametrize(
    ("type_", "value"),
    [("varchar(3)", "abcd"), ("bit(3)", "1"), ("numeric(3,1)", "100"), ("smallint", "70000"), ("json", "{"),
     ("int[]", "{a}"), ("int[]", '[1, "a"]'), ("load_positive", "-1"), ("text", "a\x00b")],
)  # fmt: skip
def test_a_value_that_a_column_cannot_hold_is_named(
    command: Command, database: Client, tmp_path: Path, type_: str, value: str
) -> None:
    """By its line, whatever the type, the domain's check included."""
    database.query("drop domain if exists load_positive")
    database.query("create domain load_positive as int check (value > 0)")
    database.query(f"create table load (id int, v {type_})")
    file = tmp_path / "bad.csv"
    rows = [f"{n},\n" for n in range(1000)]
    rows[700] = f'700,"{value.replace(chr(34), chr(34) * 2)}"\n'
    file.write_text("id,v\n" + "".join(rows))
    done = command("import", str(file), "--table", "load")
    assert (done.code, "line 702: " in done.err, "nothing was imported" in done.err) == (11, True, True), done.err
    assert database.query("select count(*) from load").value() == 0
    assert database.query("select count(*) from pg_class where relname like 'tuplegate_import%'").value() == 0
    database.query("drop table load")
    database.query("drop domain load_positive")


def test_objects_and_lists_of_ndjson_fill_records_and_arrays(
    command: Command, database: Client, tmp_path: Path
) -> None:
    """Also arrays of records; and a field that is missing is NULL."""
    database.query("create type load_pair as (a int, b text)")
    database.query("create table load (id int, one load_pair, many load_pair[], t text, doc jsonb)")
    file = tmp_path / "nested.ndjson"
    lines = [
        {"id": 1, "one": {"a": 1, "b": "x"}, "many": [{"a": 2, "b": "y"}], "t": {"k": 1.50}, "doc": "text"},
        {"one": "(3,z)", "many": None, "doc": None, "id": 2},
        {"id": 3, "t": True},
    ]
    file.write_text("\ufeff" + "\n\n".join(map(json.dumps, lines)))
    done = command("import", str(file), "--table", "load")
    assert done.code == 0, done.err
    assert database.query("select id, one::text, many::text, t, doc::text from load order by id").tuples() == [
        (1, "(1,x)", '{"(2,y)"}', '{"k": 1.5}', '"text"'),
        (2, "(3,z)", None, None, None),
        (3, None, None, "true", None),
    ]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_lines_may_end_in_any_way(command: Command, database: Client, tmp_path: Path, ending: str, quote: str) -> None:
    """Quoted or not, with a byte order mark, and no end of the last line."""
    database.query("create table load (id int, t text)")
    file = tmp_path / "lines.csv"
    rows = [f"{quote}{n}{quote},{quote}t {n}{quote}" for n in range(5)]
    text = ending.join(["id,t", *rows])
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    done = command("import", str(file), "--table", "load")
    assert done.code == 0, done.err
    assert database.query("select * from load").tuples() == [(n, f"t {n}") for n in range(5)]


def test_a_quoted_field_may_be_longer_than_a_batch(command: Command, database: Client, tmp_path: Path) -> None:
    """Line breaks within it do not end it, and lines are counted right after it."""
    database.query("create table load (id int, t text)")
    long = "a\n" * 700_000
    file = tmp_path / "long.csv"
    file.write_text(f'id,t\n1,"{long}"\n2,b\n')
    done = command("import", str(file), "--table", "load")
    assert done.code == 0, done.err
    assert database.query("select id, md5(t) = md5($1::text) from load", [long]).tuples() == [(1, True), (2, False)]
    file.write_text(f'id,t\n1,"{long}"\ntwo,b\n')
    done = command("import", str(file), "--table", "load")
    assert (done.code, "line 700003: " in done.err) == (11, True), done.err


def test_another_text_can_stand_for_null(command: Command, database: Client, tmp_path: Path) -> None:
    """Then an empty field is an empty text."""
    database.query("create table load (id int, t text)")
    file = tmp_path / "nulls.csv"
    file.write_text("id,t\n1,\n2,-\n-,NULL\n")
    assert command("import", str(file), "--table", "load", "--null", "-").code == 0
    assert database.query("select * from load").tuples() == [(1, ""), (2, None), (None, "NULL")]
