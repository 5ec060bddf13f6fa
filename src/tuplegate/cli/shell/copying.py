"""`\\copy`: load a file into a table or write rows into a file, with the commands `import` and `export`."""

import re
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from tuplegate.cli.remote import run_with
from tuplegate.cli.splitting import Reader
from tuplegate.cli.transfer.command import export, import_
from tuplegate.cli.transfer.files import FORMATS

if TYPE_CHECKING:
    from tuplegate.client import Client

USAGE = (
    "\\copy TABLE [(COLUMN, …)] | (QUERY)  from | to 'FILE'  [csv | ndjson | parquet] [header [off]] "
    "[delimiter 'C'] [null 'TEXT'] [encoding 'NAME']"
)
_FILE = re.compile(r"'(?:[^']|'')*'|\S+")
_DIRECTION = re.compile(r"\s(from|to)\s+(?=\S)", re.IGNORECASE)
_OPTION = re.compile(r"'(?:[^']|'')*'|[^\s,()]+")
_HEADERS = {"true": True, "on": True, "1": True, "match": True, "false": False, "off": False, "0": False}
_SOURCE = re.compile(r"(?P<table>[^\s(]+)\s*(?:\((?P<columns>.*)\))?\s*", re.DOTALL)


class BadCopy(Exception):
    """The line is not a valid \\copy; the message says why."""


@dataclass(frozen=True)
class CopyCommand:
    """A \\copy command. `source` is a table, or with `to` possibly a query."""

    to: bool
    source: str
    file: str
    format: str | None = None
    null: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    header: bool | None = None


def read_copy(line: str) -> CopyCommand:
    source, direction, rest = _split_at_direction(line.strip())
    file = _FILE.match(rest)
    assert file is not None, "something follows the direction"
    name = file.group()
    if name.lower() in ("stdin", "stdout", "pstdin", "pstdout", "program"):
        raise BadCopy(f"\\copy reads and writes files, not {name}")
    to = direction == "to"
    copy = CopyCommand(to, _write_select(source) if to else _check_table(source), _unquote(name))
    return _read_options(copy, rest[file.end() :])


def _split_at_direction(line: str) -> tuple[str, str, str]:
    """Split the line at the direction: the first FROM or TO outside of parentheses and quotes."""
    for found in _DIRECTION.finditer(line):
        reader = Reader()
        list(reader.feed(line[: found.start()]))
        if not reader.inside:
            return line[: found.start()].strip(), found[1].lower(), line[found.end() :]
    raise BadCopy(USAGE)


def _read_options(copy: CopyCommand, text: str) -> CopyCommand:
    words = _OPTION.findall(text)
    while words:
        word = words.pop(0).lower()
        if word in ("with", "format", "as"):
            continue
        if word in FORMATS:
            copy = replace(copy, format=word)
        elif word == "header":
            said = _HEADERS.get(words[0].lower()) if words else None
            copy = replace(copy, header=said is not False)
            del words[: said is not None]
        elif word in ("null", "delimiter", "encoding") and words:
            if words[0].lower() == "as":
                del words[0]
            if not words:
                raise BadCopy(USAGE)
            value: dict[str, Any] = {word: _unquote(words.pop(0))}
            copy = replace(copy, **value)
        else:
            raise BadCopy(f"\\copy does not know {word}: {USAGE}")
    return copy


def _write_select(source: str) -> str:
    if source.startswith("("):
        return source[1:-1].strip() if source.endswith(")") else source
    found = _SOURCE.fullmatch(source)
    if found is None:
        raise BadCopy(USAGE)
    return f"select {found['columns'] or '*'} from {found['table']}"


def _check_table(source: str) -> str:
    if not source or "(" in source:
        raise BadCopy("\\copy … from takes a table; the first line of the file names the columns")
    return source


def _unquote(text: str) -> str:
    return text[1:-1].replace("''", "'") if text.startswith("'") and len(text) > 1 else text


def run_copy(client: "Client", copy: CopyCommand) -> None:
    """Run the copy. Typed again it runs again, whereas `import` resumes the same job."""
    command: click.Command = export if copy.to else import_
    arguments = [copy.source, copy.file] if copy.to else [copy.file, "--table", copy.source]
    if not copy.to:
        arguments += ["--job", secrets.token_hex(8)]
    for name in ("format", "null", "delimiter", "encoding"):
        if (value := getattr(copy, name)) is not None:
            arguments.append(f"--{name}={value}")
    if copy.header is not None:
        arguments.append("--header" if copy.header else "--no-header")
    run_with(client, command, arguments)
