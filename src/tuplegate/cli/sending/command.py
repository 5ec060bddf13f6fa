"""`database send`: make a database's definitions in another service, copy its rows, compare, and report."""

import os
from typing import TYPE_CHECKING, Any

import click

from tuplegate.cli import remote
from tuplegate.cli.exits import Exit
from tuplegate.cli.output import write_records
from tuplegate.cli.sending.definitions import Record, Relation, read_definitions
from tuplegate.cli.sending.report import COLUMNS, Report, Result
from tuplegate.cli.sending.rows import digest_rows, send_rows
from tuplegate.cli.sending.target import Target
from tuplegate.cli.transfer import ProgressLine

if TYPE_CHECKING:
    from tuplegate.client import Client

_STATEMENT_S = 600.0


@click.command("send")
@click.option("--to-profile", metavar="NAME", help="Address and key of the service that receives, from this profile.")
@click.option("--to-url", metavar="URL", help="Its address; its key is in TUPLEGATE_TO_API_KEY.")
@click.option("--to-database", metavar="NAME", help="Its database, where its key is for all of them. It must be empty.")
@remote.options
def send(to_profile: str | None, to_url: str | None, to_database: str | None, format: str | None, **where: Any) -> None:
    """Copy a database of PostgreSQL into an empty one of another service, whose engine may be of another kind.

    Definitions that the other engine does not take are changed or left out, and the report says which. Rows are
    compared in the end. Nobody should write to the database meanwhile: the comparison would find it different.
    """
    with (
        remote.translate_failures(),
        remote.connect(**where) as source,
        _connect(to_profile, to_url, to_database) as to,
    ):
        report = send_database(source, to)
    write_records(format, report.findings, COLUMNS)
    changed, missing = report.count(Result.CHANGED), report.count(Result.MISSING)
    click.echo(f"{report.count(Result.SAME)} tables are the same; {changed} changed, {missing} missing", err=True)
    if different := report.count(Result.DIFFERENT):
        raise remote.Failed(f"the rows of {different} tables are not the same", Exit.FAILED)


def _connect(profile: str | None, url: str | None, database: str | None) -> Any:
    if (profile is None) == (url is None):
        raise click.UsageError("say where to: --to-profile or --to-url")
    if profile is not None:
        return remote.connect(profile, None, None, database, _STATEMENT_S, None)
    from tuplegate.client import Client

    key = os.environ.get("TUPLEGATE_TO_API_KEY")
    if not key:
        raise click.UsageError("there is no key for the service that receives: set TUPLEGATE_TO_API_KEY")
    try:
        return Client(url, key, database=database, timeout_s=_STATEMENT_S, ca_file=remote.choose_ca_file(None, None))
    except (OSError, ValueError) as exc:
        raise click.UsageError(str(exc)) from exc


def send_database(source: "Client", to: "Client") -> Report:
    """Send everything; return what became of it."""
    report = Report()
    if (kind := source.health()["engine"]["kind"]) != "postgresql":
        raise remote.Failed(
            f"the database is on {kind}, whose catalog does not tell all that would have to be sent",
            Exit.NOT_THERE,
            ("Only a database on PostgreSQL can be sent; to any engine.",),
        )
    if read_definitions(to).relations:
        raise remote.Failed("the database that receives is not empty", Exit.NOT_THERE, ("Nothing was sent.",))
    found = read_definitions(source)
    target = Target(to, report)
    target.make_types(found)
    target.make_sequences(found)
    made: list[tuple[Relation, list[Record]]] = []
    for table in found.tables:
        columns = target.make_table(table)
        if columns is not None:
            _send_rows(source, to, table, columns)
            made.append((table, columns))
    for table, _ in made:
        target.finish_table(table)
    for table, _ in made:
        target.link_table(table)
    target.make_views([one for one in found.relations if one.kind in ("v", "m")])
    target.set_sequences(found)
    target.report_foreign(found)
    for table, columns in made:
        _compare(source, to, table, columns, report)
    return report


def _send_rows(source: "Client", to: "Client", table: Relation, columns: list[Record]) -> None:
    progress = ProgressLine()
    try:
        send_rows(source, to, table, columns, progress)
    finally:
        progress.end()


def _compare(source: "Client", to: "Client", table: Relation, columns: list[Record], report: Report) -> None:
    (here, digest), (there, other) = digest_rows(source, table, columns), digest_rows(to, table, columns)
    if (here, digest) == (there, other):
        report.add("rows", table.full_name, Result.SAME, f"{here:,} rows")
    else:
        note = (
            f"{here:,} rows here, {there:,} there" if here != there else f"{here:,} rows, not all with the same values"
        )
        report.add("rows", table.full_name, Result.DIFFERENT, note)
