"""Runs a shell from start to end: with a person at a terminal, or with statements from a pipe."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tuplegate.cli.exits import Exit
from tuplegate.cli.remote import Failed, translate_failures
from tuplegate.cli.shell.commands import run_command
from tuplegate.cli.shell.pager import PagerLeft
from tuplegate.cli.shell.results import Results, say
from tuplegate.cli.shell.shell import Leave, Shell

if TYPE_CHECKING:
    from tuplegate.client import Client


def run_shell(client: "Client", format: str | None) -> None:
    interactive = sys.stdin.isatty()
    shell = Shell(client, Results(format, interactive), run_command)
    if not interactive:
        _run_script(shell)
        return
    from tuplegate.cli.shell.prompt import read_typed_texts

    with translate_failures():
        health = client.health()
        client.query("select 1")  # report an invalid key before anything is typed
    engine = health.get("engine", {})
    say(f"tuplegate {health.get('version')}, {engine.get('kind')} {engine.get('version')}; \\? helps, \\q leaves")
    _converse(shell, read_typed_texts(shell))


def _run_script(shell: Shell) -> None:
    """Run statements from a pipe. The first failure ends it, and so does a transaction that is never committed."""
    try:
        for line in sys.stdin:
            shell.take(line.removesuffix("\n"))
        shell.finish(shell.reader)
    except Leave:
        pass
    except UnicodeDecodeError as exc:
        raise Failed(f"what was piped in is not UTF-8: {exc}", Exit.FILE) from exc
    finally:
        was_open = shell.end_transaction()
    if was_open:
        raise click.exceptions.Exit(Exit.FAILED)


def _converse(shell: Shell, texts: Iterable[str]) -> None:
    """Run what a person types, until they leave. A failure or Ctrl-C ends only the current statement."""
    for text in texts:
        try:
            shell.take(text)
        except Leave:
            break
        except click.ClickException as exc:
            exc.show()
        except KeyboardInterrupt:
            say("cancelled")
        except PagerLeft:
            pass  # it was left just after the last row
    shell.end_transaction()
