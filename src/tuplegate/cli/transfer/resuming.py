"""Lets an export of a table continue after an earlier start of it was interrupted.

If the engine has the rows in the order of the primary key without sorting them, they are exported in that order. If the
export is interrupted, the rows written so far stay beside the file, with a note of the last key. The next start of the
same export continues behind that key. The file gets its name when it is complete, and never before.

Each start reads one snapshot. So rows of two starts are of two moments, and the user is told so.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import msgspec

from tuplegate.cli.transfer.exports import ExportPlan
from tuplegate.cli.transfer.files import BadFile

if TYPE_CHECKING:
    from tuplegate.client import Client

_KEY = (
    "select a.attname, current_database() as place, i.indrelid::text as id"
    " from pg_index i join pg_class c on c.oid = i.indrelid"
    " cross join unnest(i.indkey::int2[]) with ordinality as k (number, place)"
    " join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number"
    " where i.indrelid = to_regclass($1) and i.indisprimary and k.place <= i.indnkeyatts"
    " and (c.relkind = 'p' or not c.relhassubclass) order by k.place"
)
"""Rows of tables that inherit are in the result, too, and not under the key."""
_SORTS = re.compile(r"^\s*(?:->\s*|•\s*)?(?:incremental )?sort\s*(?:\(|$)", re.IGNORECASE | re.MULTILINE)
_KINDS = ("csv", "ndjson")
"""Formats to which rows can be added."""


class _Note(msgspec.Struct, frozen=True):
    """`about` tells exports apart; `key` are the JSON texts of the last row's key, `bytes` the length with that row."""

    part: str
    about: str
    columns: list[str]
    types: list[str]
    key: list[str]
    rows: int
    bytes: int


@dataclass(frozen=True)
class TableKey:
    """The columns of a table's primary key; `table` identifies the table in the engine, in any database."""

    table: str
    columns: list[str]


NO_KEY = TableKey("", [])


@dataclass(frozen=True)
class _Progress:
    """The rows that are completely in the file, and the last one of them, if this start has written any."""

    rows: int
    bytes: int
    last: Sequence[Any] | None = None


class PartFile:
    """The file that an export writes beside its own. On success it takes the name; if the export was interrupted, and
    has a key, it stays. `rows` counts the rows from an earlier start; `about` identifies the export."""

    def __init__(self, file: Path, about: str, key: TableKey) -> None:
        self._file = file
        self._about = f"{key.table} {about}"
        self.key = key.columns
        self._found: _Note | None = None
        self._columns: tuple[list[str], list[str]] = ([], [])
        self._done = _Progress(0, 0)
        self.path = file.with_name(f".{file.name}.{os.getpid()}.part")
        self.rows = 0

    def __enter__(self) -> "PartFile":
        self._found = self._claim() if self.key else None
        if self._found is not None:
            self.rows = self._found.rows
            self._done = _Progress(self.rows, self._found.bytes)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        from tuplegate.client import TuplegateError

        if exc is None:
            self.path.replace(self._file)
        elif self.key and self._done.rows and isinstance(exc, TuplegateError | KeyboardInterrupt):
            self._keep()
        else:
            self.path.unlink(missing_ok=True)

    @property
    def kept(self) -> int:
        """Return the number of rows that the next start need not export again."""
        return self._done.rows if self.path.exists() else 0

    def write_query(self, sql: str) -> tuple[str, list[Any]]:
        """Return the query for the rows that are missing, and its parameters."""
        from tuplegate.client.statements import quote
        from tuplegate.client.values import JsonText

        if not self.key:
            return sql, []
        names = ", ".join(map(quote, self.key))
        if self._found is None:
            return f"{sql} order by {names}", []
        places = ", ".join(f"${number}" for number in range(1, len(self.key) + 1))
        return f"{sql} where ({names}) > ({places}) order by {names}", [JsonText(text) for text in self._found.key]

    def begin(self, columns: Sequence[str], types: Sequence[str]) -> None:
        """Begin to write. Raises BadFile if the new rows do not fit the existing ones."""
        self._columns = list(columns), list(types)
        if self._found is not None and (self._found.columns, self._found.types) != self._columns:
            raise BadFile("the table has other columns than when the export was cut off; started again, it begins anew")

    def note(self, count: int, last: Sequence[Any], out: IO[str]) -> None:
        """Note that this start has written so many rows, the last of them this one."""
        if self.key:
            out.flush()
            self._done = _Progress(self.rows + count, os.fstat(out.fileno()).st_size, last)

    def _claim(self) -> _Note | None:
        """Take over the file of an earlier start; None if there is none, or it is of another export."""
        own = self.path.with_suffix(".note")
        try:
            self._note_path.replace(own)  # of two that start at once, one gets it
            found = msgspec.json.decode(own.read_bytes(), type=_Note)
        except (OSError, msgspec.MsgspecError):
            return None
        finally:
            own.unlink(missing_ok=True)
        part = self._file.with_name(Path(found.part).name)
        if found.about != self._about or not part.exists() or part.stat().st_size < found.bytes:
            part.unlink(missing_ok=True)
            return None
        part.replace(self.path)
        os.truncate(self.path, found.bytes)
        return found

    def _keep(self) -> None:
        from tuplegate.client.values import write

        done, (columns, types) = self._done, self._columns
        if done.last is not None:
            key = [write(done.last[columns.index(name)]) for name in self.key]
        else:
            assert self._found is not None, "the rows are of this start or of an earlier one"
            key, columns, types = self._found.key, self._found.columns, self._found.types
        note = _Note(self.path.name, self._about, columns, types, key, done.rows, done.bytes)
        written = self.path.with_suffix(".note")
        written.write_bytes(msgspec.json.encode(note))
        written.replace(self._note_path)

    @property
    def _note_path(self) -> Path:
        return self._file.with_name(f".{self._file.name}.note")


def find_key(client: "Client", table: str, kind: str, export: ExportPlan) -> TableKey:
    """Return the primary key if an export can use it; a key without columns otherwise. The note has the key as it is in
    the file. Arrays and JSON cannot be sent back in that form."""
    from tuplegate.client import SqlError
    from tuplegate.client.statements import quote

    if kind not in _KINDS:
        return NO_KEY
    try:
        rows = client.query(_KEY, [table])
        names = [str(row["attname"]) for row in rows]
        types = dict(zip(export.columns, export.engine_types, strict=True))
        if not names or any(types[name].endswith("[]") or types[name] in ("json", "jsonb") for name in names):
            return NO_KEY
        plan = client.query(f"explain select * from {table} order by {', '.join(map(quote, names))}")
    except SqlError:
        return NO_KEY  # whatever is wrong with the table, the export itself will say
    if _SORTS.search("\n".join(str(row[0]) for row in plan.tuples())):
        return NO_KEY
    return TableKey(f"{rows[0]['place']} {rows[0]['id']}", names)
