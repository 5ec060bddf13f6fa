"""`tuplegate query`: forms of output, where SQL comes from, and how it ends."""

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.client.faults import LOSE, PASS, first, relay
from tests.service import Service
from tests.waiting import eventually
from tuplegate.client import Client

SAMPLE = """select 1 as id, 'a|b' as name, null as nothing, 1.50::numeric as n, 9007199254740993 as big,
  '{"x": 1.00}'::jsonb as doc, '{1,null}'::int[] as list, true as yes, 0.1::float8 as f"""


def test_rows_are_json_lines_in_a_pipe_with_every_digit(command: Command) -> None:
    """As the service writes them."""
    done = command("query", SAMPLE)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        '{"id":1,"name":"a|b","nothing":null,"n":1.50,"big":9007199254740993,"doc":{"x":1.00},'
        '"list":[1,null],"yes":true,"f":0.1}\n'
    )


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_nothing_of_an_answer_is_lost_in_json(command: Command, form: str) -> None:
    """The sign of zero, columns of the same name, and repeated names of a document."""
    sql = "select '-0'::float8 as a, '-0'::float4 as a, array['-0'::float8] as b, '{\"x\":1,\"x\":-0}'::json as c"
    assert '{"a":-0,"a":-0,"b":[-0],"c":{"x":1,"x":-0}}' in command("query", "-o", form, sql).out


def test_rows_in_every_other_form(command: Command) -> None:
    """NULL is NULL in a table, and empty in CSV."""
    assert json.loads(command("query", "-o", "json", "select generate_series(1, 3) as n").out) == [
        {"n": 1}, {"n": 2}, {"n": 3}
    ]  # fmt: skip
    assert command("query", "-o", "json", "select 1 where false").out == "[]\n"
    rows = list(csv.reader(io.StringIO(command("query", "-o", "csv", SAMPLE).out)))
    assert rows[1] == ["1", "a|b", "", "1.50", "9007199254740993", '{"x":1.00}', "[1,null]", "true", "0.1"]
    assert command("query", "-o", "markdown", "select 'a|b' as x, 1 as y").out == (
        "| x | y |\n|---|---|\n| a\\|b | 1 |\n"
    )
    assert command("query", "-o", "table", "select 'ä漢' as word, 7 as n union all select 'abcdef', null").out == (
        "word       n\n──────  ────\nä漢        7\nabcdef  NULL\n"
    )


def test_sql_comes_from_an_argument_a_file_or_stdin(command: Command, tmp_path: Path) -> None:
    """And from one of them only."""
    file = tmp_path / "q.sql"
    file.write_text("select 'file' as v")
    assert command("query", "--file", str(file)).lines == [{"v": "file"}]
    assert command("query", given="select 'stdin' as v").lines == [{"v": "stdin"}]
    assert command("query", "-", given="select 'dash' as v").lines == [{"v": "dash"}]
    assert command("query", "--file", str(file), "select 1").code == 2
    assert command("query", "--file", "/nowhere.sql").code == 2


def test_parameters_are_text_or_json(command: Command) -> None:
    """Text takes the type of its placeholder."""
    assert command("query", "-p", "7", "-p", "x", "select $1::int as a, $2::text as b").lines == [{"a": 7, "b": "x"}]
    asked = command(
        "query", "--params", '[1.10, null, [1], {"a": 2}]', "select $1::numeric a, $2::int b, $3::int[] c, $4::jsonb d"
    )
    assert asked.out == '{"a":1.10,"b":null,"c":[1],"d":{"a":2}}\n'
    for wrong in ("[1", "{}"):
        assert command("query", "--params", wrong, "select 1").code == 2


def test_a_write_is_applied_once_though_its_answer_is_lost(service: Service, tmp_path: Path) -> None:
    """As everything that the client sends."""
    with relay(service.url, first(LOSE)) as lossy:
        command = Command(service, tmp_path, TUPLEGATE_URL=lossy.url)
        with Client(service.url, service.key) as client:
            client.query("create table cli_once (n int)")
            done = command("query", "insert into cli_once values (1) returning n")
            assert (done.code, done.lines) == (0, [{"n": 1}])
            assert client.query("select count(*) from cli_once").value() == 1
            client.query("drop table cli_once")


def test_an_error_shows_where_and_ends_with_its_code(command: Command) -> None:
    """Nothing of it on stdout."""
    done = command("query", "select 1,\n  lenght from (select 1 as length) t")
    assert (done.code, done.out) == (5, "")
    lines = done.err.splitlines()
    assert lines[0] == 'error: column "lenght" does not exist (42703)'
    assert lines[1:3] == ["    lenght from (select 1 as length) t", "    ^"]
    assert lines[3].startswith("hint: ")


def test_every_failure_has_its_code(service: Service, tmp_path: Path) -> None:
    """The table of exit codes is true."""
    assert Command(service, tmp_path, TUPLEGATE_API_KEY="svc_k_wrong")("query", "select 1").code == 4
    assert Command(service, tmp_path, TUPLEGATE_URL="http://127.0.0.1:1")("query", "select 1").code == 3
    assert Command(service, tmp_path, TUPLEGATE_URL="nonsense")("query", "select 1").code == 2
    assert Command(service, tmp_path, TUPLEGATE_API_KEY="")("query", "select 1").code == 2
    command = Command(service, tmp_path)
    assert command("query", "--database", "nowhere", "select 1").code == 6
    assert command("database", "delete", "nowhere", "--yes").code == 6
    assert command("query", "--timeout", "0.2", "select pg_sleep(20)").code == 5
    assert command("query", "--nonsense").code == 2
    with relay(service.url, lambda _: LOSE) as lossy:
        cut_off = Command(service, tmp_path, TUPLEGATE_URL=lossy.url)
        assert cut_off("query", "select 1").code == 8


def test_an_error_in_the_middle_of_a_stream_is_an_error(command: Command) -> None:
    """After the rows that came before it."""
    done = command("query", "select 10 / (3 - g) as q from generate_series(1, 5) g")
    assert done.code == 5
    assert "division by zero" in done.err


def test_the_key_is_in_no_output(service: Service, tmp_path: Path) -> None:
    """Neither where it is wrong nor where it is not used."""
    command = Command(service, tmp_path, TUPLEGATE_API_KEY="svc_k_secret\tx")
    for arguments in (["query", "select 1"], ["doctor"], ["key", "list"]):
        done = command(*arguments)
        assert "secret" not in done.out + done.err


def test_a_full_disk_is_told_apart(command: Command) -> None:
    """Rows that could not be written are no success."""
    with Path("/dev/full").open("w") as full:
        started = command.start("query", "select generate_series(1, 100000)", stdout=full, stderr=subprocess.PIPE)
        _, err = started.communicate(timeout=60)
    assert started.returncode == 9
    assert b"No space left" in err


def test_a_reader_that_stops_is_no_drama(command: Command) -> None:
    """As with `| head`: no traceback, and the statement is cancelled."""
    sql = "select generate_series(1, 100000000) as n"
    with command.start("query", sql, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        assert started.stdout.readline() == b'{"n":1}\n'
        started.stdout.close()
        assert (started.wait(60), started.stderr.read()) == (141, b"")


def test_ctrl_c_cancels_the_statement(service: Service, tmp_path: Path) -> None:
    """A write that was running is taken back."""
    with relay(service.url, lambda _: PASS) as watched, Client(service.url, service.key) as client:
        client.query("create table cli_stopped (n int)")
        command = Command(service, tmp_path, TUPLEGATE_URL=watched.url)
        sql = "insert into cli_stopped select 1 from pg_sleep(600)"
        started = command.start("query", "--timeout", "3600", sql, stderr=subprocess.PIPE)
        eventually(lambda: watched.requests)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=60)
        assert started.returncode == 130
        assert err == b"\ninterrupted\n"
        # This would wait for a statement that still runs.
        client.query("drop table cli_stopped", idempotent=False)


def on_a_terminal(command: Command, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    started = command.start(*arguments, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # what Linux says at the end of a terminal
            break
        if not part:
            break
        shown += part
    os.close(ours)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 0, err
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_table_that_cannot_control_it(service: Service, tmp_path: Path) -> None:
    """Bold names unless NO_COLOR is set; long cells are cut; escape characters are shown."""
    sql = "select E'\\x1b[31mred\\nline' as word, repeat('x', 200) as long"
    shown = on_a_terminal(Command(service, tmp_path, TERM="xterm"), "query", sql)
    assert shown.startswith("\x1b[1mword")
    plain = on_a_terminal(Command(service, tmp_path, TERM="xterm", NO_COLOR="1"), "query", sql)
    assert "\x1b" not in plain
    assert plain.splitlines()[2] == "\\x1b[31mred↵line  " + "x" * 79 + "…"
    lines = on_a_terminal(Command(service, tmp_path, TERM="xterm"), "query", "-o", "ndjson", sql)
    assert "\x1b" not in lines


# A child that may use little memory: the command alone needs about half of it.
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (100 * 2**20, 100 * 2**20))
from tuplegate.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_long_result_takes_no_more_memory_than_a_short_one(command: Command) -> None:
    """As a table, of which more is looked at than of other forms; tests/extended/test_long_results.py has those."""
    pass_through(command, "table")


def pass_through(command: Command, form: str) -> None:
    """More than a hundred megabytes pass through a process that may not have as many."""
    sql = "select g, repeat('x', 10000) as x from generate_series(1, 11000) g"
    arguments = [sys.executable, "-c", LIMITED, "query", "-o", form, sql]
    with subprocess.Popen(arguments, env=command.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        length = 0
        while part := started.stdout.read(2**20):
            length += len(part)
        assert started.wait(60) == 0, started.stderr.read()
    assert length > 110_000_000


def test_tables_and_capabilities_are_listed(command: Command) -> None:
    """In full as JSON, in short as a table."""
    assert command("query", "create table cli_listed (id int primary key)").code == 0
    [table] = [table for table in command("tables").lines if table["name"] == "cli_listed"]
    assert [column["name"] for column in table["columns"]] == ["id"]
    assert "cli_listed" in command("tables", "-o", "table").out
    assert command("query", "drop table cli_listed").code == 0
    probes = command("capabilities").lines
    assert {"name", "supported"} <= set(probes[0])
    assert command("capabilities", probes[0]["name"]).code == 0
    assert command("capabilities", "no-such-probe").code == 6


def test_half_a_character_in_json_is_written_as_json_has_it(command: Command) -> None:
    """The type json keeps what no encoding can write."""
    done = command("query", """select '"\\ud800"'::json as j""")
    assert (done.code, done.out) == (0, '{"j":"\\ud800"}\n')
