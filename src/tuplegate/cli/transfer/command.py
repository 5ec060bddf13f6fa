"""`import` and `export`: load files into tables, and write rows to files."""

import errno
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from tuplegate.cli.exits import Exit
from tuplegate.cli.output import CsvWriter, JsonLinesWriter, OutputWriter, escape_controls, write_records
from tuplegate.cli.remote import Failed, describe_failure, find_exit, with_client
from tuplegate.cli.transfer import files
from tuplegate.cli.transfer.csv_form import CsvForm, csv_options
from tuplegate.protocol.statements import first_keyword
from tuplegate.protocol.time_limits import is_exported

if TYPE_CHECKING:
    from tuplegate.cli.transfer.exports import ExportPlan
    from tuplegate.cli.transfer.imports import TargetTable
    from tuplegate.cli.transfer.resuming import PartFile
    from tuplegate.client import Client

Digits = dict[str, tuple[int, int]]
"""Precision and scale of numeric columns."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_GO_ON = "the table has all rows of the file or none; start it again and it goes on"
_COLLECTED_EVERY = 200_000
"""Threshold of Python's garbage collector during an import, in objects."""
_FILE = click.Path(path_type=Path, dir_okay=False)


def describe_rows(number: float) -> str:
    return f"{number:,.0f} rows"


class ProgressLine:
    """Shows count, rate and remaining time on one line of a terminal; nothing elsewhere. `say` adds the unit."""

    def __init__(self, say: Callable[[float], str] = describe_rows) -> None:
        self._say = say
        self._started = self._shown = time.monotonic()
        self._first: tuple[int, float] | None = None

    def __call__(self, rows: int, share: float = 0.0) -> None:
        """Update the line. `share` is the part that is done, from 0 to 1, if known."""
        now = time.monotonic()
        first_rows, first_share = self._first = self._first or (rows, share)
        if not sys.stderr.isatty() or now - self._shown < 0.1:
            return
        self._shown = now
        passed = now - self._started
        text = f"{self._say(rows)}, {self._say((rows - first_rows) / passed)} a second"
        if share > first_share:
            text = f"{share:4.0%}  {text}, {(1 - share) / (share - first_share) * passed:,.0f} s left"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def end(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")


def _open_source(path: Path, format: str, form: CsvForm) -> files.RowSource:
    """Open the file. `form` applies to CSV only."""
    match format:
        case "csv":
            from tuplegate.cli.transfer.csv_file import CsvFile

            return CsvFile(path, form)
        case "ndjson":
            from tuplegate.cli.transfer.ndjson_file import NdjsonFile

            return NdjsonFile(path)
        case _:
            from tuplegate.cli.transfer.parquet_file import ParquetSource

            return ParquetSource(path)


@click.command("import")
@click.argument("file", type=_FILE)
@click.option("--table", required=True, metavar="NAME", help="The table, as SQL names it.")
@click.option("--format", "kind", type=click.Choice(files.FORMATS), help="What FILE is. [by its name]")
@click.option("--create", is_flag=True, help="Make the table where there is none, with guessed types.")
@click.option("--dry-run", is_flag=True, help="Read the file, show columns and types, and change nothing.")
@click.option("--job", default="", metavar="NAME", help="Tells a second import of the same file from the first.")
@with_client
@csv_options
def import_(
    client: "Client",
    format: str | None,
    file: Path,
    table: str,
    kind: str | None,
    form: CsvForm,
    create: bool,
    dry_run: bool,
    job: str,
) -> None:
    """Load a CSV, NDJSON or Parquet file into a table: all of it or nothing, and once.

    An import that was cut off goes on where it was when it is started again. CSV has a first line with the names of the
    columns, or all columns of the table in their order. An empty field is NULL, and "" is the empty text.
    """
    from tuplegate.cli.transfer.imports import ImportFailed, ImportJob, find_target, fit_columns
    from tuplegate.client import TuplegateError

    # Rows are many objects without cycles: the garbage collector need not scan them so often.
    threshold = gc.get_threshold()
    gc.set_threshold(_COLLECTED_EVERY, *threshold[1:])
    progress = ProgressLine()
    try:
        kind = files.find_format(file, kind)
        form.check(kind)
        source = _open_source(file, kind, form)
        target = find_target(client, table)
        if target is None and (create or dry_run) and (doubt := source.doubt(())):
            raise ImportFailed(doubt)
        if dry_run:
            _show_guessed(format, source, target)
            return
        if target is None and create:
            _create_table(client, table, source)
            target = find_target(client, table)
        if target is None:
            raise ImportFailed(f"there is no table {table}; --create makes one")
        fit_columns(source, target)
        done = ImportJob(client, source, kind, target, job).run(progress)
    except files.BadFile as exc:
        raise Failed(str(exc), Exit.FILE) from exc
    except ImportFailed as exc:
        raise Failed(str(exc), Exit.FILE, tuple(filter(None, exc.more))) from exc
    except TuplegateError as error:
        cut_off = find_exit(error) in (Exit.UNREACHABLE, Exit.TRY_LATER, Exit.UNKNOWN)
        raise describe_failure(error, "", *([_GO_ON] if cut_off else [])) from error
    except KeyboardInterrupt:
        raise Failed(f"interrupted: {_GO_ON}", Exit.INTERRUPTED) from None
    finally:
        progress.end()
        gc.set_threshold(*threshold)
    if done.before:
        click.echo(f"{file} was imported before; --job NAME imports it once more", err=True)
    else:
        resumed = f", {done.resumed_at} of them by an earlier start" if done.resumed_at else ""
        click.echo(f"{done.rows} rows imported{resumed}", err=True)


def _create_table(client: "Client", table: str, source: files.RowSource) -> None:
    from tuplegate.cli.transfer.imports import create_target

    guessed = source.guess()
    create_target(client, table, source, guessed)
    columns = ", ".join(f"{name} {type_}" for name, type_ in zip(source.columns, guessed.types, strict=True))
    click.echo(escape_controls(f"made the table {table}: {columns}"), err=True)


def _show_guessed(format: str | None, source: files.RowSource, target: "TargetTable | None") -> None:
    from tuplegate.cli.transfer.imports import fit_columns

    if target is not None and not source.named:
        fit_columns(source, target)
    guessed = source.guess()
    types = {name: column.type for name, column in target.columns.items()} if target else {}
    pairs = zip(source.columns, guessed.types, strict=True)
    shown = [{"column": name, "guessed": guess, "type_in_table": types.get(name)} for name, guess in pairs]
    write_records(format, shown, ("column", "guessed", "type_in_table"))
    if target is not None and (doubt := source.doubt(target.columns)):
        click.echo(doubt, err=True)
    click.echo(f"{guessed.rows} rows; nothing was changed", err=True)


@click.command()
@click.argument("sql")
@click.argument("file", type=_FILE)
@click.option("--format", "kind", type=click.Choice(files.FORMATS), help="What FILE becomes. [by its name]")
@with_client
@csv_options
def export(client: "Client", format: str | None, sql: str, file: Path, kind: str | None, form: CsvForm) -> None:
    """Write the rows of a SELECT into a CSV, NDJSON or Parquet file.

    The file has its name once it is whole. SQL can also be the name of a table. In CSV NULL is an empty field, and the
    empty text is "". What `import` makes of the file are the same values; a value that the format cannot carry is
    refused. If the export of a table with a primary key into CSV or NDJSON is cut off, it goes on when it is started
    again.
    """
    from tuplegate.cli.transfer.exports import plan_export
    from tuplegate.cli.transfer.resuming import NO_KEY, PartFile, find_key
    from tuplegate.client import TuplegateError

    table = sql if " " not in sql.strip() else None
    if table is not None:
        sql = f"select * from {table}"
    try:
        kind = files.find_format(file, kind)
        form.check(kind)
        digits = _find_digits(client, table) if kind == "parquet" and table is not None else {}
    except files.BadFile as exc:
        raise Failed(str(exc), Exit.FILE) from exc
    try:
        plan = plan_export(client, sql, kind)
    except files.BadFile as exc:
        raise Failed(f"{exc}; {file} is as it was", Exit.FILE) from exc
    key = NO_KEY if table is None or plan is None else find_key(client, table, kind, plan)
    part = PartFile(file, repr((sql, kind, form)), key)
    try:
        with part:
            count = _export(client, sql, kind, plan, part, partial(_open_writer, kind, part, digits, form))
    except TuplegateError as error:
        more = [f"{part.kept} rows are kept: started again, it goes on behind them"] if part.kept else []
        raise describe_failure(error, sql, *more) from error
    except KeyboardInterrupt:
        kept = f": started again, it goes on behind {part.kept} rows" if part.kept else ""
        raise Failed(f"interrupted{kept}", Exit.INTERRUPTED) from None
    except OSError as exc:
        code = Exit.OUTPUT if exc.errno in NO_ROOM else Exit.FILE
        raise Failed(f"{file} cannot be written: {exc.strerror}; it is as it was", code) from exc
    except files.BadFile as exc:
        raise Failed(f"{exc}; {file} is as it was", Exit.FILE) from exc
    except UnicodeEncodeError as exc:
        character = exc.object[exc.start]
        cause = f"{exc.encoding} has no {character!r} (U+{ord(character):04X})"
        raise Failed(f"{cause}: choose another --encoding, such as utf-8; {file} is as it was", Exit.FILE) from exc
    click.echo(f"{part.rows + count} rows exported", err=True)
    if part.rows:
        click.echo(
            f"{part.rows} of them by an earlier start: rows that were changed in between can be of two moments",
            err=True,
        )


def _export(
    client: "Client",
    sql: str,
    kind: str,
    plan: "ExportPlan | None",
    part: "PartFile",
    open_writer: Callable[[], AbstractContextManager[tuple[OutputWriter, IO[Any]]]],
) -> int:
    from tuplegate.cli.transfer.exports import accept_answer

    progress = ProgressLine()
    count = 0
    try:
        query, params = part.write_query(sql)
        if plan is not None:
            query = plan.write_query(query, part.key)
        timeout_s = click.get_current_context().params.get("timeout_s")
        only_reads = is_exported(first_keyword(sql)[0])
        stream = client.stream(query, params, convert=False, export=only_reads, timeout_s=timeout_s)
        with stream, open_writer() as (writer, file):
            plan = plan or accept_answer(stream.columns, stream.types, kind)
            part.begin(plan.columns, plan.types)
            writer.begin(plan.columns, plan.types)
            while rows := stream.next_tuples():
                written = plan.read(rows)
                writer.rows(written)
                count += len(rows)
                part.note(count, written[-1], file)
                progress(count)
            writer.end()
    finally:
        progress.end()
    return count


@contextmanager
def _open_writer(kind: str, part: "PartFile", digits: Digits, form: CsvForm) -> Iterator[tuple[OutputWriter, IO[Any]]]:
    """Yield a writer for this kind of file, and the file. The file is on the disk afterwards."""
    if kind == "parquet":
        from tuplegate.cli.transfer.parquet_file import ParquetWriter

        with part.path.open("wb") as binary, closing(ParquetWriter(binary, digits)) as parquet:
            yield parquet, binary
            binary.flush()
            os.fsync(binary.fileno())
        return
    with part.path.open("a" if part.rows else "w", encoding=form.encoding or "utf-8", newline="") as text:
        try:
            if kind == "csv":
                has_header = form.header is not False and not part.rows
                yield CsvWriter(text, form.delimiter or ",", form.null or "", has_header), text
            else:
                yield JsonLinesWriter(text, terminal=False), text
        finally:
            text.flush()
            os.fsync(text.fileno())


def _find_digits(client: "Client", table: str) -> Digits:
    """Return precision and scale of the table's numeric columns that have them."""
    rows = client.query(
        "select attname, (atttypmod - 4) >> 16 & 65535 as precision, (atttypmod - 4) & 2047 as scale "
        "from pg_attribute where attrelid = to_regclass($1) and atttypid = 'numeric'::regtype and atttypmod >= 4 "
        "and attnum > 0 and not attisdropped",
        [table],
    )
    return {row["attname"]: (row["precision"], row["scale"]) for row in rows}
