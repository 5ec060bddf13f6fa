"""`import`: load a file into a table completely or not at all, and only once, however often it is interrupted.

Rows go in batches into a staging table beside the target; the last transaction moves all of them and drops it. So the
target never holds half a file. A second table records each batch with a digest of its rows, in the statement that
stages them. It tells which batches are staged, even if several processes stage them, and at the end whether they are
those of the file.

Neither table is in the engine's log: a crash of the engine empties both, and the batches are staged again.

The last transaction has an Idempotency-Key made of the file and the table, and refuses to run unless every row is
staged. So it can be sent at any time, and for a finished job it answers that it is done.
"""

import gc
import hashlib
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from tuplegate.cli.transfer.ahead import run_ahead
from tuplegate.cli.transfer.array_literals import array_literal
from tuplegate.cli.transfer.files import BadFile, Batch, Guessed, RowSource, Texts
from tuplegate.cli.transfer.value_forms import DOCUMENT_SQL
from tuplegate.client.statements import quote
from tuplegate.client.values import JsonText

if TYPE_CHECKING:
    from tuplegate.client import Client, SqlError

_FINISH_S = 60.0
_PASSES = 3
"""How often a file is read if the engine loses staged rows."""
_TRIES = 5
"""How often a batch is sent if its answer is lost."""
_VERSION = "4"
"""Changes when batches are split or read differently: only the same version resumes a job."""

Progress = Callable[[int, float], None]
"""Called with the number of staged rows, and the part of the file that was read."""


_NOT_OF_A_ROW = frozenset({"08", "0A", "25", "28", "40", "42", "53", "55", "57", "58", "F0", "XX"})
"""Classes of SQLSTATE that do not concern the values of a row. A trigger can refuse a row with any other."""
_ROW_SECURITY = "42501"
"""SQLSTATE with which a policy refuses a row; a key without the right gets the same."""
_BATCH_SIZE_MAX = 2**32
"""The place of a row is the number of its batch times this, plus its index in the batch."""


class ImportFailed(Exception):
    """Nothing was imported. The message says why; `more` adds details."""

    def __init__(self, message: str, *more: str) -> None:
        super().__init__(message)
        self.more = more


class _Taken(Exception):
    """The staging table is gone: another process has finished the same job, or undone it."""


class _Foreign(Exception):
    """The staged rows are not those of this file."""


@dataclass(frozen=True)
class TargetColumn:
    """A column of the target. `kind` is `array`, `record`, or empty for all other types."""

    type: str
    kind: str
    is_generated: bool
    is_document: bool
    """It is json, jsonb or a domain over them."""
    is_own: bool
    """The type is not the engine's: a tenant may have made casts for it."""
    is_listed: bool
    """Values of the type can be elements of an array literal with commas."""

    @property
    def is_direct(self) -> bool:
        """True if texts are sent as an array of the type, whose input function reads them. Others are cast."""
        return not self.kind and self.is_listed and not self.is_document and self.type not in _TEXTS


@dataclass(frozen=True)
class TargetTable:
    """A table: its oid, which changes if it is created anew, its quoted name, and its columns."""

    oid: int
    name: str
    columns: dict[str, TargetColumn]


@dataclass(frozen=True)
class ImportResult:
    rows: int
    resumed_at: int
    """Rows that an earlier run had staged."""
    before: bool
    """The same job was finished earlier, and nothing was done now."""


def find_target(client: "Client", table: str) -> TargetTable | None:
    """Find a table; return None if there is none."""
    rows = client.query(
        "select a.attrelid::oid as oid, to_regclass($1)::text as name, a.attname, format_type(a.atttypid, -1) as type, "
        "case when t.typcategory = 'A' then 'array' when t.typcategory = 'C' then 'record' else '' end as kind, "
        f"a.attgenerated <> '' as generated, {DOCUMENT_SQL} is not null as document, t.typdelim = ',' as listed, "
        "t.typnamespace <> 'pg_catalog'::regnamespace as own "
        "from pg_attribute a join pg_type t on t.oid = a.atttypid "
        "where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped order by a.attnum",
        [table],
    )
    columns = {
        row["attname"]: TargetColumn(
            row["type"], row["kind"], row["generated"], row["document"], row["own"], row["listed"]
        )
        for row in rows
    }
    return TargetTable(rows[0]["oid"], rows[0]["name"], columns) if rows else None


def fit_columns(source: RowSource, target: TargetTable) -> None:
    """Check the names of the file's columns. A file without names gets those of the table."""
    if not source.named:
        names = [name for name, column in target.columns.items() if not column.is_generated]
        if len(names) != len(source.columns):
            counts = f"line 1 has {len(source.columns)} fields and the table has {len(names)} columns"
            rule = f"a file without a header has all of them, in this order: {', '.join(names)}"
            raise ImportFailed(f"{counts}; {rule}")
        source.columns = names
    unknown = [name for name in source.columns if name not in target.columns]
    if unknown:
        known = f"it has {', '.join(target.columns)}"
        raise ImportFailed(f"the table has no column {', '.join(unknown)}; {known}", source.doubt(target.columns))


def create_target(client: "Client", table: str, source: RowSource, guessed: Guessed) -> None:
    """Create a table with the guessed types."""
    columns = ", ".join(f"{quote(n)} {t}" for n, t in zip(source.columns, guessed.types, strict=True))
    client.query(f"create table if not exists {table} ({columns})")


_TEXTS = frozenset({"text", "character varying"})
# JSON begins like this; the engine's own text form of such a value does not.
_IS_JSON = {"array": r"^\s*\[(?!\s*[-+]?\d+:)", "record": r"^\s*\{"}


def _convert_sql(column: TargetColumn, name: str) -> str:
    """Return the SQL that converts a sent text to a value of the column. No cast that a tenant has made is used."""
    if column.is_direct or column.type in _TEXTS:
        return name
    cast = f"{name}::{column.type}"
    if not column.kind:
        return cast
    is_json = f"{name} ~ '{_IS_JSON[column.kind]}'"
    if column.is_own:
        # A JSON string is read as the text form of a value, by the input function of its type.
        return _read_json_sql(f"case when {is_json} then {name}::json else to_json({name}) end", column.type)
    return f"case when {is_json} then {_read_json_sql(f'{name}::json', column.type)} else {cast} end"


def _read_json_sql(document: str, type_: str) -> str:
    return f"(select x.v from json_to_record(json_build_object('v', {document})) as x(v {type_}))"


@dataclass(frozen=True)
class _PreparedBatch:
    """A batch, ready to be sent."""

    batch: Batch
    params: list[JsonText]
    digest: str


class ImportJob:
    """Imports one file into one table. `label` distinguishes two imports of the same file."""

    def __init__(self, client: "Client", source: RowSource, format: str, target: TargetTable, label: str) -> None:
        self._client = client
        self._source = source
        self._target = target
        self._columns = ", ".join(map(quote, source.columns))
        file = (source.digest, format, source.form)
        parts = (_VERSION, *file, str(target.oid), target.name, self._columns, label)
        self._id = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
        self._staging = f"tuplegate_import_{self._id}"
        self._notes = f"{self._staging}_batches"
        self._places = f"{self._staging}_{secrets.token_hex(4)}"
        self._place = next(name for n in count() if (name := f"tuplegate_place_{n}") not in source.columns)
        self._types = [target.columns[name] for name in source.columns]
        self._documents = frozenset(name for name in source.columns if target.columns[name].is_document)

    def run(self, progress: Progress) -> ImportResult:
        done = self._finish()
        if done is not None:
            return ImportResult(0, 0, before=done)
        resumed_at = None
        for _ in range(_PASSES):
            try:
                staged = self._begin()
                resumed_at = sum(rows for rows, _ in staged.values()) if resumed_at is None else resumed_at
                total = self._stage_all(staged, progress)
                done = self._finish()
            except _Foreign:
                self.drop()
                continue
            except BadFile as exc:
                self.drop()
                raise ImportFailed(f"{exc}; nothing was imported") from exc
            except _Taken:
                done = self._finish()
                if done is None:
                    raise ImportFailed("another run of the same import has failed; nothing was imported") from None
                return ImportResult(0, 0, before=True)
            if done is not None:
                return ImportResult(total, resumed_at, before=done)
        self.drop()
        raise ImportFailed("the staged rows were lost several times; nothing was imported, start it again")

    # -- staging --------------------------------------------------------------------------------------------------

    def _begin(self) -> dict[int, tuple[int, str]]:
        """Create both tables; return the number of rows and the digest of each staged batch."""
        from tuplegate.client import DuplicateTable, UniqueViolation

        statements = [
            f"create unlogged table if not exists {self._staging} with (autovacuum_enabled = off) as "
            f"select {self._columns} from {self._target.name} with no data",
            f"create unlogged table if not exists {self._notes} "
            "(batch bigint primary key, rows bigint not null, digest text not null)",
        ]
        for tries_left in reversed(range(_TRIES)):
            try:
                self._client.transaction(statements)
                break
            except (DuplicateTable, UniqueViolation):
                # Another process created the tables at the same moment.
                if not tries_left:
                    raise
        found = self._client.query(f"select batch, rows, digest from {self._notes} where batch >= 0", convert=False)
        return {batch: (rows, digest) for batch, rows, digest in found.tuples()}

    def _stage_all(self, staged: dict[int, tuple[int, str]], progress: Progress) -> int:
        """Stage the missing batches, and record that all are there. Return the number of rows in the file."""
        total = 0
        whole = hashlib.sha256()
        with run_ahead(self._prepare()) as batches:
            for ready in batches:
                number = ready.batch.number
                if number not in staged:
                    self._stage(ready)
                    gc.collect(1)  # the HTTP library leaves each request, with its body, in a cycle
                elif staged[number] != (ready.batch.rows, ready.digest):
                    raise _Foreign
                whole.update(ready.digest.encode())
                total += ready.batch.rows
                progress(total, ready.batch.share)
        self._note_all(total, whole.hexdigest())
        return total

    def _prepare(self) -> Iterator[_PreparedBatch]:
        for batch in self._source.batches(self._documents):
            digest = hashlib.sha256()
            params = []
            for texts in batch.columns:
                # Encoded here, in the thread that prepares, while the previous batch is being sent.
                encoded = msgspec.json.encode(array_literal(texts, batch.null))
                digest.update(encoded)
                params.append(JsonText(encoded.decode()))
            yield _PreparedBatch(batch, params, digest.hexdigest()[:32])

    def _stage(self, ready: _PreparedBatch) -> None:
        from tuplegate.client import SqlError, TooLarge

        batch = ready.batch
        # If several processes run the same job, only one stages a batch: the others find its row in the notes.
        sql = (
            f"with mine as (insert into {self._notes} values ($1::bigint, $2::bigint, $3::text) "
            "on conflict do nothing returning 1) "
            f"{self._insert(4)} where exists (select from mine)"
        )
        try:
            self._send(sql, [batch.number, batch.rows, ready.digest, *ready.params])
        except SqlError as error:
            if not _is_about_row(error):
                raise
            index, found = self._find_broken(batch, error)
            self.drop()
            raise self._explain_refusal(batch.name_of(index), found) from error
        except TooLarge as error:
            self.drop()
            where = f"{batch.name_of(0)} to {batch.name_of(batch.rows - 1)}"
            raise ImportFailed(f"{where}: the service takes no request of this size; nothing was imported") from error

    def _send(self, sql: str, params: list[object]) -> None:
        """Run a statement that changes nothing when repeated, and repeat it if its answer is lost."""
        from tuplegate.client import OutcomeUnknown, UndefinedTable

        for tries_left in reversed(range(_TRIES)):
            try:
                self._client.query(sql, params, idempotent=False)
                return
            except OutcomeUnknown:
                if not tries_left:
                    raise
            except UndefinedTable as error:
                raise _Taken from error

    def _insert(self, first: int) -> str:
        """Return the statement that inserts rows given as arrays; `first` is the number of its first placeholder."""
        return f"insert into {self._staging} ({self._columns}) {self._select(first)}"

    def _select(self, first: int, places: str = "") -> str:
        """Return a query for rows given as arrays; with `places`, a set, it appends the place of each row."""
        sets = ", ".join(
            # Set-returning functions side by side in a SELECT list advance together, and nothing is materialized.
            f"unnest(${first + n}::{column.type if column.is_direct else 'text'}[]) as c{n}"
            for n, column in enumerate(self._types)
        )
        values = ", ".join(_convert_sql(column, f"c{n}") for n, column in enumerate(self._types))
        if places:
            return f"select {values}, place from (select {sets}, {places} as place) as sent"
        return f"select {values} from (select {sets}) as sent"

    def _find_broken(self, batch: Batch, error: "SqlError") -> tuple[int, "SqlError"]:
        """Find the first row that the engine refuses, by bisection; return its index and the error."""
        from tuplegate.client import SqlError, UndefinedTable

        start, end = 0, batch.rows
        while end - start > 1:
            middle = (start + end) // 2
            parts: list[Texts] = [texts[start:middle] for texts in batch.columns]
            literals = [array_literal(texts, batch.null) for texts in parts]
            try:
                # The second statement fails, which rolls back the first.
                self._client.transaction([(self._insert(1), literals), "select 1 / 0"])
            except UndefinedTable as gone:
                raise _Taken from gone
            except SqlError as found:
                if found.statement == 0:
                    end, error = middle, found
                else:
                    start = middle
        return start, error

    def _note_all(self, total: int, digest: str) -> None:
        """Record the total number of rows, if the staged batches are those of the file."""
        self._send(
            f"insert into {self._notes} select -1, $1::bigint, $2::text where $2::text = "
            f"(select encode(sha256(convert_to(coalesce(string_agg(digest, '' order by batch), ''), 'UTF8')), 'hex') "
            f"from {self._notes} where batch >= 0) on conflict do nothing",
            [total, digest],
        )

    # -- the end --------------------------------------------------------------------------------------------------

    def _finish(self) -> bool | None:
        """Move all rows if all are staged. Return True if that was done earlier, None if rows are missing."""
        from tuplegate.client import DivisionByZero, SqlError, UndefinedTable

        statements = [
            # Fails the transaction unless every row is staged exactly once.
            f"select 1 / coalesce((select count(*) from {self._staging}) = "
            f"(select rows from {self._notes} where batch = -1), false)::int",
            f"insert into {self._target.name} ({self._columns}) select {self._columns} from {self._staging}",
            f"drop table {self._staging}, {self._notes}",
        ]
        try:
            # The timeout is part of the request, and a repetition must be the same request.
            done = self._client.transaction(statements, idempotency_key=f"import-{self._id}", timeout_s=_FINISH_S)
        except SqlError as error:
            if error.statement == 0 and isinstance(error, UndefinedTable | DivisionByZero):
                return None
            # A deferred constraint is checked after the last statement.
            if error.statement in (1, None) and not error.retryable:
                refusal = self._find_refused_row(error)
                self.drop()
                if refusal is not None:
                    raise refusal from error
            raise
        return done.replayed

    def _find_refused_row(self, error: "SqlError") -> ImportFailed | None:
        """Find the first row of the file that the table refuses; return None if no row is at fault.

        Staged rows do not have their place, since that would slow down every import. So they are staged once more with
        it, and inserted one by one and in order, by a block that always fails.
        """
        from tuplegate.client import SqlError

        if not _is_about_row(error) and error.sqlstate != _ROW_SECURITY:
            return None
        try:
            self._stage_places()
            self._client.query(self._insert_one_by_one(), timeout_s=_FINISH_S, idempotent=False)
        except SqlError as found:
            place = re.fullmatch(r"place (\d+)", found.hint or "")
            if place is None:
                return None
            number, index = divmod(int(place[1]), _BATCH_SIZE_MAX)
            batches = self._source.batches(self._documents)
            batch = next((batch for batch in batches if batch.number == number), None)
            return None if batch is None else self._explain_refusal(batch.name_of(index), found)
        finally:
            self._client.query(f"drop table if exists {self._places}")
        return None

    def _stage_places(self) -> None:
        self._client.query(
            f"create unlogged table {self._places} as select {self._columns}, 0::bigint as {self._place} "
            f"from {self._target.name} with no data"
        )
        for ready in self._prepare():
            first = ready.batch.number * _BATCH_SIZE_MAX
            last = first + ready.batch.rows - 1
            rows = self._select(1, f"generate_series({first}::bigint, {last}::bigint)")
            self._client.query(f"insert into {self._places} {rows}", ready.params)

    def _insert_one_by_one(self) -> str:
        names = ", ".join(f"sent.{quote(name)}" for name in self._source.columns)
        tag = f"$t{secrets.token_hex(8)}$"
        # An insert of no rows fails only for a fault of the table or the key, and not of a row. A deferred
        # constraint is checked at once, unless a later row could still satisfy it.
        return f"""do {tag}
declare
  sent record;
  place text;
  said text;
  more text;
begin
  for sent in
    select format('set constraints %I.%I immediate', n.nspname, c.conname) as command
    from pg_catalog.pg_constraint c join pg_catalog.pg_namespace n on n.oid = c.connamespace
    where c.conrelid = {self._target.oid} and c.condeferred and c.confrelid <> c.conrelid
  loop
    execute sent.command;
  end loop;
  insert into {self._target.name} ({self._columns}) select {self._columns} from {self._places} where false;
  for sent in select * from {self._places} s order by s.{self._place} loop
    place := 'place ' || sent.{self._place};
    insert into {self._target.name} ({self._columns}) values ({names});
  end loop;
  place := null;
  raise exception 'every row was taken';
exception when others then
  get stacked diagnostics said = message_text, more = pg_exception_detail;
  raise exception using errcode = sqlstate, message = said, detail = more, hint = coalesce(place, '');
end {tag}"""

    def _explain_refusal(self, place: str, error: "SqlError") -> ImportFailed:
        detail = f"detail: {error.detail}" if error.detail else ""
        hint = f"hint: {self._source.about_empty}" if error.message.endswith(': ""') else ""
        return ImportFailed(f"{place}: {error.message}; nothing was imported", detail, hint)

    def drop(self) -> None:
        """Drop the staged rows."""
        self._client.query(f"drop table if exists {self._staging}, {self._notes}")


def _is_about_row(error: "SqlError") -> bool:
    return not error.retryable and (error.sqlstate or "XX")[:2] not in _NOT_OF_A_ROW
