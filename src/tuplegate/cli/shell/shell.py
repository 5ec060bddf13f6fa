"""Splits typed text into statements and commands, and runs them."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tuplegate.cli.exits import Exit
from tuplegate.cli.remote import Failed, translate_failures
from tuplegate.cli.shell.block import Act, classify, is_chained, is_read_only, remark_on_effect
from tuplegate.cli.shell.completion.names import NameKeeper, may_change_names
from tuplegate.cli.shell.results import Results, say
from tuplegate.cli.splitting import CommandLine, Reader

if TYPE_CHECKING:
    from tuplegate.client import Client, OpenTransaction

_OPEN = {"": "… ", "/*": "*… "}
_LONGEST_S = 86_400.0
"""A person takes their time: a transaction is asked to live for so long, and gets as much as the service allows."""

_WORDS = {"help": "\\?", "exit": "\\q", "quit": "\\q"}


def find_command(text: str) -> str | None:
    """Return the command for a single word without a backslash, such as `quit`, as psql has them."""
    return _WORDS.get(text.strip().rstrip("; ").lower())


class Leave(Exception):
    """The person wants to leave."""


class Shell:
    """The shell without its terminal. `commands` runs lines that begin with a backslash."""

    def __init__(self, client: "Client", results: Results, commands: Callable[["Shell", str], None]) -> None:
        self.client = client
        self.results = results
        self.reader = Reader()
        self.transaction: OpenTransaction | None = None
        """The transaction that BEGIN has opened. It stays until COMMIT or ROLLBACK, even if it has failed or expired
        meanwhile: later statements were meant for it, and must not run outside of it."""
        self.names: NameKeeper | None = None
        """Names for completion; None if nobody types."""
        self.last = ""
        """The last statement that was run."""
        self.remember: Callable[[str], None] = lambda text: None
        """Adds text to the history that was not typed at the prompt."""
        self.included: list[str] = []
        """The files that are being run, outermost first."""
        self._commands = commands
        self._read_only = False
        self._ran: list[str] = []

    @property
    def prompt(self) -> str:
        """The prompt: `*` shows an open transaction, `!` one that has failed."""
        mark = "" if self.transaction is None else "*" if self.transaction.state in ("new", "open") else "!"
        return f"tuplegate{mark}> " if self.reader.is_blank else self.continuation(self.reader.inside)

    @staticmethod
    def continuation(inside: str) -> str:
        """Return the prompt of a further line; it shows what is still open."""
        return _OPEN.get(inside, f"{inside[:1] if inside[:1] != 'e' else inside[1:]}… ").rjust(len("tuplegate> "))

    @property
    def current(self) -> str:
        """The text that commands act on: pending text, else the last one that ran."""
        return self.reader.pending.strip() or self.last

    @property
    def source(self) -> "Client | OpenTransaction":
        """Return the object that runs statements: the open transaction, or the client."""
        return self.client if self.transaction is None else self.transaction

    def take(self, text: str) -> None:
        """Take typed or piped text, and run what is now complete."""
        command = find_command(text) if self.reader.is_blank else None
        if command is not None:
            self._commands(self, command)
            return
        self.run_parts(self.reader, text + "\n")

    def run_parts(self, reader: Reader, text: str) -> None:
        """Run the parts of a text. After a failure the rest is dropped, since it was meant to follow a success."""
        parts = reader.feed(text)
        try:
            for part in parts:
                if isinstance(part, CommandLine):
                    self._commands(self, part.text)
                else:
                    self.statement(part.sql)
        except Failed as exc:
            left = len(list(parts))
            reader.clear()
            if left:
                exc.more += ("what was typed behind it was not run",)
            raise
        except BaseException:
            reader.clear()
            raise

    def finish(self, reader: Reader) -> None:
        """Run a last statement without a semicolon, at the end of a file."""
        if reader.inside and reader.inside != "(":
            raise Failed(f"the text ends within {reader.inside}; its last statement was not run", Exit.FILE)
        if not reader.is_blank:
            text = reader.pending
            reader.clear()
            self.statement(text.strip())

    # -- statements -----------------------------------------------------------------------------------------------

    def statement(self, sql: str) -> None:
        act = classify(sql)
        if act is Act.BEGIN:
            self._begin(sql)
        elif self.transaction is None:
            self._run_single(act, sql)
        elif act is Act.COMMIT:
            self._commit(self.transaction, is_chained(sql))
        elif act is Act.ROLLBACK:
            self._roll_back(self.transaction, is_chained(sql))
        else:
            self._run_inside(self.transaction, sql)

    def _run_single(self, act: Act, sql: str) -> None:
        if act in (Act.COMMIT, Act.ROLLBACK):
            say("there was no BEGIN; nothing to end")
            return
        self.run(sql)

    def run(self, sql: str) -> None:
        """Run one statement at once."""
        self.last = sql
        with translate_failures(sql):
            self.results.run(self.client, sql)
        self._note_names([sql])
        remark = remark_on_effect(sql)
        if remark is not None:
            say(f"notice: {remark}")

    def _note_names(self, statements: list[str]) -> None:
        if self.names is not None and any(map(may_change_names, statements)):
            self.names.refresh()

    # -- transactions ---------------------------------------------------------------------------------------------

    def _begin(self, sql: str) -> None:
        if self.transaction is not None:
            say("there was a BEGIN before; nothing changes")
            return
        self._read_only = is_read_only(sql)
        self._open()
        say("a transaction is open until COMMIT or ROLLBACK")

    def _open(self) -> None:
        self._ran = []
        self.transaction = self.client.transaction(
            read_only=self._read_only, timeout_s=_LONGEST_S, idle_timeout_s=_LONGEST_S
        )

    def _run_inside(self, transaction: "OpenTransaction", sql: str) -> None:
        self.last = sql
        is_first = transaction.id is None
        try:
            with translate_failures(sql):
                self.results.run(transaction, sql)
        except Failed as exc:
            exc.more += _explain_state(transaction)
            raise
        except KeyboardInterrupt:
            _give_up_if_lost(transaction)
            raise
        self._ran.append(sql)
        if is_first and transaction.expires_at is not None:
            self.results.remark(
                f"(rolled back if nothing is typed until {transaction.expires_at.astimezone():%H:%M:%S})"
            )

    def _commit(self, transaction: "OpenTransaction", chained: bool) -> None:
        started, ran = time.monotonic(), self._ran
        self._close(chained)
        if transaction.state in ("failed", "aborted"):
            _give_up(transaction)
            raise Failed("nothing was committed: the transaction has failed, and is rolled back", Exit.SQL)
        try:
            with translate_failures():
                transaction.commit()
        except Failed:
            _give_up(transaction)
            raise
        say("committed")
        self.results.tell_time(started)
        self._note_names(ran)

    def _roll_back(self, transaction: "OpenTransaction", chained: bool) -> None:
        self._close(chained)
        with translate_failures():
            transaction.rollback()
        say("rolled back")

    def _close(self, chained: bool) -> None:
        """Leave the transaction; AND CHAIN begins the next one."""
        self.transaction = None
        if chained:
            self._open()

    def end_transaction(self) -> bool:
        """Roll back a transaction that was never ended, and say so; return whether there was one with statements."""
        transaction, self.transaction = self.transaction, None
        if transaction is None or transaction.state == "new":
            return False
        _give_up(transaction)
        say("the transaction was never committed; it is rolled back")
        return True


def _give_up(transaction: "OpenTransaction") -> None:
    """Roll back what can be rolled back. If the service cannot be reached, it does so when the transaction expires."""
    from tuplegate.client import TuplegateError

    if transaction.state in ("open", "failed", "aborted"):
        with suppress(TuplegateError):
            transaction.rollback()


def _give_up_if_lost(transaction: "OpenTransaction") -> None:
    """Roll back after Ctrl-C, unless the statement was a read, which leaves the transaction as it was."""
    if transaction.state == "aborted":
        _give_up(transaction)
        say("the transaction is rolled back; ROLLBACK leaves it")


def _explain_state(transaction: "OpenTransaction") -> tuple[str, ...]:
    """Return the consequences of a failure for the transaction, for people."""
    if transaction.state == "failed":
        return ("the transaction has failed: ROLLBACK ends it, ROLLBACK TO a savepoint goes on before the failure",)
    if transaction.state == "aborted":
        return ("the transaction is rolled back; ROLLBACK leaves it",)
    return ()
