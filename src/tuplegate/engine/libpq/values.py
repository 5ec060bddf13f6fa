"""Converts values both ways: rows of a result to JSON, JSON parameters to the text that the server reads.

The server's text is what is sent, unchanged wherever JSON allows it. Rows are loaded by the driver's C code; columns
that need more than that are rewritten a column at a time, and only then does msgspec see them. No Python code runs per
value on the common path.
"""

import codecs
import gc
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import starmap
from operator import itemgetter
from typing import Any, Final

import msgspec
import psycopg
from psycopg import pq
from psycopg.abc import AdaptContext
from psycopg.adapt import AdaptersMap, Loader, Transformer
from psycopg.pq.abc import PGresult

from tuplegate.engine.libpq.result_size import row_size, row_values
from tuplegate.engine.libpq.row_writer import lay_out, make_writer
from tuplegate.engine.libpq.types import (
    ARRAYS_MAX,
    BOOL,
    BYTEA,
    FIRST_USER_OID,
    FLOAT4,
    FLOAT8,
    INT4,
    INT8,
    INTEGERS,
    JSON,
    JSON_OIDS,
    JSONB,
    NUMERIC,
    OID,
    TEXT,
    TEXT_ARRAY,
    TIMESTAMP,
    TIMESTAMPTZ,
    TypeInfo,
    TypeRegistry,
)
from tuplegate.engine.port import ParameterMismatch, Shape
from tuplegate.protocol.pieces import LARGE, PIECE, split_array, unescape

Column = Sequence[Any]
Rewrite = Callable[[Column], Column]

_encoder: Final = msgspec.json.Encoder()
_encode: Final = _encoder.encode
_encode_lines: Final = _encoder.encode_lines
_Raw: Final = msgspec.Raw
_TEXT: Final = pq.Format.TEXT

_SHAPES_MAX: Final = 250
_COLUMNS_MAX: Final = 20_000
"""Of all shapes of a database that are remembered: each takes 5 KB, and half of one for each column."""
_LARGE: Final = 4096
"""Bytes that are not worth to be copied once more."""
_AT_ONCE: Final = 1 << 18
"""Bytes of rows without arrays that are encoded at once: some ten milliseconds without compiled code."""
_TEXT_PIECE: Final = 1 << 18


def _find_loader(oid: int) -> type[Loader]:
    loader = psycopg.adapters.get_loader(oid, _TEXT)
    assert loader is not None
    return loader  # type: ignore[return-value]  # the driver types its own loaders as a protocol


_TEXT_LOADER: Final = _find_loader(TEXT)
_INT_LOADER: Final = _find_loader(INT4)
_BOOL_LOADER: Final = _find_loader(BOOL)
# The driver's loader in C where it has one, which is twenty times as fast as the other.
_ArrayLoader: Final[type[Loader]] = _find_loader(TEXT_ARRAY).__base__  # type: ignore[assignment]  # of what the driver made for arrays of text


# -- columns that need rewriting -----------------------------------------------------------------------------------


def _change_each(change: Callable[[str], object]) -> Rewrite:
    """Apply `change` to every value, NULLs aside, inside arrays too."""

    def one(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, list):
            return [one(part) for part in value]
        return change(value)

    return lambda column: [one(value) for value in column]


def _write_number(text: str) -> object:
    # NaN, Infinity and -Infinity are no JSON numbers.
    return text if text[-1] in "Ny" else _Raw(text)


def _write_json(text: str) -> object:
    if "\n" in text or "\r" in text:
        text = text.replace("\n", " ").replace("\r", " ")
    return _Raw(text)


def _write_timestamp(text: str) -> str:
    return text.replace(" ", "T", 1) if text[-1] != "C" else text.replace(" ", "T", text.count(" ") - 1)


def _write_timestamptz(text: str) -> str:
    if text.endswith("+00"):
        return _write_timestamp(text)[:-3] + "Z"
    shown = _SHOWN_ZONE.fullmatch(text)
    return _write_timestamp(text) if shown is None or shown["zone"] == "+00" else _move_to_utc(shown)


# What the server writes when a statement has changed the time zone; in the distant past offsets had seconds.
_SHOWN_ZONE: Final = re.compile(
    r"(?P<year>\d+)-(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?P<fraction>\.\d+)?"
    r"(?P<zone>[+-]\d\d(?::\d\d){0,2})(?P<bc> BC)?"
)


def _move_to_utc(shown: re.Match[str]) -> str:
    """Return the same moment in UTC. The years of the engine go beyond those of datetime, so the days are counted
    here."""
    hours, *rest = (int(part) for part in shown["zone"][1:].split(":"))
    offset = hours * 3600 + sum(part * unit for part, unit in zip(rest, (60, 1), strict=False))
    offset = -offset if shown["zone"][0] == "-" else offset
    year = 1 - int(shown["year"]) if shown["bc"] else int(shown["year"])
    days = _count_days(year, int(shown["month"]), int(shown["day"]))
    seconds = days * 86400 + int(shown["hour"]) * 3600 + int(shown["minute"]) * 60 + int(shown["second"]) - offset
    days, second = divmod(seconds, 86400)
    year, month, day = _find_date(days)
    time = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{shown['fraction'] or ''}"
    if year < 1:
        return f"{1 - year:04}-{month:02}-{day:02}T{time}+00 BC"
    return f"{year:04}-{month:02}-{day:02}T{time}Z"


_ERA_DAYS, _ERA_YEARS = 146097, 400


def _count_days(year: int, month: int, day: int) -> int:
    """Return the days since the first of March of the year 0, in the Gregorian calendar; March first, so leap days come
    last."""
    year -= month <= 2
    era, year_of_era = divmod(year, _ERA_YEARS)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * _ERA_DAYS + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year


def _find_date(days: int) -> tuple[int, int, int]:
    """Invert `_count_days`."""
    era, day_of_era = divmod(days, _ERA_DAYS)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = (shifted + 2) % 12 + 1
    return era * _ERA_YEARS + year_of_era + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


def _write_bytea(text: str) -> str:
    if text.startswith("\\x"):
        return text
    return "\\x" + _unescape_bytea(text).hex()


def _unescape_bytea(text: str) -> bytes:
    """Read the escape format, which a statement can switch to; it never begins with a backslash and an x."""
    data = bytearray()
    i = 0
    while i < len(text):
        if text[i] != "\\":
            data += text[i].encode()
            i += 1
        elif text.startswith("\\\\", i):
            data.append(0x5C)
            i += 2
        else:
            data.append(int(text[i + 1 : i + 4], 8))
            i += 4
    return bytes(data)


_BYTEA_PIECE: Final = re.compile(r"(?:[^\\]++|\\\\|\\[0-7]{3})*+")


def _write_bytea_in_pieces(text: str) -> Iterator[bytes]:
    """Yield the JSON of a bytea in the escape format."""
    yield b'"\\\\x'
    at = 0
    while at < len(text):
        whole = _BYTEA_PIECE.match(text, at, at + PIECE)
        end = max(at + 1, at if whole is None else whole.end())
        yield _unescape_bytea(text[at:end]).hex().encode()
        at = end
    yield b'"'


def _write_string_in_pieces(text: bytes) -> Iterator[bytes]:
    """Yield the JSON of a text."""
    yield b'"'
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(text), _TEXT_PIECE):
        piece = decoder.decode(text[at : at + _TEXT_PIECE], at + _TEXT_PIECE >= len(text))
        yield _encode(piece)[1:-1]
    yield b'"'


_NO_LINES: Final = bytes.maketrans(b"\n\r", b"  ")


def _write_json_in_pieces(text: bytes) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(text), _TEXT_PIECE):
        piece = text[at : at + _TEXT_PIECE]
        decoder.decode(piece, at + _TEXT_PIECE >= len(text))  # it is refused where it is not UTF-8
        yield piece.translate(_NO_LINES)


def _make_raws(column: Column, _block: str) -> Column:
    return list(map(_Raw, column))


def _put_t(column: Column, block: str) -> Column:
    return block.replace(" ", "T").split("\0")


def _put_t_and_z(column: Column, block: str) -> Column:
    shorter = block.replace("+00\0", "Z\0")
    # The last value has no separator behind it, so it is not like the others.
    if len(block) - len(shorter) < 2 * (len(column) - 1) or not block.endswith("+00"):
        return _change_each(_write_timestamptz)(column)
    return (shorter[:-3] + "Z").replace(" ", "T").split("\0")


def _rewrite_in_bulk(fast: Callable[[Column, str], Column], slow: Callable[[str], object], odd: str) -> Rewrite:
    """Rewrite a column with `fast`, which takes all of it at once, where it has no NULL and none of the letters of
    `odd`."""
    one_by_one = _change_each(slow)

    def rewrite(column: Column) -> Column:
        try:
            block = "\0".join(column)
        except TypeError:  # a NULL
            return one_by_one(column)
        for letter in odd:
            if letter in block:
                return one_by_one(column)
        return fast(column, block)

    return rewrite


_REWRITES: dict[int, Rewrite] = {
    FLOAT4: _rewrite_in_bulk(_make_raws, _write_number, "Ny"),
    JSON: _rewrite_in_bulk(_make_raws, _write_json, "\n\r"),
    JSONB: _rewrite_in_bulk(_make_raws, _write_json, ""),
    TIMESTAMP: _rewrite_in_bulk(_put_t, _write_timestamp, "C"),
    TIMESTAMPTZ: _rewrite_in_bulk(_put_t_and_z, _write_timestamptz, "C"),
    BYTEA: _change_each(_write_bytea),
}
_REWRITES[FLOAT8] = _REWRITES[NUMERIC] = _REWRITES[FLOAT4]

_ELEMENT_REWRITES: dict[int, Rewrite] = {
    FLOAT4: _change_each(_write_number),
    FLOAT8: _change_each(_write_number),
    NUMERIC: _change_each(_write_number),
    JSON: _change_each(_write_json),
    JSONB: _change_each(_write_json),
    TIMESTAMP: _change_each(_write_timestamp),
    TIMESTAMPTZ: _change_each(_write_timestamptz),
    BYTEA: _change_each(_write_bytea),
}


# -- rows to JSON --------------------------------------------------------------------------------------------------


FieldNumbers = tuple[int, int, int, int]
"""What the server says of a column: its table, its number there, the size of its type, and the type's modifier."""

_BIG_NUMBERS: Final = frozenset({INT8, NUMERIC})
_NO_JSON: Final = _BIG_NUMBERS | {OID, TIMESTAMP, TIMESTAMPTZ, BYTEA}
"""Types that stay the server's text in the style `mixed`, of those that the service writes otherwise."""


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
    """Encodes the rows of results that have the same columns. Made once per shape, and kept."""

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
        self._transformer = Transformer(_make_text_adaptation() if is_text else _make_adaptation(oids, types, strings))
        self._rewrites = [
            (index, rewrite)
            for index, oid in enumerate(oids)
            if (rewrite := _find_rewrite(types.strip_domains(oid), types, strings)) is not None
        ]
        self._record = _make_record_maker(names, shape)
        under = [types.strip_domains(oid) for oid in oids]

        def odd(column: int, text: str) -> bytes:
            [value] = _ELEMENT_REWRITES[under[column].oid]([text])
            return _encode(value)

        self._writer = make_writer(names, under, shape, strings, odd)
        self._names = names
        self._strings = strings
        self._layers = [_find_layers(oid, types) for oid in oids]
        self.at_once = LARGE if any(info.element for info in under) else _AT_ONCE
        """Results of more bytes than this are for `in_pieces`."""

    def describes(self, result: PGresult) -> bool:
        """Return whether what it says of tables holds for the result, which has the same names and types."""
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
        """Return what `encode_array` or `encode_lines` would, after pieces of a few milliseconds' work each.

        A piece is some bytes and the number of rows that end with it. Between rows of different pieces the comma is
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
        rewrite = None if scalar in self._strings else _ELEMENT_REWRITES.get(scalar)
        if rewrite is not None:
            [value] = rewrite([value])
        return _encode(value)

    def _encode_in_pieces(self, layers: "Layers", text: bytes) -> Iterator[bytes]:
        """Return the JSON of one large value."""
        oid = layers[0][1].oid
        if len(layers) > 1:
            yield from self._encode_array_in_pieces(layers, text)
        elif oid in JSON_OIDS:
            yield from _write_json_in_pieces(text)
        elif oid == BYTEA and text[:2] != b"\\x" and oid not in self._strings:
            yield from _write_bytea_in_pieces(text.decode())
        elif oid in _ELEMENT_REWRITES and oid != BYTEA and oid not in self._strings:
            yield self._encode_whole(layers, text)
        else:
            yield from _write_string_in_pieces(text)

    def _encode_array_in_pieces(self, layers: "Layers", text: bytes) -> Iterator[bytes]:
        if text[:1] == b"[":  # its bounds, where they are not those that it would have by itself
            text = text[text.index(b"=") + 1 :]
        comma = b""
        for piece in split_array(text, b"{}", layers[0][1].delimiter.encode(), _DIMENSIONS_MAX):
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
"""A type and what it is under its domains; of an array those of its elements behind it."""


def _find_layers(oid: int, types: TypeRegistry) -> Layers:
    layers = [(oid, types.strip_domains(oid))]
    for _ in range(ARRAYS_MAX):
        element = layers[-1][1].element
        if element:
            layers.append((element, types.strip_domains(element)))
    return layers


def _find_rewrite(info: TypeInfo, types: TypeRegistry, strings: frozenset[int]) -> Rewrite | None:
    rewrites = _ELEMENT_REWRITES if info.element else _REWRITES
    for _ in range(ARRAYS_MAX):
        if info.element:
            info = types.strip_domains(info.element)
    return None if info.oid in strings else rewrites.get(info.oid)


class _Adaptation(AdaptContext):
    """The part of an adapter that the driver's transformer needs: a map of loaders, and no connection."""

    def __init__(self, adapters: AdaptersMap) -> None:
        self._adapters = adapters

    @property
    def adapters(self) -> AdaptersMap:
        return self._adapters

    @property
    def connection(self) -> None:
        return None


def _make_adaptation(oids: Iterable[int], types: TypeRegistry, strings: frozenset[int]) -> _Adaptation:
    adapters = AdaptersMap()
    for kind, loader in ((0, _TEXT_LOADER), (TEXT, _TEXT_LOADER), (INT4, _INT_LOADER), (BOOL, _BOOL_LOADER)):
        adapters.register_loader(kind, loader)
    for oid in oids:
        _register(adapters, oid, types, strings)
    return _Adaptation(adapters)


def _make_text_adaptation() -> _Adaptation:
    """Load every value as text, whatever its type is."""
    adapters = AdaptersMap()
    for kind in (0, TEXT):
        adapters.register_loader(kind, _TEXT_LOADER)
    return _Adaptation(adapters)


def _register(
    adapters: AdaptersMap, oid: int, types: TypeRegistry, strings: frozenset[int], arrays: int = ARRAYS_MAX
) -> int:
    """Register a loader and return the number of its kind. `arrays` is how many array types may still lie in each
    other."""
    info = types.strip_domains(oid)
    if info.element and arrays:
        element = _register(adapters, info.element, types, strings, arrays - 1)
        kind, loader = _make_array_loader(element, info.delimiter)
        adapters.register_loader(kind, loader)
    elif info.oid in INTEGERS and info.oid not in strings:
        kind, loader = INT4, _INT_LOADER
    elif info.oid == BOOL:
        kind, loader = BOOL, _BOOL_LOADER
    else:
        kind, loader = TEXT, _TEXT_LOADER
    adapters.register_loader(oid, loader)
    return kind


_array_loaders: dict[tuple[int, str], tuple[int, type[Loader]]] = {}
_FIRST_KIND: Final = 2**32 - 1000
"""Kinds of arrays have numbers that no type has."""


def _make_array_loader(element: int, delimiter: str) -> tuple[int, type[Loader]]:
    """Return the loader of arrays, by the kind of their elements. A class derived from the driver's in C is never
    freed."""
    known = _array_loaders.get((element, delimiter))
    if known is None:
        attributes = {"base_oid": element, "delimiter": delimiter.encode()}
        loader: type[Loader] = type("ArrayOf", (_ArrayLoader,), attributes)
        known = _array_loaders[element, delimiter] = _FIRST_KIND + len(_array_loaders), loader
    return known


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
        """Another one whenever what is known of types may be another."""
        self._encoders: dict[Any, RowEncoder] = {}
        self._columns = 0
        self._dropped = 0
        """Columns of encoders that were dropped since the garbage was collected last."""

    def find(self, result: PGresult, shape: Shape) -> RowEncoder | None:
        """Return the encoder for this result; None while one of its types is not known yet."""
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
        """Drop what a change of the tenant's own types could have made wrong."""
        self.types.forget()
        self.known = object()
        self._keep(
            {key: encoder for key, encoder in self._encoders.items() if all(oid < FIRST_USER_OID for oid in key[1])}
        )

    def _keep(self, encoders: dict[Any, RowEncoder]) -> None:
        """Drop all but these. An encoder has a class of its own, which only the garbage collector can free; a worker
        lets that run so rarely that hundreds of megabytes could gather before."""
        columns = sum(len(key[1]) for key in encoders)
        self._dropped += self._columns - columns
        self._encoders, self._columns = encoders, columns
        if self._dropped >= _COLUMNS_MAX // 2:
            self._dropped = 0
            gc.collect()


# -- parameters ----------------------------------------------------------------------------------------------------

PARAMS_AT_ONCE: Final = 1000
"""Parameters that are written without giving the event loop back."""


def needs_types(params: Sequence[msgspec.Raw]) -> bool:
    """Return whether a parameter is written differently for different placeholders.

    Arrays and objects are; a string is, where it could be taken for JSON text by a json placeholder. All other strings
    are sent as they are, and a json placeholder refuses them: see `is_json_refusal`.
    """
    return any(_is_ambiguous(bytes(raw)) for raw in params)


def _is_ambiguous(raw: bytes) -> bool:
    """Return whether the type decides the text. A wrong yes costs a question, a wrong no would store something else."""
    if raw[:1] != b'"':
        return raw[:1] in (b"[", b"{")
    if len(raw) > LARGE:
        return True
    text = _read_string(raw)
    return text.lstrip(" \t\n\r")[:1] in _JSON_STARTS or "\0" in text


_JSON_STARTS: Final = frozenset('"{[-0123456789tfn')


def _read_string(raw: bytes) -> str:
    return msgspec.json.decode(raw, type=str)


def to_texts(params: Sequence[msgspec.Raw], oids: Sequence[int] | None, types: TypeRegistry) -> list[bytes | None]:
    """Return the parameters as the server reads them; `oids` are the placeholders' types, None where it does not
    matter."""
    texts: list[bytes | None] = []
    for number, raw in enumerate(params, start=1):
        info = types.strip_domains(oids[number - 1]) if oids is not None else None
        written = bytes(raw)
        texts.append(_check_text(number, written, _to_text(written, info, types)))
    return texts


def to_untyped_texts(params: Sequence[msgspec.Raw], types: TypeRegistry) -> list[bytes | None] | None:
    """Return the parameters as text, whatever their placeholders are; None where that must be done in pieces."""
    if len(params) > PARAMS_AT_ONCE or any(len(bytes(raw)) > LARGE for raw in params):
        return None
    return to_texts(params, [TEXT_ARRAY] * len(params), types)


def add_untyped_texts(texts: list[bytes | None], params: Sequence[msgspec.Raw], types: TypeRegistry) -> Iterator[None]:
    """Do the same with a stop after each piece of work."""
    # For an array of texts, an array is written as one, and everything else as for a text.
    return add_texts(texts, params, [TEXT_ARRAY] * len(params), types)


def _check_text(number: int, written: bytes, text: bytes | None) -> bytes | None:
    if text is not None and text is not written and b"\0" in text:
        raise ParameterMismatch(
            f"parameter ${number} contains a NUL character, which PostgreSQL text cannot hold", sqlstate="22021"
        )
    return text


def add_texts(
    texts: list[bytes | None], params: Sequence[msgspec.Raw], oids: Sequence[int], types: TypeRegistry
) -> Iterator[None]:
    """Write as `to_texts` does, with a stop after each piece of work."""
    size = 0
    for number, (raw, oid) in enumerate(zip(params, oids, strict=True), start=1):
        info = types.strip_domains(oid)
        written = bytes(raw)
        size += len(written) + _PARAM_BYTES
        if size > LARGE:
            size = 0
            yield
        if len(written) > LARGE and info.element and written[:1] == b"[":
            text: bytes | None = yield from _write_array_in_pieces(written, info, types, ARRAYS_MAX - 1)
        else:
            text = _to_text(written, info, types)
        texts.append(_check_text(number, written, text))


_PARAM_BYTES: Final = 32
"""What a parameter counts for, however short it is."""


def _to_text(raw: bytes, info: TypeInfo | None, types: TypeRegistry, arrays: int = ARRAYS_MAX) -> bytes | None:
    """Write one parameter. `arrays` is how many array types may still lie in each other; the engine refuses what is
    deeper."""
    if raw == b"null":
        return None
    if info is not None and info.oid in JSON_OIDS:
        return raw
    if info is not None and info.element and raw[:1] == b"[" and arrays:
        return _write_array(raw, info, types, _DIMENSIONS_MAX, arrays - 1)
    return _read_string(raw).encode() if raw[:1] == b'"' else raw


_DIMENSIONS_MAX: Final = 7
"""One more than the engine's arrays can have: what is deeper is left to it to refuse."""


def _write_array(raw: bytes, array: TypeInfo, types: TypeRegistry, depth: int, arrays: int) -> bytes:
    element = types.strip_domains(array.element)
    texts = (_write_element(bytes(part), array, element, types, depth, arrays) for part in _split_array(raw))
    return b"{" + array.delimiter.encode().join(texts) + b"}"


# Numbers and truths are written as they are: no string, object or null is among them.
_NOT_BARE: Final = re.compile(rb'["{n]')
_BARE: Final = re.compile(rb"[^{},]+")
_BRACES: Final = bytes.maketrans(b"[]", b"{}")


def _write_array_in_pieces(
    raw: bytes, array: TypeInfo, types: TypeRegistry, arrays: int
) -> Generator[None, None, bytes]:
    """Write as `_write_array` does, with a stop after each piece of work."""
    element = types.strip_domains(array.element)
    is_flat = element.oid in JSON_OIDS or bool(element.element)
    texts: list[bytes] = []
    for piece in split_array(raw, b"[]", b",", 1 if is_flat else _DIMENSIONS_MAX + 1):
        yield
        if piece is None:
            continue
        part, before, behind = piece
        if element.element and arrays and len(part) > LARGE:
            # One element, next to a bracket where it is the first or the last.
            inner = part[1 - before : len(part) - 1 + behind].strip()
            if inner[:1] == b"[":
                text = yield from _write_array_in_pieces(inner, element, types, arrays - 1)
                texts.append(b"{" * (1 - before) + _quote(text) + b"}" * (1 - behind))
                continue
        wrapped = b"[" * before + part + b"]" * behind
        if is_flat or array.delimiter != "," or _NOT_BARE.search(wrapped) is not None:
            text = _write_array(wrapped, array, types, _DIMENSIONS_MAX, arrays)
        else:
            text = _BARE.sub(rb'"\g<0>"', wrapped.translate(_BRACES, b" \t\n\r"))
        texts.append(text[before : len(text) - behind])
    return array.delimiter.encode().join(texts)


def _write_element(
    item: bytes, array: TypeInfo, element: TypeInfo, types: TypeRegistry, depth: int, arrays: int
) -> bytes:
    if item == b"null":
        return b"NULL"
    if item[:1] == b"[" and depth and element.oid not in JSON_OIDS and not element.element:
        return _write_array(item, array, types, depth - 1, arrays)
    text = _to_text(item, element, types, arrays)
    assert text is not None
    return _quote(text)


def _quote(text: bytes) -> bytes:
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _split_array(raw: bytes) -> list[msgspec.Raw]:
    return msgspec.json.decode(raw, type=list[msgspec.Raw])


def is_json_refusal(sqlstate: str | None, message: str) -> bool:
    """Return whether the server refused a string because its placeholder is json: it must be sent as a JSON string."""
    return sqlstate == "22P02" and "type json" in message
