"""Numbers that are too large for their placeholders: they are refused here, since this engine would store others.

Where it takes a placeholder for an int2 or an int4, it reads any number that an int8 can hold, and keeps the lower bits
of it. So before such a number is sent, the types of the statement's placeholders are asked for.
"""

import re
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Final

import msgspec

from tuplegate.engine import port
from tuplegate.engine.libpq.types import INT2, INT4

_WIDE: Final = re.compile(rb"\"?\s*[+-]?[0-9][0-9A-Za-z_]{4,}\s*\"?")
"""A JSON value that the engine may read as a number over 9,999, in any notation."""
_BITS: Final = {INT2: 16, INT4: 32}
_KEPT_S: Final = 1.0
"""So long the types of a text hold: a table of its name may have been made anew, by another worker."""
_TEXTS_MAX: Final = 1000


def may_be_cut(params: Iterable[msgspec.Raw] | None) -> bool:
    return params is not None and any(_WIDE.fullmatch(bytes(raw)) for raw in params)


def check_numbers(oids: Sequence[int], texts: Sequence[bytes | None]) -> None:
    """Raise where a number does not fit; `oids` are the types of the placeholders. What fits no int8 either, the engine
    refuses."""
    for place, (oid, text) in enumerate(zip(oids, texts, strict=False), start=1):
        bits = _BITS.get(oid)
        if bits is None or text is None:
            continue
        number = _read(text.decode())
        if number is not None and not _fits(number, bits) and _fits(number, 64):
            raise port.StatementFailed(
                f"parameter ${place} is out of range: {number} does not fit an int{bits // 8}", sqlstate="22003"
            )


def _fits(number: int, bits: int) -> bool:
    return -(1 << bits - 1) <= number < 1 << bits - 1


def _read(text: str) -> int | None:
    """Return the number; None where it is none, which the engine says itself."""
    for base in (10, 0):  # 0 is for prefixes
        try:
            return int(text, base)
        except ValueError:
            pass
    return None


class KnownTypes:
    """The types of placeholders, for a moment, by the texts of statements."""

    def __init__(self) -> None:
        self._types: dict[str, tuple[float, list[int]]] = {}

    def find(self, sql: str) -> list[int] | None:
        until, types = self._types.get(sql, _NEVER)
        return types if monotonic() < until else None

    def keep(self, sql: str, types: list[int]) -> None:
        if len(self._types) >= _TEXTS_MAX:
            self._types.clear()
        self._types[sql] = (monotonic() + _KEPT_S, types)

    def forget(self) -> None:
        self._types.clear()


_NEVER: Final[tuple[float, list[int]]] = (0.0, [])
