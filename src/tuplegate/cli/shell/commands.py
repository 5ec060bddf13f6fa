"""The commands of the shell, which begin with a backslash."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from tuplegate.cli.exits import Exit
from tuplegate.cli.output import harmless
from tuplegate.cli.remote import Failed, told_apart
from tuplegate.cli.shell.copying import USAGE as COPY_USAGE
from tuplegate.cli.shell.copying import BadCopy, read_copy, run_copy
from tuplegate.cli.shell.describe import describe
from tuplegate.cli.shell.editor import edit_file, edit_text
from tuplegate.cli.shell.listing import LISTS, listing
from tuplegate.cli.shell.results import say
from tuplegate.cli.shell.session import Leave, Session
from tuplegate.cli.splitting import Reader

_WATCH_S = 2.0
_WATCH_MIN_S = 0.1
_INCLUDED_MAX = 16
_REFERENCE = "https://www.postgresql.org/docs/current/sql-{page}.html"


@dataclass(frozen=True)
class Entry:
    """A command. `takes` and `help` are shown by \\?. `run_plus` runs if a + follows the name."""

    run: Callable[[Session, str], None]
    takes: str
    help: str
    run_plus: Callable[[Session, str], None] | None = None


def run_command(session: Session, text: str) -> None:
    found = re.match(r"(\\(?:[A-Za-z]+|\S)?)(\+?)", text)
    assert found is not None, "a command begins with a backslash"
    name, rest = found[1], text[found.end() :].strip().removesuffix(";").strip()
    if name not in COMMANDS:
        raise Failed(f"there is no command {found[0]}; \\? lists them", Exit.USAGE)
    run = COMMANDS[name].run_plus if found[2] else COMMANDS[name].run
    if run is None:
        raise Failed(f"{name} takes no +; \\? lists what takes one", Exit.USAGE)
    run(session, rest)


# -- what there is -------------------------------------------------------------------------------------------------


def _list(command: str, plus: bool = False) -> Callable[[Session, str], None]:
    def run(session: Session, rest: str) -> None:
        sql, params = listing(command, rest, plus)
        with told_apart(sql):
            rows = session.client.query(sql, params)
        session.results.show(rows.columns, rows.types, rows.tuples())

    return run


def _describe_plus(session: Session, rest: str) -> None:
    _describe(session, rest, plus=True)


def _describe(session: Session, rest: str, plus: bool = False) -> None:
    if not rest:
        _list("\\d", plus)(session, "")
        return
    with told_apart():
        sections = list(describe(session.client, rest, plus))
    results = session.results
    with results.out() as out:
        for section in sections:
            if results.format == "table":
                out.write(f"{harmless(section.title)}\n")
            if results.format == "table" and section.text is not None:
                out.write(harmless(section.text) + "\n")
            else:
                results.write(out, section.columns, section.types, section.rows)
            if results.format == "table":
                out.write("\n")


def _databases(session: Session, rest: str) -> None:
    with told_apart():
        found = session.client.databases.list()
    columns = ["name", "state", "default", "size_bytes"]
    rows = [(each.name, each.state, each.default, each.size_bytes) for each in found]
    session.results.show(columns, ["text", "text", "bool", "int8"], rows)


def _databases_plus(session: Session, rest: str) -> None:
    with told_apart():
        found = [asdict(each) for each in session.client.databases.list()]
    columns = ["name", "state", "default", "size_bytes", "delete_protection", "created_at", "id"]
    rows = [[str(each[name]) if name == "created_at" else each[name] for name in columns] for each in found]
    session.results.show(columns, ["text", "text", "bool", "int8", "bool", "text", "text"], rows)


def _connect(session: Session, rest: str) -> None:
    _outside_block(session, "\\c")
    before = session.client.database
    session.client.use_database(rest or None)
    try:
        with told_apart():
            session.client.query("select 1")
    except Failed:
        session.client.use_database(before)
        raise
    if session.names is not None:
        session.names.refresh()
    say(f"database {rest or 'of the key'}")


def _connection(session: Session, rest: str) -> None:
    with told_apart():
        role, version = session.client.query("select current_user, current_setting('server_version')").tuples()[0]
    database = session.client.database or "of the key"
    columns = ["address", "database", "role", "engine"]
    session.results.show(columns, ["text"] * 4, [(session.client.url, database, role, version)])


# -- how it is shown -----------------------------------------------------------------------------------------------


def _expanded(session: Session, rest: str) -> None:
    results = session.results
    results.expanded = _choice("\\x", rest, ("on", "off", "auto"), "off" if results.expanded != "off" else "on")
    say(f"one field a line: {results.expanded}")


def _timing(session: Session, rest: str) -> None:
    results = session.results
    results.timing = _choice("\\timing", rest, ("on", "off"), "off" if results.timing else "on") == "on"
    say(f"timing: {'on' if results.timing else 'off'}")


def _pset(session: Session, rest: str) -> None:
    name, _, value = rest.partition(" ")
    results = session.results
    if name != "pager":
        raise Failed("\\pset knows pager: \\pset pager on, \\pset pager off", Exit.USAGE)
    results.pager = _choice("\\pset pager", value.strip(), ("on", "off"), "off" if results.pager else "on") == "on"
    say(f"pager: {'on' if results.pager else 'off'}")


def _choice(command: str, given: str, choices: tuple[str, ...], otherwise: str) -> str:
    if given and given not in choices:
        raise Failed(f"{command} takes {', '.join(choices)}", Exit.USAGE)
    return given or otherwise


# -- statements ----------------------------------------------------------------------------------------------------


def _go(session: Session, rest: str) -> None:
    """Run the pending statement, or the last one again."""
    text = session.reader.pending.strip() or session.last
    session.reader.clear()
    if not text:
        raise Failed("there is no statement to run", Exit.USAGE)
    session.run_parts(session.reader, text + ";\n")


def _go_expanded(session: Session, rest: str) -> None:
    before, session.results.expanded = session.results.expanded, "on"
    try:
        _go(session, rest)
    finally:
        session.results.expanded = before


def _print(session: Session, rest: str) -> None:
    click.echo(harmless(session.current))


def _reset(session: Session, rest: str) -> None:
    session.reader.clear()
    say("what was typed is dropped")


def _edit(session: Session, rest: str) -> None:
    if rest:
        edit_file(_path(rest))
        _include(session, rest)
        return
    pending = session.reader.pending.strip()
    current = session.current
    text = edit_text(current if pending or session.block is not None or not current else current + ";")
    if text is None:
        say("nothing was changed, and nothing was run")
        return
    session.reader.clear()
    if not pending:
        session.block = None  # it begins anew with the text
    if text:
        click.echo(harmless(text))
        session.remember(text)
        session.run_parts(session.reader, text + "\n")
        session.finish(session.reader)


def _include(session: Session, rest: str) -> None:
    """Run a file. The first failure ends it, and drops a block that it has opened."""
    if not rest:
        raise Failed("\\i takes the name of a file", Exit.USAGE)
    if len(session.included) >= _INCLUDED_MAX:
        raise Failed(f"{rest}: files include each other, {_INCLUDED_MAX} deep", Exit.FILE)
    before, reader = session.block, Reader()
    session.included.append(rest)
    try:
        for line in _lines(_path(rest)):
            session.run_parts(reader, line)
        session.finish(reader)
    except BaseException:
        if session.block is not None and session.block is not before:
            session.tell_open_block()
            session.block = None
        raise
    finally:
        session.included.pop()


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8") as opened:
            yield from opened
    except (OSError, UnicodeDecodeError) as exc:
        cause = exc.strerror if isinstance(exc, OSError) else exc
        raise Failed(f"{file} cannot be read: {cause}", Exit.FILE) from exc


def _path(text: str) -> Path:
    if text.startswith("'") and text.endswith("'") and len(text) > 1:
        text = text[1:-1].replace("''", "'")
    return Path(text).expanduser()


def _watch(session: Session, rest: str) -> None:
    _outside_block(session, "\\watch")
    text = session.reader.pending.strip() or session.last
    session.reader.clear()
    if not text:
        raise Failed("there is no statement to watch", Exit.USAGE)
    every, times = _watch_values(rest)
    pager, session.results.pager = session.results.pager, False
    try:
        while times is None or times > 0:
            say(f"{time.strftime('%H:%M:%S')}, every {every:g} s; Ctrl-C ends it")
            session.run(text)
            times = None if times is None else times - 1
            if times != 0:
                time.sleep(every)
    finally:
        session.results.pager = pager


def _watch_values(rest: str) -> tuple[float, int | None]:
    try:
        seconds, *times = rest.split() or [str(_WATCH_S)]
        every = max(float(seconds), _WATCH_MIN_S)
        if len(times) > 1 or every == float("inf"):
            raise ValueError
        return every, max(int(times[0]), 1) if times else None
    except ValueError:
        raise Failed("\\watch takes a number of seconds, and how often", Exit.USAGE) from None


def _copy(session: Session, rest: str) -> None:
    _outside_block(session, "\\copy")
    try:
        run_copy(session.client, read_copy(rest))
    except BadCopy as exc:
        raise Failed(str(exc), Exit.USAGE) from exc


def _outside_block(session: Session, name: str) -> None:
    if session.block is not None:
        raise Failed(f"{name} cannot be a part of a transaction: say COMMIT or ROLLBACK first", Exit.USAGE)


# -- help ----------------------------------------------------------------------------------------------------------


def _leave(session: Session, rest: str) -> None:
    raise Leave


def _help(session: Session, rest: str) -> None:
    with session.results.out() as out:
        for name, entry in COMMANDS.items():
            if entry.help:
                typed = f"{name}{'[+]' if entry.run_plus else ''} {entry.takes}"
                out.write(f"{typed:24} {entry.help}\n")
        out.write("A + shows more. help, exit and quit need no backslash.\n")
        out.write("BEGIN; … COMMIT; is gathered and sent as one transaction. Ctrl-C cancels a statement.\n")


def _reference(session: Session, rest: str) -> None:
    page = "".join(re.findall(r"[a-z]+", rest.lower())) or "commands"
    click.echo(_REFERENCE.format(page=page))


def _copy_help() -> str:
    return COPY_USAGE.removeprefix("\\copy ")


def _listed(command: str, takes: str, help: str) -> Entry:
    return Entry(_list(command), takes, help, _list(command, plus=True))


COMMANDS = {
    "\\d": Entry(_describe, "[NAME]", "relations; all about NAME", _describe_plus),
    "\\dt": _listed("\\dt", "[PATTERN]", "tables; * and ? stand for letters"),
    "\\dv": _listed("\\dv", "[PATTERN]", "views"),
    "\\dm": _listed("\\dm", "[PATTERN]", "materialized views"),
    "\\di": _listed("\\di", "[PATTERN]", "indexes"),
    "\\ds": _listed("\\ds", "[PATTERN]", "sequences"),
    "\\dn": _listed("\\dn", "[PATTERN]", "schemas"),
    "\\df": _listed("\\df", "[PATTERN]", "functions"),
    "\\dT": _listed("\\dT", "[PATTERN]", "types"),
    "\\dx": _listed("\\dx", "[PATTERN]", "extensions"),
    "\\du": _listed("\\du", "", "the role of this key"),
    "\\l": Entry(_databases, "", "databases", _databases_plus),
    "\\c": Entry(_connect, "[NAME]", "use another database"),
    "\\conninfo": Entry(_connection, "", "address, database and role"),
    "\\x": Entry(_expanded, "[on|off|auto]", "rows of a table as one field a line"),
    "\\timing": Entry(_timing, "[on|off]", "show how long statements take"),
    "\\pset": Entry(_pset, "pager [on|off]", "whether what is larger than the screen goes to a pager"),
    "\\e": Entry(_edit, "[FILE]", "edit the current or last statement, or FILE, and run it"),
    "\\g": Entry(_go, "", "run what was typed, or the last statement again"),
    "\\gx": Entry(_go_expanded, "", "the same, one field a line"),
    "\\p": Entry(_print, "", "show what was typed, or the last statement"),
    "\\r": Entry(_reset, "", "drop what was typed"),
    "\\i": Entry(_include, "FILE", "run the statements and commands of FILE"),
    "\\copy": Entry(_copy, "…", _copy_help()),
    "\\watch": Entry(_watch, "[SECONDS [TIMES]]", "run a statement again and again, until Ctrl-C"),
    "\\h": Entry(_reference, "[STATEMENT]", "where the reference of an SQL statement is"),
    "\\?": Entry(_help, "", "this help"),
    "\\q": Entry(_leave, "", "leave (Ctrl-D)"),
}
assert set(LISTS) <= set(COMMANDS)
