"""`\\copy`: a file into a table or rows into a file, by the commands `import` and `export`."""

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tuplegate.cli.files import FORMATS
from tuplegate.cli.remote import run_with
from tuplegate.cli.splitting import Reader
from tuplegate.cli.transfer import export, import_

if TYPE_CHECKING:
    from tuplegate.client import Client

USAGE = "\\copy TABLE [(COLUMN, …)] | (QUERY)  from | to 'FILE'  [csv | ndjson] [header] [null 'TEXT']"
_FILE = re.compile(r"'(?:[^']|'')*'|\S+")
_DIRECTION = re.compile(r"\s(from|to)\s+(?=\S)", re.IGNORECASE)
_OPTION = re.compile(r"'(?:[^']|'')*'|[^\s,()]+")
_SOURCE = re.compile(r"(?P<table>[^\s(]+)\s*(?:\((?P<columns>.*)\))?\s*", re.DOTALL)


class BadCopy(Exception):
    """The line is not one that \\copy takes; the message says why."""


@dataclass(frozen=True)
class Copy:
    """`source` is a table, or with `to` also a query."""

    to: bool
    source: str
    file: str
    format: str | None
    null: str | None


def read_copy(line: str) -> Copy:
    source, direction, rest = _parted(line.strip())
    file = _FILE.match(rest)
    assert file is not None, "something follows the direction"
    name = file.group()
    if name.lower() in ("stdin", "stdout", "pstdin", "pstdout", "program"):
        raise BadCopy(f"\\copy reads and writes files, not {name}")
    format, null = _options(rest[file.end() :])
    to = direction == "to"
    return Copy(to, _selected(source) if to else _table(source), _unquoted(name), format, null)


def _parted(line: str) -> tuple[str, str, str]:
    """The direction is the first FROM or TO outside of parentheses and quotes."""
    for found in _DIRECTION.finditer(line):
        reader = Reader()
        list(reader.feed(line[: found.start()]))
        if not reader.inside:
            return line[: found.start()].strip(), found[1].lower(), line[found.end() :]
    raise BadCopy(USAGE)


def _options(text: str) -> tuple[str | None, str | None]:
    words = _OPTION.findall(text)
    format = null = None
    while words:
        word = words.pop(0).lower()
        if word in ("with", "format", "header", "true", "on"):
            continue  # a line of names is always there
        if word in FORMATS:
            format = word
        elif word == "null" and words:
            null = _unquoted(words.pop(0))
        else:
            raise BadCopy(f"\\copy does not know {word}: {USAGE}")
    return format, null


def _selected(source: str) -> str:
    if source.startswith("("):
        return source[1:-1].strip() if source.endswith(")") else source
    found = _SOURCE.fullmatch(source)
    if found is None:
        raise BadCopy(USAGE)
    return f"select {found['columns'] or '*'} from {found['table']}"


def _table(source: str) -> str:
    if not source or "(" in source:
        raise BadCopy("\\copy … from takes a table; the first line of the file names the columns")
    return source


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'") if text.startswith("'") and len(text) > 1 else text


def run_copy(client: "Client", copy: Copy) -> None:
    """Typed again, it is done again: unlike `import`, which goes on with the job that it was."""
    command: click.Command = export if copy.to else import_
    if copy.to and copy.null is not None:
        raise BadCopy("null '…' is for \\copy … from; in a file that is written NULL is an empty field")
    arguments = [copy.source, copy.file] if copy.to else [copy.file, "--table", copy.source]
    if not copy.to:
        arguments += ["--job", secrets.token_hex(8)]
    if copy.null is not None:
        arguments += ["--null", copy.null]
    if copy.format is not None:
        arguments += ["--format", copy.format]
    run_with(client, command, arguments)
