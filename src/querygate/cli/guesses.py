"""The type of a column by its values: the narrowest that holds all of them. Pure."""

import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Any
from uuid import UUID

_INT = re.compile(r"[+-]?(?:0|[1-9]\d{0,17})")
_NUMERIC = re.compile(r"[+-]?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")


def _reads(read: Callable[[str], object]) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return holds


# Narrow ones first. A number with a leading zero is a code, not a number.
_HOLDS: dict[str, Callable[[str], bool]] = {
    "bool": lambda text: text.lower() in ("true", "false", "t", "f"),
    "int8": lambda text: _INT.fullmatch(text) is not None,
    "numeric": lambda text: _NUMERIC.fullmatch(text) is not None,
    "date": lambda text: len(text) == 10 and _reads(date.fromisoformat)(text),
    "timestamptz": lambda text: len(text) > 10 and text[4:5] == "-" and _reads(datetime.fromisoformat)(text),
    "uuid": lambda text: len(text) == 36 and _reads(UUID)(text),
}


class Guess:
    """Looks at values one after the other, as many as there are."""

    def __init__(self) -> None:
        self._left = list(_HOLDS)
        self._json = False
        self._seen = False

    def see(self, value: Any) -> None:
        if value is None:
            return
        self._seen = True
        if isinstance(value, dict | list):
            self._json = True
        elif self._left:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            self._left = [name for name in self._left if _HOLDS[name](text)]

    @property
    def type(self) -> str:
        if self._json:
            return "jsonb"
        return self._left[0] if self._seen and self._left else "text"
