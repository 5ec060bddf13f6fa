"""Converts results of the service to the rows and the description of a cursor. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuplegate.client.collecting import pause_collector
from tuplegate.client.statements import find_keyword, seems_to_read
from tuplegate.client.values import find_converter
from tuplegate.dbapi.errors import OperationalError

DescribedColumn = tuple[str, str, None, None, None, None, None]
Row = tuple[Any, ...]

_LARGE_ROWS = 5000
"""From this number on, rows are worth a pause of the garbage collector."""


@dataclass(frozen=True)
class Result:
    """`description` is None for a statement that returns no rows."""

    description: list[DescribedColumn] | None
    rows: list[Row]
    rowcount: int


def describe(columns: Sequence[str], types: Sequence[str]) -> list[DescribedColumn] | None:
    if not columns:
        return None
    return [(name, kind, None, None, None, None, None) for name, kind in zip(columns, types, strict=True)]


def read_result(body: Mapping[str, Any]) -> Result:
    """Read a result whose rows are arrays. Raises OperationalError if its rows were cut."""
    if body.get("truncated"):
        # The caller could not distinguish missing rows from rows that do not exist.
        raise OperationalError(
            "the statement was run, but its result is larger than the service answers at once; read it with"
            " cursor(stream=True)"
        )
    description = describe(body["columns"], body["types"])
    rows = convert_rows(body["types"], body["rows"])
    return Result(description, rows, body["affected_rows"] or len(rows))


def convert_rows(types: Sequence[str], rows: list[list[Any]]) -> list[Row]:
    """Return the rows as tuples of Python values. Column by column takes half the time of row by row."""
    if len(rows) > _LARGE_ROWS:
        with pause_collector():
            return _convert_rows(types, rows)
    return _convert_rows(types, rows)


def _convert_rows(types: Sequence[str], rows: list[list[Any]]) -> list[Row]:
    for index, kind in enumerate(types):
        convert = find_converter(kind)
        if convert is not None:
            for row in rows:
                value = row[index]
                if value is not None:
                    row[index] = convert(value)
    return list(map(tuple, rows))


def is_declarable(sql: str) -> bool:
    """Return whether a cursor can be declared for the statement."""
    return seems_to_read(sql) and find_keyword(sql) not in ("show", "explain")
