"""Makes a database's definitions in another service, copies its rows, compares, and reports."""

from tuplegate.cli import remote
from tuplegate.cli.exits import Exit
from tuplegate.cli.sending.definitions import Record, Relation, read_definitions
from tuplegate.cli.sending.report import Report, Result
from tuplegate.cli.sending.rows import digest_rows, send_rows
from tuplegate.cli.sending.target import Target
from tuplegate.cli.transfer.command import ProgressLine
from tuplegate.client import Client


def send_database(source: Client, to: Client) -> Report:
    """Send everything; return the report."""
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


def _send_rows(source: Client, to: Client, table: Relation, columns: list[Record]) -> None:
    progress = ProgressLine()
    try:
        send_rows(source, to, table, columns, progress)
    finally:
        progress.end()


def _compare(source: Client, to: Client, table: Relation, columns: list[Record], report: Report) -> None:
    (here, digest), (there, other) = digest_rows(source, table, columns), digest_rows(to, table, columns)
    if (here, digest) == (there, other):
        report.add("rows", table.full_name, Result.SAME, f"{here:,} rows")
    else:
        note = (
            f"{here:,} rows here, {there:,} there" if here != there else f"{here:,} rows, not all with the same values"
        )
        report.add("rows", table.full_name, Result.DIFFERENT, note)
