"""Rows of a CSV or NDJSON file, one after the other, with the line that each begins on. A broken row is named."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from querygate.cli.guesses import Guess

FORMATS = ("csv", "ndjson")
_FIELD_MAX = 64 * 2**20


class BadFile(Exception):
    """The file cannot be read as rows; the message says where."""


@dataclass(frozen=True)
class Row:
    """`line` counts from 1; `values` are in the order of the columns."""

    line: int
    values: list[Any]


@dataclass(frozen=True)
class Summary:
    """What reading a file once tells."""

    digest: str
    columns: list[str]
    types: list[str]
    rows: int


def format_of(path: Path, format: str | None) -> str:
    if format is not None:
        return format
    found = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson"}.get(path.suffix.lower())
    if found is None:
        raise BadFile(f"{path.name} does not end in .csv, .ndjson or .jsonl: say --format")
    return found


def scan(path: Path, format: str, null: str) -> Summary:
    """Reads the file to its end: every row has its columns, and their types are guessed."""
    with _Opened(path) as (raw, text):
        columns = _columns_of(path, format)
        guesses = [Guess() for _ in columns]
        count = 0
        for row in _rows(text, format, columns, null):
            count += 1
            for guess, value in zip(guesses, row.values, strict=True):
                guess.see(value)
        return Summary(raw.digest.hexdigest(), columns, [guess.type for guess in guesses], count)


def read(path: Path, format: str, null: str, summary: Summary) -> Iterator[Row]:
    """The rows of a file that was scanned. At the end it must still be the same file."""
    with _Opened(path) as (raw, text):
        yield from _rows(text, format, summary.columns, null)
        if raw.digest.hexdigest() != summary.digest:
            raise BadFile(f"{path} was changed while it was read")


class _Hashed(io.RawIOBase):
    """Bytes of a file, hashed as they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)  # type: ignore[attr-defined]  # a file has it
        self.digest.update(memoryview(buffer)[:count])
        return int(count)


class _Opened:
    """The file as hashed bytes and as text over them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> tuple[_Hashed, IO[str]]:
        try:
            self._file = self._path.open("rb", buffering=0)
        except OSError as exc:
            raise BadFile(f"{self._path} cannot be read: {exc.strerror}") from exc
        hashed = _Hashed(self._file)
        return hashed, io.TextIOWrapper(io.BufferedReader(hashed, 2**20), "utf-8-sig", newline="")

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _columns_of(path: Path, format: str) -> list[str]:
    with _Opened(path) as (_, text):
        if format == "csv":
            columns = next(_CsvReader(text), None)
        else:
            found: dict[str, None] = {}
            for _line, row in _objects(text):
                found |= dict.fromkeys(row)
            columns = list(found)
    if not columns:
        raise BadFile(f"{path.name} has no columns" + (": its first line names them" if format == "csv" else ""))
    if len(set(columns)) < len(columns) or "" in columns:
        raise BadFile(f"{path.name}: two columns have one name, or one has none: {', '.join(columns)}")
    return columns


def _rows(text: IO[str], format: str, columns: Sequence[str], null: str) -> Iterator[Row]:
    if format == "ndjson":
        for line, row in _objects(text):
            yield Row(line, [row.get(name) for name in columns])
        return
    reader = _CsvReader(text)
    next(reader)
    while True:
        line = reader.line_num + 1
        values = next(reader, None)
        if values is None:
            return
        if not values:  # an empty line
            continue
        if len(values) != len(columns):
            raise BadFile(f"line {line} has {len(values)} fields, not {len(columns)}")
        yield Row(line, [None if value == null else value for value in values])


class _CsvReader:
    """A CSV reader whose complaints name the line."""

    def __init__(self, text: IO[str]) -> None:
        csv.field_size_limit(_FIELD_MAX)
        self._reader = csv.reader(text, strict=True)

    @property
    def line_num(self) -> int:
        return self._reader.line_num

    def __iter__(self) -> "_CsvReader":
        return self

    def __next__(self) -> list[str]:
        try:
            return next(self._reader)
        except (csv.Error, UnicodeDecodeError) as exc:
            raise BadFile(f"line {self._reader.line_num + 1}: {exc}") from exc


def _objects(text: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    from querygate.client.values import Number

    number = 0
    try:
        for number, line in enumerate(text, start=1):
            if line.strip():
                row = json.loads(line, parse_float=Number)
                if not isinstance(row, dict):
                    raise BadFile(f"line {number} is no JSON object")
                yield number, row
    except UnicodeDecodeError as exc:
        raise BadFile(f"line {number + 1}: {exc}") from exc
    except json.JSONDecodeError as exc:
        raise BadFile(f"line {number}: {exc}") from exc
