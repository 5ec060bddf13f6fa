"""Placeholders whose type the engine cannot infer: the service declares them as text, as PostgreSQL does."""

import re
from collections.abc import Sequence
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.libpq.values.types import TEXT

_UNTOLD: Final = "42P18"
_PLACE: Final = re.compile(r"placeholder \$(\d+)")
_TEXTS_MAX: Final = 1000
_PLACES_MAX: Final = 65_535


class UntoldTypes:
    """The placeholder types to declare, by the texts of statements. Each refusal reveals one more type of a text."""

    def __init__(self) -> None:
        self._types: dict[str, list[int]] = {}

    def forget(self) -> None:
        self._types.clear()

    def of(self, sql: str) -> list[int]:
        return self._types.get(sql, _NONE)

    def of_each(self, sql: str, params: Sequence[object] | None) -> list[int]:
        """Return one type for each parameter, or nothing if none must be declared."""
        types = self._types.get(sql)
        if types is None or params is None:
            return _NONE
        return [*types[: len(params)], *[0] * (len(params) - len(types))]

    def learn(self, sql: str, failure: port.StatementFailed) -> bool:
        """Learn from a refusal; return whether another try is worthwhile."""
        place = _PLACE.search(failure.message) if failure.sqlstate == _UNTOLD else None
        if place is None:
            return False
        types = list(self.of(sql))
        number = int(place[1])
        if number > _PLACES_MAX or (len(types) >= number and types[number - 1]):
            return False
        types += [0] * (number - len(types))
        types[number - 1] = TEXT
        if len(self._types) >= _TEXTS_MAX:
            self._types.clear()
        self._types[sql] = types
        return True


_NONE: Final[list[int]] = []
