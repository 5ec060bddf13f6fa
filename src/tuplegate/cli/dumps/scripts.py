"""Reads the script that pg_restore writes: statements, and the rows that follow a COPY.

Nothing of the script runs here. Lines meant for psql are skipped, so they have no effect.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tuplegate.cli.splitting import Splitter

Row = list[str | None]

_NAME = re.compile(r'"(?:[^"]|"")+"|\w+')
_COPY = re.compile(rf"COPY ((?:{_NAME.pattern})(?:\.(?:{_NAME.pattern}))?) (?:\((.*)\))? ?FROM stdin", re.DOTALL)
_END = b"\\.\n"
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class BadScript(Exception):
    """The text is not a script of pg_restore."""


class Cut(BadScript):
    """The script ends in the middle of something."""


@dataclass(frozen=True)
class CopyRows:
    """Rows for a table. Names are as in SQL. `rows` must be read before the script continues."""

    table: str
    columns: tuple[str, ...]
    rows: Iterator[Row]


def read_script(lines: Iterable[bytes]) -> Iterator[str | CopyRows]:
    """Yield the parts of a script. Each of `lines` ends with a line feed."""
    source = iter(lines)
    splitter = Splitter()
    for line in source:
        if line.startswith(b"\\") and not drop_comments(splitter.rest):
            continue
        for statement in splitter.feed(_decode(line)):
            text = drop_comments(statement)
            found = _COPY.fullmatch(text)
            if found is None:
                yield text
                continue
            columns = tuple(_NAME.findall(found[2] or ""))
            copy = CopyRows(found[1], columns, _rows(source, max(len(columns), 1)))
            yield copy
            for _ in copy.rows:
                pass
    if drop_comments(splitter.rest):
        raise Cut("the script ends in the middle of a statement")


def drop_comments(statement: str) -> str:
    """Remove the comment lines in front of a statement."""
    lines = statement.split("\n")
    while lines and (not lines[0].strip() or lines[0].startswith("--")):
        lines.pop(0)
    return "\n".join(lines)


def unquote(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _rows(source: Iterator[bytes], width: int) -> Iterator[Row]:
    for line in source:
        if line == _END:
            return
        values = _decode(line).removesuffix("\n").split("\t")
        if len(values) != width:
            raise BadScript(f"a row of {width} columns has {len(values)} values")
        if b"\\" not in line:
            yield list(values)
        else:
            yield [None if value == "\\N" else _unescape(value) for value in values]
    raise Cut("the script ends in the middle of a table's rows")


def _unescape(value: str) -> str:
    return _ESCAPE.sub(_character, value) if "\\" in value else value


def _character(found: "re.Match[str]") -> str:
    octal, hexadecimal, letter = found.groups()
    if octal or hexadecimal:
        return chr(int(octal, 8) if octal else int(hexadecimal, 16))
    return _LETTERS.get(letter, letter)


def _decode(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as exc:
        raise BadScript("the dump is not in UTF-8") from exc
