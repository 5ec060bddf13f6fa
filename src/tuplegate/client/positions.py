"""Remembers how far the service was in the answers a client has seen, so that it never reads older data."""

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
        self._latest: str | None = None

    @property
    def latest(self) -> str | None:
        return self._latest

    def headers(self, consistency: Consistency | None) -> dict[str, str]:
        """Return the headers that say how recent the answer must be; None leaves it to the key."""
        made: dict[str, str] = {} if consistency is None else {"Tuplegate-Consistency": consistency}
        if consistency != "serializable" and self._latest is not None:
            made["Tuplegate-Position"] = self._latest
        return made

    def note(self, position: str | None, sent: str | None = None) -> None:
        """Note the position of an answer, and the one sent with its request. The greater text is the later position."""
        if position is None:
            return
        with self._lock:
            if self._latest == _UNKNOWN and sent == _UNKNOWN:
                self._latest = (
                    position  # the request asked for data later than the unknown position, so this one is later
                )
            elif self._latest is None or position > self._latest:
                self._latest = position

    def note_answer(self, answered: Mapping[str, str], asked: Mapping[str, str]) -> None:
        self.note(answered.get(_HEADER), asked.get("Tuplegate-Position"))
