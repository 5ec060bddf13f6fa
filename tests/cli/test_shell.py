"""`querygate shell`: typed at a terminal, and piped in."""

import fcntl
import os
import pty
import select
import termios
import time
from pathlib import Path

from querygate.client import Client
from tests.cli.command import Command
from tests.client.faults import PASS, relay
from tests.service import Service


def test_statements_piped_in_are_run_in_order(command: Command) -> None:
    """The last one may lack its semicolon."""
    done = command("shell", given="select 1 as a;\nselect\n 2 as a; select 3\nas a")
    assert (done.code, done.lines) == (0, [{"a": 1}, {"a": 2}, {"a": 3}])


def test_the_first_failure_ends_a_script(command: Command) -> None:
    """With its exit code."""
    done = command("shell", given="select 1 as a; select nothing; select 3 as a;")
    assert (done.code, done.lines) == (5, [{"a": 1}])


def test_begin_to_commit_is_one_transaction(service: Service, command: Command) -> None:
    """All or nothing, and the shell says what it does."""
    with Client(service.url, service.key) as client:
        client.query("create table shell_t (n int primary key)")
        done = command(
            "shell", given="begin;\ninsert into shell_t values (1);\ninsert into shell_t values (2);\ncommit;"
        )
        assert done.code == 0
        assert "sent as one transaction" in done.err
        assert "committed 2 statements" in done.err
        failed = command(
            "shell", given="begin; insert into shell_t values (3); insert into shell_t values (1); commit;"
        )
        assert failed.code == 5
        dropped = command("shell", given="begin; insert into shell_t values (4); rollback;")
        assert (dropped.code, "nothing was sent" in dropped.err) == (0, True)
        open_end = command("shell", given="begin; insert into shell_t values (5);")
        assert "never committed" in open_end.err
        assert client.query("select n from shell_t order by n").column() == [1, 2]
        client.query("drop table shell_t")


def test_commands_describe_what_there_is(command: Command, tmp_path: Path) -> None:
    """And run files, and turn things on and off."""
    file = tmp_path / "more.sql"
    file.write_text("select 'from a file' as v;")
    lines = [
        "create table shell_d (id int primary key, label text default 'x');",
        "\\dt",
        "\\d shell_d",
        "\\l",
        "\\timing",
    ]
    lines += [
        f"\\i {file}",
        "\\x",
        "select 1 as a, 2 as b;",
        "\\nonsense",
        "\\?",
        "drop table shell_d;",
        "\\q",
        "select 'no';",
    ]
    done = command("shell", "-o", "csv", given="\n".join(lines))
    assert done.code == 0, done.err
    assert "public,shell_d,table" in done.out
    assert "label,text,true,'x'::text" in done.out
    assert "main,active,true" in done.out
    assert "from a file" in done.out
    assert "a,1\nb,2" in done.out
    assert "'no'" not in done.out
    assert "timing: on" in done.err
    assert "there is no command \\nonsense" in done.err


def _own_terminal() -> None:
    """So that Ctrl-C at the terminal becomes a signal of the child."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A person at a terminal, who reads before typing on."""

    def __init__(self, command: Command) -> None:
        self._ours, theirs = pty.openpty()
        command.env |= {"TERM": "xterm", "NO_COLOR": "1"}
        self.started = command.start(
            "shell", stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=_own_terminal
        )
        os.close(theirs)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, text: str) -> None:
        """Reads until this was shown, and forgets it."""
        deadline = time.monotonic() + 60
        while text not in self.shown:
            ready, _, _ = select.select([self._ours], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{text!r} was not shown: {self.shown!r}"
            part = os.read(self._ours, 65536).decode(errors="replace")
            self.shown += part
            if "\x1b[6n" in part:  # the shell asks where the cursor is, and a terminal answers
                self.type("\x1b[1;1R")
        self.shown = self.shown.split(text, 1)[1]

    def close(self) -> int:
        code = self.started.wait(60)
        os.close(self._ours)
        return code


def test_at_a_terminal_ctrl_c_cancels_the_statement_and_not_the_shell(service: Service, tmp_path: Path) -> None:
    """And an error does not end it either."""
    with relay(service.url, lambda _: PASS) as watched:
        terminal = Terminal(Command(service, tmp_path, QUERYGATE_URL=watched.url))
        terminal.until("querygate>")
        terminal.type("select 6 * 7 as answer;\r")
        terminal.until("42")
        terminal.until("querygate>")
        terminal.type("select nothing;\r")
        terminal.until('column "nothing" does not exist')
        terminal.until("querygate>")
        terminal.type("select pg_sleep(600) as forever;\r")
        deadline = time.monotonic() + 60
        while b"forever" not in watched.requests[-1]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        terminal.type("\x03")
        terminal.until("cancelled")
        terminal.until("querygate>")
        terminal.type("select 7 * 7 as again;\r")
        terminal.until("49")
        terminal.until("querygate>")
        terminal.type("\x04")
        assert terminal.close() == 0
