"""`console`: opens the console in the browser, signed in."""

import os
import sys
import webbrowser
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuplegate.cli.control import SCOPES
from tuplegate.cli.output import write_record
from tuplegate.cli.remote import connect, options, translate_failures

if TYPE_CHECKING:
    from tuplegate.client import ConsoleCode

_PAGE = """<!doctype html>
<meta charset="utf-8"><meta http-equiv="refresh" content="0;url={url}"><title>Tuplegate</title>
<a href="{url}">Open the console</a>
"""


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the address instead of opening it.")
@click.option("--scope", "scopes", multiple=True, type=SCOPES, help="Fewer rights than the key's; may be repeated.")
@options
def console(only_print: bool, scopes: tuple[str, ...], format: str | None, database: str | None, **where: Any) -> None:
    """Open the console in the browser, signed in.

    The browser gets a code that is good for one session, for a minute; it never sees the key. Where there is no
    browser the address is printed. With --database the session is for that one alone.
    """
    with translate_failures(), connect(database=None, **where) as client:
        code = client.console_code(scopes=scopes or None, database=database)
        place = f"{client.find_control_url()}/console/"
    url = f"{place}#code={code.code}"
    if only_print or format is not None or not (_has_browser() and webbrowser.open(_write_page(url).as_uri())):
        _show(format, url, code)
        return
    click.echo(f"{place} opens in the browser, signed in", err=True)


def _show(format: str | None, url: str, code: "ConsoleCode") -> None:
    if format is None:
        click.echo(url)
        click.echo("It works once, within a minute.", err=True)
    else:
        expires_at = None if code.expires_at is None else code.expires_at.isoformat().replace("+00:00", "Z")
        write_record(format, {"url": url, "expires_at": expires_at})


def _has_browser() -> bool:
    """Return whether there is a browser with windows: one in the terminal could not show the console."""
    if sys.platform.startswith("linux") and not any(
        os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    ):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def _write_page(url: str) -> Path:
    """Write a page that only its owner can read, and that leads to the address. What a browser is started with is
    visible in the list of processes, so that must not be the code."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tuplegate"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    page = folder / "console.html"
    page.unlink(missing_ok=True)
    with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(_PAGE.format(url=escape(url)))
    return page
