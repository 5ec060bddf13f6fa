"""Ranges and multiranges as text, which is how the service sends and takes them. Pure."""

import re
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy.dialects.postgresql import ranges

_BOUND = r'"((?:[^"\\]|\\.|"")*)"|([^,"\[\]()]*)'
_RANGE = re.compile(rf"([\[(])(?:{_BOUND}),(?:{_BOUND})([\])])")
_ESCAPED = re.compile(r'\\(.)|"(")')

_READERS: dict[str, Callable[[str], Any]] = {
    "int4": int,
    "int8": int,
    "num": Decimal,
    "date": date.fromisoformat,
    "ts": datetime.fromisoformat,
    "tstz": datetime.fromisoformat,
}


def find_reader(type_name: str) -> Callable[[str], Any]:
    """Return the function that reads a bound of this type of range or multirange; unknown ones stay text."""
    return _READERS.get(type_name.removesuffix("range").removesuffix("multi"), str)


def write_range(value: ranges.Range[Any]) -> str:
    if value.empty:
        return "empty"
    return f"{value.bounds[0]}{_write_bound(value.lower)},{_write_bound(value.upper)}{value.bounds[1]}"


def write_multirange(value: Iterable[ranges.Range[Any]]) -> str:
    return "{" + ",".join(write_range(part) for part in value) + "}"


def _write_bound(value: Any) -> str:
    if value is None:
        return ""
    text = value.isoformat() if isinstance(value, date) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def read_range(text: str, read: Callable[[str], Any]) -> ranges.Range[Any]:
    if text == "empty":
        return ranges.Range(empty=True)
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a range")
    return _make_range(found, read)


def read_multirange(text: str, read: Callable[[str], Any]) -> ranges.MultiRange[Any]:
    return ranges.MultiRange(_make_range(found, read) for found in _RANGE.finditer(text))


def _make_range(found: re.Match[str], read: Callable[[str], Any]) -> ranges.Range[Any]:
    lower = _read_bound(found[2], found[3], read)
    upper = _read_bound(found[4], found[5], read)
    return ranges.Range(lower, upper, bounds=found[1] + found[6])  # type: ignore[arg-type]  # one of the four


def _read_bound(quoted: str | None, plain: str | None, read: Callable[[str], Any]) -> Any:
    if quoted is not None:
        return read(_ESCAPED.sub(lambda part: part[1] or part[2], quoted))
    return read(plain) if plain else None
