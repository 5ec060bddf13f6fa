"""`import` and `export`: files into tables, and rows into files."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from querygate.cli import files
from querygate.cli.exits import Exit
from querygate.cli.output import Csv, JsonLines, Writer, write_records
from querygate.cli.remote import Failed, with_client

if TYPE_CHECKING:
    from querygate.client import Client

_FILE = click.Path(path_type=Path, dir_okay=False)


def in_rows(number: float) -> str:
    return f"{number:,.0f} rows"


class Progress:
    """How many, the rate and the time left, on one line of a terminal; nothing elsewhere. `say` names the unit."""

    def __init__(self, total: int | None, say: Callable[[float], str] = in_rows) -> None:
        self._total = total
        self._say = say
        self._started = self._shown = time.monotonic()
        self._first: int | None = None

    def __call__(self, rows: int) -> None:
        now = time.monotonic()
        self._first = rows if self._first is None else self._first
        if not sys.stderr.isatty() or now - self._shown < 0.1:
            return
        self._shown = now
        rate = (rows - self._first) / (now - self._started)
        text = f"{self._say(rows)}, {self._say(rate)} a second"
        if self._total and rate:
            text = f"{rows / self._total:4.0%}  {text}, {(self._total - rows) / rate:,.0f} s left"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def end(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")


@click.command("import")
@click.argument("file", type=_FILE)
@click.option("--table", required=True, metavar="NAME", help="The table, as SQL names it.")
@click.option("--format", "kind", type=click.Choice(files.FORMATS), help="What FILE is. [by its name]")
@click.option("--null", default="", metavar="TEXT", help="What stands for NULL in CSV. [default: an empty field]")
@click.option("--create", is_flag=True, help="Make the table where there is none, with guessed types.")
@click.option("--dry-run", is_flag=True, help="Read the file, show columns and types, and change nothing.")
@click.option("--job", default="", metavar="NAME", help="Tells a second import of the same file from the first.")
@with_client
def import_(
    client: "Client",
    format: str | None,
    file: Path,
    table: str,
    kind: str | None,
    null: str,
    create: bool,
    dry_run: bool,
    job: str,
) -> None:
    """Load a CSV or NDJSON file into a table: all of it or nothing, and once.

    An import that was cut off goes on where it was when it is started again. CSV has a first line with the names of the
    columns.
    """
    from querygate.cli.imports import ImportFailed, Job, create_target, find_target

    try:
        kind = files.format_of(file, kind)
        summary = files.scan(file, kind, null)
        target = find_target(client, table)
        if dry_run:
            types = target.types if target else {}
            pairs = zip(summary.columns, summary.types, strict=True)
            shown = [{"column": n, "guessed": t, "type_in_table": types.get(n)} for n, t in pairs]
            write_records(format, shown, ("column", "guessed", "type_in_table"))
            click.echo(f"{summary.rows} rows; nothing was changed", err=True)
            return
        if target is None and create:
            create_target(client, table, summary)
            target = find_target(client, table)
        if target is None:
            raise ImportFailed(f"there is no table {table}; --create makes one")
        unknown = [name for name in summary.columns if name not in target.types]
        if unknown:
            raise ImportFailed(f"the table has no column {', '.join(unknown)}; it has {', '.join(target.types)}")
        progress = Progress(summary.rows)
        done = Job(client, file, kind, null, summary, target).run(job, progress)
        progress.end()
    except (files.BadFile, ImportFailed) as exc:
        raise Failed(str(exc), Exit.FILE) from exc
    if done.before:
        click.echo(f"{file} was imported before; --job NAME imports it once more", err=True)
    else:
        resumed = f", {done.resumed_at} of them by an earlier start" if done.resumed_at else ""
        click.echo(f"{done.rows} rows imported{resumed}", err=True)


@click.command()
@click.argument("sql")
@click.argument("file", type=_FILE)
@click.option("--format", "kind", type=click.Choice(files.FORMATS), help="What FILE becomes. [by its name]")
@with_client
def export(client: "Client", format: str | None, sql: str, file: Path, kind: str | None) -> None:
    """Write the rows of a SELECT into a CSV or NDJSON file.

    The file has its name once it is whole. SQL can also be the name of a table.
    """
    if " " not in sql.strip():
        sql = f"select * from {sql}"
    try:
        kind = files.format_of(file, kind)
    except files.BadFile as exc:
        raise Failed(str(exc), Exit.FILE) from exc
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as out:
            count = _export(client, sql, _writer(kind, out))
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    except FileNotFoundError as exc:
        raise Failed(f"{file} cannot be written: {exc.strerror}", Exit.FILE) from exc
    finally:
        part.unlink(missing_ok=True)
    click.echo(f"{count} rows exported", err=True)


def _writer(kind: str, out: IO[str]) -> Writer:
    return Csv(out) if kind == "csv" else JsonLines(out, terminal=False)


def _export(client: "Client", sql: str, writer: Writer) -> int:
    progress = Progress(None)
    count = 0
    with client.stream(sql, convert=False) as stream:
        writer.begin(stream.columns, stream.types)
        while rows := stream.next_tuples():
            writer.rows(rows)
            count += len(rows)
            progress(count)
    writer.end()
    progress.end()
    return count
