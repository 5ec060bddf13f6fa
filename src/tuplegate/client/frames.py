"""Converts rows to data frames and back, with libraries that need not be installed.

Every column gets the type that the answer states, even if there are no rows. numeric becomes a decimal type that holds
all its digits. A type that the library lacks (json, uuid, ranges, …) becomes text, and so does a column with a value
that its type cannot hold, such as an infinite date.
"""

import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuplegate.client.errors import TuplegateError
from tuplegate.client.statements import quote
from tuplegate.client.values import library_of, write

if TYPE_CHECKING:
    from tuplegate.client.rows import Rows


class MissingLibrary(TuplegateError, ImportError):
    """The library that a conversion needs is not installed."""


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise MissingLibrary(f"{name} is not installed; `pip install {name}` installs it") from exc


# -- columns, before any library -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FrameColumn:
    """A column of a frame. `kind` is the PostgreSQL type, or `text`; `depth` counts the lists around a value."""

    name: str
    kind: str
    depth: int
    values: list[Any]
    digits: tuple[int, int]
    """Precision and scale of a numeric column."""


_NUMBERS = frozenset({"int2", "int4", "int8", "oid", "float4", "float8", "numeric"})
_TIMES = frozenset({"date", "time", "timestamp", "timestamptz", "interval"})
_KINDS = _NUMBERS | _TIMES | {"bool", "bytea"}


def _columns(rows: "Rows", digits_max: int) -> Iterator[_FrameColumn]:
    used: set[str] = set()
    for index, name in enumerate(rows.columns):
        yield _column(_pick_unused(name, used), rows.types[index], rows.column(index), digits_max)


def _pick_unused(name: str, used: set[str]) -> str:
    """Return a name that is not used yet: the columns of a frame differ, so the second `id` becomes `id_2`."""
    made, number = name, 1
    while made in used:
        number += 1
        made = f"{name}_{number}"
    used.add(made)
    return made


def _column(name: str, type_name: str, values: list[Any], digits_max: int) -> _FrameColumn:
    kind = type_name.removesuffix("[]")
    depth = 0
    if kind != type_name:
        depths = {_depth(value) for value in values if value}
        if len(depths) > 1:
            return _FrameColumn(name, "text", 0, [_text(value) for value in values], (0, 0))
        depth = max(depths, default=1)
    leaves = list(_leaves(values, depth))
    digits = _digits(leaves) if kind == "numeric" else (0, 0)
    if kind not in _KINDS or digits is None or digits[0] > digits_max or _has_stray_text(kind, leaves):
        return _FrameColumn(name, "text", depth, [_texts(value, depth) for value in values], (0, 0))
    return _FrameColumn(name, kind, depth, values, digits)


def _depth(value: Any) -> int:
    depth = 0
    while isinstance(value, list) and value:
        value = value[0]
        depth += 1
    return depth


def _leaves(values: Sequence[Any], depth: int) -> Iterator[Any]:
    for value in values:
        if value is not None and depth:
            yield from _leaves(value, depth - 1)
        elif value is not None:
            yield value


def _has_stray_text(kind: str, leaves: Sequence[Any]) -> bool:
    """Return whether a column of dates or times holds text, which stands for a value that its type cannot hold."""
    return kind in _TIMES and any(isinstance(leaf, str) for leaf in leaves)


def _digits(leaves: Sequence[Any]) -> tuple[int, int] | None:
    """Return precision and scale that hold all the Decimals; None if one is not finite."""
    whole, scale = 1, 0
    for leaf in leaves:
        exponent = leaf.as_tuple().exponent
        if not isinstance(exponent, int):
            return None
        whole = max(whole, leaf.adjusted() + 1)
        scale = max(scale, -exponent)
    return whole + scale, scale


def _texts(value: Any, depth: int) -> Any:
    if value is None or not depth:
        return _text(value)
    return [_texts(part, depth - 1) for part in value]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, default=str) if isinstance(value, dict | list | bool) else str(value)


# -- the libraries -------------------------------------------------------------------------------------------------


_LibraryType = tuple[str, ...]
"""The name of a type in a library, and its arguments."""
_TYPES: dict[str, tuple[_LibraryType, _LibraryType, str]] = {
    "bool": (("bool_",), ("Boolean",), "boolean"),
    "int2": (("int16",), ("Int16",), "Int16"),
    "int4": (("int32",), ("Int32",), "Int32"),
    "int8": (("int64",), ("Int64",), "Int64"),
    "oid": (("int64",), ("Int64",), "Int64"),
    "float4": (("float32",), ("Float32",), "float32"),
    "float8": (("float64",), ("Float64",), "float64"),
    "date": (("date32",), ("Date",), "object"),
    "time": (("time64", "us"), ("Time",), "object"),
    "timestamp": (("timestamp", "us"), ("Datetime", "us"), "datetime64[us]"),
    "timestamptz": (("timestamp", "us", "UTC"), ("Datetime", "us", "UTC"), "datetime64[us, UTC]"),
    "interval": (("duration", "us"), ("Duration", "us"), "timedelta64[us]"),
    "bytea": (("binary",), ("Binary",), "object"),
    "text": (("string",), ("String",), "object"),
}
"""The types of pyarrow, polars and pandas."""


def _make_type(library: Any, made: _LibraryType) -> Any:
    return getattr(library, made[0])(*made[1:])


def to_arrow(rows: "Rows") -> Any:
    arrow = _library("pyarrow")
    names, arrays = [], []
    for column in _columns(rows, digits_max=76):
        if column.kind in _TYPES:
            kind = _make_type(arrow, _TYPES[column.kind][0])
        else:
            kind = (arrow.decimal128 if column.digits[0] <= 38 else arrow.decimal256)(*column.digits)
        for _ in range(column.depth):
            kind = arrow.list_(kind)
        names.append(column.name)
        arrays.append(arrow.array(column.values, type=kind))
    return arrow.Table.from_arrays(arrays, names=names)


def to_polars(rows: "Rows") -> Any:
    polars = _library("polars")
    made = []
    for column in _columns(rows, digits_max=38):
        known = _TYPES.get(column.kind)
        kind = polars.Decimal(*column.digits) if known is None else _make_type(polars, known[1])
        for _ in range(column.depth):
            kind = polars.List(kind)
        made.append(polars.Series(column.name, column.values, dtype=kind))
    return polars.DataFrame(made)


def to_pandas(rows: "Rows") -> Any:
    """Convert to pandas. Columns without a pandas type hold the Python values."""
    pandas = _library("pandas")
    series = {}
    used: set[str] = set()
    for index, name in enumerate(rows.columns):
        values = rows.column(index)
        known = _TYPES.get(rows.types[index])
        kind = "object" if known is None or _has_stray_text(rows.types[index], values) else known[2]
        series[_pick_unused(name, used)] = pandas.Series(values, dtype=kind)
    return pandas.DataFrame(series)


# -- frames as rows ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FrameRows:
    """The names of a frame's columns, and its values by column."""

    names: list[str]
    columns: list[list[Any]]

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def documents(self, start: int, end: int) -> str:
        """Return these rows as a JSON array of objects."""
        names = [json.dumps(name) for name in self.names]
        parts = [[write(value) for value in column[start:end]] for column in self.columns]
        rows = (",".join(map("{}:{}".format, names, row)) for row in zip(*parts, strict=True))
        return "[" + ",".join(f"{{{row}}}" for row in rows) + "]"


def read_frame(frame: Any) -> FrameRows:
    """Return the rows of a pandas or polars frame, or of an Arrow table. The index of pandas is not a column."""
    library, kind = library_of(frame), type(frame).__name__
    if library == "pandas" and kind == "DataFrame":
        names = list(frame.columns)
        columns = [_without_nan(frame.iloc[:, index].tolist()) for index in range(len(names))]
    elif library == "polars" and kind == "DataFrame":
        names = list(frame.columns)
        columns = [series.to_list() for series in frame.get_columns()]
    elif library == "pyarrow" and kind == "Table":
        names = list(frame.column_names)
        columns = [column.to_pylist() for column in frame.columns]
    else:
        raise TypeError(f"a {kind} is no data frame of pandas or polars and no table of pyarrow")
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"the columns of the frame need names, each its own, as the table's columns have: {names}")
    return FrameRows(names, columns)


def _without_nan(values: list[Any]) -> list[Any]:
    """Replace NaN, which pandas uses for missing values, by None. Integers that pandas made floats for it become
    integers again."""
    kept = [None if isinstance(value, float) and value != value else value for value in values]
    if None in kept and all(value is None or (isinstance(value, float) and value.is_integer()) for value in kept):
        return [None if value is None else int(value) for value in kept]
    return kept


def write_insert(table: str, names: Sequence[str]) -> str:
    """Return the statement that inserts rows from one JSON text, whatever the types of the columns."""
    columns = ", ".join(map(quote, names))
    return (
        f"insert into {table} ({columns}) select {columns} from json_populate_recordset(null::{table}, $1::text::json)"
    )
