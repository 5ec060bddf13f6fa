"""The commands of the shell, which begin with a backslash."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click

from tuplegate.cli.exits import Exit
from tuplegate.cli.output import escape_controls
from tuplegate.cli.remote import Failed, translate_failures
from tuplegate.cli.shell.copying import USAGE as COPY_USAGE
from tuplegate.cli.shell.copying import BadCopy, read_copy, run_copy
from tuplegate.cli.shell.describe import describe
from tuplegate.cli.shell.editor import edit_file, edit_text
from tuplegate.cli.shell.listing import LISTS, build_listing
from tuplegate.cli.shell.results import say
from tuplegate.cli.shell.shell import Leave, Shell
from tuplegate.cli.splitting import Reader

_WATCH_S = 2.0
_WATCH_MIN_S = 0.1
_INCLUDED_MAX = 16
_REFERENCE = "https://www.postgresql.org/docs/current/sql-{page}.html"


@dataclass(frozen=True)
class ShellCommand:
    """A command. `takes` and `help` are shown by \\?. `run_plus` runs if a + follows the name."""

    run: Callable[[Shell, str], None]
    takes: str
    help: str
    run_plus: Callable[[Shell, str], None] | None = None


def run_command(shell: Shell, text: str) -> None:
    found = re.match(r"(\\(?:[A-Za-z]+|\S)?)(\+?)", text)
    assert found is not None, "a command begins with a backslash"
    name, rest = found[1], text[found.end() :].strip().removesuffix(";").strip()
    if name not in COMMANDS:
        raise Failed(f"there is no command {found[0]}; \\? lists them", Exit.USAGE)
    run = COMMANDS[name].run_plus if found[2] else COMMANDS[name].run
    if run is None:
        raise Failed(f"{name} takes no +; \\? lists what takes one", Exit.USAGE)
    run(shell, rest)


# -- what there is -------------------------------------------------------------------------------------------------


def _list_objects(command: str, plus: bool = False) -> Callable[[Shell, str], None]:
    def run(shell: Shell, rest: str) -> None:
        sql, params = build_listing(command, rest, plus)
        with translate_failures(sql):
            rows = shell.source.query(sql, params)
        shell.results.show(rows.columns, rows.types, rows.tuples())

    return run


def _describe(shell: Shell, rest: str, plus: bool = False) -> None:
    if not rest:
        _list_objects("\\d", plus)(shell, "")
        return
    with translate_failures():
        sections = list(describe(shell.source, rest, plus))
    results = shell.results
    titled = results.format == "table"
    with results.out() as out:
        for section in sections:
            out.write(f"{escape_controls(section.title)}\n" if titled else "")
            if titled and section.text is not None:
                out.write(escape_controls(section.text) + "\n")
            else:
                results.write(out, section.columns, section.types, section.rows)
            out.write("\n" if titled else "")


def _list_databases(shell: Shell, rest: str, plus: bool = False) -> None:
    with translate_failures():
        found = [asdict(each) for each in shell.client.databases.list()]
    columns = {"name": "text", "state": "text", "default": "bool", "size_bytes": "int8"}
    if plus:
        columns |= {"delete_protection": "bool", "created_at": "text", "id": "text"}
    rows = [[str(each[name]) if name == "created_at" else each[name] for name in columns] for each in found]
    shell.results.show(list(columns), list(columns.values()), rows)


def _connect(shell: Shell, rest: str) -> None:
    _check_outside_transaction(shell, "\\c")
    before = shell.client.database
    shell.client.use_database(rest or None)
    try:
        with translate_failures():
            shell.client.query("select 1")
    except Failed:
        shell.client.use_database(before)
        raise
    if shell.names is not None:
        shell.names.refresh()
    say(f"database {rest or 'of the key'}")


def _show_connection(shell: Shell, rest: str) -> None:
    with translate_failures():
        role, version = shell.source.query("select current_user, current_setting('server_version')").tuples()[0]
    database = shell.client.database or "of the key"
    columns = ["address", "database", "role", "engine"]
    shell.results.show(columns, ["text"] * 4, [(shell.client.url, database, role, version)])


# -- how it is shown -----------------------------------------------------------------------------------------------


def _set_expanded(shell: Shell, rest: str) -> None:
    results = shell.results
    results.expanded = _choose("\\x", rest, ("on", "off", "auto"), "off" if results.expanded != "off" else "on")
    say(f"one field a line: {results.expanded}")


def _set_timing(shell: Shell, rest: str) -> None:
    results = shell.results
    results.timing = _choose("\\timing", rest, ("on", "off"), "off" if results.timing else "on") == "on"
    say(f"timing: {'on' if results.timing else 'off'}")


def _set_option(shell: Shell, rest: str) -> None:
    name, _, value = rest.partition(" ")
    results = shell.results
    if name != "pager":
        raise Failed("\\pset knows pager: \\pset pager on, \\pset pager off", Exit.USAGE)
    results.pager = _choose("\\pset pager", value.strip(), ("on", "off"), "off" if results.pager else "on") == "on"
    say(f"pager: {'on' if results.pager else 'off'}")


def _choose(command: str, given: str, choices: tuple[str, ...], otherwise: str) -> str:
    if given and given not in choices:
        raise Failed(f"{command} takes {', '.join(choices)}", Exit.USAGE)
    return given or otherwise


# -- statements ----------------------------------------------------------------------------------------------------


def _run_pending(shell: Shell, rest: str) -> None:
    """Run the pending statement, or the last one again."""
    shell.run_parts(shell.reader, _take_pending(shell, "run") + ";\n")


def _take_pending(shell: Shell, verb: str) -> str:
    """Return the pending statement, which is cleared, or the last one."""
    text = shell.reader.pending.strip() or shell.last
    shell.reader.clear()
    if not text:
        raise Failed(f"there is no statement to {verb}", Exit.USAGE)
    return text


def _run_pending_expanded(shell: Shell, rest: str) -> None:
    before, shell.results.expanded = shell.results.expanded, "on"
    try:
        _run_pending(shell, rest)
    finally:
        shell.results.expanded = before


def _print(shell: Shell, rest: str) -> None:
    click.echo(escape_controls(shell.current))


def _drop_pending(shell: Shell, rest: str) -> None:
    shell.reader.clear()
    say("what was typed is dropped")


def _edit(shell: Shell, rest: str) -> None:
    if rest:
        edit_file(_read_path(rest))
        _include(shell, rest)
        return
    current = shell.current
    text = edit_text(current if shell.reader.pending.strip() or not current else current + ";")
    if text is None:
        say("nothing was changed, and nothing was run")
        return
    shell.reader.clear()
    if text:
        click.echo(escape_controls(text))
        shell.remember(text)
        shell.run_parts(shell.reader, text + "\n")
        shell.finish(shell.reader)


def _include(shell: Shell, rest: str) -> None:
    """Run a file. The first failure ends it, and rolls back a transaction that it has opened."""
    if not rest:
        raise Failed("\\i takes the name of a file", Exit.USAGE)
    if len(shell.included) >= _INCLUDED_MAX:
        raise Failed(f"{rest}: files include each other, {_INCLUDED_MAX} deep", Exit.FILE)
    before, reader = shell.transaction, Reader()
    shell.included.append(rest)
    try:
        for line in _read_lines(_read_path(rest)):
            shell.run_parts(reader, line)
        shell.finish(reader)
    except BaseException:
        if shell.transaction is not before:
            shell.end_transaction()
        raise
    finally:
        shell.included.pop()


def _read_lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8") as opened:
            yield from opened
    except (OSError, UnicodeDecodeError) as exc:
        cause = exc.strerror if isinstance(exc, OSError) else exc
        raise Failed(f"{file} cannot be read: {cause}", Exit.FILE) from exc


def _read_path(text: str) -> Path:
    if text.startswith("'") and text.endswith("'") and len(text) > 1:
        text = text[1:-1].replace("''", "'")
    return Path(text).expanduser()


def _watch(shell: Shell, rest: str) -> None:
    _check_outside_transaction(shell, "\\watch")
    text = _take_pending(shell, "watch")
    every, times = _read_watch_values(rest)
    pager, shell.results.pager = shell.results.pager, False
    try:
        while times is None or times > 0:
            say(f"{time.strftime('%H:%M:%S')}, every {every:g} s; Ctrl-C ends it")
            shell.run(text)
            times = None if times is None else times - 1
            if times != 0:
                time.sleep(every)
    finally:
        shell.results.pager = pager


def _read_watch_values(rest: str) -> tuple[float, int | None]:
    try:
        seconds, *times = rest.split() or [str(_WATCH_S)]
        every = max(float(seconds), _WATCH_MIN_S)
        if len(times) > 1 or every == float("inf"):
            raise ValueError
        return every, max(int(times[0]), 1) if times else None
    except ValueError:
        raise Failed("\\watch takes a number of seconds, and how often", Exit.USAGE) from None


def _copy(shell: Shell, rest: str) -> None:
    _check_outside_transaction(shell, "\\copy")
    try:
        run_copy(shell.client, read_copy(rest))
    except BadCopy as exc:
        raise Failed(str(exc), Exit.USAGE) from exc


def _check_outside_transaction(shell: Shell, name: str) -> None:
    if shell.transaction is not None:
        raise Failed(f"{name} cannot be a part of a transaction: say COMMIT or ROLLBACK first", Exit.USAGE)


# -- help ----------------------------------------------------------------------------------------------------------


def _leave(shell: Shell, rest: str) -> None:
    raise Leave


def _show_help(shell: Shell, rest: str) -> None:
    with shell.results.out() as out:
        for name, entry in COMMANDS.items():
            if entry.help:
                typed = f"{name}{'[+]' if entry.run_plus else ''} {entry.takes}"
                out.write(f"{typed:24} {entry.help}\n")
        out.write("A + shows more. help, exit and quit need no backslash.\n")
        out.write("BEGIN opens a transaction, which the prompt shows as *, and as ! when it has failed; COMMIT or\n")
        out.write("ROLLBACK ends it. Ctrl-C cancels a statement.\n")


def _show_reference(shell: Shell, rest: str) -> None:
    page = "".join(re.findall(r"[a-z]+", rest.lower())) or "commands"
    click.echo(_REFERENCE.format(page=page))


def _write_copy_help() -> str:
    return COPY_USAGE.removeprefix("\\copy ")


def _make_listing(command: str, takes: str, help: str) -> ShellCommand:
    return ShellCommand(_list_objects(command), takes, help, _list_objects(command, plus=True))


COMMANDS = {
    "\\d": ShellCommand(_describe, "[NAME]", "relations; all about NAME", partial(_describe, plus=True)),
    "\\dt": _make_listing("\\dt", "[PATTERN]", "tables; * and ? stand for letters"),
    "\\dv": _make_listing("\\dv", "[PATTERN]", "views"),
    "\\dm": _make_listing("\\dm", "[PATTERN]", "materialized views"),
    "\\di": _make_listing("\\di", "[PATTERN]", "indexes"),
    "\\ds": _make_listing("\\ds", "[PATTERN]", "sequences"),
    "\\dn": _make_listing("\\dn", "[PATTERN]", "schemas"),
    "\\df": _make_listing("\\df", "[PATTERN]", "functions"),
    "\\dT": _make_listing("\\dT", "[PATTERN]", "types"),
    "\\dx": _make_listing("\\dx", "[PATTERN]", "extensions"),
    "\\du": _make_listing("\\du", "", "the role of this key"),
    "\\l": ShellCommand(_list_databases, "", "databases", partial(_list_databases, plus=True)),
    "\\c": ShellCommand(_connect, "[NAME]", "use another database"),
    "\\conninfo": ShellCommand(_show_connection, "", "address, database and role"),
    "\\x": ShellCommand(_set_expanded, "[on|off|auto]", "rows of a table as one field a line"),
    "\\timing": ShellCommand(_set_timing, "[on|off]", "show how long statements take"),
    "\\pset": ShellCommand(_set_option, "pager [on|off]", "whether what is larger than the screen goes to a pager"),
    "\\e": ShellCommand(_edit, "[FILE]", "edit the current or last statement, or FILE, and run it"),
    "\\g": ShellCommand(_run_pending, "", "run what was typed, or the last statement again"),
    "\\gx": ShellCommand(_run_pending_expanded, "", "the same, one field a line"),
    "\\p": ShellCommand(_print, "", "show what was typed, or the last statement"),
    "\\r": ShellCommand(_drop_pending, "", "drop what was typed"),
    "\\i": ShellCommand(_include, "FILE", "run the statements and commands of FILE"),
    "\\copy": ShellCommand(_copy, "…", _write_copy_help()),
    "\\watch": ShellCommand(_watch, "[SECONDS [TIMES]]", "run a statement again and again, until Ctrl-C"),
    "\\h": ShellCommand(_show_reference, "[STATEMENT]", "where the reference of an SQL statement is"),
    "\\?": ShellCommand(_show_help, "", "this help"),
    "\\q": ShellCommand(_leave, "", "leave (Ctrl-D)"),
}
assert set(LISTS) <= set(COMMANDS)
