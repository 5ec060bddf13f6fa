"""`import`: a file into a table, whole or not at all, and once, however often it is cut off and started again.

Rows go in batches into a staging table beside the target, each with the number of its batch; the last transaction moves
all of them and drops the staging table. So the target never sees half a file, and what is staged already says where to
go on. That last transaction has an Idempotency-Key made of the file and the table, and refuses to run unless every row
is staged: it can be sent at any time, and a job that is done answers that it is.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querygate.cli.files import Row, Summary, read

if TYPE_CHECKING:
    from querygate.client import Client

_BATCH_ROWS = 5000
_BATCH_BYTES = 2 * 2**20
_FINISH_S = 60.0
_VERSION = "1"
"""Changes when batches are cut differently: a job is only resumed by what cuts them the same way."""

Progress = Callable[[int], None]


class ImportFailed(Exception):
    """Nothing was imported; the message says why."""


@dataclass(frozen=True)
class Target:
    """A table: its number, which one made anew does not have, its quoted name, and the types of its columns."""

    oid: int
    name: str
    types: dict[str, str]


@dataclass(frozen=True)
class Result:
    rows: int
    resumed_at: int
    """Rows that an earlier start had staged."""
    before: bool
    """The same job was finished before, and nothing was done now."""


def find_target(client: "Client", table: str) -> Target | None:
    """None where there is no such table."""
    rows = client.query(
        "select a.attrelid::oid as oid, to_regclass($1)::text as name, a.attname, a.atttypid::regtype::text as type "
        "from pg_attribute a where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped",
        [table],
    )
    return Target(rows[0]["oid"], rows[0]["name"], {row["attname"]: row["type"] for row in rows}) if rows else None


def create_target(client: "Client", table: str, summary: Summary) -> None:
    """A table for what was guessed of the file."""
    columns = ", ".join(f"{quoted(n)} {t}" for n, t in zip(summary.columns, summary.types, strict=True))
    client.query(f"create table if not exists {table} ({columns})")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Job:
    """One file into one table. `label` tells apart two imports of the same."""

    def __init__(self, client: "Client", path: Path, format: str, null: str, summary: Summary, target: Target) -> None:
        self._client = client
        self._path = path
        self._format = format
        self._null = null
        self._summary = summary
        self._target = target
        self._columns = ", ".join(map(quoted, summary.columns))
        self._label = ""

    def run(self, label: str, progress: Progress) -> Result:
        self._label = label
        total = self._summary.rows
        done = self._finish()
        if done is not None:
            return Result(total, total, before=done)
        batch, staged = self._begin()
        resumed_at = staged
        for rows in islice(self._batches(), batch, None):
            self._stage(batch, rows)
            batch += 1
            staged += len(rows)
            progress(staged)
        done = self._finish()
        if done is None:
            self.drop()
            raise ImportFailed("the staged rows are not those of the file; nothing was imported, start it again")
        return Result(total, resumed_at, before=False)

    # -- names ----------------------------------------------------------------------------------------------------

    @property
    def _id(self) -> str:
        file = (self._summary.digest, self._format, self._null)
        parts = (_VERSION, *file, str(self._target.oid), self._target.name, self._columns, self._label)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

    @property
    def _staging(self) -> str:
        return f"querygate_import_{self._id}"

    # -- steps ----------------------------------------------------------------------------------------------------

    def _begin(self) -> tuple[int, int]:
        """The staging table; the number of the next batch, and of the rows that are staged."""
        self._client.transaction([
            f"create table if not exists {self._staging} as "
            f"select 0 as querygate_batch, {self._columns} from {self._target.name} with no data",
            f"create index if not exists {self._staging}_batch on {self._staging} (querygate_batch)",
        ])  # fmt: skip
        sql = f"select coalesce(max(querygate_batch) + 1, 0) as batch, count(*) as rows from {self._staging}"
        found = self._client.query(sql).one()
        return found["batch"], found["rows"]

    def _batches(self) -> Iterator[list[Row]]:
        """The same file is always cut into the same batches."""
        rows: list[Row] = []
        size = 0
        for row in read(self._path, self._format, self._null, self._summary):
            rows.append(row)
            size += sum(len(value) if isinstance(value, str) else 20 for value in row.values)
            if len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows

    def _stage(self, batch: int, rows: list[Row]) -> None:
        from querygate.client import DataError, SqlError

        # Of two that run the same job at once, one stages a batch: at SERIALIZABLE the other sees it.
        sql = (
            f"insert into {self._staging} (querygate_batch, {self._columns}) select $2::int, {self._columns} "
            f"from json_populate_recordset(null::{self._target.name}, $1::text::json) "
            f"where not exists (select from {self._staging} where querygate_batch = $2::int)"
        )
        try:
            self._client.query(sql, [self._json(rows), batch])
        except SqlError as error:
            if isinstance(error, DataError):
                self.drop()
                row = self._broken(rows)
                raise ImportFailed(f"line {row.line}: {error.message}; nothing was imported") from error
            raise

    def _broken(self, rows: list[Row]) -> Row:
        """The first row that the engine does not take, found by halves."""
        from querygate.client import DataError

        sql = f"select count(r.*) from json_populate_recordset(null::{self._target.name}, $1::text::json) r"
        while len(rows) > 1:
            half = rows[: len(rows) // 2]
            try:
                self._client.query(sql, [self._json(half)])
                rows = rows[len(half) :]
            except DataError:
                rows = half
        return rows[0]

    def _json(self, rows: list[Row]) -> str:
        from querygate.client.values import write

        documents = [self._target.types[name] in ("json", "jsonb") for name in self._summary.columns]
        names = self._summary.columns
        if self._format == "ndjson":
            return "[" + ",".join(write(dict(zip(names, row.values, strict=True))) for row in rows) + "]"
        if not any(documents):
            return json.dumps([dict(zip(names, row.values, strict=True)) for row in rows])
        return "[" + ",".join(self._object(row, documents) for row in rows) + "]"

    def _object(self, row: Row, documents: list[bool]) -> str:
        """A row whose json columns hold JSON text already: it is a part of the object, not a string in it."""
        parts = []
        for name, value, document in zip(self._summary.columns, row.values, documents, strict=True):
            text = _checked_json(row, value) if document and value is not None else json.dumps(value)
            parts.append(f"{json.dumps(name)}:{text}")
        return "{" + ",".join(parts) + "}"

    def _finish(self) -> bool | None:
        """Moves all rows if all are there. True where that was done before, None where there are rows to stage."""
        from querygate.client import DivisionByZero, SqlError, UndefinedTable

        statements = [
            # Ends the transaction with an error unless every row is there, once.
            f"select 1 / (count(*) = {self._summary.rows})::int from {self._staging}",
            f"insert into {self._target.name} ({self._columns}) select {self._columns} from {self._staging} "
            "order by querygate_batch",
            f"drop table {self._staging}",
        ]
        try:
            # The time is a part of the request, and a repeat must be the same request.
            done = self._client.transaction(statements, idempotency_key=f"import-{self._id}", timeout_s=_FINISH_S)
        except SqlError as error:
            if error.statement == 0 and isinstance(error, UndefinedTable | DivisionByZero):
                return None
            if error.statement == 1 and not error.retryable:
                self.drop()
            raise
        return done.replayed

    def drop(self) -> None:
        """Takes back what is staged."""
        self._client.query(f"drop table if exists {self._staging}")


def _checked_json(row: Row, value: Any) -> str:
    try:
        json.loads(value)
    except ValueError as exc:
        raise ImportFailed(f"line {row.line}: this is not JSON: {exc}; nothing was imported") from exc
    return str(value).replace("\n", " ")
