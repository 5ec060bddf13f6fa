"""How far the service was in the answers that a client has seen, so that it never reads what was before them."""

import threading
from collections.abc import Mapping
from typing import Literal, get_args

Consistency = Literal["serializable", "snapshot"]
"""`snapshot`: what only reads may be answered by a replica, at or behind what the client has seen and written."""

_HEADER = "tuplegate-position"
_UNKNOWN = "unknown"
"""The service could not say how far it was. It comes after every other."""


def checked_consistency(given: str) -> Consistency:
    for known in get_args(Consistency):
        if given == known:
            return known  # type: ignore[no-any-return]  # it is one of the literals
    raise ValueError(f"consistency is {given!r}: it is serializable or snapshot")


class Positions:
    """The latest position of all answers. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: str | None = None

    @property
    def latest(self) -> str | None:
        return self._latest

    def headers(self, consistency: Consistency | None) -> dict[str, str]:
        """What a request says of how new its answer must be; None leaves it to the key."""
        made: dict[str, str] = {} if consistency is None else {"Tuplegate-Consistency": consistency}
        if consistency != "serializable" and self._latest is not None:
            made["Tuplegate-Position"] = self._latest
        return made

    def note(self, position: str | None, sent: str | None = None) -> None:
        """Takes the position of an answer, and the one that was sent for it. Of two, the greater text is the later."""
        if position is None:
            return
        with self._lock:
            if self._latest == _UNKNOWN and sent == _UNKNOWN:
                self._latest = position  # asked for after what is unknown, so it is behind that
            elif self._latest is None or position > self._latest:
                self._latest = position

    def note_answer(self, answered: Mapping[str, str], asked: Mapping[str, str]) -> None:
        self.note(answered.get(_HEADER), asked.get("Tuplegate-Position"))
