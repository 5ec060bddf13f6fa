"""`tuplegate shell` with statements piped in: order, failures, transactions, files."""

from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.service import Service
from tests.waiting import eventually
from tuplegate.cli.exits import Exit
from tuplegate.cli.remote import Failed
from tuplegate.cli.shell.commands import run_command
from tuplegate.cli.shell.results import Results
from tuplegate.cli.shell.shell import Shell
from tuplegate.client import Client


def test_statements_piped_in_are_run_in_order(command: Command) -> None:
    """The last one may lack its semicolon."""
    done = command("shell", given="select 1 as a;\nselect\n 2 as a; select 3\nas a -- the end")
    assert (done.code, done.lines) == (0, [{"a": 1}, {"a": 2}, {"a": 3}])


def test_the_first_failure_ends_a_script(command: Command) -> None:
    """With its exit code; a command that is none is one, too."""
    done = command("shell", given="select 1 as a; select nothing; select 3 as a;")
    assert (done.code, done.lines) == (5, [{"a": 1}])
    assert "what was typed behind it was not run" in done.err
    done = command("shell", given="\\nonsense\nselect 3 as a;")
    assert (done.code, done.out) == (2, "")
    assert "there is no command \\nonsense" in done.err


def test_a_script_that_ends_within_a_quote_is_not_run_to_its_end(command: Command) -> None:
    """A quote that nobody closed swallows the rest."""
    done = command("shell", given="select 1 as a; select 'open;\nselect 2;")
    assert (done.code, done.lines) == (11, [{"a": 1}])
    assert "ends within '" in done.err


def test_begin_to_commit_is_one_transaction(service: Service, command: Command) -> None:
    """Its statements run as they come, and all of it is applied or nothing."""
    with Client(service.url, service.key) as client:
        client.query("create table shell_t (n int primary key)")
        done = command(
            "shell",
            given="/* a */ begin work;\ninsert into shell_t values (1);\ninsert into shell_t values (2) returning n;\n"
            "select count(*) as c from shell_t;\ncommit;",
        )
        assert done.code == 0
        assert done.lines == [{"n": 2}, {"c": 2}]
        assert done.err.splitlines() == ["a transaction is open until COMMIT or ROLLBACK", "committed"]
        failed = command(
            "shell", given="begin; insert into shell_t values (3); insert into shell_t values (1); commit;"
        )
        assert failed.code == 5
        assert "duplicate key" in failed.err
        assert "the transaction has failed" in failed.err
        assert "it is rolled back" in failed.err
        dropped = command("shell", given="begin; insert into shell_t values (4); rollback;")
        assert (dropped.code, "rolled back" in dropped.err) == (0, True)
        read_only = command("shell", given="start transaction read only; insert into shell_t values (6); commit;")
        assert (read_only.code, "read-only" in read_only.err) == (5, True)
        assert client.query("select n from shell_t order by n").column() == [1, 2]
        client.query("drop table shell_t")


def test_savepoints_chains_and_commands_work_within_a_transaction(service: Service, command: Command) -> None:
    """A command that lists something sees what the transaction has made."""
    done = command(
        "shell",
        "-o",
        "csv",
        given="begin; create table shell_made (n int); savepoint a; insert into shell_made values (1);\n"
        "rollback to savepoint a; insert into shell_made values (2); release a;\n\\dt shell_made\n\\d shell_made\n"
        "commit and chain; insert into shell_made values (3); rollback and chain;\n"
        "insert into shell_made values (4); end;",
    )
    assert (done.code, done.err.count("committed"), done.err.count("rolled back")) == (0, 2, 1)
    assert "shell_made" in done.out
    assert "integer" in done.out
    with Client(service.url, service.key) as client:
        assert client.query("select n from shell_made order by n").column() == [2, 4]
        client.query("drop table shell_made")


def test_a_transaction_that_is_never_committed_is_a_failure_of_the_script(service: Service, command: Command) -> None:
    """It is rolled back, and whoever runs the script must learn of it."""
    done = command("shell", given="begin; create table shell_never (n int);")
    assert (done.code, "never committed; it is rolled back" in done.err) == (1, True)
    with Client(service.url, service.key) as client:
        # The lock on the name is free, too.
        client.query("create table shell_never (n int)")
        client.query("drop table shell_never")


def test_a_transaction_that_has_expired_is_told(service: Service) -> None:
    """What follows was meant for it, and does not run outside of it; COMMIT does not pass for done."""
    with Client(service.url, service.key) as client:
        shell = Shell(client, Results("csv", interactive=False), run_command)
        shell.statement("begin")
        shell.transaction = expiring = client.transaction(idle_timeout_s=0.1)
        shell.statement("create table shell_late (n int)")
        assert shell.prompt == "tuplegate*> "
        eventually(lambda: client.transaction_state(str(expiring.id)) == "aborted")
        with pytest.raises(Failed, match="waited too long") as expired:
            shell.statement("select 1")
        assert "ROLLBACK leaves it" in expired.value.more[-1]
        assert expired.value.code is Exit.NOT_THERE
        assert shell.prompt == "tuplegate!> "
        with pytest.raises(Failed, match="reason: expired"):
            shell.statement("create table shell_late (n int)")
        with pytest.raises(Failed, match="nothing was committed"):
            shell.statement("commit")
        assert shell.prompt == "tuplegate> "
        assert client.query("select to_regclass('shell_late')").value() is None


def test_what_a_transaction_cannot_do_is_said(command: Command, tmp_path: Path) -> None:
    """A BEGIN within, a COMMIT without, commands that send something of their own."""
    done = command("shell", given="commit; begin; begin; select 1 as a; commit; begin; end;")
    assert (done.code, done.lines) == (0, [{"a": 1}])
    assert "there was no BEGIN" in done.err
    assert "there was a BEGIN before" in done.err
    for line in (f"\\copy t to '{tmp_path}/x.csv'", "\\watch 1 1", "\\c main"):
        refused = command("shell", given=f"begin;\nselect 1;\n{line}\n")
        assert (refused.code, "transaction" in refused.err) == (2, True)


def test_a_file_is_run_with_its_commands_and_within_a_transaction(command: Command, tmp_path: Path) -> None:
    """A file can run others."""
    inner, outer = tmp_path / "inner.sql", tmp_path / "outer.sql"
    inner.write_text("select 'inner' as v;\n\\timing on\nselect 'last' as v")
    outer.write_text(f"select 'outer' as v;\n\\i {inner}\n")
    done = command("shell", given=f"\\i {outer}\nselect 'after' as v;")
    assert (done.code, [row["v"] for row in done.lines]) == (0, ["outer", "inner", "last", "after"])
    assert "timing: on" in done.err
    within = command("shell", given=f"begin;\n\\i {inner}\ncommit;")
    assert [row["v"] for row in within.lines] == ["inner", "last"]
    assert "committed" in within.err


def test_a_file_that_fails_takes_its_transaction_with_it(command: Command, tmp_path: Path) -> None:
    """A file that is not there, is no text, or includes itself is named."""
    assert command("shell", given="\\i /nowhere.sql").code == 11
    itself = tmp_path / "itself.sql"
    itself.write_text(f"\\i {itself}\n")
    deep = command("shell", given=f"\\i {itself}")
    assert (deep.code, "include each other" in deep.err) == (11, True)
    binary = tmp_path / "binary.sql"
    binary.write_bytes(b"select '\xff';")
    assert command("shell", given=f"\\i {binary}").code == 11
    half = tmp_path / "half.sql"
    half.write_text("begin;\nselect 1;\n\\nonsense\n")
    failed = command("shell", given=f"\\i {half}\n")
    assert (failed.code, "never committed; it is rolled back" in failed.err) == (2, True)


def test_a_statement_is_watched_so_often(command: Command) -> None:
    """The last one, or the one before the command."""
    done = command("shell", given="select 1 as a;\n\\watch 0.1 2\nselect 2 as b \\watch 0.1 2\n\\watch never\n")
    assert done.lines == [{"a": 1}, {"a": 1}, {"a": 1}, {"b": 2}, {"b": 2}]
    assert (done.code, "number of seconds" in done.err) == (2, True)
    assert command("shell", given="\\watch").code == 2


def test_what_was_typed_is_run_shown_and_dropped_by_commands(command: Command) -> None:
    """Also in the middle of a line."""
    done = command("shell", given="select 1 as a \\g\n\\g\nselect 2 as a\n\\p\n\\r\nselect 3 as a;")
    assert done.out == '{"a":1}\n{"a":1}\nselect 2 as a\n{"a":3}\n'


def test_the_way_rows_are_shown_can_be_changed(command: Command) -> None:
    """One field a line, with what is long in full; and how long it took."""
    wide = "select 1 as id, E'two\\nlines' as note, null as nothing;"
    given = f"\\x\n{wide}\n\\x off\nselect 1 as id;\n\\timing\nselect 2 as n;"
    done = command("shell", "-o", "table", given=given)
    assert done.out == (
        "─[ row 1 ]──────────────────────────────\nid      │ 1\nnote    │ two\n        │ lines\nnothing │ NULL\n"
        "id\n──\n 1\nn\n─\n2\n"
    )
    assert "time: " in done.err
    assert command("shell", given="\\x sometimes").code == 2
    auto = command("shell", "-o", "table", given="\\x auto\nselect 1 as a;\nselect repeat('x', 90) as b, 1 as c;")
    assert auto.out.startswith("a\n─\n1\n─[ row 1 ]─")
    assert f"b │ {'x' * 90}\n" in auto.out


def test_another_database_is_used_only_if_it_is_there(command: Command) -> None:
    """Else the shell stays where it was."""
    command("database", "create", "shell_other")
    given = "\\c shell_other\ncreate table only_here (n int);\n\\dt\n\\c\n\\dt only*\n\\c nowhere\n"
    done = command("shell", "-o", "csv", given=given)
    assert done.out.count("only_here") == 1
    assert (done.code, "nowhere" in done.err) == (6, True)
    command("database", "delete", "shell_other", "--yes")


def test_words_without_a_backslash_are_commands(command: Command) -> None:
    """As in psql: alone in their line, where no statement has begun."""
    done = command("shell", given="select 1 as a;\nhelp\nHELP;\nselect 2\nas exit\n;\nexit;\nselect 3 as a;")
    assert (done.code, done.out.count("\\copy"), "quit need no backslash" in done.out) == (0, 2, True)
    assert done.out.startswith('{"a":1}\n')
    assert done.out.endswith('{"exit":2}\n')
    left = command("shell", given="begin;\nselect 1;\nquit\n")
    assert (left.code, "never committed" in left.err) == (1, True)


def test_what_has_no_effect_beyond_its_statement_is_said(command: Command) -> None:
    """In a transaction it has one, and nothing is said."""
    given = "set work_mem = '1MB';\n/* a */ create temp table gone (n int);\nselect 1 as a;\nprepare p as select 1;\n"
    done = command("shell", given=given)
    assert (done.code, done.lines) == (0, [{"a": 1}])
    for name in ("SET", "CREATE TEMPORARY", "PREPARE"):
        assert f"notice: {name} has no effect beyond its statement" in done.err
    assert done.err.count("notice:") == 3
    block = command("shell", given="begin;\nset work_mem = '1MB';\nshow work_mem;\ncommit;\ncreate table temp_t ();\n")
    assert (block.code, block.lines) == (0, [{"work_mem": "1MB"}])
    assert "no effect" not in block.err
    command("query", "drop table temp_t")
