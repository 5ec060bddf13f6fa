"""Finds the compiled writer of rows, which needs neither the driver's loaders nor msgspec; it exists if it was
built."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from psycopg.pq.abc import PGresult

from tuplegate.engine.libpq.values.types import (
    BOOL,
    BYTEA,
    FRACTIONS,
    INTEGERS,
    JSON_OIDS,
    TIMESTAMP,
    TIMESTAMPTZ,
    TypeInfo,
)
from tuplegate.engine.port import Shape


class Writer(Protocol):
    def write(self, result: PGresult, end: int, between: bytes, last: bytes = b"", first: int = 0) -> bytes:
        """Return the rows from `first` up to `end` as JSON. Raises UnicodeDecodeError if a text is not UTF-8."""


def make_writer(
    names: Sequence[str],
    types: Sequence[TypeInfo],
    shape: Shape,
    strings: frozenset[int],
    odd: Callable[[int, str], bytes],
) -> Writer | None:
    """Return the compiled writer; None if it was not built, or a column is an array.

    Numbers of the types in `strings` are written as strings. `odd` returns the JSON of a value that differs from others
    of its type, by its column and its text.
    """
    try:
        from tuplegate.engine.libpq.values.row_bytes import Kind, RowWriter
    except (ImportError, OSError):  # it was not built; or the driver is not the one in C
        return None
    if any(info.element for info in types):
        return None
    kinds = dict.fromkeys((*INTEGERS, *FRACTIONS), Kind.NUMBER) | dict.fromkeys(JSON_OIDS, Kind.JSON)
    kinds |= {BOOL: Kind.BOOLEAN, BYTEA: Kind.BYTEA, TIMESTAMP: Kind.TIMESTAMP, TIMESTAMPTZ: Kind.TIMESTAMPTZ}
    kinds |= dict.fromkeys(strings, Kind.TEXT)
    columns, end = lay_out(names, shape)
    return RowWriter([(index, kinds.get(types[index].oid, Kind.TEXT), before) for index, before in columns], end, odd)


def lay_out(names: Sequence[str], shape: Shape) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return each column's index with the text before its value, and the text after the last value."""
    if shape.row_mode == "arrays":
        keys, indexes, start, end = [b""] * len(names), list(range(len(names))), b"[", b"]"
    else:
        last = {name: index for index, name in enumerate(names)}
        indexes, start, end = list(last.values()), b"{", b"}"
        keys = [msgspec.json.encode(name) + b":" for name in last]
    columns = [
        (index, (b"," if number else start) + key)
        for number, (index, key) in enumerate(zip(indexes, keys, strict=True))
    ]
    return columns, end if columns else start + end
