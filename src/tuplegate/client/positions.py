"""Remembers the latest position of the answers that a client has seen, so that it never reads older data."""

import threading
from collections.abc import Mapping
from typing import Literal, get_args

Consistency = Literal["serializable", "snapshot"]
"""With `snapshot`, a replica may answer reads, if it has all that the client has seen and written."""

_HEADER = "tuplegate-position"
_UNKNOWN = "unknown"
"""The service could not say how far it was. This counts as later than any other position."""


def check_consistency(given: str) -> Consistency:
    for known in get_args(Consistency):
        if given == known:
            return known  # type: ignore[no-any-return]  # it is one of the literals
    raise ValueError(f"consistency is {given!r}: it is serializable or snapshot")


class Positions:
    """The latest position of all answers. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: str | None = None
        self._unknowns = 0
        """Answers whose position was unknown."""
        self._settled = 0
        """How many of these are certain to be before `_known`."""

    @property
    def latest(self) -> str | None:
        with self._lock:
            return _UNKNOWN if self._settled < self._unknowns else self._known

    def headers(self, consistency: Consistency | None) -> dict[str, str]:
        """Return the headers that say how recent the answer must be; None leaves it to the key."""
        made: dict[str, str] = {} if consistency is None else {"Tuplegate-Consistency": consistency}
        latest = None if consistency == "serializable" else self.latest
        if latest is not None:
            made["Tuplegate-Position"] = latest
        return made

    def count_settled(self, asked: Mapping[str, str]) -> int:
        """Return the number of unknown positions that the answer to a request is certain to be later than, if it is
        sent now.

        A request that sends back `unknown` asks for data later than all of them. A position noted while it is under way
        may stand for a later write.
        """
        with self._lock:
            return self._unknowns if asked.get("Tuplegate-Position") == _UNKNOWN else 0

    def note(self, position: str | None, settled: int = 0) -> None:
        """Note the position of an answer, and the result of `count_settled` for its request. The greater text is the
        later position."""
        if position is None:
            return
        with self._lock:
            if position == _UNKNOWN:
                self._unknowns += 1
                return
            self._settled = max(self._settled, settled)
            if self._known is None or position > self._known:
                self._known = position

    def note_answer(self, answered: Mapping[str, str], settled: int) -> None:
        self.note(answered.get(_HEADER), settled)
