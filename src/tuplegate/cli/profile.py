"""`profile`: manage named addresses and keys."""

import sys
from dataclasses import replace
from pathlib import Path

import click

from tuplegate.cli import profiles
from tuplegate.cli.output import FORMATS, write_records
from tuplegate.cli.profiles import Profile, Profiles


@click.group()
def profile() -> None:
    """Addresses and keys of services under names."""


@profile.command("list")
@click.option("-o", "--output", "format", type=click.Choice(FORMATS), help="Form of the output.")
def profile_list(format: str | None) -> None:
    """List them; keys are shown by their first letters alone."""
    loaded = profiles.load()
    rows = [
        {
            "name": name,
            "default": name == loaded.default,
            "url": found.url,
            "control_url": found.control_url,
            "database": found.database,
            "key": f"{found.api_key[:10]}…" if found.api_key else None,
        }
        for name, found in sorted(loaded.by_name.items())
    ]
    write_records(format, rows, ("name", "default", "url", "control_url", "database", "key"))


@profile.command("set")
@click.argument("name")
@click.option("--url", metavar="URL", help="Address of the service.")
@click.option("--control-url", metavar="URL", help="Address of its control plane.")
@click.option("--database", metavar="NAME", help="Database, where the key is for all of them.")
@click.option("--ca-file", type=click.Path(exists=True, dir_okay=False), help="Certificates to trust.")
@click.option("--key/--no-key", "with_key", default=True, help="Whether to ask for a key, or read one from stdin.")
@click.option("--default", is_flag=True, help="Use it where no profile is named.")
def profile_set(
    name: str,
    url: str | None,
    control_url: str | None,
    database: str | None,
    ca_file: str | None,
    with_key: bool,
    default: bool,
) -> None:
    """Make or change a profile. The key is asked for, or read from stdin; it is never an argument."""
    from tuplegate.client.addresses import check_url

    try:
        url, control_url = (check_url(address) if address else None for address in (url, control_url))
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    loaded = profiles.load()
    old = loaded.by_name.get(name, Profile())
    given = {
        "url": url,
        "control_url": control_url,
        "database": database,
        "ca_file": str(Path(ca_file).resolve()) if ca_file else None,
        "api_key": _read_key() if with_key else None,
    }
    changed = replace(old, **{field: value for field, value in given.items() if value is not None})
    chosen = name if default or not loaded.by_name else loaded.default
    profiles.save(Profiles(chosen, {**loaded.by_name, name: changed}))
    click.echo(f"the profile {name} is in {profiles.find_path()}", err=True)


def _read_key() -> str:
    if sys.stdin.isatty():
        key: str = click.prompt("API key", hide_input=True, err=True)
    else:
        key = sys.stdin.readline()
    if not key.strip():
        raise click.UsageError("there is no key on stdin; --no-key makes a profile without one")
    return key.strip()


@profile.command("use")
@click.argument("name")
def profile_use(name: str) -> None:
    """Make a profile the default."""
    loaded = profiles.load()
    profiles.find(name)
    profiles.save(Profiles(name, loaded.by_name))


@profile.command("remove")
@click.argument("name")
def profile_remove(name: str) -> None:
    """Forget a profile and its key."""
    loaded = profiles.load()
    profiles.find(name)
    left = {other: found for other, found in loaded.by_name.items() if other != name}
    profiles.save(Profiles(loaded.default if loaded.default in left else None, left))
