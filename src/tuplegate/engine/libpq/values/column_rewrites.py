"""Rewrites values into the form that JSON needs, if the server's text differs: a column at a time, or in pieces."""

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from tuplegate.engine.libpq.values.types import BYTEA, FLOAT4, FLOAT8, JSON, JSONB, NUMERIC, TIMESTAMP, TIMESTAMPTZ
from tuplegate.protocol.pieces import PIECE

Column = Sequence[Any]
Rewrite = Callable[[Column], Column]

_Raw: Final = msgspec.Raw
_encode: Final = msgspec.json.Encoder().encode
_TEXT_PIECE: Final = 1 << 18


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


# The form of the server's text after a statement has changed the time zone. In the distant past, offsets had seconds.
_SHOWN_ZONE: Final = re.compile(
    r"(?P<year>\d+)-(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?P<fraction>\.\d+)?"
    r"(?P<zone>[+-]\d\d(?::\d\d){0,2})(?P<bc> BC)?"
)


_ERA_YEARS: Final = 400
"""The calendar repeats after this many years."""


def _move_to_utc(shown: re.Match[str]) -> str:
    """Return the same moment in UTC. The engine's years exceed those of datetime, so compute in an era that datetime
    has."""
    hours, *rest = (int(part) for part in shown["zone"][1:].split(":"))
    offset = hours * 3600 + sum(part * unit for part, unit in zip(rest, (60, 1), strict=False))
    era, year = divmod(1 - int(shown["year"]) if shown["bc"] else int(shown["year"]), _ERA_YEARS)
    clock = (int(shown["hour"]), int(shown["minute"]), int(shown["second"]))
    moment = datetime(5 * _ERA_YEARS + year, int(shown["month"]), int(shown["day"]), *clock, tzinfo=UTC)
    moment -= timedelta(seconds=-offset if shown["zone"][0] == "-" else offset)
    year = moment.year + (era - 5) * _ERA_YEARS
    rest_of_date = f"{moment:%m-%dT%H:%M:%S}{shown['fraction'] or ''}"
    return f"{1 - year:04}-{rest_of_date}+00 BC" if year < 1 else f"{year:04}-{rest_of_date}Z"


def _write_bytea(text: str) -> str:
    if text.startswith("\\x"):
        return text
    return "\\x" + _unescape_bytea(text).hex()


def _unescape_bytea(text: str) -> bytes:
    """Decode the escape format, which a statement can switch to; it never begins with a backslash and an x."""
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


def write_bytea_in_pieces(text: str) -> Iterator[bytes]:
    """Yield the JSON of a bytea in the escape format."""
    yield b'"\\\\x'
    at = 0
    while at < len(text):
        whole = _BYTEA_PIECE.match(text, at, at + PIECE)
        end = max(at + 1, at if whole is None else whole.end())
        yield _unescape_bytea(text[at:end]).hex().encode()
        at = end
    yield b'"'


def write_string_in_pieces(text: bytes) -> Iterator[bytes]:
    """Yield the JSON of a text."""
    yield b'"'
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(text), _TEXT_PIECE):
        piece = decoder.decode(text[at : at + _TEXT_PIECE], at + _TEXT_PIECE >= len(text))
        yield _encode(piece)[1:-1]
    yield b'"'


_NO_LINES: Final = bytes.maketrans(b"\n\r", b"  ")


def write_json_in_pieces(text: bytes) -> Iterator[bytes]:
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
    """Rewrite a whole column with `fast`; if it has a NULL or one of the letters in `odd`, rewrite each value with
    `slow`."""
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


REWRITES: dict[int, Rewrite] = {
    FLOAT4: _rewrite_in_bulk(_make_raws, _write_number, "Ny"),
    JSON: _rewrite_in_bulk(_make_raws, _write_json, "\n\r"),
    JSONB: _rewrite_in_bulk(_make_raws, _write_json, ""),
    TIMESTAMP: _rewrite_in_bulk(_put_t, _write_timestamp, "C"),
    TIMESTAMPTZ: _rewrite_in_bulk(_put_t_and_z, _write_timestamptz, "C"),
    BYTEA: _change_each(_write_bytea),
}
REWRITES[FLOAT8] = REWRITES[NUMERIC] = REWRITES[FLOAT4]

ELEMENT_REWRITES: dict[int, Rewrite] = {
    FLOAT4: _change_each(_write_number),
    FLOAT8: _change_each(_write_number),
    NUMERIC: _change_each(_write_number),
    JSON: _change_each(_write_json),
    JSONB: _change_each(_write_json),
    TIMESTAMP: _change_each(_write_timestamp),
    TIMESTAMPTZ: _change_each(_write_timestamptz),
    BYTEA: _change_each(_write_bytea),
}
