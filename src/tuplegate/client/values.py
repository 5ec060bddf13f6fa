"""Converts values both ways: JSON of an answer to Python by column type, and Python parameters to JSON. Pure.

The client requests int8 and numeric as strings, so no digit is lost in a float. A value that no Python type holds
(infinity, years BC or after 9999, an interval with months, 24:00:00) stays text.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any, TypeVar
from uuid import UUID

Convert = Callable[[Any], Any]
_T = TypeVar("_T")


class Number(str):
    """A JSON number with a fraction or an exponent, with all its digits."""

    __slots__ = ()


class JsonText(str):
    """A parameter that is already JSON text, and is sent unchanged."""

    __slots__ = ()


class RepeatedNames(dict[str, Any]):
    """A JSON object in which a name stands more than once. As a dict it has the last value of each name."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


# -- answers -------------------------------------------------------------------------------------------------------

_NEGATIVE_ZERO = re.compile(rb"-0[^0-9.eE]")


def read_json(text: bytes, *, exact: bool = False) -> Any:
    """Decode JSON. `-0` keeps its sign, and an integer may have any number of digits.

    With `exact`, every number keeps its digits, and an object every value of a repeated name: `write` returns them all.
    """
    if _NEGATIVE_ZERO.search(text) is None:
        try:
            return _decode(text, exact, None)
        except json.JSONDecodeError:
            raise
        except ValueError:
            pass  # an integer with more digits than Python converts
    return _decode(text, exact, _keep_integer if exact else _read_integer)


def _decode(text: bytes, exact: bool, read_integer: Convert | None) -> Any:
    if not exact:
        return json.loads(text, parse_int=read_integer)
    return json.loads(text, parse_float=Number, parse_int=read_integer, object_pairs_hook=_read_object)


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else RepeatedNames(pairs)


def _read_integer(text: str) -> int | float | Decimal:
    if text == "-0":
        return -0.0
    return int(text) if len(text) < _DIGITS_MAX else Decimal(text)


def _keep_integer(text: str) -> int | Number:
    return Number(text) if text == "-0" or len(text) >= _DIGITS_MAX else int(text)


_DIGITS_MAX = 4000
"""Longer integers do not become an int: Python refuses to convert those of more than 4,300 digits."""


def _read_date(text: str) -> date | str:
    return _read_or_keep(date.fromisoformat, text)


def _read_timestamp(text: str) -> datetime | str:
    # A year of five digits would be misread.
    if text[4:5] == "-" and text[-1] != "C":
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass
    return text


def _read_time(text: str) -> time | str:
    return _read_or_keep(time.fromisoformat, text)


def _read_or_keep(read: Callable[[str], _T], text: str) -> _T | str:
    try:
        return read(text)
    except ValueError:
        return text


_INTERVAL = re.compile(
    r"(?:(?P<days>[+-]?\d+) days?)?\s*"
    r"(?:(?P<sign>[+-])?(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)(?P<part>\.\d+)?)?"
)


def _read_interval(text: str) -> timedelta | str:
    """Convert days and times only: a month has no fixed length."""
    found = _INTERVAL.fullmatch(text)
    if found is None or not text:
        return text
    micros = int(((found["part"] or ".")[1:] + "000000")[:6])
    clock = (int(found["hours"] or 0) * 3600 + int(found["minutes"] or 0) * 60 + int(found["seconds"] or 0)) * 10**6
    signed = -(clock + micros) if found["sign"] == "-" else clock + micros
    try:
        return timedelta(days=int(found["days"] or 0), microseconds=signed)
    except OverflowError:
        return text


def _read_bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


_CONVERTERS: dict[str, Convert] = {
    "int8": int,
    "float4": float,
    "float8": float,
    "numeric": Decimal,
    "date": _read_date,
    "timestamp": _read_timestamp,
    "timestamptz": _read_timestamp,
    "time": _read_time,
    "timetz": _read_time,
    "interval": _read_interval,
    "uuid": UUID,
    "bytea": _read_bytes,
}


def find_converter(type_name: str) -> Convert | None:
    """Return the function that converts JSON values of this type to Python; None if they need no conversion."""
    element = type_name.removesuffix("[]")
    convert = _CONVERTERS.get(element)
    return convert if convert is None or element == type_name else _convert_array(convert)


def _convert_array(convert: Convert) -> Convert:
    def of_part(part: Any) -> Any:
        if part is None:
            return None
        return [of_part(inner) for inner in part] if isinstance(part, list) else convert(part)

    return of_part


class RowReader:
    """Converts rows, which are JSON arrays, to tuples of Python values, for one list of column types."""

    def __init__(self, types: Sequence[str]) -> None:
        self._converters = [(i, made) for i, name in enumerate(types) if (made := find_converter(name)) is not None]

    def read(self, row: list[Any]) -> tuple[Any, ...]:
        for index, convert in self._converters:
            if row[index] is not None:
                row[index] = convert(row[index])
        return tuple(row)


# -- parameters ----------------------------------------------------------------------------------------------------

_PLAIN = frozenset({type(None), bool, int, str})
_TEXTS = (UUID, IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network)


def write_params(params: Sequence[Any]) -> str:
    """Return the parameters as a JSON array."""
    if isinstance(params, str | bytes | Mapping) or not isinstance(params, Iterable):
        raise TypeError(
            f"params is a list of values, one for each placeholder $1, $2, …, not of type {type(params).__name__};"
            " a single value is given as [value]"
        )
    if all(type(value) in _PLAIN for value in params):
        return json.dumps(list(params))
    return "[" + ",".join(_write_param(number, value) for number, value in enumerate(params, start=1)) + "]"


def _write_param(number: int, value: Any) -> str:
    try:
        return write(value)
    except TypeError as exc:
        raise TypeError(f"parameter ${number}: {exc}") from None


def write(value: Any, quote: Callable[[str], str] = json.dumps) -> str:
    """Return the value as JSON. Decimals are numbers with all their digits; NaN and infinities are strings.

    `quote` turns a text into a JSON string.
    """
    match value:
        case Number() | JsonText():
            return str(value)
        case str():
            return quote(value)
        case None | bool() | int():
            return json.dumps(value)
        case float():
            return json.dumps(value) if value - value == 0 else f'"{_name_float(value)}"'
        case Decimal():
            return str(value) if value.is_finite() else f'"{_name_decimal(value)}"'
        case list() | tuple():
            return "[" + ",".join(write(part, quote) for part in value) + "]"
        case dict():
            pairs = value.pairs if isinstance(value, RepeatedNames) else value.items()
            parts = (f"{quote(_check_name(name))}:{write(part, quote)}" for name, part in pairs)
            return "{" + ",".join(parts) + "}"
        case Enum():
            return write(value.value, quote)
        case _ if is_of_library(value):
            return write(to_python(value), quote)
        case _:
            return quote(_write_text(value))


# -- values of numpy, pandas and polars ----------------------------------------------------------------------------
# Recognized by the names of their types, so these libraries need not be installed.

_LIBRARIES = frozenset({"numpy", "pandas", "polars", "pyarrow"})
_MISSING = frozenset({"NAType", "NaTType"})
_DAYS = frozenset({"Y", "M", "W", "D"})
_MONTHS = {"Y": "years", "M": "months"}
_TO_PYTHON = ("to_pytimedelta", "to_pylist", "to_list", "tolist", "as_py")
"""Methods of these libraries that return a Python value, or a list of them."""


def library_of(value: Any) -> str:
    """Return the package that defines the value's type."""
    return type(value).__module__.partition(".")[0]


def is_of_library(value: Any) -> bool:
    return library_of(value) in _LIBRARIES


def to_python(value: Any) -> Any:
    """Return a scalar as a Python value, or an array or series as a list; None if it is missing."""
    library, name = library_of(value), type(value).__name__
    if name in _MISSING:
        return None
    if library == "numpy":
        if not hasattr(value, "dtype"):
            raise TypeError(_explain_no_value(value))
        return _array_to_python(value) if hasattr(value, "__array_finalize__") else _scalar_to_python(value)
    if library == "pandas" and isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if name in ("DataFrame", "Table", "LazyFrame"):
        raise TypeError(f"a {name} is no value: write_frame writes its rows into a table")
    for method in _TO_PYTHON:
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(_explain_no_value(value))


def _array_to_python(array: Any) -> Any:
    # Python has no nanoseconds: the library would return a bare number.
    if array.dtype.kind not in "Mm":
        return array.tolist()
    return [to_python(part) for part in array] if array.ndim else to_python(array[()])


def _scalar_to_python(scalar: Any) -> Any:
    if scalar.dtype.kind not in "Mm":
        found = scalar.item()
        return Decimal(str(found)) if is_of_library(found) else found  # a float with more bits than Python's
    if str(scalar) == "NaT":
        return None
    unit = re.search(r"\[(\d*)(\w+)\]", str(scalar.dtype))
    if unit is None:
        raise TypeError(f"a {type(scalar).__name__} without a unit cannot be sent")
    if scalar.dtype.kind == "M":
        return str(scalar.astype("datetime64[D]" if unit[2] in _DAYS else "datetime64[us]"))
    if unit[2] in _MONTHS:
        return f"{int(scalar.astype(int)) * int(unit[1] or 1)} {_MONTHS[unit[2]]}"
    return scalar.astype("timedelta64[us]").item()


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the names of a JSON object are strings, not {type(name).__name__}")
    return name


def _name_float(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _name_decimal(value: Decimal) -> str:
    if value.is_nan():
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _write_text(value: Any) -> str:
    match value:
        case date() | time():  # a datetime is a date
            return value.isoformat()
        case timedelta():
            return f"{value.days} days {value.seconds}.{value.microseconds:06} seconds"
        case bytes() | bytearray() | memoryview():
            return "\\x" + bytes(value).hex()
    if isinstance(value, _TEXTS):
        return str(value)
    raise TypeError(_explain_no_value(value))


def _explain_no_value(value: Any) -> str:
    return f"a {type(value).__name__} cannot be sent; convert it to text or a number first"
