"""Writes rows to stdout: a table for people, JSON lines for programs, and CSV or Markdown.

Rows are written as they arrive. A table takes its widths from the first rows and keeps them, so memory is constant.
"""

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import IO, Any, Protocol

FORMATS = ("table", "json", "ndjson", "csv", "markdown")

_MEASURED_ROWS = 200
_CELL_WIDTH_MAX = 80
# Characters that could move the cursor or recolour the screen. Tab and line feed are handled separately.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class OutputWriter(Protocol):
    def begin(self, columns: Sequence[str], types: Sequence[str]) -> None: ...
    def rows(self, rows: Iterable[Sequence[Any]]) -> None: ...
    def end(self) -> None: ...


def choose_format() -> str:
    return "table" if sys.stdout.isatty() else "ndjson"


def make_writer(format: str | None, out: IO[str] | None = None) -> OutputWriter:
    """Return the writer of a format, to stdout unless `out` is given. The default is a table on a terminal, else JSON
    lines."""
    terminal = sys.stdout.isatty()
    file = out or sys.stdout
    kinds: dict[str, Callable[[], OutputWriter]] = {
        "table": lambda: TableWriter(file, terminal, has_color()),
        "json": lambda: JsonWriter(file, terminal),
        "ndjson": lambda: JsonLinesWriter(file, terminal),
        "csv": lambda: CsvWriter(file),
        "markdown": lambda: MarkdownWriter(file),
    }
    return kinds[format or choose_format()]()


def has_color() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def escape_controls(text: str) -> str:
    """Escape characters that would control a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def write_json(value: Any) -> str:
    from tuplegate.client.values import write

    return write(value, _quote)


def write_cell(value: Any) -> str:
    """Return a value as text, for formats that have only text."""
    if isinstance(value, str):
        return value
    return "" if value is None else write_json(value)


class JsonLinesWriter:
    """Writes one object per line."""

    def __init__(self, out: IO[str], terminal: bool) -> None:
        self._write = _escape_for(out) if terminal else out.write
        self._names: list[str] = []

    def begin(self, columns: Sequence[str], types: Sequence[str]) -> None:
        self._names = [f"{_quote(name)}:" for name in columns]

    def rows(self, rows: Iterable[Sequence[Any]]) -> None:
        self._write("".join(self._object(row) + "\n" for row in rows))

    def _object(self, row: Sequence[Any]) -> str:
        """Return a row as JSON. Columns of the same name are all in it."""
        return "{" + ",".join(map(str.__add__, self._names, map(write_json, row))) + "}"

    def end(self) -> None:
        pass


class JsonWriter(JsonLinesWriter):
    """Writes one array of objects."""

    _before = "[\n"

    def rows(self, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self._write(self._before + self._object(row))
            self._before = ",\n"

    def end(self) -> None:
        self._write("[]\n" if self._before == "[\n" else "\n]\n")


def _escape_for(out: IO[str]) -> Callable[[str], Any]:
    return lambda text: out.write(escape_controls(text))


_WRITTEN_AS_THEY_ARE = frozenset({
    "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "text", "varchar", "bpchar", "name", "uuid", "bytea",
    "date", "time", "timetz", "timestamp", "timestamptz", "interval",
})  # fmt: skip
"""Types whose values are written unchanged: texts and numbers."""


# No text of the engine has this character. As part of the line end, it makes the library quote texts that have it.
_QUOTED = "\0"
_BYTE_ORDER_MARK = "\ufeff"
_LINE_END = f"\r{_QUOTED}\n"
_NEVER_EMPTY = _WRITTEN_AS_THEY_ARE - {"text", "varchar", "bpchar", "name"}


class CsvWriter:
    """Writes CSV with a header. NULL is an empty field or `null`, an empty text is `""`, and a json value is JSON.

    The library writes None and an empty text alike, and does not quote a carriage return. So a text that must be quoted
    starts with a character that makes the library quote it, and that is removed afterwards.
    """

    def __init__(self, out: IO[str], delimiter: str = ",", null: str = "", header: bool = True) -> None:
        self._out = out
        self._lines = io.StringIO(newline="")
        self._writer = csv.writer(self._lines, delimiter=delimiter, lineterminator=_LINE_END)
        self._delimiter, self._null, self._has_header = delimiter, null, header
        self._rewritten: list[tuple[int, Callable[[Any], str]]] = []
        self._may_be_empty: list[int] = []
        self._is_single = False
        self._is_begun = False

    def begin(self, columns: Sequence[str], types: Sequence[str]) -> None:
        json_types = ("json", "jsonb")
        self._rewritten = [
            (index, write_json if name in json_types else write_cell)
            for index, name in enumerate(types)
            if name not in _WRITTEN_AS_THEY_ARE
        ]
        self._may_be_empty = [index for index, name in enumerate(types) if name not in _NEVER_EMPTY]
        self._is_single = len(columns) == 1
        if columns and self._has_header:
            self._write([columns])

    def rows(self, rows: Iterable[Sequence[Any]]) -> None:
        if self._rewritten:
            rows = map(self._row, rows)
        rows = list(rows)
        if self._null:
            rows = [[self._quote_if_ambiguous(value) for value in row] for row in rows]
        elif any("" in map(itemgetter(index), rows) for index in self._may_be_empty):
            rows = [[_QUOTED if value == "" else value for value in row] for row in rows]
        self._write(rows)

    def _quote_if_ambiguous(self, value: Any) -> Any:
        if value is None:
            return self._null
        return f"{_QUOTED}{value}" if value == "" or str(value) == self._null else value

    def _write(self, rows: Sequence[Sequence[Any]]) -> None:
        end = _LINE_END
        if rows and not self._is_begun:
            self._is_begun = True
            if str(rows[0][0]).startswith(_BYTE_ORDER_MARK):
                rows = [[f"{_QUOTED}{rows[0][0]}", *rows[0][1:]], *rows[1:]]  # this is text, not a byte order mark
        if self._is_single:
            # The library quotes an empty field that is alone on its line, so we add another.
            rows = [(*row, None) for row in rows]
            end = self._delimiter + end
        self._writer.writerows(rows)
        self._out.write(self._lines.getvalue().replace(end, "\n").replace(_QUOTED, ""))
        self._lines.seek(0)
        self._lines.truncate()

    def _row(self, row: Sequence[Any]) -> Sequence[Any]:
        cells = list(row)
        for index, rewrite in self._rewritten:
            if cells[index] is not None:
                cells[index] = rewrite(cells[index])
        return cells

    def end(self) -> None:
        pass


class MarkdownWriter:
    def __init__(self, out: IO[str]) -> None:
        self._write = out.write

    def begin(self, columns: Sequence[str], types: Sequence[str]) -> None:
        if columns:
            self._line(columns)
            self._write("|" + "---|" * len(columns) + "\n")

    def rows(self, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self._line(row)

    def _line(self, row: Sequence[Any]) -> None:
        cells = (escape_controls(write_cell(value)).replace("|", "\\|").replace("\n", "<br>") for value in row)
        self._write("| " + " | ".join(cells) + " |\n")

    def end(self) -> None:
        pass


_RIGHT = frozenset({"int2", "int4", "int8", "oid", "float4", "float8", "numeric"})


class TableWriter:
    """Writes columns side by side, with numbers aligned right. Long cells are cut on a terminal."""

    def __init__(self, out: IO[str], terminal: bool, color: bool) -> None:
        from rich.cells import cell_len, set_cell_size

        self._length, self._resize = cell_len, set_cell_size
        self._write = out.write
        self._width_max = _CELL_WIDTH_MAX if terminal else None
        self._bold = ("\x1b[1m", "\x1b[0m") if color else ("", "")
        self._columns: list[str] = []
        self._right: list[bool] = []
        self._widths: list[int] = []
        self._waiting: list[list[str]] = []

    def begin(self, columns: Sequence[str], types: Sequence[str]) -> None:
        self._columns = [self._cell(name) for name in columns]
        self._right = [name in _RIGHT for name in types]

    def rows(self, rows: Iterable[Sequence[Any]]) -> None:
        texts = [["NULL" if value is None else self._cell(write_cell(value)) for value in row] for row in rows]
        if self._widths:
            self._lines(texts)
            return
        self._waiting += texts
        if len(self._waiting) >= _MEASURED_ROWS:
            self._head()

    def end(self) -> None:
        if self._columns and not self._widths:
            self._head()

    def _cell(self, text: str) -> str:
        text = escape_controls(text).replace("\n", "↵").replace("\t", " ")
        if self._width_max is not None and self._length(text) > self._width_max:
            return self._resize(text, self._width_max - 1) + "…"
        return text

    def _head(self) -> None:
        cells = zip(self._columns, *self._waiting, strict=True)
        self._widths = [max(1, *map(self._length, column)) for column in cells]
        names = "  ".join(map(self._pad, self._columns, self._widths, self._right)).rstrip()
        self._write(self._bold[0] + names + self._bold[1] + "\n")
        self._write("  ".join("─" * width for width in self._widths) + "\n")
        self._lines(self._waiting)
        self._waiting = []

    def _lines(self, rows: Iterable[Sequence[str]]) -> None:
        for row in rows:
            cells = zip(row, self._widths, self._right, strict=True)
            self._write("  ".join(self._pad(*cell) for cell in cells).rstrip() + "\n")

    def _pad(self, text: str, width: int, right: bool) -> str:
        blanks = " " * (width - self._length(text))
        return blanks + text if right else text + blanks


def _guess_type(values: Sequence[Any]) -> str:
    """Return `numeric` for a column of numbers, which are aligned right."""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in values if value is not None]
    return "numeric" if numbers and all(numbers) else ""


def write_records(format: str | None, records: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Write records with the named columns; JSON and CSV have all fields."""
    writer = make_writer(format)
    shown = (
        columns if (format or choose_format()) in ("table", "markdown") else list(records[0] if records else columns)
    )
    writer.begin(shown, [_guess_type([record.get(name) for record in records]) for name in shown])
    writer.rows([record.get(name) for name in shown] for record in records)
    writer.end()


def write_record(format: str | None, record: dict[str, Any]) -> None:
    """Write one record; in a table, one field per line."""
    if (format or choose_format()) not in ("table", "markdown"):
        write_records(format, [record], list(record))
        return
    writer = make_writer(format)
    writer.begin(["field", "value"], ["", ""])
    writer.rows([name, value] for name, value in record.items())
    writer.end()
