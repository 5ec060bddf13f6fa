"""The form of a CSV file: delimiter, NULL, header and encoding. These are options of import and export.

As in PostgreSQL's COPY and RFC 4180, NULL is an empty field without quotes, and `""` is the empty text. A quoted field
is never NULL, whatever text stands for NULL.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True)
class CsvForm:
    """The form. None means the default: a comma, an empty field, a header if it looks like one, UTF-8."""

    delimiter: str | None = None
    null: str | None = None
    header: bool | None = None
    encoding: str | None = None

    def check(self, format: str) -> None:
        """Refuse CSV options for a file of another format."""
        given = {
            "--delimiter": self.delimiter,
            "--null": self.null,
            "--header and --no-header": self.header,
            "--encoding": self.encoding,
        }
        named = [name for name, value in given.items() if value is not None]
        if named and format != "csv":
            raise click.UsageError(f"{', '.join(named)}: only for CSV, and this file is {format}")
        if (self.delimiter or ",") in (self.null or ""):
            raise click.UsageError("the text of --null has the delimiter in it: choose another text")


def csv_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the CSV options to a command, which receives them as `form`."""

    @click.option(
        "--delimiter", callback=_check_delimiter, metavar="CHARACTER", help="Between fields of CSV. [a comma]"
    )
    @click.option("--null", callback=_check_null, metavar="TEXT", help="What stands for NULL in CSV. [an empty field]")
    @click.option("--header/--no-header", default=None, help="Whether the first line of CSV names the columns. [yes]")
    @click.option(
        "--encoding", callback=_check_encoding, metavar="NAME", help="Encoding of CSV, such as cp1252. [utf-8]"
    )
    @functools.wraps(command)
    def run(*positional: Any, **given: Any) -> None:
        names = ("delimiter", "null", "header", "encoding")
        form = CsvForm(**{name: given.pop(name) for name in names})
        command(*positional, form=form, **given)

    return run


def _check_delimiter(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    value = {"\\t": "\t", "tab": "\t"}.get(value or "", value)
    if value is not None and (len(value) != 1 or value in '"\r\n\0'):
        raise click.BadParameter("it is one character, and no quote or line break; \\t is a tab")
    return value


def _check_null(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and set(value) & set('"\r\n\0'):
        raise click.BadParameter("it cannot have a quote or a line break in it")
    return value


def _check_encoding(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            "".encode(value)
        except (LookupError, UnicodeError) as exc:
            raise click.BadParameter(
                f"there is no encoding {value}; utf-8, utf-16, cp1252 and latin-1 are some"
            ) from exc
    return value
