"""`tuplegate shell` at a terminal: typing, completion, the pager, the editor, Ctrl-C and Ctrl-D."""

import stat
import sys
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.cli.terminal import Terminal
from tests.inside import owner
from tests.service import Service
from tests.waiting import eventually
from tuplegate.client import Client

README = Path(__file__).parent.parent.parent / "README.md"

SLEEPING = (
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
    " and state = 'active'"
)


def script(path: Path, text: str) -> str:
    """A program of the test's own."""
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


def is_sleeping(service: Service, wanted: int) -> bool:
    with owner(service) as connection:
        return connection.execute(SLEEPING).fetchone() == (wanted,)


def test_ctrl_c_cancels_the_statement_and_not_the_shell(service: Service, command: Command) -> None:
    """It is gone from the engine; an error does not end the shell either."""
    with Terminal(command) as terminal:
        terminal.prompt()
        terminal.line("select 6 * 7 as answer;")
        terminal.until("42")
        terminal.until("(1 row)")
        terminal.prompt()
        terminal.line("select nothing;")
        terminal.until('column "nothing" does not exist')
        terminal.prompt()
        terminal.line("select pg_sleep(600);")
        eventually(lambda: is_sleeping(service, 1))
        terminal.type("\x03")
        terminal.until("cancelled")
        eventually(lambda: is_sleeping(service, 0))
        terminal.prompt()
        terminal.line("select 7 * 7 as again;")
        terminal.until("49")
        terminal.prompt()
        assert terminal.leave() == 0


def test_several_lines_are_one_statement(command: Command) -> None:
    """Enter runs it once it is complete; what is open is shown; Ctrl-C drops what was typed."""
    with Terminal(command) as terminal:
        terminal.prompt()
        terminal.line("select 'one")
        terminal.until("'…")
        terminal.line("two;' as")
        terminal.until("…")
        terminal.line("v;")
        terminal.until("one↵two;")
        terminal.prompt()
        terminal.line("select nonsense")
        terminal.until("…")
        terminal.type("\x03")
        terminal.prompt()
        terminal.line("select 5 * 5 as v;")
        terminal.until("25")
        terminal.prompt()
        terminal.line("help")
        terminal.until("relations; all about NAME")
        terminal.type("q")  # the pager has it
        terminal.prompt()
        terminal.line("exit")
        assert terminal.leave() == 0


def test_the_history_is_its_owners_and_holds_whole_statements(command: Command, tmp_path: Path) -> None:
    """Also where others could read it before."""
    file = tmp_path / ".local/state/tuplegate/history"
    file.parent.mkdir(parents=True)
    file.touch(mode=0o644)
    file.chmod(0o644)
    with Terminal(command) as terminal:
        terminal.prompt()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        terminal.line("select 1,")
        terminal.until("…")
        terminal.line("123 * 3 as v;")
        terminal.until("369")
        terminal.prompt()
        terminal.type("\x1b[A")
        terminal.until("123 * 3")
        terminal.type("\r")
        terminal.until("369")
        terminal.prompt()
        assert terminal.leave() == 0
    assert "+select 1,\n+123 * 3 as v;\n" in file.read_text()


def test_tab_completes_columns_of_an_alias_and_tables_made_just_now(service: Service, command: Command) -> None:
    """Names come in the background, and again after DDL."""
    with Terminal(command) as terminal:
        terminal.prompt()
        terminal.line("create table tab_visitors (id int, arrived_somewhen date);")
        terminal.until("(done)")
        terminal.prompt()
        terminal.type("select * from tab_vis")
        terminal.press_until("\t", "itors")
        terminal.type(" v where v.arr")
        terminal.press_until("\t", "ived_somewhen")
        terminal.type(" is null;\r")
        terminal.until("(0 rows)")
        terminal.prompt()
        terminal.type("\\tim")
        terminal.press_until("\t", "ing")
        terminal.type("\r")
        terminal.until("timing: on")
        terminal.prompt()
        assert terminal.leave() == 0
    with Client(service.url, service.key) as client:
        client.query("drop table tab_visitors")


def test_a_transaction_is_shown_in_the_prompt_and_rolled_back_by_leaving(service: Service, command: Command) -> None:
    """Open, failed, open again after a savepoint, failed at its end, and left."""
    with Terminal(command) as terminal, Client(service.url, service.key) as client:
        terminal.prompt()
        terminal.line("begin;")
        terminal.until("tuplegate*>")
        terminal.line("create table never_kept (n int);")
        terminal.until("rolled back if nothing is typed until")
        terminal.until("tuplegate*>")
        terminal.line("savepoint a;")
        terminal.until("tuplegate*>")
        terminal.line("select nothing;")
        terminal.until("the transaction has failed")
        terminal.until("tuplegate!>")
        terminal.line("rollback to a;")
        terminal.until("tuplegate*>")
        terminal.line("select 1/0;")
        terminal.until("tuplegate!>")
        terminal.line("commit;")
        terminal.until("nothing was committed")
        terminal.prompt()
        terminal.line("begin;")
        terminal.until("tuplegate*>")
        terminal.line("create table never_kept (n int);")
        terminal.until("tuplegate*>")
        assert terminal.leave() == 0
        assert "never committed; it is rolled back" in terminal.shown
        assert client.query("select to_regclass('never_kept')").value() is None


def test_ctrl_c_within_a_transaction_rolls_it_back(service: Service, command: Command) -> None:
    """A statement that may write is ended at once, and its locks are free."""
    with Terminal(command) as terminal, Client(service.url, service.key) as client:
        client.query("create table interrupted (n int)")
        terminal.prompt()
        terminal.line("begin;")
        terminal.until("tuplegate*>")
        terminal.line("insert into interrupted values (1);")
        terminal.until("tuplegate*>")
        terminal.line("insert into interrupted select 1 from pg_sleep(50);")
        eventually(lambda: is_sleeping(service, 1))
        terminal.type("\x03")
        terminal.until("tuplegate!>")
        terminal.line("rollback;")
        terminal.prompt()
        assert terminal.leave() == 0
        assert client.query("select count(*) from interrupted").value() == 0
        client.query("drop table interrupted")


EDIT = """import sys
from pathlib import Path
file = Path(sys.argv[1])
assert file.stat().st_mode & 0o077 == 0
file.write_text(file.read_text().replace("{old}", "{new}"))
"""


def test_the_editor_changes_the_current_and_the_last_statement(command: Command, tmp_path: Path) -> None:
    """What was not changed is not run; an editor that fails runs nothing."""
    command.env["VISUAL"] = script(tmp_path / "edit", EDIT.format(old="111", new="222"))
    with Terminal(command) as terminal:
        terminal.prompt()
        terminal.line("select 111 + 1 as v;")
        terminal.until("112")
        terminal.prompt()
        terminal.line("\\e")
        terminal.until("select 222 + 1 as v;")
        terminal.until("223")
        terminal.prompt()
        terminal.line("\\e")
        terminal.until("nothing was changed")
        terminal.prompt()
        terminal.line("select 111 + 5")
        terminal.until("…")
        terminal.line("as v \\e")
        terminal.until("227")
        terminal.prompt()
        assert terminal.leave() == 0
    for editor, said in ((script(tmp_path / "fails", "raise SystemExit(3)"), "ended with 3"), ("/nowhere", "started")):
        command.env["VISUAL"] = editor
        with Terminal(command) as terminal:
            terminal.prompt()
            terminal.line("\\e")
            terminal.until(said)
            terminal.prompt()
            assert terminal.leave() == 0


def test_only_what_is_larger_than_the_screen_goes_to_the_pager(command: Command, tmp_path: Path) -> None:
    """Longer or wider; and it can be turned off."""
    count = "import sys\nprint('PAGED', len(sys.stdin.readlines()))"
    command.env["PAGER"] = script(tmp_path / "count", count)
    with Terminal(command) as terminal:
        terminal.prompt()
        terminal.line("select generate_series(1, 5) as n;")
        assert "PAGED" not in terminal.until("(5 rows)")
        terminal.prompt()
        terminal.line("select generate_series(1, 20000) as n;")
        terminal.until("PAGED 20002")
        terminal.until("(20000 rows)")
        terminal.prompt()
        terminal.line("select repeat('x', 70) as a, repeat('y', 70) as b;")
        terminal.until("PAGED 3")
        terminal.prompt()
        terminal.line("\\pset pager off")
        terminal.until("pager: off")
        terminal.prompt()
        terminal.line("select generate_series(1, 50) as n;")
        assert "PAGED" not in terminal.until("(50 rows)")
        terminal.prompt()
        assert terminal.leave() == 0


def test_who_leaves_the_pager_cancels_the_statement(service: Service, command: Command, tmp_path: Path) -> None:
    """Also while the engine is at work and sends nothing."""
    command.env["PAGER"] = script(
        tmp_path / "left", "import sys\nsys.stdin.readline()\ninput_ = open('/dev/tty').readline()\n"
    )
    with Terminal(command) as terminal:
        terminal.prompt()
        terminal.line("select g, case when g > 500 then pg_sleep(600) end from generate_series(1, 1000) g;")
        eventually(lambda: is_sleeping(service, 1))
        terminal.line("q")
        terminal.until("the pager was left: the statement was cancelled")
        eventually(lambda: is_sleeping(service, 0))
        terminal.prompt()
        terminal.line("select 3 * 41 as v;")
        terminal.until("123")
        terminal.prompt()
        assert terminal.leave() == 0


def test_big_results_pass_through_in_constant_memory(command: Command, tmp_path: Path) -> None:
    """A result of 25 MB leaves the shell about as small as it was."""
    command.env["PAGER"] = script(tmp_path / "count", "import sys\nprint('PAGED', sum(1 for _ in sys.stdin))")
    with Terminal(command) as terminal:
        terminal.prompt()
        sql = "select g, repeat('x', 800) as text from generate_series(1, {}) g;"
        terminal.line(sql.format(300))
        terminal.until("PAGED 302")
        terminal.prompt()
        before = _peak_kib(terminal.started.pid)
        terminal.line(sql.format(30_000))
        terminal.until("PAGED 30002")
        terminal.prompt()
        assert _peak_kib(terminal.started.pid) - before < 8 * 1024
        assert terminal.leave() == 0


def _peak_kib(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


def test_ctrl_c_ends_watching_and_a_long_file(service: Service, command: Command, tmp_path: Path) -> None:
    """And nothing else."""
    file = tmp_path / "long.sql"
    file.write_text("select 1;\nselect pg_sleep(600);\nselect 'never reached' as v;\n")
    with Terminal(command) as terminal:
        terminal.prompt()
        terminal.line("select 17 * 3 as v \\watch 0.1")
        for _ in range(3):
            terminal.until("51")
        terminal.type("\x03")
        terminal.until("cancelled")
        terminal.prompt()
        terminal.line(f"\\i {file}")
        eventually(lambda: is_sleeping(service, 1))
        terminal.type("\x03")
        assert "never reached" not in terminal.until("cancelled")
        eventually(lambda: is_sleeping(service, 0))
        terminal.prompt()
        assert terminal.leave() == 0


def test_a_wrong_key_is_told_before_anything_is_typed(command: Command) -> None:
    """With its exit code."""
    command.env["TUPLEGATE_API_KEY"] = "svc_k_wrong"
    with Terminal(command) as terminal:
        terminal.until("error: ")
        assert terminal.started.wait(60) == 4


@pytest.mark.parametrize("arguments", [["query", "select pg_sleep(600)"], ["bench", "--seconds", "10"]])
def test_ctrl_c_ends_other_commands_with_130(service: Service, command: Command, arguments: list[str]) -> None:
    """With a word, and without a traceback."""
    with Terminal(command, *arguments) as terminal:
        if arguments[0] == "query":
            eventually(lambda: is_sleeping(service, 1))
        else:
            terminal.until("1 of 5: point_read")
        terminal.type("\x03")
        terminal.until("interrupted")
        assert terminal.started.wait(60) == 130
        assert "Traceback" not in terminal.shown


def test_the_shell_looks_as_the_readme_shows_it(command: Command, database: Client) -> None:
    """What is typed there is answered so, line by line."""
    picture = README.read_text().partition("$ .venv/bin/tuplegate shell\n")[2].partition("\n```")[0].splitlines()
    database.query("create table city (id int, name text, tags text[])")
    try:
        database.query("insert into city values (1, 'Turku', '{port,old}'), (2, 'Lyon', '{}')")
        with Terminal(command) as terminal:
            for line in picture:
                typed = line.partition("tuplegate> ")[2] or line.partition("… ")[2]
                if line.startswith("tuplegate> "):
                    terminal.prompt()
                if typed:
                    terminal.line(typed)
                else:
                    terminal.until(line.partition(",")[0] if line.startswith("tuplegate ") else line)
            assert terminal.leave() == 0
    finally:
        database.query("drop table city")
