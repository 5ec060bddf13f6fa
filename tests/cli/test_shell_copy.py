"""`\\copy`: files into tables and rows into files, by what `import` and `export` do."""

from pathlib import Path

import pytest

from tests.cli.command import Command
from tuplegate.cli.shell.copying import BadCopy, CopyCommand, read_copy


@pytest.mark.parametrize(
    ("line", "copy"),
    [
        ("t from 'a b.csv'", CopyCommand(False, "t", "a b.csv", None, None)),
        ("s.t FROM x.csv csv header", CopyCommand(False, "s.t", "x.csv", "csv", header=True)),
        ("t from 'x' with (format csv, header true, null '-')", CopyCommand(False, "t", "x", "csv", "-", header=True)),
        ("t from x.csv delimiter ';' encoding 'cp1252' header off",
         CopyCommand(False, "t", "x.csv", delimiter=";", encoding="cp1252", header=False)),
        ("t to x.csv with (format csv, delimiter '\\t', null as 'NULL')",
         CopyCommand(True, "select * from t", "x.csv", "csv", "NULL", "\\t")),
        ("t to 'it''s.csv'", CopyCommand(True, "select * from t", "it's.csv", None, None)),
        ("t (a, b) to x.ndjson", CopyCommand(True, "select a, b from t", "x.ndjson", None, None)),
        ("(select a from t where b = ' to ') to 'x.csv'",
         CopyCommand(True, "select a from t where b = ' to '", "x.csv", None, None)),
    ],
)  # fmt: skip
def test_the_line_is_read(line: str, copy: CopyCommand) -> None:
    """The direction stands outside of parentheses and quotes."""
    assert read_copy(line) == copy


@pytest.mark.parametrize(
    "line",
    [
        "",
        "t",
        "t from",
        "t from x.csv delimiter",
        "t from x.csv quote '-'",
        "t to stdout",
        "(select 1) from x.csv",
        "t (a) from x.csv",
    ],
)
def test_what_is_no_copy_is_said(line: str) -> None:
    """With what it takes."""
    with pytest.raises(BadCopy):
        read_copy(line)


def test_rows_go_into_a_file_and_back(command: Command, tmp_path: Path) -> None:
    """Typed twice, it is done twice."""
    file = tmp_path / "some rows.csv"
    given = [
        "create table copied (id int, name text);",
        f"\\copy (select g as id, 'n' || g as name from generate_series(1, 3) g) to '{file}'",
        f"\\copy copied from '{file}' csv header",
        f"\\copy copied from '{file}'",
        "select count(*) as n, sum(id) as s from copied;",
        f"\\copy (select null::int as id, '' as name) to '{tmp_path}/odd.csv' delimiter ';' header off null '-'",
        f"\\copy copied from '{tmp_path}/odd.csv' delimiter ';' header off null '-'",
        "select id, name from copied where id is null;",
        f"\\copy copied (name) to '{tmp_path}/names.ndjson'",
        "drop table copied;",
    ]
    done = command("shell", given="\n".join(given))
    assert done.code == 0, done.err
    assert done.lines == [{"n": 6, "s": 12}, {"id": None, "name": ""}]
    assert (tmp_path / "odd.csv").read_text() == '-;""\n'
    assert file.read_text().split() == ["id,name", "1,n1", "2,n2", "3,n3"]
    assert (tmp_path / "names.ndjson").read_text().startswith('{"name":"n1"}')


def test_a_file_that_does_not_fit_is_told_with_its_code(command: Command, tmp_path: Path) -> None:
    """Nothing of it is in the table."""
    file = tmp_path / "bad.csv"
    file.write_text("id\n1\nx\n")
    done = command("shell", given=f"create table copy_bad (id int);\n\\copy copy_bad from '{file}'\n")
    assert (done.code, "line 3" in done.err) == (11, True)
    assert command("shell", given=f"\\copy copy_bad from '{tmp_path}/nowhere.csv'").code == 11
    assert command("shell", given="\\copy copy_bad to '/nowhere/x.csv'").code == 11
    assert command("shell", given=f"\\copy nowhere to '{tmp_path}/x.csv'").code == 5
    assert command("query", "select count(*) as n from copy_bad").lines == [{"n": 0}]
    command("query", "drop table copy_bad")
