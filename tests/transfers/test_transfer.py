"""`import` and `export`: whole or not at all, once, and back again."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.client.faults import LOSE, PASS, Relay, relay
from tests.service import Service
from tests.transfers.conftest import ROWS
from tests.waiting import eventually
from tuplegate.client import Client

REQUESTS = 9
"""Of an import of `numbers`."""


def staged(database: Client) -> list[str]:
    found = "select relname from pg_class where relname like 'tuplegate_import_%' and relkind = 'r'"
    return database.query(found).column()


def test_a_file_becomes_a_table_with_guessed_types(command: Command, database: Client, tmp_path: Path) -> None:
    """Shown before by --dry-run, which changes nothing."""
    file = tmp_path / "all.csv"
    file.write_text(
        "id,price,day,at,ok,code,ident,note\n"
        '1,1.50,2026-01-02,2026-01-02T03:04:05Z,true,007,8a6e0804-2bd0-4672-b79d-d97027f9071a,"a, ""b""\nc"\n'
        "2,,,,,,,\n"
    )
    dry = command("import", str(file), "--table", "load", "--create", "--dry-run")
    guessed = {row["column"]: row["guessed"] for row in dry.lines}
    assert guessed == {
        "id": "int8", "price": "numeric", "day": "date", "at": "timestamptz",
        "ok": "bool", "code": "text", "ident": "uuid", "note": "text",
    }  # fmt: skip
    assert "nothing was changed" in dry.err
    assert command("import", str(file), "--table", "load").code == 11, "there is no table yet"
    assert command("import", str(file), "--table", "load", "--create").code == 0
    rows = database.query("select id, price::text, code, note, at::text from load order by id")
    assert rows.tuples() == [(1, "1.50", "007", 'a, "b"\nc', "2026-01-02 03:04:05+00"), (2, None, None, None, None)]
    assert staged(database) == []


def test_what_was_exported_can_be_imported(command: Command, database: Client, tmp_path: Path) -> None:
    """Every value as it was, through both formats."""
    database.query(
        "create table load as select g as id, g::numeric / 7 as n, '{\"a\": [1.10]}'::jsonb as doc, E'x\\n\"' as t, "
        "'\"s\"'::jsonb as word, now() as at, "
        "'\\x00ff'::bytea as b, case when g > 1 then 'v' end as maybe from generate_series(1, 3) g"
    )
    before = database.query("select * from load order by id").tuples()
    for name in ("back.csv", "back.ndjson"):
        file = tmp_path / name
        assert command("export", "load", str(file)).code == 0
        database.query("truncate load")
        done = command("import", str(file), "--table", "load")
        assert done.code == 0, done.err
        assert database.query("select * from load order by id").tuples() == before


@pytest.mark.parametrize("name", ["arrays.ndjson", "arrays.csv"])
def test_arrays_come_back(command: Command, database: Client, tmp_path: Path, name: str) -> None:
    """Nested ones too."""
    database.query("create table load as select '{{1,2},{3,null}}'::int[] as a, array['x,\"', null, '\\ }'] as t")
    file = tmp_path / name
    assert command("export", "select * from load", str(file)).code == 0
    assert command("import", str(file), "--table", "load").code == 0
    assert database.query("select * from load").tuples() == [([[1, 2], [3, None]], ['x,"', None, "\\ }"])] * 2


@pytest.mark.parametrize(("request_number", "applied"), [(4, True), (7, False), (8, True), (9, False)])
def test_an_import_killed_anywhere_and_started_again_is_complete(
    service: Service, database: Client, tmp_path: Path, numbers: Path, request_number: int, applied: bool
) -> None:
    """Before or after the service has acted on a request. tests/extended/test_transfer_faults.py tries all of them."""
    kill_and_start_again(service, database, tmp_path, numbers, request_number, applied)


def kill_and_start_again(
    service: Service, database: Client, tmp_path: Path, numbers: Path, request_number: int, applied: bool
) -> None:
    """No row is lost, none is doubled."""
    database.query("create table load (id int primary key, label text)")
    children: list[subprocess.Popen[bytes]] = []
    used: list[Relay] = []

    def plan(_request: bytes) -> str:
        if len(used[0].requests) != request_number:
            return PASS
        children[0].send_signal(signal.SIGKILL)
        children[0].wait(60)
        # A client that has left takes back what is not decided yet; either way the next start must find out.
        return LOSE if applied else PASS

    with relay(service.url, plan) as cut:
        used.append(cut)
        command = Command(service, tmp_path, TUPLEGATE_URL=cut.url)
        children.append(command.start("import", str(numbers), "--table", "load"))
        assert children[0].wait(60) == -signal.SIGKILL
        eventually(lambda: not applied or len(cut.statuses) >= request_number)  # until the service has answered it
        assert database.query("select count(*) from load").value() in (0, ROWS)
    again = Command(service, tmp_path)("import", str(numbers), "--table", "load")
    assert again.code == 0, again.err
    assert database.query("select count(*), count(distinct id), sum(id) from load").tuples() == [
        (ROWS, ROWS, ROWS * (ROWS - 1) // 2)
    ]
    assert staged(database) == []


def test_an_import_goes_on_where_it_was(service: Service, database: Client, tmp_path: Path, numbers: Path) -> None:
    """It says so; and a finished one is not done twice, unless it gets another name."""
    database.query("create table load (id int, label text)")
    with relay(service.url, lambda _: PASS) as watched:
        command = Command(service, tmp_path, TUPLEGATE_URL=watched.url)
        assert command("import", str(numbers), "--table", "load").code == 0
        whole = len(watched.requests)
        repeated = command("import", str(numbers), "--table", "load", "--timeout", "20")
        assert (repeated.code, "was imported before" in repeated.err) == (0, True)
        assert command("import", str(numbers), "--table", "load", "--job", "second").code == 0
    assert whole == REQUESTS, "the sweep over the requests of an import is complete"
    assert database.query("select count(*) from load").value() == 2 * ROWS


@pytest.mark.parametrize(
    ("line", "text", "said"),
    [
        (9_000, "nine,row", 'line 9000: invalid input syntax for type integer: "nine"'),
        (9_000, "1,2,3", "line 9000 has 3 fields, not 2"),
        (9_000, '1,"open', "line 9000, column 3: the quotes of this field are never closed"),
        (1, "id,wrong", "the table has no column wrong"),
        (1, "id,id", "two columns have one name"),
        (9_000, "1,\udcff", "can't decode"),
    ],
)
def test_a_broken_row_is_named_and_nothing_is_imported(
    command: Command, database: Client, numbers: Path, line: int, text: str, said: str
) -> None:
    """Whatever is wrong with it."""
    database.query("create table load (id int, label text)")
    lines = numbers.read_text().splitlines()
    lines[line - 1] = text
    numbers.write_text("\n".join(lines), errors="surrogateescape")
    done = command("import", str(numbers), "--table", "load")
    assert done.code == 11
    assert said in done.err
    assert database.query("select count(*) from load").value() == 0
    assert staged(database) == []


def test_a_row_that_a_constraint_refuses_leaves_nothing(command: Command, database: Client, numbers: Path) -> None:
    """Its line is named, in the second batch, and the engine says what it is."""
    database.query("create table load (id int check (id <> 7000), label text)")
    done = command("import", str(numbers), "--table", "load")
    assert (done.code, "line 7002: " in done.err, "(7000, row " in done.err) == (11, True, True), done.err
    assert database.query("select count(*) from load").value() == 0
    assert staged(database) == []


def test_an_export_that_fails_leaves_no_file(command: Command, tmp_path: Path) -> None:
    """Nor half a file, nor a changed one."""
    file = tmp_path / "out.csv"
    file.write_text("precious")
    assert command("export", "select 10 / (500 - g) as q from generate_series(1, 1000) g", str(file)).code == 5
    assert file.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv"]
    assert command("export", "select 1 as n", str(tmp_path / "nowhere" / "x.csv")).code == 11
    assert command("export", "select 1 as n", str(tmp_path / "x.xlsx")).code == 11


def test_an_export_holds_every_row(command: Command, tmp_path: Path) -> None:
    """One JSON object a line."""
    file = tmp_path / "many.jsonl"
    assert command("export", "select g, g / 3.0 as third from generate_series(1, 5000) g", str(file)).code == 0
    assert [json.loads(line)["g"] for line in file.read_text().splitlines()] == list(range(1, 5001))
