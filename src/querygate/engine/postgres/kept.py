"""Which statements come so often that the engine should keep them prepared.

A statement is prepared on a connection once its text has come a few times; from then on the engine neither parses it
again nor, where one plan fits all parameters, plans it. What is prepared goes with the next `DISCARD ALL` on its
connection, and before anything runs there that could see it: see `pool`.
"""

from itertools import count

_OFTEN = 3
_TEXTS_MAX = 1000
KEPT_MAX = 64
"""On one connection; beyond that it starts over. Each takes the server some ten kilobytes."""

Key = tuple[str, tuple[int, ...]]
"""A text, and the types of its parameters as far as they are not to be inferred."""

_numbers = count(1)


def new_name() -> bytes:
    return b"querygate_%d" % next(_numbers)


class OftenSeen:
    """The texts of one database, as far as they were not prepared where they were to run."""

    def __init__(self) -> None:
        self._seen: dict[Key, int] = {}

    def note(self, key: Key) -> bool:
        """Whether it has come often enough by now."""
        times = self._seen.get(key, 0) + 1
        if times == 1 and len(self._seen) >= _TEXTS_MAX:
            self._seen.clear()
        self._seen[key] = times
        return times >= _OFTEN
