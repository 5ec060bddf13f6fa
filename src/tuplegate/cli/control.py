"""`session`, `database`, `key`, `organization`, `engine`: commands of the control plane."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tuplegate.cli.output import write_record, write_records
from tuplegate.cli.remote import connect, options, translate_failures, with_client
from tuplegate.cli.sending.command import send

if TYPE_CHECKING:
    from tuplegate.client import Client

SCOPES = click.Choice(["read", "write", "admin", "operator"])
CONSISTENCY = click.Choice(["serializable", "snapshot"])


def _get_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a record, with times as text. Leave out rare fields that this one lacks."""
    made = {name: _write_value(value) for name, value in asdict(record).items()}
    return {name: value for name, value in made.items() if value is not None or name not in _ONLY_SOMETIMES}


_ONLY_SOMETIMES = ("key", "token", "current")


def _write_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return list(value) if isinstance(value, tuple) else value


def _write(format: str | None, records: Sequence[Any], *columns: str) -> None:
    write_records(format, [_get_fields(record) for record in records], columns)


# -- sessions ------------------------------------------------------------------------------------------------------


@click.group()
def session() -> None:
    """Sessions: tokens of 24 hours in place of a key."""


@session.command("login")
@click.option("--scope", "scopes", multiple=True, type=SCOPES, help="Fewer rights than the key's; may be repeated.")
@click.option("--expires-in", type=click.IntRange(min=1), metavar="SECONDS", help="A shorter life than 24 hours.")
@options
def session_login(
    format: str | None, scopes: tuple[str, ...], database: str | None, expires_in: int | None, **where: Any
) -> None:
    """Begin a session and print its token, once. With --database it is for that one alone."""
    with translate_failures(), connect(database=None, **where) as client:
        write_record(format, _get_fields(client.login(scopes=scopes or None, database=database, expires_in=expires_in)))


@session.command("show")
@with_client
def session_show(client: "Client", format: str | None) -> None:
    """Show the session whose token is used."""
    write_record(format, _get_fields(client.who_am_i()))


@session.command("refresh")
@with_client
def session_refresh(client: "Client", format: str | None) -> None:
    """Make the session last longer, by as much as it was to last."""
    write_record(format, _get_fields(client.refresh()))


@session.command("logout")
@with_client
def session_logout(client: "Client", format: str | None) -> None:
    """End the session."""
    client.logout()
    click.echo("the session has ended", err=True)


@session.command("list")
@with_client
def session_list(client: "Client", format: str | None) -> None:
    """List the open sessions of the organization. Needs the scope admin."""
    columns = ("id", "key", "scopes", "database", "created_at", "expires_at", "current")
    _write(format, client.sessions.list(), *columns)


@session.command("end")
@click.argument("id")
@with_client
def session_end(client: "Client", format: str | None, id: str) -> None:
    """End the session of somebody else. Needs the scope admin."""
    client.sessions.end(id)
    click.echo(f"the session {id} has ended", err=True)


# -- databases -----------------------------------------------------------------------------------------------------


@click.group()
def database() -> None:
    """Databases of the organization."""


@database.command("list")
@with_client
def database_list(client: "Client", format: str | None) -> None:
    """List them."""
    columns = ("name", "state", "engine", "default", "delete_protection", "size_bytes", "created_at")
    _write(format, client.databases.list(), *columns)


@database.command("create")
@click.argument("name")
@with_client
def database_create(client: "Client", format: str | None, name: str) -> None:
    """Make an empty database."""
    write_record(format, _get_fields(client.databases.create(name)))


@database.command("clone")
@click.argument("source")
@click.argument("name")
@with_client
def database_clone(client: "Client", format: str | None, source: str, name: str) -> None:
    """Make a database NAME with all that SOURCE holds."""
    write_record(format, _get_fields(client.databases.create(name, clone_of=source)))


@database.command("move")
@click.argument("name")
@click.argument("engine")
@click.option("--organization", metavar="ID", help="The organization whose database it is, if not the key's own.")
@with_client
def database_move(client: "Client", format: str | None, name: str, engine: str, organization: str | None) -> None:
    """Move the database NAME to another ENGINE. Needs the scope operator."""
    write_record(format, _get_fields(client.databases.move(name, engine, organization=organization)))


database.add_command(send)


@database.command("update")
@click.argument("name")
@click.option("--name", "new_name", metavar="NAME", help="A new name for it.")
@click.option("--default", is_flag=True, default=None, help="Make it the organization's default.")
@click.option("--protect/--no-protect", "protection", default=None, help="Whether it is kept from being deleted.")
@with_client
def database_update(
    client: "Client", format: str | None, name: str, new_name: str | None, default: bool | None, protection: bool | None
) -> None:
    """Change its name, make it the default, protect it."""
    if new_name is None and default is None and protection is None:
        raise click.UsageError("say what to change: --name, --default, --protect or --no-protect")
    changed = client.databases.update(name, new_name=new_name, default=default, delete_protection=protection)
    write_record(format, _get_fields(changed))


@database.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
def database_delete(client: "Client", format: str | None, name: str, yes: bool) -> None:
    """Delete a database and all that it holds."""
    _confirm(f"Delete the database {name} and all that it holds?", yes)
    client.databases.delete(name)
    click.echo(f"the database {name} is deleted", err=True)


def _confirm(question: str, yes: bool) -> None:
    """Ask before doing what cannot be undone. A program, which cannot be asked, must pass --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone: say --yes")
    click.confirm(question, abort=True, err=True)


# -- keys ----------------------------------------------------------------------------------------------------------

KEY_COLUMNS = ("id", "name", "hint", "scopes", "database", "state", "consistency", "expires_at", "last_used_at")


@click.command("list")
@with_client
def key_list(client: "Client", format: str | None) -> None:
    """List the keys of the organization."""
    _write(format, client.keys.list(), *KEY_COLUMNS)


@click.command("rotate")
@click.argument("id")
@click.option(
    "--grace", "grace_seconds", type=click.IntRange(min=0), metavar="SECONDS", help="How long the old one works on."
)
@with_client
def key_rotate(client: "Client", format: str | None, id: str, grace_seconds: int | None) -> None:
    """Give a key a new secret, and print it, once."""
    write_record(format, _get_fields(client.keys.rotate(id, grace_seconds=grace_seconds)))


@click.command("revoke")
@click.argument("id")
@with_client
def key_revoke(client: "Client", format: str | None, id: str) -> None:
    """End a key and its sessions."""
    client.keys.revoke(id)
    click.echo(f"the key {id} is revoked", err=True)


def create_key(
    client: "Client",
    format: str | None,
    name: str,
    scopes: Sequence[str],
    database: str | None,
    expires_in: int | None,
    consistency: str | None,
) -> None:
    made = client.keys.create(name, scopes, database=database, expires_in=expires_in, consistency=consistency)
    write_record(format, _get_fields(made))


# -- organizations -------------------------------------------------------------------------------------------------


@click.group()
def organization() -> None:
    """One's own organization, and for operators all of them."""


@organization.command("show")
@click.argument("id", required=False)
@with_client
def organization_show(client: "Client", format: str | None, id: str | None) -> None:
    """Show one's own, or the one with this ID."""
    write_record(format, _get_fields(client.organization() if id is None else client.organizations.get(id)))


@organization.command("usage")
@with_client
def organization_usage(client: "Client", format: str | None) -> None:
    """Show requests, rows, bytes and errors by the hour."""
    write_records(format, client.usage(), ("hour", "database", "requests", "rows", "bytes", "errors"))


@organization.command("audit")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many of the newest.")
@with_client
def organization_audit(client: "Client", format: str | None, limit: int) -> None:
    """Show who did what on the control plane, newest first."""
    write_records(
        format, client.audit(limit=limit), ("at", "action", "subject", "key", "session", "address", "request_id")
    )


@organization.command("list")
@with_client
def organization_list(client: "Client", format: str | None) -> None:
    """List all of them."""
    _write(format, client.organizations.list(), "id", "name", "tier", "created_at")


@organization.command("create")
@click.argument("name")
@click.option("--tier", help="Its tier.")
@with_client
def organization_create(client: "Client", format: str | None, name: str, tier: str | None) -> None:
    """Make one, with its first database and a key, which is printed once."""
    write_record(format, _get_fields(client.organizations.create(name, tier=tier)))


@organization.command("update")
@click.argument("id")
@click.option("--name", help="A new name for it.")
@click.option("--tier", help="A new tier.")
@click.option("--limit", "limits", multiple=True, metavar="NAME=VALUE", help="A limit of its own, as 5min; - for none.")
@with_client
def organization_update(
    client: "Client", format: str | None, id: str, name: str | None, tier: str | None, limits: tuple[str, ...]
) -> None:
    """Change its name, its tier, or limits of its own."""
    if name is None and tier is None and not limits:
        raise click.UsageError("say what to change: --name, --tier or --limit")
    own = dict(map(_read_limit, limits)) if limits else None
    write_record(format, _get_fields(client.organizations.update(id, name=name, tier=tier, limits=own)))


def _read_limit(text: str) -> tuple[str, int | None]:
    from tuplegate.access.limits import read_limit

    name, _, value = text.partition("=")
    try:
        return name, None if value == "-" else read_limit(name, value)
    except ValueError as exc:
        raise click.UsageError(f"--limit {text}: {exc}") from exc


@organization.command("delete")
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
def organization_delete(client: "Client", format: str | None, id: str, yes: bool) -> None:
    """Delete one with all its databases and keys."""
    _confirm(f"Delete the organization {id} with all its databases and keys?", yes)
    client.organizations.delete(id)
    click.echo(f"the organization {id} is deleted", err=True)


# -- engines -------------------------------------------------------------------------------------------------------


@click.group()
def engine() -> None:
    """Engines that databases live on. Needs the scope operator."""


@engine.command("list")
@with_client
def engine_list(client: "Client", format: str | None) -> None:
    """List them, with their databases and their load."""
    columns = ("name", "state", "weight", "databases", "size_bytes", "connections", "running", "problem")
    _write(format, client.engines.list(), *columns)


@engine.command("update")
@click.argument("name")
@click.option("--weight", type=click.IntRange(min=0, max=1000), help="Its share of new databases, beside the others'.")
@click.option("--state", type=click.Choice(["active", "draining"]), help="One that is draining takes no databases.")
@with_client
def engine_update(client: "Client", format: str | None, name: str, weight: int | None, state: str | None) -> None:
    """Change which share of the new databases it takes."""
    if weight is None and state is None:
        raise click.UsageError("say what to change: --weight or --state")
    write_record(format, _get_fields(client.engines.update(name, weight=weight, state=state)))
