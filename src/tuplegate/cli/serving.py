"""`serve`, and keys made on the machine itself: commands that need no running service."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from tuplegate.cli.output import write_record
from tuplegate.settings import Setting, Settings, SettingsError, list_settings, load


def _make_option(setting: Setting) -> click.Option:
    kind: Any = click.Choice(setting.choices) if setting.choices else str
    names = [setting.name, setting.flag]
    if setting.kind is bool:
        return click.Option(names, is_flag=True, default=None, help=f"{setting.help} [{setting.variable}]")
    shown = f"{setting.help} [default: {setting.default or 'none'}; {setting.variable}]"
    return click.Option(
        names, type=kind, default=None, metavar=None if setting.choices else _metavar(setting), help=shown
    )


def _metavar(setting: Setting) -> str:
    return {int: "N", Path: "DIR"}.get(setting.kind, "TEXT")


def load_settings(flags: dict[str, Any]) -> Settings:
    config = flags.pop("config", None)
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return load(given, os.environ, Path(config) if config else None)
    except SettingsError as exc:
        raise click.UsageError(str(exc)) from exc


def _leave_out_rich() -> None:
    """Keep structlog from importing rich, which takes a tenth of the start and only draws tracebacks that the service
    does not show."""
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # so that an import of it fails


def _warn_of_passwords(flags: dict[str, Any]) -> None:
    """Warn of passwords in flags, which the list of processes shows. An unusable URL is reported when it is used."""
    from tuplegate.engine.opening import url_has_password
    from tuplegate.engine.port import BadUrl

    engines = [text.partition("=")[2] for text in (flags.get("engines") or "").split()]
    replicas = (flags.get("replicas") or "").split(",")
    for name, urls, advice in (
        ("engine", [flags.get("engine")], "; give the URL as TUPLEGATE_ENGINE or in the settings file."),
        ("engines", engines, "; give the URL as TUPLEGATE_ENGINES or in the settings file."),
        ("replicas", replicas, ", and is not used: leave it out."),
    ):
        try:
            if any(url and url_has_password(url) for url in urls):
                click.echo(f"Warning: the password in --{name} is visible in the list of processes{advice}", err=True)
        except BadUrl:
            pass


def _serve(**flags: Any) -> None:
    """Start the service with its bundled engine. A setting can come from a flag, the environment, or a file."""
    _leave_out_rich()
    from tuplegate.serve import serve
    from tuplegate.supervisor.serve_error import ServeError

    _warn_of_passwords(flags)
    settings = load_settings(flags)
    if os.environ.get("TUPLEGATE_CONTROL_URL") and not settings.control_url:
        click.echo(
            "Note: TUPLEGATE_CONTROL_URL is where clients find a control plane, and is not read by serve. The address"
            " by which others reach the one that is started here is TUPLEGATE_PUBLIC_CONTROL_URL or --control-url.",
            err=True,
        )
    try:
        serve(settings)
    except ServeError as exc:
        raise click.ClickException(str(exc)) from exc


_CONFIG = click.Option(
    ["config", "--config"], metavar="FILE", help="Settings file (TOML). [TUPLEGATE_CONFIG]", envvar="TUPLEGATE_CONFIG"
)

serve = click.Command(
    "serve",
    params=[_CONFIG, *(_make_option(setting) for setting in list_settings())],
    callback=_serve,
    help=_serve.__doc__,
)


def make_key_here(
    format: str | None, config: str | None, data_dir: str | None, name: str, scopes: tuple[str, ...]
) -> None:
    _leave_out_rich()
    from tuplegate.access.scopes import Scope
    from tuplegate.local import LocalError, make_local_key

    try:
        made = make_local_key(
            load_settings({"config": config, "data_dir": data_dir}), name, [Scope(scope) for scope in scopes]
        )
    except LocalError as exc:
        raise click.ClickException(str(exc)) from exc
    if format is None:
        click.echo(f"key: {made}")
    else:
        write_record(format, {"name": name, "scopes": list(scopes), "key": made})
