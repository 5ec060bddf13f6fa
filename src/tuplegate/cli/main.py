"""The command `tuplegate` with all its subcommands. Each subcommand imports what it needs when it runs."""

import io
import os
import sys
from typing import Any

import click

from tuplegate import __version__
from tuplegate.cli import control, remote
from tuplegate.cli.bench import bench
from tuplegate.cli.console import console
from tuplegate.cli.doctor.command import doctor
from tuplegate.cli.dumps.command import dump, restore
from tuplegate.cli.exits import Exit
from tuplegate.cli.profile import profile
from tuplegate.cli.queries import capabilities, query, tables
from tuplegate.cli.serving import make_key_here, serve
from tuplegate.cli.shell.command import shell
from tuplegate.cli.transfer.command import NO_ROOM, export, import_
from tuplegate.cli.tunnel.command import psql, tunnel


class _Root(click.Group):
    """Ends with an exit code of its own if the output is closed or cannot be written."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            raise click.exceptions.Exit(Exit.PIPE) from None
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise
            _drop_output()
            click.echo(f"error: the output cannot be written: {exc.strerror}", err=True)
            raise click.exceptions.Exit(Exit.OUTPUT) from None
        return done


def _drop_output() -> None:
    """Discard buffered output, so that Python does not try to write it again on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="tuplegate")
def cli() -> None:
    """PostgreSQL over HTTPS."""


@cli.group()
def key() -> None:
    """API keys of the organization."""


@key.command("create")
@click.option("--config", metavar="FILE", help="Settings file of the service.", envvar="TUPLEGATE_CONFIG")
@click.option("--data-dir", metavar="DIR", help="Make it on this machine, in the data directory of the service.")
@click.option("--local", is_flag=True, help="Make it on this machine, in the default data directory.")
@click.option("--name", required=True, help="What the key is for.")
@click.option(
    "--scope", "scopes", multiple=True, required=True, type=control.SCOPES, help="What it may do; may be repeated."
)
@click.option("--expires-in", type=click.IntRange(min=1), metavar="SECONDS", help="How long it is valid.")
@click.option("--consistency", type=control.CONSISTENCY, help="snapshot: replicas may answer its reads. [serializable]")
@remote.options
def key_create(
    config: str | None,
    data_dir: str | None,
    local: bool,
    name: str,
    scopes: tuple[str, ...],
    expires_in: int | None,
    consistency: str | None,
    format: str | None,
    database: str | None,
    **where: Any,
) -> None:
    """Make a key and print it, once.

    With --data-dir, TUPLEGATE_DATA_DIR or --local, or where no service is known, it is made on this machine, whether or
    not the service runs. Otherwise the service is asked, and --database is what the key is for.
    """
    chosen = any(where.values())
    if config or data_dir or local or (not chosen and (os.environ.get("TUPLEGATE_DATA_DIR") or not remote.has_key())):
        if expires_in is not None or database is not None or consistency is not None:
            raise click.UsageError(
                "--expires-in, --database and --consistency need the service; a key made here has none of them"
            )
        make_key_here(format, config, data_dir, name, scopes)
        return
    with remote.translate_failures(), remote.connect(database=None, **where) as client:
        control.create_key(client, format, name, scopes, database, expires_in, consistency)


for command in (control.key_list, control.key_rotate, control.key_revoke):
    key.add_command(command)
for command in (serve, query, shell, import_, export, dump, restore, tables, capabilities, bench, profile, doctor):
    cli.add_command(command)
for command in (console, tunnel, psql, control.session, control.database, control.organization, control.engine):
    cli.add_command(command)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # JSON can hold half a surrogate pair, and a terminal can lack a character: both are shown escaped.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(arguments, prog_name="tuplegate", standalone_mode=False)
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return Exit.INTERRUPTED
    return code if isinstance(code, int) else Exit.DONE
