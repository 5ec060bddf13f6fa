"""Shows rows in the shell: the format, the pager, and timing."""

import sys
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, cast

import click

from tuplegate.cli.output import OutputWriter, choose_format, has_color, make_writer
from tuplegate.cli.queries import QuerySummary, report_summary, run_query
from tuplegate.cli.shell.expanded import ExpandedWriter, FittingWriter
from tuplegate.cli.shell.pager import Paged, find_pager

if TYPE_CHECKING:
    from tuplegate.client import Client, OpenTransaction


def say(text: str) -> None:
    """Write to stderr, beside the data."""
    click.echo(text, err=True)


class Results:
    """The way that rows are shown. `expanded` is off, on or auto. `pager` turns paging on; without `interactive` there
    is none."""

    def __init__(self, format: str | None, interactive: bool) -> None:
        self.format = format or choose_format()
        self.expanded = "off"
        self.timing = False
        self.pager = True
        self._interactive = interactive

    def out(self) -> Paged:
        """Return the file that rows are written to, for one result."""
        paged = self.pager and self._interactive and sys.stdout.isatty()
        return Paged(find_pager() if paged else [])

    def writer(self, out: Paged) -> OutputWriter:
        file = cast("IO[str]", out)  # writers only write
        if self.format != "table" or self.expanded == "off":
            return make_writer(self.format, file)
        return ExpandedWriter(file) if self.expanded == "on" else FittingWriter(file, has_color())

    def run(self, client: "Client | OpenTransaction", sql: str) -> None:
        """Run a statement and show its rows as they arrive."""
        started = time.monotonic()
        summary: QuerySummary | None = None
        with self.out() as out:
            summary = run_query(client, self.writer(out), out.flush, sql, [], None)
        if out.left and summary is None:
            say("(the pager was left: the statement was cancelled)")
        if summary is not None:
            report_summary(summary, None)
            self.remark(f"({summary.counted})")
        self.tell_time(started)

    def show(self, columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Show rows that are already here."""
        with self.out() as out:
            self.write(out, columns, types, rows)

    def write(self, out: Paged, columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        writer = self.writer(out)
        writer.begin(columns, types)
        writer.rows(rows)
        writer.end()

    def remark(self, text: str) -> None:
        """Write a remark that only concerns a person."""
        if self._interactive:
            say(text)

    def tell_time(self, started: float) -> None:
        if self.timing:
            say(f"time: {(time.monotonic() - started) * 1000:.0f} ms")
