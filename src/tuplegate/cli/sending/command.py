"""`database send`: the command."""

import os
from typing import Any

import click

from tuplegate.cli import remote
from tuplegate.cli.exits import Exit
from tuplegate.cli.output import write_records
from tuplegate.cli.sending.report import COLUMNS, Result

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
    from tuplegate.cli.sending.work import send_database

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
