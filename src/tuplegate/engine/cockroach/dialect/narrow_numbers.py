"""Refuses numbers that are too large for their placeholders, since this engine would store other numbers.

For an int2 or int4 placeholder the engine reads any number that an int8 can hold, and stores its lower bits. It turns a
number that no float4 can hold into infinity or zero. It does the same in arrays. So for a large number, the service
asks for the types of the statement's placeholders. It never caches them: anybody may change them.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from tuplegate.engine import port
from tuplegate.engine.libpq.values.types import FLOAT4, INT2, INT4

_NUMBER: Final = re.compile(r"[+-]?[0-9.][0-9A-Za-z_.]*+(?:(?<=[EePp])[+-][0-9_]+)?", re.ASCII)
_WIDE: Final = re.compile(r"[0-9][0-9A-Za-z_.]{4}|[0-9.][EePp]", re.ASCII)
"""Matches part of a number that may exceed 9,999, or is in any notation but the plain one."""
_ELEMENT: Final = re.compile(r"[^\s{},\"]+")
_ZERO: Final = re.compile(r"[+-]?(?:0[Xx])?[0_.]+(?:[EePp].*)?")
_BITS: Final = {INT2: 16, 1005: 16, INT4: 32, 1007: 32}
"""The number of bits of an integer type, by the oid of the type and of its array."""
_FLOATS: Final = frozenset({FLOAT4, 1021})
_FLOAT_MAX: Final = (2 - 2**-24) * 2.0**127
"""A number from here on is rounded to infinity."""
_FLOAT_MIN: Final = 2.0**-150
"""A number up to here is rounded to zero."""


def may_be_cut(params: Iterable[msgspec.Raw] | None) -> bool:
    """Return whether a parameter holds a number that some placeholder could not hold."""
    return params is not None and any(_is_suspect(bytes(raw)) for raw in params)


def _is_suspect(raw: bytes) -> bool:
    if raw[:1] == b"[":
        return b"\\" in raw or _WIDE.search(raw.decode()) is not None
    text = str(msgspec.json.decode(raw)) if raw[:1] == b'"' and b"\\" in raw else raw.decode().strip('"')
    text = text.strip()
    return (text[:1] == "{" or _NUMBER.fullmatch(text) is not None) and _WIDE.search(text) is not None


def check_numbers(oids: Sequence[int], texts: Sequence[bytes | None]) -> None:
    """Raise if a number does not fit its placeholder; `oids` are the types of the placeholders. A number that fits no
    int8 is left to the engine, which refuses it."""
    for place, (oid, text) in enumerate(zip(oids, texts, strict=False), start=1):
        if text is None or not (oid in _BITS or oid in _FLOATS):
            continue
        for element in _list_elements(text.decode()):
            if not (_fits_float(element) if oid in _FLOATS else _fits_integer(element, _BITS[oid])):
                kind = "a float4" if oid in _FLOATS else f"an int{_BITS[oid] // 8}"
                raise port.StatementFailed(
                    f"parameter ${place} is out of range: {element[:100]} does not fit {kind}", sqlstate="22003"
                )


def _list_elements(text: str) -> Iterator[str]:
    """Return the numbers of an array, or the one number."""
    if text.lstrip()[:1] == "{":
        return (match.group() for match in _ELEMENT.finditer(text))
    return iter((text.strip(),))


def _fits_integer(text: str, bits: int) -> bool:
    number = _read_integer(text)
    return number is None or _fits(number, bits) or not _fits(number, 64)


def _fits(number: int, bits: int) -> bool:
    return -(1 << bits - 1) <= number < 1 << bits - 1


def _fits_float(text: str) -> bool:
    number = _read_float(text)
    if number is None or math.isnan(number):
        return True
    if math.isinf(number):
        return "inf" in text.lower()
    return _FLOAT_MIN < abs(number) < _FLOAT_MAX or _ZERO.fullmatch(text) is not None


def _read_integer(text: str) -> int | None:
    """Return the number, or None if the text is none: the engine refuses it itself."""
    for base in (10, 0):  # 0 is for prefixes
        try:
            return int(text, base)
        except ValueError:
            pass
    return None


def _read_float(text: str) -> float | None:
    """Return the number, or None if the text is none: the engine refuses it itself."""
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except OverflowError:
        return math.inf
    except ValueError:
        return None
