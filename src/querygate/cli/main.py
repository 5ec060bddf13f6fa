"""The command `querygate` and its commands. What a command needs is imported when it runs."""

import sys
from pathlib import Path
from typing import Any

import click

from querygate import __version__
from querygate.settings import Entry, Settings, SettingsError, entries, load


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="querygate")
def cli() -> None:
    """PostgreSQL over HTTPS."""


def _option(entry: Entry) -> click.Option:
    kind: Any = click.Choice(entry.choices) if entry.choices else str
    names = [entry.name, entry.flag]
    if entry.kind is bool:
        return click.Option(names, is_flag=True, default=None, help=f"{entry.help} [{entry.variable}]")
    shown = f"{entry.help} [default: {entry.default or 'none'}; {entry.variable}]"
    return click.Option(names, type=kind, default=None, metavar=None if entry.choices else _metavar(entry), help=shown)


def _metavar(entry: Entry) -> str:
    return {int: "N", Path: "DIR"}.get(entry.kind, "TEXT")


def _settings(flags: dict[str, Any]) -> Settings:
    import os

    config = flags.pop("config", None)
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return load(given, os.environ, Path(config) if config else None)
    except SettingsError as exc:
        raise click.UsageError(str(exc)) from exc


def _serve(**flags: Any) -> None:
    """Start the service with its bundled engine. A setting can come from a flag, the environment, or a file."""
    from querygate.engine.postgres.logins import BadUrl, has_password, read_url
    from querygate.serve import ServeError, serve

    try:
        if flags.get("engine") and has_password(read_url(flags["engine"])):
            click.echo(
                "Warning: the password in --engine is visible in the list of processes;"
                " give the URL as QUERYGATE_ENGINE or in the settings file.",
                err=True,
            )
    except BadUrl:
        pass  # it is said when it is used
    try:
        serve(_settings(flags))
    except ServeError as exc:
        raise click.ClickException(str(exc)) from exc


_CONFIG = click.Option(
    ["config", "--config"], metavar="FILE", help="Settings file (TOML). [QUERYGATE_CONFIG]", envvar="QUERYGATE_CONFIG"
)

cli.add_command(
    click.Command(
        "serve", params=[_CONFIG, *(_option(entry) for entry in entries())], callback=_serve, help=_serve.__doc__
    )
)


@cli.group()
def key() -> None:
    """API keys, from the machine that the service runs on."""


@key.command("create")
@click.option("--config", metavar="FILE", help="Settings file of the service.", envvar="QUERYGATE_CONFIG")
@click.option("--data-dir", metavar="DIR", help="Data directory of the service.")
@click.option("--name", required=True, help="What the key is for.")
@click.option(
    "--scope", "scopes", multiple=True, required=True, type=click.Choice(["read", "write", "admin", "operator"]),
    help="What it may do; may be given more than once.",
)  # fmt: skip
def key_create(config: str | None, data_dir: str | None, name: str, scopes: tuple[str, ...]) -> None:
    """Make a key and print it, once. Works whether or not the service runs."""
    from querygate.access.scopes import Scope
    from querygate.local import LocalError, make_local_key

    try:
        made = make_local_key(
            _settings({"config": config, "data_dir": data_dir}), name, [Scope(scope) for scope in scopes]
        )
    except LocalError as exc:
        raise click.ClickException(str(exc)) from exc
    click.echo(f"key: {made}")


def main() -> None:
    try:
        cli(prog_name="querygate")
    except KeyboardInterrupt:
        sys.exit(130)
