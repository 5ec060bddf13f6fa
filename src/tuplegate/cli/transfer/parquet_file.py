"""Reads and writes Parquet files with pyarrow, which the extra `tuplegate[parquet]` installs.

Reading: a batch has as many rows as fit into a request, by the sizes in the file's footer. Writing: one group of rows
at a time, with the types of the answer; a type that Parquet lacks becomes text, as `value_forms` says.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import IO, Any

from tuplegate.cli.transfer.files import BadFile, Batch, Guessed, NamedColumns, Texts, check_columns, compute_digest
from tuplegate.client.values import find_converter, write

_BATCH_BYTES = 2**19
_BATCH_ROWS = 10_000
_GROUP_ROWS = 50_000
_GROUP_BYTES = 64 * 2**20
_SHOWN_MAX = 50
"""Characters of a value that a message shows."""


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise BadFile("Parquet needs pyarrow: `pip install 'tuplegate[parquet]'` installs it") from exc


# -- read ----------------------------------------------------------------------------------------------------------


class ParquetSource(NamedColumns):
    def __init__(self, path: Path) -> None:
        self._arrow, self._parquet = _import("pyarrow"), _import("pyarrow.parquet")
        self._path = path
        self.digest = compute_digest(path)
        with self._open() as file:
            self._schema = file.schema_arrow
            self._metadata = file.metadata
        self.columns = check_columns(path, self._schema.names)

    def guess(self) -> Guessed:
        """Return the file's own types."""
        return Guessed([_type_of(self._arrow, field.type) for field in self._schema], self._metadata.num_rows)

    def batches(self, documents: frozenset[str]) -> Iterator[Batch]:
        size = sum(self._metadata.row_group(n).total_byte_size for n in range(self._metadata.num_row_groups))
        rows = max(self._metadata.num_rows, 1)
        # A value is longer as text than as a number.
        count = max(min(_BATCH_BYTES * rows // max(size * 2, 1), _BATCH_ROWS), 1)
        start = 0
        for number, table in enumerate(self._read_tables(count)):
            columns = [_to_texts(self._arrow, column) for column in table.columns]
            end = start + table.num_rows
            yield Batch(number, columns, end / rows, partial(_name_row, start))
            start = end
        if compute_digest(self._path) != self.digest:
            raise BadFile(f"{self._path} was changed while it was read; start it again")

    def _read_tables(self, count: int) -> Iterator[Any]:
        """Yield tables of `count` rows, whatever the file's row groups are; the last one has the rest."""
        waiting, rows = [], 0
        with self._open() as file:
            try:
                for part in file.iter_batches(batch_size=count):
                    waiting.append(part)
                    rows += part.num_rows
                    if rows >= count:
                        table = self._arrow.Table.from_batches(waiting)
                        whole = rows // count * count
                        yield from (table.slice(start, count) for start in range(0, whole, count))
                        waiting, rows = table.slice(whole).to_batches(), rows - whole
            except (self._arrow.ArrowException, OSError) as exc:
                raise BadFile(f"{self._path} is broken: {exc}") from exc
        if rows:
            yield self._arrow.Table.from_batches(waiting)

    def _open(self) -> Any:
        try:
            return self._parquet.ParquetFile(self._path)
        except (self._arrow.ArrowException, OSError) as exc:
            raise BadFile(f"{self._path} cannot be read as Parquet: {exc}") from exc


def _name_row(start: int, index: int) -> str:
    return f"row {start + index + 1}"


def _type_of(arrow: Any, kind: Any) -> str:
    """Return the PostgreSQL type that holds values of an Arrow type."""
    is_ = arrow.types
    if is_.is_dictionary(kind):
        return _type_of(arrow, kind.value_type)
    simple: tuple[tuple[Callable[[Any], bool], str], ...] = (
        (is_.is_boolean, "boolean"), (is_.is_uint64, "numeric"), (is_.is_uint32, "bigint"), (is_.is_int64, "bigint"),
        (is_.is_uint16, "integer"), (is_.is_int32, "integer"), (is_.is_integer, "smallint"),
        (is_.is_float64, "double precision"), (is_.is_floating, "real"), (is_.is_date, "date"), (is_.is_time, "time"),
        (is_.is_binary, "bytea"), (is_.is_large_binary, "bytea"), (is_.is_fixed_size_binary, "bytea"),
        (is_.is_struct, "jsonb"), (is_.is_map, "jsonb"),
    )  # fmt: skip
    if is_.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    if is_.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})" if 0 <= kind.scale <= kind.precision else "numeric"
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        element = _type_of(arrow, kind.value_type)
        return "jsonb" if element == "jsonb" else element.removesuffix("[]") + "[]"
    if str(kind) == "extension<arrow.uuid>":
        return "uuid"
    return next((name for test, name in simple if test(kind)), "text")


def _to_texts(arrow: Any, column: Any) -> Texts:
    is_ = arrow.types
    kind = column.type
    if is_.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if is_.is_string(kind) or is_.is_large_string(kind):
        return list(column.to_pylist())
    if is_.is_integer(kind) or is_.is_boolean(kind) or is_.is_date32(kind) or is_.is_float64(kind):
        return list(column.cast(arrow.string()).to_pylist())
    if is_.is_timestamp(kind):
        return _write_timestamps(arrow, column)
    return [_to_text(value) for value in column.to_pylist()]


def _write_timestamps(arrow: Any, column: Any) -> Texts:
    """Return timestamps as text, in UTC if they have a zone. Nanoseconds are cut to microseconds, as the engine
    keeps."""
    kind = column.type
    micros = column.cast(arrow.timestamp("us", kind.tz), safe=False).cast(arrow.int64())
    zone = "" if kind.tz is None else "Z"
    texts = micros.cast(arrow.timestamp("us")).cast(arrow.string()).to_pylist()
    return [None if text is None else text + zone for text in texts]


def _to_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    written = write(_to_json_value(value))
    return str(_to_json_value(value)) if written.startswith('"') else written


def _to_json_value(value: Any) -> Any:
    """Return an Arrow value as a value that JSON can hold."""
    match value:
        case bytes():
            return "\\x" + value.hex()
        case list() | tuple():  # a tuple is an entry of a map
            return [_to_json_value(part) for part in value]
        case dict():
            return {str(name): _to_json_value(part) for name, part in value.items()}
        case Decimal():
            return format(value, "f") if value.is_finite() else str(value)
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return f"{value.days} days {value.seconds}.{value.microseconds:06} seconds"
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


# -- written -------------------------------------------------------------------------------------------------------


class _Unfit(Exception):
    """A value has no exact form in the type of its column; the message says which."""


@dataclass(frozen=True)
class _ArrowColumn:
    """The type of a column in the file, and how to convert a value of the answer to it."""

    arrow: Any
    convert: Callable[[Any], Any]


class ParquetWriter:
    """Writes rows of an answer to a file. `precisions` are the precision and scale of numeric columns."""

    def __init__(self, out: IO[bytes], precisions: dict[str, tuple[int, int]]) -> None:
        self._arrow, self._parquet = _import("pyarrow"), _import("pyarrow.parquet")
        self._out = out
        self._precisions = precisions
        self._kinds: list[_ArrowColumn] = []
        self._names: list[str] = []
        self._waiting: list[Sequence[Any]] = []
        self._size = 0
        self._writer: Any = None

    def begin(self, columns: Sequence[str], types: Sequence[str]) -> None:
        pairs = zip(columns, types, strict=True)
        self._kinds = [_choose_column(self._arrow, type_, self._precisions.get(name)) for name, type_ in pairs]
        self._names = [f"{name} of type {type_}" for name, type_ in zip(columns, types, strict=True)]
        fields = [(name, kind.arrow) for name, kind in zip(columns, self._kinds, strict=True)]
        self._schema = self._arrow.schema(fields)
        self._writer = self._parquet.ParquetWriter(self._out, self._schema, compression="zstd")

    def rows(self, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self._waiting.append(row)
            self._size += sum(len(value) for value in row if isinstance(value, str))
        if len(self._waiting) >= _GROUP_ROWS or self._size >= _GROUP_BYTES:
            self._flush()

    def end(self) -> None:
        if self._waiting:
            self._flush()
        self._writer.close()

    def close(self) -> None:
        """Make sure that the library writes no more, even after a failure: the file is about to be closed."""
        if self._writer is not None and self._writer.is_open:
            try:
                self._writer.close()
            except (OSError, self._arrow.ArrowException):
                pass  # the disk is full, and the file will be deleted
            finally:
                self._writer.is_open = False

    def _flush(self) -> None:
        columns = zip(*self._waiting, strict=True)
        arrays = list(map(self._array, self._names, self._kinds, columns))
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._waiting, self._size = [], 0

    def _array(self, name: str, kind: _ArrowColumn, values: Sequence[Any]) -> Any:
        try:
            converted = [None if value is None else kind.convert(value) for value in values]
        except _Unfit as unfit:
            ways = "CSV and NDJSON can, and so can Parquet if the statement casts the column to text"
            raise BadFile(f"column {name}: Parquet cannot carry {unfit}; {ways}") from unfit
        return self._arrow.array(converted, kind.arrow)


def _choose_column(arrow: Any, type_: str, digits: tuple[int, int] | None) -> _ArrowColumn:
    if type_.endswith("[]"):
        element = _choose_column(arrow, type_.removesuffix("[]"), None)
        return _ArrowColumn(arrow.list_(element.arrow), _list_of(element.convert))
    kinds: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "bool": (arrow.bool_(), _same),
        "int2": (arrow.int16(), _same),
        "int4": (arrow.int32(), _same),
        "int8": (arrow.int64(), _same),
        "oid": (arrow.int64(), _same),
        "float4": (arrow.float32(), float),
        "float8": (arrow.float64(), float),
        "date": (arrow.date32(), _instance_of(date, "date")),
        "timestamp": (arrow.timestamp("us"), _instance_of(datetime, "timestamp")),
        "timestamptz": (arrow.timestamp("us", "UTC"), _instance_of(datetime, "timestamptz")),
        "bytea": (arrow.binary(), _bytes),
    }
    if type_ == "numeric" and digits is not None and digits[0] <= 38 and 0 <= digits[1] <= digits[0]:
        return _ArrowColumn(arrow.decimal128(*digits), _decimal)
    return _ArrowColumn(*kinds.get(type_, (arrow.string(), _text_of)))


def _same(value: Any) -> Any:
    return value


def _bytes(value: str) -> bytes:
    return bytes.fromhex(value[2:])


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else write(value)


def _decimal(value: Any) -> Decimal:
    found = Decimal(value)
    if not found.is_finite():
        raise _Unfit(f"{value} as a decimal")
    return found


def _instance_of(kind: type, type_: str) -> Callable[[Any], Any]:
    read = find_converter(type_)
    assert read is not None

    def convert(value: Any) -> Any:
        found = read(value)
        if not isinstance(found, kind):
            raise _Unfit(f"{value} as a {type_}")
        return found

    return convert


def _list_of(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def each(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Unfit(f"an array with bounds, {value[:_SHOWN_MAX]}")
        if any(isinstance(part, list) for part in value):
            raise _Unfit("an array of more than one dimension")
        return [None if part is None else convert(part) for part in value]

    return each
