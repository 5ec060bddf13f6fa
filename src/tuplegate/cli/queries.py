"""`query`, `tables`, `capabilities`: commands of the data plane."""

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

import click

from tuplegate.cli.output import OutputWriter, choose_format, escape_controls, make_writer, write_record, write_records
from tuplegate.cli.remote import with_client
from tuplegate.protocol.statements import first_keyword

if TYPE_CHECKING:
    from tuplegate.client import Client, OpenTransaction


def _read_sql(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return the statement: given, from a file, or from stdin."""
    file: IO[str] | None = ctx.params.get("file")
    if file is not None and value is not None:
        raise click.UsageError("give SQL or --file, not both")
    if file is not None:
        return file.read()
    if value is not None and value != "-":
        return value
    if value is None and sys.stdin.isatty():
        raise click.UsageError("there is no SQL: give it, or --file, or pipe it in")
    return sys.stdin.read()


def _read_params(ctx: click.Context, param: click.Parameter, value: str | None) -> list[Any]:
    from tuplegate.client.values import read_json

    if value is None:
        return []
    try:
        read = read_json(value.encode("utf-8", "surrogatepass"), exact=True)
    except ValueError as exc:
        raise click.BadParameter(f"this is not JSON: {exc}") from exc
    if not isinstance(read, list):
        raise click.BadParameter('this is no JSON array; one looks like [1, "two", null]')
    return read


@click.command()
@click.option(
    "-f", "--file", type=click.File("r", encoding="utf-8"), is_eager=True, help="Read the statement from FILE."
)
@click.option("-p", "--param", "texts", multiple=True, metavar="TEXT", help="Value of the next placeholder, as text.")
@click.option("--params", callback=_read_params, metavar="JSON", help="Values of $1, $2, … as a JSON array.")
@click.option("--max-rows", type=click.IntRange(min=0), metavar="N", help="Most rows to get.")
@click.argument("sql", required=False, callback=_read_sql)
@with_client
def query(
    client: "Client",
    format: str | None,
    sql: str,
    file: object,
    texts: tuple[str, ...],
    params: list[Any],
    max_rows: int | None,
) -> None:
    """Run one SQL statement and write its rows.

    What reads is streamed, in constant memory. What writes is safe to lose the connection at: it is applied once.
    """
    if texts and params:
        raise click.UsageError("give --param or --params, not both")
    started = time.monotonic()
    summary = run_query(client, make_writer(format), sys.stdout.flush, sql, [*texts, *params], max_rows)
    report_summary(summary, max_rows)
    if sys.stderr.isatty():
        click.echo(f"({summary.counted}, {(time.monotonic() - started) * 1000:.0f} ms)", err=True)


@dataclass(frozen=True)
class QuerySummary:
    """Count, notices and truncation of a result, beside its rows."""

    counted: str
    notices: list[Any]
    truncated: bool


def run_query(
    client: "Client | OpenTransaction",
    writer: OutputWriter,
    flush: Callable[[], Any],
    sql: str,
    params: list[Any],
    max_rows: int | None,
) -> QuerySummary:
    """Run a statement and write its rows. Rows of a read are written as they arrive."""
    from tuplegate.client.statements import seems_to_read

    if seems_to_read(sql):
        with client.stream(sql, params, max_rows=max_rows, convert=False) as stream:
            writer.begin(stream.columns, stream.types)
            while rows := stream.next_tuples():
                writer.rows(rows)
                flush()
        writer.end()
        return QuerySummary(_count_rows(stream.row_count), stream.notices, stream.truncated)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the summary reports it
        done = client.query(sql, params, max_rows=max_rows, convert=False)
    if done.columns:
        writer.begin(done.columns, done.types)
        writer.rows(done.tuples())
        writer.end()
    counts = done.affected_rows or first_keyword(sql)[0] in _COUNTED
    return QuerySummary(
        f"{_count_rows(done.affected_rows)} affected" if counts else "done", done.notices, done.truncated
    )


_COUNTED = frozenset({"insert", "update", "delete", "merge", "with"})


def _count_rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def report_summary(summary: QuerySummary, max_rows: int | None) -> None:
    """Report to stderr the engine's notices, and whether rows were cut."""
    for notice in summary.notices:
        click.echo(
            escape_controls(f"{str(notice.get('severity', 'notice')).lower()}: {notice.get('message')}"), err=True
        )
    if summary.truncated and max_rows is None:
        click.echo("warning: the answer was too large and its rows were cut", err=True)


@click.command()
@with_client
def tables(client: "Client", format: str | None) -> None:
    """List the tables and views of the database."""
    format = format or choose_format()
    found = [asdict(table) for table in client.tables()]
    if format not in ("json", "ndjson"):
        # Only JSON has room for the columns themselves.
        found = [{**table, "columns": len(table["columns"])} for table in found]
    write_records(format, found, _TABLE_COLUMNS)


_TABLE_COLUMNS = ("schema", "name", "kind", "columns", "row_estimate", "size_bytes")


@click.command()
@click.argument("name", required=False)
@with_client
def capabilities(client: "Client", format: str | None, name: str | None) -> None:
    """Show what the service and its engine can do; with NAME, run that probe now."""
    if name is not None:
        write_record(format, client.capability(name))
        return
    probes = client.capabilities()["probes"]
    write_records(format, probes, ("name", "group", "title", "supported"))
