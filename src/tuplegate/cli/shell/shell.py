"""Splits typed text into statements and commands, and runs them."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tuplegate.cli.exits import Exit
from tuplegate.cli.remote import Failed, translate_failures
from tuplegate.cli.shell.block import Act, Block, classify, is_chained, is_read_only, remark_on_effect
from tuplegate.cli.shell.names import NameKeeper, may_change_names
from tuplegate.cli.shell.results import Results, say
from tuplegate.cli.splitting import CommandLine, Reader

if TYPE_CHECKING:
    from tuplegate.client import Client, TuplegateError

_OPEN = {"": "… ", "/*": "*… "}


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
        self.block: Block | None = None
        self.names: NameKeeper | None = None
        """Names for completion; None if nobody types."""
        self.last = ""
        """The last statement or block that was run."""
        self.remember: Callable[[str], None] = lambda text: None
        """Adds text to the history that was not typed at the prompt."""
        self.included: list[str] = []
        """The files that are being run, outermost first."""
        self._commands = commands

    @property
    def prompt(self) -> str:
        name = "tuplegate*" if self.block is not None else "tuplegate"
        return f"{name}> " if self.reader.is_blank else self.continuation(self.reader.inside)

    @staticmethod
    def continuation(inside: str) -> str:
        """Return the prompt of a further line; it shows what is still open."""
        return _OPEN.get(inside, f"{inside[:1] if inside[:1] != 'e' else inside[1:]}… ").rjust(len("tuplegate> "))

    @property
    def current(self) -> str:
        """The text that commands act on: pending text, else the open block, else what ran last."""
        return self.reader.pending.strip() or (self.block.text if self.block is not None else self.last)

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
        elif self.block is None:
            self._run_single(act, sql)
        elif act is Act.ROLLBACK:
            self.block = Block(self.block.read_only) if is_chained(sql) else None
            say("dropped; nothing was sent")
        elif act is Act.COMMIT:
            block = self.block
            self.block = Block(block.read_only) if is_chained(sql) else None
            self._commit(block)
        elif act is Act.POINT:
            say("error: there are no savepoints: the statements after BEGIN are sent together; this one was left out")
        else:
            self.block.statements.append(sql)

    def _begin(self, sql: str) -> None:
        if self.block is not None:
            say("there was a BEGIN before; nothing changes")
            return
        self.block = Block(is_read_only(sql))
        say("statements are gathered until COMMIT, and then sent as one transaction; their rows are shown then")

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

    def _commit(self, block: Block) -> None:
        from tuplegate.client import TuplegateError

        if not block.statements:
            say("there was nothing to send")
            return
        self.last = block.text + "commit"
        started = time.monotonic()
        try:
            with translate_failures():
                done = self.client.transaction(block.statements, read_only=block.read_only)
        except Failed as exc:
            error = exc.__cause__
            if isinstance(error, TuplegateError) and error.statement is not None:
                raise _describe_block_failure(error, block.statements) from error
            raise
        with self.results.out() as out:
            for rows in done.results:
                if rows.columns:
                    self.results.write(out, rows.columns, rows.types, rows.tuples())
        count = len(block.statements)
        one = "1 statement" if count == 1 else f"{count} statements"
        say(f"committed {one} as one transaction, {done.affected_rows} rows affected")
        self.results.tell_time(started)
        self._note_names(block.statements)

    def _note_names(self, statements: list[str]) -> None:
        if self.names is not None and any(map(may_change_names, statements)):
            self.names.refresh()

    def tell_open_block(self) -> bool:
        """Report a block that was never ended; return whether there was one."""
        if self.block is None or not self.block.statements:
            return False
        count = len(self.block.statements)
        one = "1 statement after BEGIN was" if count == 1 else f"{count} statements after BEGIN were"
        say(f"{one} never committed; nothing of it was sent")
        return True


def _describe_block_failure(error: "TuplegateError", statements: list[str]) -> Failed:
    """Return the failure of a block: which statement failed, and that none of them was applied."""
    number = error.statement or 0
    try:
        with translate_failures(statements[number]):
            raise error
    except Failed as exc:
        message = f"statement {number + 1} of {len(statements)}: {exc.message}"
        return Failed(message, exc.code, (*exc.more, "nothing of the transaction was applied; \\e edits it"))
