"""`dump` and `restore`: write a database to a file that PostgreSQL's tools read, and load one into a new database."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuplegate.cli import remote
from tuplegate.cli.exits import Exit
from tuplegate.cli.remote import Failed, with_client
from tuplegate.cli.transfer.command import ProgressLine
from tuplegate.cli.transfer.files import write_whole

if TYPE_CHECKING:
    from tuplegate.client import Client

_FILE = click.Path(path_type=Path, dir_okay=False)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def _describe_mib(number: float) -> str:
    return f"{number / 2**20:,.1f} MiB"


@click.command()
@click.argument("names", nargs=-1, metavar="[DATABASE] FILE")
@remote.options
def dump(names: tuple[str, ...], database: str | None, format: str | None, **where: Any) -> None:
    """Write all that a database holds into FILE, as pg_restore reads it.

    DATABASE is the default one where it is not given. The file has its name once it is whole. Needs the scope admin.
    """
    if not 1 <= len(names) <= 2:
        raise click.UsageError("say which file to write: tuplegate dump [DATABASE] FILE")
    if len(names) == 2 and database is not None:
        raise click.UsageError("the database is named twice")
    file = Path(names[-1])
    with remote.translate_failures(), remote.connect(database=None, **where) as client:
        name = names[0] if len(names) == 2 else database or _find_default(client)
        written = _write_dump(client, name, file)
    click.echo(f"the database {name} is in {file}, {_describe_mib(written)}", err=True)


def _find_default(client: "Client") -> str:
    """Return the name of the default database, or of the database that the key is bound to."""
    found = client.databases.list()
    names = [one.name for one in found if one.default or len(found) == 1]
    if not names:
        raise Failed("there is no default database; name one", Exit.NOT_THERE)
    return names[0]


def _write_dump(client: "Client", name: str, file: Path) -> int:
    progress = ProgressLine(_describe_mib)
    try:
        # Only its owner may read it: it holds all data of the database.
        with (
            write_whole(file) as part,
            open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out,
        ):
            written = client.databases.dump(name, out, progress=progress)
            out.flush()
            os.fsync(out.fileno())
    except (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError) as exc:
        raise Failed(f"{file} cannot be written: {exc.strerror}", Exit.FILE) from exc
    finally:
        progress.end()
    return written


@click.command()
@click.argument("file", type=_FILE)
@click.argument("name")
@with_client
def restore(client: "Client", format: str | None, file: Path, name: str) -> None:
    """Make a new database NAME of a dump.

    It has that name once it is whole; where something fails on the way, nothing of it stays. FILE is read on this
    machine, by PostgreSQL's pg_restore. Needs the scope admin.
    """
    from tuplegate.cli.dumps.restores import RestoreFailed, check_file, find_program, restore_dump
    from tuplegate.protocol.control import NAME_RULE

    if not _NAME.fullmatch(name):
        raise click.UsageError(f"{name!r} is no name for a database; one is {NAME_RULE}")
    progress = ProgressLine()
    try:
        program = find_program()
        check_file(program, file)
        rows = restore_dump(client, program, file, name, progress, lambda text: click.echo(text, err=True))
    except RestoreFailed as exc:
        raise Failed(str(exc), exc.exit, exc.more) from exc
    finally:
        progress.end()
    click.echo(f"the database {name} is restored, {rows} rows", err=True)
