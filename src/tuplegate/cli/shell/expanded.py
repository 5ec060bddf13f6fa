"""Shows rows with one field per line, always or when they are wider than the screen."""

import io
import shutil
from collections.abc import Iterable, Sequence
from typing import IO, Any

from rich.cells import cell_len

from tuplegate.cli.output import OutputWriter, TableWriter, escape_controls, write_cell

_MEASURED_ROWS = 200
_RULE_WIDTH = 40


class ExpandedWriter:
    """Writes a heading and one line per field for each row; nothing is cut."""

    def __init__(self, out: IO[str]) -> None:
        self._write = out.write
        self._names: list[str] = []
        self._number = 0

    def begin(self, columns: Sequence[str], types: Sequence[str]) -> None:
        names = [escape_controls(name).replace("\n", "↵") for name in columns]
        width = max(map(cell_len, names), default=0)
        self._names = [name + " " * (width - cell_len(name)) for name in names]

    def rows(self, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self._number += 1
            head = f"─[ row {self._number} ]"
            self._write(head + "─" * (_RULE_WIDTH - len(head)) + "\n")
            for name, value in zip(self._names, row, strict=True):
                lines = ["NULL"] if value is None else escape_controls(write_cell(value)).split("\n")
                self._write(f"{name} │ {lines[0]}\n")
                for line in lines[1:]:
                    self._write(" " * cell_len(name) + f" │ {line}\n")

    def end(self) -> None:
        pass


class FittingWriter:
    """Writes a table, or one field per line if the first rows are wider than the screen."""

    def __init__(self, out: IO[str], color: bool) -> None:
        self._out = out
        self._color = color
        self._head: tuple[Sequence[str], Sequence[str]] = ((), ())
        self._waiting: list[Sequence[Any]] = []
        self._writer: OutputWriter | None = None

    def begin(self, columns: Sequence[str], types: Sequence[str]) -> None:
        self._head = (columns, types)

    def rows(self, rows: Iterable[Sequence[Any]]) -> None:
        if self._writer is not None:
            self._writer.rows(rows)
            return
        self._waiting += rows
        if len(self._waiting) >= _MEASURED_ROWS:
            self._choose()

    def end(self) -> None:
        if self._writer is None:
            self._choose()
        assert self._writer is not None
        self._writer.end()

    def _choose(self) -> None:
        drawn = io.StringIO()
        self._fill(TableWriter(drawn, terminal=True, color=False)).end()
        width = max(map(cell_len, drawn.getvalue().splitlines()), default=0)
        fits = width <= shutil.get_terminal_size().columns
        self._writer = self._fill(TableWriter(self._out, True, self._color) if fits else ExpandedWriter(self._out))
        self._waiting = []

    def _fill(self, writer: OutputWriter) -> OutputWriter:
        writer.begin(*self._head)
        writer.rows(self._waiting)
        return writer
