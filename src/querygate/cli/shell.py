"""`shell`: SQL typed by a person. A statement ends with a semicolon; commands begin with a backslash.

BEGIN … COMMIT is gathered here and sent as one transaction, because the service keeps no transaction open between
requests; the shell says so. Ctrl-C cancels the statement, not the shell.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from querygate.cli.output import make_writer
from querygate.cli.queries import run_query
from querygate.cli.remote import Failed, told_apart, with_client
from querygate.cli.splitting import split

if TYPE_CHECKING:
    from querygate.client import Client

_HISTORY = Path("~/.local/state/querygate/history")
_WORDS = """
select insert update delete from where group by order having limit offset join left right full inner outer on using as
and or not null is in like ilike between exists union all distinct with recursive values returning into set create table
view index unique primary key foreign references default check drop alter add column if cascade begin commit rollback
explain analyze vacuum truncate case when then else end cast asc desc true false
"""

_RELATIONS = (
    "select n.nspname as schema, c.relname as name, case c.relkind when 'r' then 'table' "
    "when 'p' then 'partitioned table' when 'v' then 'view' when 'm' then 'materialized view' "
    "when 'f' then 'foreign table' else 'sequence' end as kind "
    "from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.relkind in ({kinds}) "
    "and n.nspname not in ('pg_catalog', 'information_schema', 'querygate') and n.nspname !~ '^pg_toast' order by 1, 2"
)
_COLUMNS = (
    "select a.attname as column, format_type(a.atttypid, a.atttypmod) as type, not a.attnotnull as nullable, "
    "pg_get_expr(d.adbin, d.adrelid) as default from pg_attribute a left join pg_attrdef d "
    "on d.adrelid = a.attrelid and d.adnum = a.attnum "
    "where a.attrelid = $1::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum"
)

HELP = """\
\\d [NAME]     tables, views and sequences; the columns of NAME
\\dt           tables
\\l            databases
\\c NAME       use another database
\\x            rows as one field a line, on or off
\\timing       show how long statements take, on or off
\\i FILE       run the statements of FILE
\\watch N      run the last statement every N seconds, until Ctrl-C
\\?            this help
\\q            leave (Ctrl-D)
BEGIN; … COMMIT; is gathered and sent as one transaction. Ctrl-C cancels a statement."""


class Leave(Exception):
    """The person wants to go."""


class Shell:
    """What is typed, line by line, and what comes of it."""

    def __init__(self, client: "Client", format: str | None) -> None:
        self.client = client
        self.gathered: list[str] | None = None
        self.pending = ""
        self._format = format
        self._expanded = False
        self._timing = False
        self._last = ""

    @property
    def prompt(self) -> str:
        if self.pending.strip():
            return "      … "
        return "querygate*> " if self.gathered is not None else "querygate> "

    def take(self, line: str) -> None:
        """One line; runs the statements that are complete with it."""
        if not self.pending.strip() and line.lstrip().startswith("\\"):
            self._command(*line.strip().partition(" ")[::2])
            return
        statements, self.pending = split(f"{self.pending}{line}\n")
        for statement in statements:
            self._statement(statement)

    # -- statements -----------------------------------------------------------------------------------------------

    def _statement(self, sql: str) -> None:
        word = re.sub(r"\s+", " ", sql).upper()
        if word in ("BEGIN", "BEGIN TRANSACTION", "BEGIN WORK", "START TRANSACTION"):
            self.gathered = []
            _tell("statements are gathered until COMMIT, and then sent as one transaction")
        elif self.gathered is None:
            self._run(sql)
        elif word in ("ROLLBACK", "ABORT"):
            self.gathered = None
            _tell("dropped; nothing was sent")
        elif word in ("COMMIT", "END"):
            statements, self.gathered = self.gathered, None
            self._transaction(statements)
        else:
            self.gathered.append(sql)

    def _run(self, sql: str) -> None:
        self._last = sql
        with self._timed(), told_apart(sql):
            if self._expanded:
                self._show_expanded(sql)
            else:
                run_query(self.client, self._format, sql, [], None)

    def _transaction(self, statements: list[str]) -> None:
        if not statements:
            _tell("there was nothing to send")
            return
        with self._timed(), told_apart():
            done = self.client.transaction(statements)
        for rows in done.results:
            if rows.columns:
                self._show(rows.columns, rows.types, rows.tuples())
        _tell(f"committed {len(statements)} statements as one transaction, {done.affected_rows} rows affected")

    def _show_expanded(self, sql: str) -> None:
        for number, row in enumerate(self.client.query(sql, convert=False), start=1):
            click.echo(f"─ row {number} ─")
            self._show(["field", "value"], ["text", "text"], list(row.items()))

    def _show(self, columns: list[str], types: list[str], rows: list[Any]) -> None:
        writer = make_writer(self._format)
        writer.begin(columns, types)
        writer.rows(rows)
        writer.end()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.monotonic()
        yield
        if self._timing:
            _tell(f"{(time.monotonic() - started) * 1000:.0f} ms")

    # -- commands -------------------------------------------------------------------------------------------------

    def _command(self, name: str, rest: str) -> None:
        commands: dict[str, Callable[[str], None]] = {
            "\\d": self._describe,
            "\\dt": lambda _: self._query(_RELATIONS.format(kinds="'r', 'p'")),
            "\\l": self._databases,
            "\\c": self._connect,
            "\\x": self._toggle_expanded,
            "\\timing": self._toggle_timing,
            "\\i": self._include,
            "\\watch": self._watch,
            "\\?": lambda _: click.echo(HELP),
        }
        if name == "\\q":
            raise Leave
        if name not in commands:
            _tell(f"there is no command {name}; \\? lists them")
            return
        commands[name](rest.strip())

    def _query(self, sql: str, *params: Any) -> None:
        with told_apart(sql):
            rows = self.client.query(sql, params)
        self._show(rows.columns, rows.types, rows.tuples())

    def _describe(self, name: str) -> None:
        if name:
            self._query(_COLUMNS, name)
        else:
            self._query(_RELATIONS.format(kinds="'r', 'p', 'v', 'm', 'f', 'S'"))

    def _databases(self, _: str) -> None:
        with told_apart():
            found = [(each.name, each.state, each.default) for each in self.client.databases.list()]
        self._show(["name", "state", "default"], ["text"] * 3, found)

    def _connect(self, name: str) -> None:
        self.client.use_database(name or None)
        _tell(f"database {name or 'of the key'}")

    def _toggle_expanded(self, _: str) -> None:
        self._expanded = not self._expanded
        _tell(f"one field a line: {'on' if self._expanded else 'off'}")

    def _toggle_timing(self, _: str) -> None:
        self._timing = not self._timing
        _tell(f"timing: {'on' if self._timing else 'off'}")

    def _include(self, name: str) -> None:
        try:
            text = Path(name).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            _tell(f"error: {name} cannot be read: {exc}")
            return
        statements, rest = split(text)
        for statement in [*statements, rest.strip()]:
            if statement:
                self._statement(statement)

    def _watch(self, seconds: str) -> None:
        try:
            every = max(float(seconds or 2), 0.1)
        except ValueError:
            _tell("\\watch takes a number of seconds")
            return
        while self._last:
            self._run(self._last)
            time.sleep(every)


def _tell(text: str) -> None:
    click.echo(text, err=True)


def run_lines(shell: Shell, lines: Iterator[str], interactive: bool) -> None:
    """Takes lines until they end. What fails ends a script, and at a terminal only the statement."""
    for line in lines:
        try:
            shell.take(line)
        except Leave:
            return
        except Failed as exc:
            if not interactive:
                raise
            exc.show()
        except KeyboardInterrupt:
            if not interactive:
                raise
            _tell("cancelled")
    rest = shell.pending.strip()
    if rest and not interactive:
        shell.take(";")
    if shell.gathered:
        _tell(f"{len(shell.gathered)} statements after BEGIN were never committed; nothing of them was sent")


def typed_lines(shell: Shell) -> Iterator[str]:
    """Lines from a terminal: with history, colours, and completion of keywords, tables and columns."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.lexers import PygmentsLexer
    from pygments.lexers.sql import PostgresLexer

    history = _HISTORY.expanduser()
    history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    history.touch(mode=0o600)
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)),
        lexer=PygmentsLexer(PostgresLexer),
        completer=WordCompleter([*_WORDS.split(), *_names(shell.client)], ignore_case=True),
        complete_while_typing=False,
    )
    while True:
        try:
            yield session.prompt(lambda: shell.prompt)
        except KeyboardInterrupt:
            shell.pending = ""  # the line that was being typed
        except EOFError:
            return


def _names(client: "Client") -> list[str]:
    """Tables and columns of the database, for completion; a shell works without."""
    from querygate.client import QuerygateError

    try:
        tables = client.tables()
    except QuerygateError:
        return []
    return sorted({name for table in tables for name in (table.name, *(column.name for column in table.columns))})


@click.command()
@with_client
def shell(client: "Client", format: str | None) -> None:
    """Type SQL and see rows. \\? lists the commands; statements piped in are run one after the other."""
    interactive = sys.stdin.isatty()
    opened = Shell(client, format)
    if interactive:
        with told_apart():
            health = client.health()
        engine = health.get("engine", {})
        _tell(f"querygate {health.get('version')}, {engine.get('kind')} {engine.get('version')}; \\? helps, \\q leaves")
    run_lines(opened, typed_lines(opened) if interactive else iter(sys.stdin), interactive)
