"""Shared by all commands that talk to a service: which service, with which key, and how failures are shown."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tuplegate.cli.exits import Exit
from tuplegate.cli.output import FORMATS, escape_controls
from tuplegate.cli.profiles import Profile, find

if TYPE_CHECKING:
    from tuplegate.client import Client, TuplegateError

_SERVICE_OPTIONS = (
    click.option("--profile", metavar="NAME", help="Address and key from this profile. [TUPLEGATE_PROFILE]"),
    click.option("--url", metavar="URL", help="Address of the service. [TUPLEGATE_URL]"),
    click.option("--database", metavar="NAME", help="Database, where the key is for all of them."),
    click.option("--ca-file", metavar="FILE", help="Certificates to trust, as PEM. [TUPLEGATE_CA_FILE]"),
)
_OPTIONS = (
    *_SERVICE_OPTIONS,
    click.option("--control-url", metavar="URL", help="Address of its control plane. [TUPLEGATE_CONTROL_URL]"),
    click.option(
        "--timeout", "timeout_s", type=click.FloatRange(min=0.001), metavar="SECONDS", help="Time for the call."
    ),
    click.option(
        "-o",
        "--output",
        "format",
        type=click.Choice(FORMATS),
        help="Form of the output. [table on a terminal, else ndjson]",
    ),
)
_WHERE = ("profile", "url", "control_url", "database", "timeout_s", "ca_file")
"""The options that select the service and the key."""


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that talks to a service."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def service_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select the service and the key, for a command that calls none of its routes."""
    for option in reversed(_SERVICE_OPTIONS):
        command = option(command)
    return command


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, and call the command with a client and an output format as its first arguments."""

    @options
    @functools.wraps(command)
    def run(**given: Any) -> None:
        where = {name: given.pop(name) for name in _WHERE}
        with translate_failures(str(given.get("sql") or "")), connect(**where) as client:
            command(client, given.pop("format"), **given)

    return run


def run_with(client: "Client", command: click.Command, arguments: list[str]) -> None:
    """Run a command made by `with_client` with an existing client."""
    context = command.make_context(command.name, arguments)
    given = {name: value for name, value in context.params.items() if name not in _WHERE}
    inner = command.callback.__wrapped__  # type: ignore[union-attr]  # functools.wraps has put it there
    with context.scope(), translate_failures(str(given.get("sql") or "")):
        inner(client, given.pop("format"), **given)


def choose_service(
    profile: str | None, url: str | None, database: str | None, ca_file: str | None, key_if_none: str | None = None
) -> Profile:
    """Return the selected service, with a key; `key_if_none` is used if there is no other."""
    if profile is not None and url is not None:
        raise click.UsageError("--profile and --url name two services; give one of them")
    found = None if url is not None else find(profile)
    key = (found.api_key if found else os.environ.get("TUPLEGATE_API_KEY")) or key_if_none
    if not key:
        raise click.UsageError(
            "there is no API key: set TUPLEGATE_API_KEY, or keep one with `tuplegate profile set NAME`. The first start"
            " of a service prints one; on its machine `tuplegate key create --local` makes another"
        )
    known = found or Profile()
    return Profile(url or known.url, known.control_url, key, database or known.database, choose_ca_file(ca_file, found))


@contextmanager
def connect(
    profile: str | None,
    url: str | None,
    control_url: str | None,
    database: str | None,
    timeout_s: float | None,
    ca_file: str | None,
    key_if_none: str | None = None,
) -> Iterator["Client"]:
    """Yield a client of the selected service. `key_if_none` is used if there is no key."""
    from tuplegate.client import Client

    chosen = choose_service(profile, url, database, ca_file, key_if_none)
    try:
        client = Client(
            chosen.url,
            chosen.api_key,
            control_url=control_url or chosen.control_url,
            database=chosen.database,
            timeout_s=timeout_s or 60.0,
            ca_file=chosen.ca_file,
        )
    except OSError as exc:  # the TLS library raises one too for a file without certificates
        raise click.UsageError(f"the certificates to trust cannot be read: {exc}") from exc
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    with client:
        yield client


def choose_ca_file(given: str | None, found: Profile | None) -> str | None:
    """Return the certificates to trust: given, from the profile, or from the environment; an empty text means none."""
    if given is None:
        given = (found.ca_file if found else None) or os.environ.get("TUPLEGATE_CA_FILE")
    return given or None


def has_key() -> bool:
    """Return whether there is a service and key to use."""
    return bool(os.environ.get("TUPLEGATE_API_KEY")) or find(None) is not None


class Failed(click.ClickException):
    """A failed call, with its exit code."""

    def __init__(self, message: str, code: Exit, more: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = code  # type: ignore[misc]  # the only way to give an exception of this kind a code of its own
        self.more = more

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {escape_controls(self.message)}", err=True)
        for line in self.more:
            click.echo(escape_controls(line), err=True)


@contextmanager
def translate_failures(sql: str = "") -> Iterator[None]:
    """Turn failures of the client into messages with exit codes. `sql` is shown where the engine points into it."""
    from tuplegate.client import TuplegateError

    try:
        yield
    except TuplegateError as error:
        raise describe_failure(error, sql) from error


def describe_failure(error: "TuplegateError", sql: str = "", *more: str) -> Failed:
    """Return the failure of a call; `more` adds lines."""
    return Failed(_write_message(error), find_exit(error), (*_detail_lines(error, sql), *more))


def find_exit(error: "TuplegateError") -> Exit:
    from tuplegate import client

    table: tuple[tuple[type[TuplegateError], Exit], ...] = (
        (client.ConnectionFailed, Exit.UNREACHABLE),
        (client.OutcomeUnknown, Exit.UNKNOWN),
        (client.StreamCut, Exit.UNKNOWN),
        (client.Unauthenticated, Exit.REFUSED),
        (client.Forbidden, Exit.REFUSED),
        (client.NotFound, Exit.NOT_THERE),
        (client.AlreadyExists, Exit.NOT_THERE),
        (client.TransactionExpired, Exit.NOT_THERE),
        (client.RateLimited, Exit.TRY_LATER),
        (client.Unavailable, Exit.TRY_LATER),
        (client.SqlError, Exit.SQL),
    )
    return next((code for kind, code in table if isinstance(error, kind)), Exit.FAILED)


def _write_message(error: "TuplegateError") -> str:
    return error.message if error.sqlstate is None else f"{error.message} ({error.sqlstate})"


def _detail_lines(error: "TuplegateError", sql: str) -> tuple[str, ...]:
    lines = _point_into(sql, error.position) if error.position is not None else []
    if error.detail:
        lines.append(f"detail: {error.detail}")
    if error.hint:
        lines.append(f"hint: {error.hint}")
    if error.code == "timeout":
        lines.append("hint: the option --timeout SECONDS asks for more time, or for less")
    if error.request_id and error.status == 500:
        lines.append(f"request id: {error.request_id}")
    return tuple(lines)


def _point_into(sql: str, position: int) -> list[str]:
    """Return the line of the statement that the engine points to, and a mark below it. Positions count from 1."""
    start = sql.rfind("\n", 0, position - 1) + 1
    line = sql[start:].split("\n", 1)[0].replace("\t", " ")
    if not line or position - 1 - start > len(line):
        return []
    return [f"  {line}", "  " + " " * (position - 1 - start) + "^"]
