"""Decides which statements come so often that the engine should keep them prepared.

A statement is prepared on a connection once its text has come a few times. From then on the engine does not parse it
again and, if one plan fits all parameters, does not plan it again. A prepared statement is removed by the next `DISCARD
ALL` on its connection, and before anything runs there that could see it: see `pool`.
"""

from itertools import count
from typing import Final

from tuplegate.engine.libpq.pools.plans import Verdict
from tuplegate.engine.libpq.values.row_encoder import RowEncoder
from tuplegate.engine.port import Shape
from tuplegate.engine.sql.facts import Facts

_OFTEN: Final = 3
_TEXTS_MAX: Final = 1000
LENGTH_MAX: Final = 4000
"""The length of the longest text that is kept."""
_PLANNED_S: Final = 10.0
"""How long a plan is used: it is as good as the engine's statistics when it was made."""
KEPT_MAX: Final = 64
"""The bound for one connection; beyond it, all are removed. Each takes the server some ten kilobytes."""

Key = tuple[str, tuple[int, ...]]
"""A text, and the types of its parameters; 0 for a type that the engine infers."""

_numbers: Final = count(1)


class KeptStatement:
    """A statement that is prepared on one connection, and the encoder of its last rows.

    It is prepared anew when its time is over, when it has no `runs` left, and when the definitions have another
    `version`. The engine does not see every change of a literal's meaning, and never infers a parameter's type again.

    While it is prepared, its rows keep their columns: if those would change, the engine refuses to run it.
    """

    def __init__(self, facts: Facts, now: float, version: int, verdict: Verdict) -> None:
        self.facts = facts
        self.version = version
        self.verdict = verdict
        self.runs = verdict.runs
        self.name = b"tuplegate_%d" % next(_numbers)
        self.until = now + _PLANNED_S
        self._encoder: RowEncoder | None = None
        self._encoder_of: object = None

    def find_encoder(self, known: object, shape: Shape) -> RowEncoder | None:
        """Return the encoder of an earlier run, if it was for rows of that shape and for the types `known` now."""
        encoder = self._encoder
        return encoder if encoder is not None and self._encoder_of is known and encoder.shape is shape else None

    def keep(self, encoder: RowEncoder | None, known: object) -> None:
        self._encoder, self._encoder_of = encoder, known


class OftenSeen:
    """The texts of one database that ran unprepared, and the verdicts on frequent ones."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        """The counts by hash: a collision only makes a text prepared too soon, which is harmless."""
        self._verdicts: dict[Key, Verdict] = {}
        self._noisy: set[int] = set()
        """Hashes of texts that gave notices. Parsing gives some, and a prepared text is not parsed again."""

    def note(self, key: Key) -> bool:
        """Count a text; return whether it is frequent."""
        hashed = hash(key)
        if hashed in self._noisy:
            return False
        times = self._seen.get(hashed, 0) + 1
        if times == 1 and len(self._seen) >= _TEXTS_MAX:
            self._seen.clear()
        self._seen[hashed] = times
        return times >= _OFTEN

    def note_noise(self, key: Key) -> None:
        if len(self._noisy) >= _TEXTS_MAX:
            self._noisy.clear()
        self._noisy.add(hash(key))

    def recall(self, key: Key, now: float, version: int) -> Verdict | None:
        """Return the cached verdict, or None if it is missing or stale. A stale one is recomputed once the text is
        frequent again."""
        found = self._verdicts.get(key)
        if found is not None and (found.until <= now or found.version != version):
            del self._verdicts[key]
            self._seen.pop(hash(key), None)
            return None
        return found

    def note_verdict(self, key: Key, verdict: Verdict, now: float, version: int) -> None:
        verdict.until, verdict.version = now + _PLANNED_S, version
        if len(self._verdicts) >= _TEXTS_MAX:
            self._verdicts.clear()
        self._verdicts[key] = verdict
