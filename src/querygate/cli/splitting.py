"""Where a statement ends: at a semicolon outside of quotes, comments, dollar quotes, parentheses and bodies. Pure.

A body is what stands between BEGIN ATOMIC and its END in a function of SQL's own; its CASEs have an END each, too.
"""

import re

_PART = re.compile(
    r"""
      (?P<end>;)
    | (?P<line>--)
    | (?P<comment>/\*)
    | (?P<dollar>\$(?:[A-Za-z_]\w*)?\$)
    | (?P<escaped>(?<![A-Za-z0-9_$])[eE]')
    | (?P<quote>['"])
    | (?P<parenthesis>[()])
    | (?P<word>[A-Za-z_][\w$]*)
    """,
    re.VERBOSE,
)
_MARK = re.compile(r"/\*|\*/")
_ESCAPE = re.compile(r"\\|'")


class Splitter:
    """Takes a text piece by piece, each a whole number of lines, and gives every statement once it is complete.

    Nothing is looked at twice, however long a statement gets.
    """

    _at: int
    _depth: int
    _parentheses: int
    _bodies: int

    def __init__(self) -> None:
        self.rest = ""
        """What is not complete yet."""
        self._begin_again()

    def feed(self, text: str) -> list[str]:
        """The statements that are complete now, without their semicolons."""
        self.rest += text
        statements: list[str] = []
        while self._close() and (found := _PART.search(self.rest, self._at)) is not None:
            self._at = found.end()
            kind, part = str(found.lastgroup), found.group()
            if kind == "word":
                self._read_word(part.lower())
            elif kind == "parenthesis":
                self._parentheses = max(self._parentheses + (1 if part == "(" else -1), 0)
            elif kind != "end":
                self._open, self._depth = (kind if kind != "quote" else part), 1
                self._tag = part
            elif not self._parentheses and not self._bodies:
                statement, self.rest = self.rest[: found.start()].strip(), self.rest[found.end() :]
                self._begin_again()
                if statement:
                    statements.append(statement)
        return statements

    def _begin_again(self) -> None:
        self._at = 0
        self._open = ""
        self._tag = ""
        self._depth = 0
        self._parentheses = 0
        self._bodies = 0
        self._word = ""

    def _read_word(self, word: str) -> None:
        if (word == "atomic" and self._word == "begin") or (word == "case" and self._bodies):
            self._bodies += 1
        elif word == "end" and self._bodies:
            self._bodies -= 1
        self._word = word

    def _close(self) -> bool:
        """Goes to the end of the quote or comment that is open; false where that is not there yet."""
        while self._open:
            found = self._next_mark()
            if found is None:
                return False
            mark, self._at = found
            if self._open == "comment":
                self._depth += 1 if mark == "/*" else -1
            else:
                self._depth = 0
            if not self._depth:
                self._open = ""
        return True

    def _next_mark(self) -> tuple[str, int] | None:
        """What ends the open part, or for a comment opens another in it, and the place behind it."""
        text, at = self.rest, self._at
        if self._open == "comment":
            found = _MARK.search(text, at)
            if found is None:
                self._at = max(at, len(text) - 1)
            return None if found is None else (found.group(), found.end())
        if self._open in ("line", "dollar"):
            mark = "\n" if self._open == "line" else self._tag
            place = text.find(mark, at)
            if place < 0:
                self._at = max(at, len(text) - len(mark) + 1)
            return None if place < 0 else (mark, place + len(mark))
        while True:
            quote = '"' if self._open == '"' else "'"
            if self._open == "escaped":
                found = _ESCAPE.search(text, at)
                place = -1 if found is None else found.start()
            else:
                place = text.find(quote, at)
            if place < 0:
                self._at = max(at, len(text))
                return None
            if text[place] == "\\" or text[place + 1 : place + 2] == quote:
                at = place + 2
                continue
            return quote, place + 1


def split(text: str) -> tuple[list[str], str]:
    """The statements that are complete, without their semicolons, and what is left."""
    splitter = Splitter()
    return splitter.feed(text), splitter.rest
