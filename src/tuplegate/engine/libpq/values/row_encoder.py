"""Encodes rows of a result as JSON.

The server's text is sent unchanged wherever JSON allows it. The driver's C code loads rows; columns that need more are
rewritten a column at a time, and then msgspec encodes them. No Python code runs per value on the common path.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import starmap
from operator import itemgetter
from typing import Any, Final

import msgspec
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.pq.abc import PGresult

from tuplegate.engine.libpq.values.column_rewrites import (
    ELEMENT_REWRITES,
    REWRITES,
    Column,
    Rewrite,
    write_bytea_in_pieces,
    write_json_in_pieces,
    write_string_in_pieces,
)
from tuplegate.engine.libpq.values.loaders import make_adaptation, make_text_adaptation
from tuplegate.engine.libpq.values.result_size import row_size, row_values
from tuplegate.engine.libpq.values.row_writer import lay_out, make_writer
from tuplegate.engine.libpq.values.types import (
    ARRAYS_MAX,
    BYTEA,
    DIMENSIONS_MAX,
    FIRST_USER_OID,
    INT8,
    JSON_OIDS,
    NUMERIC,
    OID,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    TypeInfo,
    TypeRegistry,
)
from tuplegate.engine.port import Shape
from tuplegate.protocol.pieces import LARGE, split_array, unescape

_encoder: Final = msgspec.json.Encoder()
_encode: Final = _encoder.encode
_encode_lines: Final = _encoder.encode_lines
_TEXT: Final = pq.Format.TEXT

_SHAPES_MAX: Final = 250
_COLUMNS_MAX: Final = 20_000
"""The bounds on all remembered shapes of a database: each takes 5 KB, and half a KB for each column."""
_LARGE: Final = 4096
"""A result below this size may be copied once more."""
_AT_ONCE: Final = 1 << 18
"""The bytes of rows without arrays that are encoded at once: some ten milliseconds without compiled code."""

FieldNumbers = tuple[int, int, int, int]
"""The server's numbers for a column: its table, its number there, the size of its type, and the type's modifier."""

_BIG_NUMBERS: Final = frozenset({INT8, NUMERIC})
_NO_JSON: Final = _BIG_NUMBERS | {OID, TIMESTAMP, TIMESTAMPTZ, BYTEA}
"""In the style `mixed`, types whose values stay the server's text, although the service writes them otherwise by
default."""


def _describe_columns(names: Sequence[str], oids: Sequence[int], fields: Sequence[FieldNumbers]) -> bytes:
    return _encode(
        [
            {
                "name": name,
                "dataTypeID": oid,
                "tableID": table,
                "columnID": column,
                "dataTypeSize": size,
                "dataTypeModifier": modifier,
                "format": "text",
            }
            for name, oid, (table, column, size, modifier) in zip(names, oids, fields, strict=True)
        ]
    )


class RowEncoder:
    """Encodes the rows of results that have the same columns. Made once per shape, and cached."""

    def __init__(
        self,
        names: Sequence[str],
        oids: Sequence[int],
        shape: Shape,
        types: TypeRegistry,
        fields: Sequence[FieldNumbers] | None = None,
    ) -> None:
        self.shape = shape
        self._fields = fields or ()
        if fields is None:
            self.columns = _encode(list(names))
            self.types = _encode([types.get(oid).name for oid in oids])
        else:
            self.columns, self.types = _describe_columns(names, oids, fields), b"[]"
        is_text = shape.style == "text"
        if is_text:
            oids = [TEXT] * len(oids)
        strings = _BIG_NUMBERS if shape.big_numbers == "string" else _NO_JSON if shape.style == "mixed" else frozenset()
        self._transformer = Transformer(make_text_adaptation() if is_text else make_adaptation(oids, types, strings))
        self._rewrites = [
            (index, rewrite)
            for index, oid in enumerate(oids)
            if (rewrite := _find_rewrite(types.strip_domains(oid), types, strings)) is not None
        ]
        self._record = _make_record_maker(names, shape)
        under = [types.strip_domains(oid) for oid in oids]

        def odd(column: int, text: str) -> bytes:
            [value] = ELEMENT_REWRITES[under[column].oid]([text])
            return _encode(value)

        self._writer = make_writer(names, under, shape, strings, odd)
        self._names = names
        self._strings = strings
        self._layers = [_find_layers(oid, types) for oid in oids]
        self.at_once = LARGE if any(info.element for info in under) else _AT_ONCE
        """The bytes from which on a result is encoded in pieces."""

    def describes(self, result: PGresult) -> bool:
        """Return whether the column descriptions fit the result, which has the same names and types."""
        for index, (table, column, _, _) in enumerate(self._fields):
            if result.ftable(index) != table or result.ftablecol(index) != column:
                return False
        return True

    def _load_records(self, result: PGresult, first: int, end: int) -> list[Any]:
        transformer = self._transformer
        transformer.set_pgresult(result)
        rows: Iterable[Any] = transformer.load_rows(first, end, tuple)
        transformer.set_pgresult(None)
        if self._rewrites and end > first:
            columns: list[Column] = list(zip(*rows, strict=True))
            for index, rewrite in self._rewrites:
                columns[index] = rewrite(columns[index])
            rows = zip(*columns, strict=True)
        return self._record(rows)

    def encode_array(self, result: PGresult, rows_max: int | None = None, first: int = 0) -> bytes | memoryview:
        """Return the rows as JSON, separated by commas, without the brackets: from the `first` up to `rows_max`."""
        count = result.ntuples if rows_max is None else min(result.ntuples, rows_max)
        if self._writer is not None:
            return self._writer.write(result, count, b",", b"", first)
        rows = _encode(self._load_records(result, first, count))
        return rows[1:-1] if len(rows) < _LARGE else memoryview(rows)[1:-1]

    def encode_lines(self, result: PGresult, rows_max: int | None = None, first: int = 0) -> bytes:
        """Return the rows as JSON, each ended by a line feed."""
        count = result.ntuples if rows_max is None else min(result.ntuples, rows_max)
        if self._writer is not None:
            return self._writer.write(result, count, b"\n", b"\n", first)
        return _encode_lines(self._load_records(result, first, count))

    def encode_in_pieces(self, result: PGresult, rows_max: int | None, *, lines: bool) -> "Iterator[RowPiece]":
        """Yield the same as `encode_array` or `encode_lines`, in pieces of a few milliseconds' work each.

        A piece is some bytes and the number of rows that end with it. The comma between rows of different pieces is
        left out.
        """
        count = result.ntuples if rows_max is None else min(result.ntuples, rows_max)
        write = self.encode_lines if lines else self.encode_array
        first = size = 0
        for row in range(count):
            values = row_values(result, row)
            more = row_size(values)
            if size and size + more > LARGE:
                yield write(result, row, first), row - first
                first, size = row, 0
            if more > LARGE:
                for piece in self._encode_row_in_pieces(values):
                    yield piece, 0
                yield b"\n" if lines else b"", 1
                first = row + 1
            else:
                size += more
        if first < count:
            yield write(result, count, first), count - first

    def _encode_row_in_pieces(self, values: list[bytes | None]) -> Iterator[bytes]:
        columns, end = lay_out(self._names, self.shape)
        parts: list[bytes] = []
        size = 0
        for index, before in columns:
            text = values[index]
            parts.append(before)
            if text is None:
                parts.append(b"null")
                continue
            if len(text) <= LARGE:
                parts.append(self._encode_whole(self._layers[index], text))
            size += len(text) + len(before)
            if size > LARGE:
                yield b"".join(parts)
                parts, size = [], 0
            if len(text) > LARGE:
                yield from self._encode_in_pieces(self._layers[index], text)
        parts.append(end)
        yield b"".join(parts)

    def _encode_whole(self, layers: "Layers", text: bytes) -> bytes:
        """Return the JSON of one value."""
        value = self._transformer.get_loader(layers[0][0], _TEXT).load(text)
        scalar = layers[-1][1].oid
        rewrite = None if scalar in self._strings else ELEMENT_REWRITES.get(scalar)
        if rewrite is not None:
            [value] = rewrite([value])
        return _encode(value)

    def _encode_in_pieces(self, layers: "Layers", text: bytes) -> Iterator[bytes]:
        """Yield the JSON of one large value."""
        oid = layers[0][1].oid
        if len(layers) > 1:
            yield from self._encode_array_in_pieces(layers, text)
        elif oid in JSON_OIDS:
            yield from write_json_in_pieces(text)
        elif oid == BYTEA and text[:2] != b"\\x" and oid not in self._strings:
            yield from write_bytea_in_pieces(text.decode())
        elif oid in ELEMENT_REWRITES and oid != BYTEA and oid not in self._strings:
            yield self._encode_whole(layers, text)
        else:
            yield from write_string_in_pieces(text)

    def _encode_array_in_pieces(self, layers: "Layers", text: bytes) -> Iterator[bytes]:
        if text[:1] == b"[":  # its bounds, where they are not those that it would have by itself
            text = text[text.index(b"=") + 1 :]
        comma = b""
        for piece in split_array(text, b"{}", layers[0][1].delimiter.encode(), DIMENSIONS_MAX):
            if piece is None:
                yield b""
                continue
            part, before, behind = piece
            if len(part) > LARGE:
                yield comma
                yield from self._encode_element_in_pieces(layers, part)
            else:
                json = self._encode_whole(layers, b"{" * before + part + b"}" * behind)
                yield comma + json[before : len(json) - behind]
            comma = b","

    def _encode_element_in_pieces(self, layers: "Layers", part: bytes) -> Iterator[bytes]:
        """Encode one large element of an array, with the brackets next to it."""
        element = part.lstrip(b"{")
        yield b"[" * (len(part) - len(element))
        end = element.rindex(b'"') + 1 if element[:1] == b'"' else len(element.rstrip(b"}"))
        closing = len(element) - end
        element = element[1 : end - 1] if element[:1] == b'"' else element[:end]
        yield b""
        if b"\\" in element:
            unescaped = []
            for bare in unescape(element):
                unescaped.append(bare)
                yield b""
            element = b"".join(unescaped)
        yield from self._encode_in_pieces(layers[1:], element)
        yield b"]" * closing


RowPiece = tuple[bytes | memoryview, int]
Layers = list[tuple[int, TypeInfo]]
"""A type with the type under its domains; for an array, followed by those of its elements."""


def _find_layers(oid: int, types: TypeRegistry) -> Layers:
    layers = [(oid, types.strip_domains(oid))]
    for _ in range(ARRAYS_MAX):
        element = layers[-1][1].element
        if element:
            layers.append((element, types.strip_domains(element)))
    return layers


def _find_rewrite(info: TypeInfo, types: TypeRegistry, strings: frozenset[int]) -> Rewrite | None:
    rewrites = ELEMENT_REWRITES if info.element else REWRITES
    for _ in range(ARRAYS_MAX):
        if info.element:
            info = types.strip_domains(info.element)
    return None if info.oid in strings else rewrites.get(info.oid)


def _make_record_maker(names: Sequence[str], shape: Shape) -> Callable[[Iterable[Any]], list[Any]]:
    if shape.row_mode == "arrays":
        return list
    last = {name: index for index, name in enumerate(names)}
    keys, indexes = list(last), list(last.values())
    pick: Callable[[Iterable[Any]], Iterable[Any]] = iter
    if len(keys) < len(names):
        chosen = itemgetter(*indexes) if len(indexes) > 1 else lambda row: (row[indexes[0]],)
        pick = lambda rows: map(chosen, rows)  # noqa: E731 - one of two ways to pick
    try:
        record = msgspec.defstruct(
            "Row",
            [(f"f{i}", Any) for i in range(len(keys))],
            rename={f"f{i}": key for i, key in enumerate(keys)},
            gc=False,
        )
    except ValueError:
        # A name that JSON must escape cannot be a field of a struct.
        return lambda rows: [dict(zip(keys, row, strict=True)) for row in pick(rows)]
    return lambda rows: list(starmap(record, pick(rows)))


class EncoderCache:
    """The row encoders of one database."""

    def __init__(self, types: TypeRegistry) -> None:
        self.types = types
        self.forgotten_at = 0.0
        self.known: object = object()
        """Replaced by a new object whenever cached facts about types may have changed."""
        self._encoders: dict[Any, RowEncoder] = {}
        self._columns = 0
        self._dropped = 0
        """The columns of encoders that were dropped since the last garbage collection."""

    def find(self, result: PGresult, shape: Shape) -> RowEncoder | None:
        """Return the encoder for this result; None while one of its types is unknown."""
        count = range(result.nfields)
        names = tuple(map(result.fname, count))
        oids = tuple(map(result.ftype, count))
        key: tuple[Any, ...] = (names, oids, shape)
        fields: tuple[FieldNumbers, ...] | None = None
        if shape.style != "service":
            fields = tuple([(result.ftable(i), result.ftablecol(i), result.fsize(i), result.fmod(i)) for i in count])
            key = (names, oids, shape, fields)
        encoder = self._encoders.get(key)
        if encoder is None:
            if shape.style != "text" and self.types.find_missing(oids):
                return None
            if len(self._encoders) >= _SHAPES_MAX or self._columns + len(oids) > _COLUMNS_MAX:
                self._keep({})
            self._columns += len(oids)
            decoded = [(name or b"").decode() for name in names]
            encoder = self._encoders[key] = RowEncoder(decoded, oids, shape, self.types, fields)
        return encoder

    def forget(self) -> None:
        """Drop facts and encoders that a change of the tenant's own types could have made wrong."""
        self.types.forget()
        self.known = object()
        self._keep(
            {key: encoder for key, encoder in self._encoders.items() if all(oid < FIRST_USER_OID for oid in key[1])}
        )

    def _keep(self, encoders: dict[Any, RowEncoder]) -> None:
        """Drop all encoders but these. An encoder has a class of its own, which only the garbage collector can free; a
        worker runs it so rarely that hundreds of megabytes could gather before."""
        columns = sum(len(key[1]) for key in encoders)
        self._dropped += self._columns - columns
        self._encoders, self._columns = encoders, columns
        if self._dropped >= _COLUMNS_MAX // 2:
            self._dropped = 0
            gc.collect()
