"""Which statements come so often that the engine should keep them prepared.

A statement is prepared on a connection once its text has come a few times; from then on the engine neither parses it
again nor, where one plan fits all parameters, plans it. What is prepared goes with the next `DISCARD ALL` on its
connection, and before anything runs there that could see it: see `pool`.
"""

from itertools import count

from querygate.engine.port import Shape
from querygate.engine.postgres.values import RowEncoder

_OFTEN = 3
_TEXTS_MAX = 1000
KEPT_MAX = 64
"""On one connection; beyond that it starts over. Each takes the server some ten kilobytes."""

Key = tuple[str, tuple[int, ...]]
"""A text, and the types of its parameters as far as they are not to be inferred."""

_numbers = count(1)


class Kept:
    """A statement that is prepared on one connection, and the encoder of the rows that it gave last.

    As long as it is prepared its rows keep their columns: where those would change the engine refuses to run it.
    """

    __slots__ = ("_encoder", "_encoder_of", "name")

    def __init__(self) -> None:
        self.name = b"querygate_%d" % next(_numbers)
        self._encoder: RowEncoder | None = None
        self._encoder_of: object = None

    def encoder(self, known: object, shape: Shape) -> RowEncoder | None:
        """The encoder of an earlier run, if it was for rows of that shape, and with what is `known` now of types."""
        encoder = self._encoder
        return encoder if encoder is not None and self._encoder_of is known and encoder.shape is shape else None

    def keep(self, encoder: RowEncoder | None, known: object) -> None:
        self._encoder, self._encoder_of = encoder, known


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
