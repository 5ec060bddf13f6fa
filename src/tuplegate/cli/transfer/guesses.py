"""Guesses the type of a column: the narrowest that holds all its values. Pure.

Texts are tested many at a time: one match over the joined texts decides for all.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from datetime import date, datetime
from uuid import UUID

_END = "\0"


def _matches(each: str) -> Callable[[Sequence[str]], bool]:
    pattern = re.compile(f"(?:{each}{_END})*+")

    def holds(texts: Sequence[str]) -> bool:
        joined = _END.join(texts) + _END
        return pattern.fullmatch(joined) is not None and joined.count(_END) == len(texts)

    return holds


def _reads(read: Callable[[str], object]) -> Callable[[Sequence[str]], bool]:
    def holds(texts: Sequence[str]) -> bool:
        try:
            deque(map(read, texts), maxlen=0)
        except ValueError:
            return False
        return True

    return holds


def _both(one: Callable[[Sequence[str]], bool], other: Callable[[Sequence[str]], bool]) -> Callable[..., bool]:
    return lambda texts: one(texts) and other(texts)


# Narrow ones first. A number with a leading zero is a code, not a number.
_HOLDS: dict[str, Callable[[Sequence[str]], bool]] = {
    "bool": _matches(r"(?i:true|false|t|f)"),
    "int8": _matches(r"[+-]?(?:0|[1-9][0-9]{0,17})"),
    "numeric": _matches(r"[+-]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?"),
    "date": _both(_matches(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), _reads(date.fromisoformat)),
    "timestamptz": _both(_matches(rf"[0-9]{{4}}-[^{_END}]{{6,}}"), _reads(datetime.fromisoformat)),
    "uuid": _both(_matches(rf"[^{_END}]{{36}}"), _reads(UUID)),
}


class Guess:
    """Narrows down the type of a column as its values are seen."""

    def __init__(self) -> None:
        self._left = list(_HOLDS)
        self._seen = False
        self.json = False
        """True once there was an object or an array, which only JSON holds."""

    def see(self, texts: Sequence[str]) -> None:
        """Take more values, none of them NULL."""
        if not texts:
            return
        self._seen = True
        left = []
        for name in self._left:
            # Integers need not be tested as numeric again.
            if (name == "numeric" and "int8" in left) or (_HOLDS[name](texts[:1]) and _HOLDS[name](texts)):
                left.append(name)
        self._left = left

    @property
    def type(self) -> str:
        if self.json:
            return "jsonb"
        return self._left[0] if self._seen and self._left else "text"
