"""Finds where statements end and commands begin in typed text. Pure.

A statement ends at a semicolon outside of quotes, comments, parentheses and SQL function bodies. A command begins with
a backslash outside of quotes and comments, where SQL has none, and ends with its line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tuplegate.protocol.statements import skip_blank

_PART = re.compile(
    r"""
      (?P<mark>[;()\\])
    | (?P<line>--[^\n]*)
    | (?P<open>/\*)
    | (?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][\w]*)?\$)
    | (?P<quote>[eE]?'|")
    | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*)
    """,
    re.VERBOSE,
)
_COMMENT = re.compile(r"/\*|\*/")
_ESCAPED = re.compile(r"\\.|''|'", re.DOTALL)


@dataclass(frozen=True)
class SqlStatement:
    """One statement, without its semicolon."""

    sql: str


@dataclass(frozen=True)
class CommandLine:
    """A line from its backslash on. Text typed before it is still pending."""

    text: str


class Reader:
    """Takes text as it comes, one line or many. It may be cleared between two parts that it yields.

    No text is scanned twice, however long a statement gets. Without `commands`, a backslash is an ordinary character.
    """

    def __init__(self, *, commands: bool = True) -> None:
        self._commands = commands
        self.clear()

    def clear(self) -> None:
        """Forget the pending text."""
        self._parts: list[str] = []
        self.inside = ""
        """The open construct: a quote, `$tag$`, `/*` or `(`."""
        self._quote = ""
        self._depth = 0
        self._parentheses = 0
        self._bodies = 0
        self._before = ""

    @property
    def pending(self) -> str:
        return "".join(self._parts)

    @property
    def is_blank(self) -> bool:
        """True if only blanks and complete comments are pending."""
        return not self.inside and skip_blank(self.pending) >= len(self.pending)

    def feed(self, text: str) -> Iterator[SqlStatement | CommandLine]:
        """Yield the statements that are now complete, and the commands between them."""
        start = i = 0
        while i < len(text):
            if self._quote:
                i = self._past_quote(text, i)
                continue
            found = _PART.search(text, i)
            if found is None:
                break
            i = found.end()
            if found["mark"] == ";" and not self._parentheses and not self._bodies:
                sql = (self.pending + text[start : found.start()]).strip()
                self.clear()
                start = i
                if sql:
                    yield SqlStatement(sql)
            elif found["mark"] == "\\" and not self._commands:
                continue
            elif found["mark"] == "\\":
                self._parts.append(text[start : found.start()])
                line = text[found.start() :].split("\n", 1)[0]
                start = i = found.start() + len(line)
                yield CommandLine(line.strip())
            else:
                self._see(found)
        self._parts.append(text[start:])
        self.inside = self._quote or ("(" if self._parentheses or self._bodies else "")

    def _see(self, found: "re.Match[str]") -> None:
        match found.lastgroup:
            case "mark" if found["mark"] != ";":
                self._parentheses = max(self._parentheses + (1 if found["mark"] == "(" else -1), 0)
            case "open":
                self._quote, self._depth = "/*", 1
            case "dollar" | "quote":
                self._quote = found.group().lower() if found.lastgroup == "quote" else found.group()
            case "word" if not self._parentheses:
                self._word(found["word"].lower())

    def _word(self, word: str) -> None:
        """Track bodies: BEGIN ATOMIC … END of a SQL function holds semicolons, and each CASE in it has an END too."""
        if (word == "atomic" and self._before == "begin") or (word == "case" and self._bodies):
            self._bodies += 1
        elif word == "end" and self._bodies:
            self._bodies -= 1
        self._before = word

    def _past_quote(self, text: str, i: int) -> int:
        """Return the index after the end of what is open, or the end of the text."""
        if self._quote == "/*":
            for mark in _COMMENT.finditer(text, i):
                self._depth += 1 if mark.group() == "/*" else -1
                if not self._depth:
                    self._quote = ""
                    return mark.end()
            return len(text)
        if self._quote == "e'":
            for mark in _ESCAPED.finditer(text, i):
                if mark.group() == "'":
                    self._quote = ""
                    return mark.end()
            return len(text)
        end = text.find(self._quote, i)
        if end < 0:
            return len(text)
        end += len(self._quote)
        self._quote = ""
        return end


class Splitter:
    """Splits a script without commands. `rest` is the text that is not complete yet."""

    def __init__(self) -> None:
        self._reader = Reader(commands=False)

    @property
    def rest(self) -> str:
        return self._reader.pending

    def feed(self, text: str) -> list[str]:
        """Return the statements that are now complete, without their semicolons."""
        return [part.sql for part in self._reader.feed(text) if isinstance(part, SqlStatement)]


def is_complete(pending: str, text: str) -> bool:
    """Return whether nothing is missing: all statements have ended, or a command ends the text."""
    reader = Reader()
    parts = list(reader.feed(f"{pending}{text}\n"))
    if reader.is_blank:
        return True
    return bool(parts) and isinstance(parts[-1], CommandLine) and text.rstrip().endswith(parts[-1].text)
