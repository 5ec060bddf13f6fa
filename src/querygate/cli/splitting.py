"""Where a statement ends in what a person types: at a semicolon outside of quotes, comments and dollar quotes. Pure."""

import re

_PART = re.compile(
    r"""
      (?P<end>;)
    | (?P<comment>--[^\n]*)
    | (?P<open>/\*)
    | (?P<dollar>\$(?:[A-Za-z_]\w*)?\$)
    | (?P<string>(?<![A-Za-z0-9_$])[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z) | '(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z))
    """,
    re.VERBOSE | re.DOTALL,
)
_MARK = re.compile(r"/\*|\*/")


def split(text: str) -> tuple[list[str], str]:
    """The statements that are complete, without their semicolons, and what is left."""
    statements: list[str] = []
    start = i = 0
    while (found := _PART.search(text, i)) is not None:
        i = found.end()
        if found["end"]:
            statement = text[start : found.start()].strip()
            if statement:
                statements.append(statement)
            start = i
        elif found["open"]:
            i = _comment_end(text, found.start())
        elif found["dollar"]:
            close = text.find(found["dollar"], i)
            i = len(text) if close < 0 else close + len(found["dollar"])
    return statements, text[start:]


def _comment_end(text: str, start: int) -> int:
    depth = 0
    for mark in _MARK.finditer(text, start):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return mark.end()
    return len(text)
