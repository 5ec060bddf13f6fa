"""The command `shell`. It imports what it needs when it runs."""

from typing import TYPE_CHECKING

import click

from tuplegate.cli.remote import with_client

if TYPE_CHECKING:
    from tuplegate.client import Client


@click.command()
@with_client
def shell(client: "Client", format: str | None) -> None:
    """Type SQL and see rows. \\? lists the commands; statements piped in are run one after the other."""
    from tuplegate.cli.shell.conversation import run_shell

    run_shell(client, format)
