"""CSV both ways: NULL and the empty text, delimiters, headers, encodings, and the line of a row that is refused."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.inside import empty_database
from tests.service import Service
from tuplegate.cli.output import CsvWriter
from tuplegate.cli.remote import Failed, run_with
from tuplegate.cli.transfer import csv_file
from tuplegate.cli.transfer.command import export, import_
from tuplegate.cli.transfer.csv_form import CsvForm
from tuplegate.cli.transfer.files import BadFile
from tuplegate.client import Client

Rows = list[tuple[str | None, ...]]

# Texts made of what CSV gives a meaning to, and all others that the engine takes.
TEXTS = st.one_of(
    st.text(st.sampled_from(list("\"',;|\t\r\n\\. aN€\x01\x02"))),
    st.text(st.characters(codec="utf-8", exclude_characters="\0")),
)
NULLS = ["", "NULL", "\\N", "a"]
TABLES: st.SearchStrategy[Rows] = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[st.none() | st.sampled_from(NULLS) | TEXTS] * width), max_size=30)
)
FORMS = st.builds(
    CsvForm,
    delimiter=st.sampled_from([None, ",", ";", "\t", "|", "€"]),
    null=st.sampled_from([None, *NULLS]),
    header=st.sampled_from([None, True, False]),
    encoding=st.sampled_from([None, "utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"]),
)
AWKWARD: Rows = [(None, ""), ("", None), ('""', '"'), ("\r", "\n"), (",", " "), ("\\.", "NULL"), ("a\r\nb", '",""')]


@pytest.fixture
def database(service: Service) -> Iterator[Client]:
    with Client(service.url, service.key) as opened:
        yield opened
        opened.query("drop table if exists load cascade")


def options(form: CsvForm) -> list[str]:
    named = {"delimiter": form.delimiter, "null": form.null, "encoding": form.encoding}
    made = [f"--{name}={value}" for name, value in named.items() if value is not None]
    return made if form.header is None else [*made, "--header" if form.header else "--no-header"]


def with_delimiter(form: CsvForm) -> CsvForm:
    """Return a form that reads any first line: without a delimiter, one such as "a;b" is refused."""
    return replace(form, delimiter=form.delimiter or ",")


def load(database: Client, file: Path, *more: str) -> None:
    run_with(database, import_, [str(file), "--table", "load", *more])


def refused(database: Client, file: Path, *more: str) -> str:
    """What an import says that is refused, with all that it adds."""
    with pytest.raises(Failed) as caught:
        load(database, file, *more)
    assert caught.value.code == 11
    assert database.query("select count(*) from pg_class where relname like 'tuplegate_import%'").value() == 0
    return "\n".join([caught.value.message, *caught.value.more])


@given(rows=TABLES, form=FORMS)
@example(rows=AWKWARD, form=CsvForm())
@example(rows=[(None,), ("",), ("a",), (None,)], form=CsvForm())
@example(rows=[(None,)], form=CsvForm(header=False))
@example(rows=[("",)], form=CsvForm(null="NULL", header=False))
@example(rows=[("a;b",)], form=CsvForm(header=False))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_table_comes_back(database: Client, tmp_path: Path, rows: Rows, form: CsvForm) -> None:
    """Through a file and the service, whatever texts it has, in every form."""
    width = len(rows[0]) if rows else 2
    columns = [f"c{number}" for number in range(width)]
    database.query("drop table if exists load")
    database.query(f"create table load ({', '.join(f'{name} text' for name in columns)})")
    records = json.dumps([dict(zip(columns, row, strict=True)) for row in rows])
    database.query("insert into load select * from json_populate_recordset(null::load, $1::text::json)", [records])
    file = tmp_path / "back.csv"
    run_with(database, export, ["load", str(file), *options(form)])
    database.query("truncate load")
    if rows or form.header is not False:
        load(database, file, *options(with_delimiter(form)))
    found = database.query("select * from load").tuples()
    assert sorted(found, key=repr) == sorted(rows, key=repr)


@given(rows=TABLES, form=FORMS, block_bytes=st.integers(1, 40))
@example(rows=AWKWARD, form=CsvForm(), block_bytes=1)
@example(rows=[(None,)], form=CsvForm(header=False, encoding="utf-8-sig"), block_bytes=1)
@example(rows=[("\ufeff",)], form=CsvForm(header=False), block_bytes=9)
@example(rows=[("a;b",)], form=CsvForm(header=False), block_bytes=1)
@example(rows=[(',"\r;\n',)], form=CsvForm(), block_bytes=1)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_blocks_may_end_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Rows, form: CsvForm, block_bytes: int
) -> None:
    """What is read does not hang on where a file is cut."""
    width = len(rows[0]) if rows else 2
    file = tmp_path / "cut.csv"
    with file.open("w", encoding=form.encoding or "utf-8", newline="") as out:
        writer = CsvWriter(out, form.delimiter or ",", form.null or "", form.header is not False)
        writer.begin([f"c{number}" for number in range(width)], ["text"] * width)
        writer.rows(rows)
    if not rows and form.header is False:
        return
    monkeypatch.setattr(csv_file, "_BLOCK_BYTES", block_bytes)
    source = csv_file.CsvFile(file, with_delimiter(form))
    found = [
        tuple(None if text == batch.null else text for text in row)
        for batch in source.batches(frozenset())
        for row in zip(*batch.columns, strict=True)
    ]
    assert found == rows


@pytest.mark.parametrize("width", [1, 2])
def test_a_file_is_what_copy_writes_and_reads(service: Service, database: Client, tmp_path: Path, width: int) -> None:
    """To the byte; and what COPY has written is read as COPY reads it."""
    rows = [row[:width] for row in AWKWARD if row[:width] != ("\\.",)]  # alone in its line, it once ended a file
    columns = ["a text", "b text"][:width]
    database.query(f"create table load ({', '.join(columns)})")
    for row in rows:
        database.query(f"insert into load values ({', '.join(['$1::text', '$2::text'][:width])})", list(row))
    file = tmp_path / "out.csv"
    run_with(database, export, ["load", str(file)])
    name = database.query("select current_database()").value()
    with psycopg.connect(service.conninfo(name)) as superuser, superuser.cursor() as cursor:
        with cursor.copy("copy load to stdout (format csv, header)") as copy:
            written = b"".join(bytes(part) for part in copy)
        assert file.read_bytes() == written
        cursor.execute("truncate load")
        with cursor.copy("copy load from stdin (format csv, header)") as copy:
            copy.write(file.read_bytes())
        cursor.execute("select * from load")
        assert cursor.fetchall() == rows
    load(database, file)
    assert database.query("select * from load").tuples() == rows * 2


@dataclass(frozen=True)
class Copied:
    """A CSV file and how it is read. `width` is the number of columns of its table."""

    text: str
    width: int
    delimiter: str = ","
    null: str = ""


PIECES = ['"', '""', ",", "\n", "\n", "\r\n", "a", " ", '"a,\n"', "\\.", "N"]
FILES = st.builds(
    Copied,
    text=st.one_of(
        st.text(st.sampled_from(list('",\r\n\\. aN|é')), min_size=1, max_size=24),
        st.lists(st.sampled_from(['"', '""', ",", "\n", "\n", "\r\n", "a", " ", '"a,\n"', "\\.", "N"]), min_size=1).map(
            "".join
        ),
    ),
    width=st.integers(1, 3),
    delimiter=st.sampled_from([",", "|"]),
    null=st.sampled_from(["", "N", "a"]),
)


def read_as_copy(cursor: psycopg.Cursor[Any], given: Copied) -> Rows | None:
    """The rows that COPY makes of a file; None where it refuses the file."""
    names = ", ".join(f"c{number} text" for number in range(given.width))
    cursor.execute(f"create temp table copied (place serial, {names}) on commit drop".encode())
    columns = names.replace(" text", "")
    options = f"format csv, delimiter '{given.delimiter}', null '{given.null}'"
    try:
        with cursor.copy(f"copy copied ({columns}) from stdin ({options})".encode()) as copy:
            copy.write(given.text.encode())
        cursor.execute(f"select {columns} from copied order by place".encode())
        return cursor.fetchall()
    except psycopg.errors.BadCopyFileFormat:
        return None
    finally:
        cursor.connection.rollback()


def read_ourselves(file: Path, given: Copied) -> Rows | str:
    """The rows that an import makes of a file, or why it refuses the file."""
    file.write_bytes(given.text.encode())
    try:
        source = csv_file.CsvFile(file, CsvForm(given.delimiter, given.null, header=False))
        if len(source.columns) != given.width:
            return f"line 1 has {len(source.columns)} fields and the table has {given.width} columns"
        found = [
            tuple(None if text == batch.null else text for text in row)
            for batch in source.batches(frozenset())
            for row in zip(*batch.columns, strict=True)
        ]
    except BadFile as refusal:
        return str(refusal)
    return found


@given(given=FILES, block_bytes=st.sampled_from([1, 2, 3, 7, 2**20]))
@example(given=Copied('a"b,c"d,e', 2), block_bytes=1)
@example(given=Copied("a,b\n\nc,d\n", 2), block_bytes=1)
@example(given=Copied("a\n\n\n", 1), block_bytes=3)
@example(given=Copied('"a" "b"\n', 1), block_bytes=3)
@example(given=Copied('"a\n', 1), block_bytes=3)
@example(given=Copied('a"\r"\nb\r\n', 1), block_bytes=3)
@example(given=Copied("a\r\nb\n", 1), block_bytes=3)
@example(given=Copied("a\rb\n", 1), block_bytes=3)
@example(given=Copied("\\.\na\n", 1), block_bytes=3)
@example(given=Copied('"N",N"",N\n', 3, null="N"), block_bytes=3)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_as_copy_reads_it(
    bare: psycopg.Cursor[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Copied, block_bytes: int
) -> None:
    """The same rows, or both refuse it; and a refusal says the line."""
    monkeypatch.setattr(csv_file, "_BLOCK_BYTES", block_bytes)
    by_copy, by_import = read_as_copy(bare, given), read_ourselves(tmp_path / "any.csv", given)
    if isinstance(by_import, str):
        assert re.match(r"line \d+", by_import)
    assert by_copy == (None if isinstance(by_import, str) else by_import), by_import


@pytest.fixture
def bare(service: Service) -> Iterator[psycopg.Cursor[Any]]:
    with psycopg.connect(empty_database(service)) as opened, opened.cursor() as cursor:
        yield cursor


def test_a_fault_is_named_by_line_and_column(database: Client, tmp_path: Path) -> None:
    """COPY refuses these, too."""
    database.query("create table load (id int, t text)")
    file = tmp_path / "faults.csv"
    for text, said in (
        ('1,"a\n2"\n3,b"c\n', "line 3, column 3: the quotes of this field are never closed"),
        (
            '1,"a\n"\n3,b\r4,c\n',
            "line 3, column 4: a carriage return outside of quotes; the first line ends",
        ),
        ("1,a\r\n2,b\n", "line 2, column 4: a line feed outside of quotes"),
        ("1,a\n\n", "line 2 is blank, which is a row of 1 field, not 2"),
        ("1,a\n2\n", "line 2 has 1 field, not 2: the value of t is missing"),
        ("1,a\n2,b,c\n", "line 2 has 3 fields, not 2: those from column 5 on are too many"),
    ):
        file.write_text(text, newline="")
        assert said in refused(database, file, "--no-header")


def test_quotes_make_a_text_of_what_stands_for_null(database: Client, tmp_path: Path) -> None:
    """Also beside fields that have quotes in them, and in a column of numbers, where there is no empty text."""
    database.query("create table load (id int, t text)")
    file = tmp_path / "quoted.csv"
    file.write_text('id,t\n1,"-"\n2,-\n3,""\n4,\n5,"a,""-"",b"\n6,5"-"\n')
    load(database, file, "--null", "-")
    assert database.query("select * from load").tuples() == [
        (1, "-"), (2, None), (3, ""), (4, ""), (5, 'a,"-",b'), (6, "5-"),
    ]  # fmt: skip
    file.write_text('id,t\n1,a\n"",b\n')
    said = refused(database, file)
    assert 'line 3: invalid input syntax for type integer: ""' in said
    assert "NULL is an empty field without quotes" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id;t\n1;a\n", "looks separated by ';': its first line has 2 fields by it, and 1 by a comma"),
        ('"id"\t"t"\n1\ta\n', "give --delimiter '\\t'"),
        ("id|t|a,b\n1|2|3\n", "give --delimiter '|'"),
        ("1,a\n2,b\n", "line 1 looks like a row (1), not like names: give --no-header"),
        ("Ada,London\nBob,Rome\n", "if line 1 is a row, and not names, give --no-header"),
        ("a,a\n1,2\n", "give --no-header if it is a row"),
        ("id,t\n1\n", "line 2 has 1 field, not 2"),
        ("id,t\n1,é\n".encode("cp1252"), "line 2: this is not UTF-8"),
        ("id,t\n1,é\n".encode("utf-16"), "give --encoding utf-16"),
        ("id,t\n1,é\n".encode("utf-16-le"), "give --encoding utf-16"),
    ],
)
def test_a_file_of_another_form_is_noticed(database: Client, tmp_path: Path, text: str | bytes, said: str) -> None:
    """What it looks like is said, and what to give."""
    database.query("create table load (id int, t text)")
    file = tmp_path / "other.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    assert said in refused(database, file)
    assert database.query("select count(*) from load").value() == 0


def test_a_table_is_not_made_of_a_row(database: Client, tmp_path: Path) -> None:
    """Its columns would be called 1 and Ada; said to be names, they are taken as such."""
    file = tmp_path / "rows.csv"
    file.write_text("1,Ada\n2,Bob\n")
    for option in ("--create", "--dry-run"):
        assert "line 1 looks like a row (1)" in refused(database, file, option)
    load(database, file, "--create", "--no-header")
    assert database.query("select column1, column2 from load").tuples() == [(1, "Ada"), (2, "Bob")]
    database.query("drop table load")
    load(database, file, "--create", "--header")
    assert database.query('select "1", "Ada" from load').tuples() == [(2, "Bob")]


def test_a_file_without_a_header_has_the_columns_of_the_table(
    database: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order, but for those that the engine computes."""
    database.query("create table load (id int, twice int generated always as (id * 2) stored, t text)")
    file = tmp_path / "rows.csv"
    file.write_bytes("1;é\n2;\n".encode("cp1252"))
    form = ["--no-header", "--delimiter", ";", "--encoding", "cp1252"]
    load(database, file, *form, "--dry-run", "-o", "ndjson")
    assert '{"column":"t","guessed":"text","type_in_table":"text"}' in capsys.readouterr().out
    load(database, file, *form)
    assert database.query("select * from load").tuples() == [(1, 2, "é"), (2, 4, None)]
    file.write_text("1,a,b\n")
    assert "line 1 has 3 fields and the table has 2 columns" in refused(database, file, "--no-header")


def test_an_encoding_that_lacks_a_character_leaves_no_file(database: Client, tmp_path: Path) -> None:
    """The character is named."""
    file = tmp_path / "out.csv"
    with pytest.raises(Failed, match=r"latin-1 has no '€' \(U\+20AC\)"):
        run_with(database, export, ["select '€' as price", str(file), "--encoding", "latin-1"])
    assert list(tmp_path.iterdir()) == []


CONSTRAINTS = [
    ("check (id <> 700)", "violates check constraint"),
    ("unique", "duplicate key value violates unique constraint"),
    ("unique deferrable initially deferred", "duplicate key value violates unique constraint"),
    ("references load_parent", "violates foreign key constraint"),
    ("references load_parent deferrable initially deferred", "violates foreign key constraint"),
    ("not null", "null value in column"),
    ("exclude using btree (id with =)", "conflicting key value violates exclusion constraint"),
]


@pytest.mark.parametrize(("constraint", "said"), CONSTRAINTS)
def test_a_row_that_a_constraint_refuses_is_named_by_its_line(
    database: Client, tmp_path: Path, constraint: str, said: str
) -> None:
    """With what the engine says of it, though a quoted line break stands before."""
    database.query("create table if not exists load_parent as select g as id from generate_series(-1, 2000) g")
    database.query("delete from load_parent where id = 700")
    database.query("create unique index if not exists load_parent_key on load_parent (id)")
    if constraint.startswith("references"):
        database.query("alter table load_parent add primary key using index load_parent_key")
    apart = constraint if constraint.startswith("exclude") else ""
    columns = ["id int" if apart else f"id int {constraint}", "t text", *filter(None, [apart])]
    database.query(f"create table load ({', '.join(columns)})")
    bad = {"unique": "3", "not nu": "", "exclud": "3"}.get(constraint[:6], "700")
    lines = ["id,t", '1,"a\nb"', *(f"{n},c" for n in range(2, 699)), f"{bad},d", "701,e"]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(lines))
    found = refused(database, file)
    assert f"line {len(lines)}: " in found
    assert said in found
    assert database.query("select count(*) from load").value() == 0
    database.query("drop table load, load_parent")


def test_a_row_that_a_trigger_or_a_policy_refuses_is_named(database: Client, tmp_path: Path) -> None:
    """But what is wrong with the table as a whole is not said of a row."""
    database.query("create table load (id int, t text)")
    database.query(
        "create or replace function load_refuse() returns trigger language plpgsql as $$ begin "
        "if tg_level = 'STATEMENT' or new.id = 3 then raise exception 'no three' using errcode = 'TG123'; end if; "
        "return new; end $$"
    )
    database.query("create trigger refuse before insert on load for each row execute function load_refuse()")
    file = tmp_path / "rows.csv"
    file.write_text("id,t\n1,a\n2,b\n3,c\n4,d\n")
    assert "line 4: no three" in refused(database, file)
    database.query("drop trigger refuse on load")
    database.query("create trigger refuse before insert on load execute function load_refuse()")
    with pytest.raises(Failed) as caught:
        load(database, file)
    assert "line" not in caught.value.message
    database.query("drop function load_refuse cascade")
    database.query("alter table load enable row level security, force row level security")
    database.query("create policy few on load using (true) with check (id < 3)")
    assert "line 4: new row violates row-level security policy" in refused(database, file)


def test_null_and_the_empty_text_are_written_apart() -> None:
    """NULL is empty, the empty text is quoted, in one column too."""
    for columns, written in ((["a"], 'a\n\n""\nx\n'), (["a", "b"], 'a,b\n,""\n"",\nx,"\r"\n')):
        out = io.StringIO(newline="")
        writer = CsvWriter(out)
        writer.begin(columns, ["text"] * len(columns))
        rows = [(None, ""), ("", None), ("x", "\r")]
        writer.rows([row[: len(columns)] for row in rows])
        assert out.getvalue() == written
