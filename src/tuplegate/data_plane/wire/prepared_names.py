"""Remembers which prepared statements of a client can begin more than one transaction.

The engine and the service can come to associate different texts with one name: a Parse or a Close that the engine
refuses changes nothing there, names are cut, and they are converted from the client's encoding. So nothing is inferred
from the client's messages alone. A name that once stood for such a statement keeps that mark, until the engine has
confirmed a Close of it and no Parse of it was sent behind that Close: then the name is free there. A name is remembered
if it consists of characters that are the same in every encoding, and while there are few. Once one is not remembered,
every unknown name counts as code. Only a Bind right after its own Parse, with nothing in between that runs, is certain:
the engine has this text, or skips both.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from tuplegate.data_plane.wire.messages import BIND, DESCRIBE, PARSE
from tuplegate.data_plane.wire.texts import Judged, judge_text

_NAMES_MAX: Final = 100
_NAME: Final = re.compile(rb"[A-Za-z0-9_.:$-]{0,60}")
"""The engine cuts names to 63 bytes."""
_ANY: Final = judge_text(b"do")
"""The judgement of an unknown statement: it is run like code."""
_BETWEEN: Final = frozenset({PARSE, BIND, DESCRIBE, ord("H")})
"""Messages that run nothing; the last is Flush."""


@dataclass(frozen=True, slots=True)
class ClosedName:
    """A name to be closed. `parses` had been sent before the Close."""

    name: bytes
    parses: int


class PreparedNames:
    def __init__(self) -> None:
        self._many: dict[bytes, tuple[Judged, int]] = {}
        """The judgement of each name, and the number of Parses up to the last one of it."""
        self._parses = 0
        self._last: tuple[bytes, Judged] | None = None
        self.is_full = False
        """Some name was not remembered."""
        self.has_none_to_lose = True
        """No statement was prepared without a name, and none that could begin a block: then, outside of a block, there
        is neither an unnamed statement nor an unnamed cursor between a Sync and the next message."""

    def see(self, kind: int) -> None:
        """Note that a message is sent."""
        if kind not in _BETWEEN:
            self._last = None

    def note_parse(self, name: bytes, judged: Judged) -> None:
        """Note a Parse that the engine gets next."""
        if not name or judged.is_inert or judged.ends or not judged.is_alone:
            self.has_none_to_lose = False
        self._parses += 1
        known = self._many.get(name)
        if known is not None:
            self._many[name] = _join(known[0], judged), self._parses
        elif judged.has_no_bound or judged.more:
            if len(self._many) < _NAMES_MAX and _NAME.fullmatch(name):
                self._many[name] = judged, self._parses
            else:
                self.is_full = True
        self._last = (name, judged)

    def note_close(self, message: bytes) -> ClosedName | None:
        """Note a Close that the engine gets next; return the name to `forget` once the engine has confirmed it."""
        name = message[6:-1]
        is_known = message[5:6] == b"S" and message[-1:] == b"\0" and name in self._many
        return ClosedName(name, self._parses) if is_known else None

    def forget(self, closed: ClosedName) -> None:
        """Forget a name, unless it was prepared again behind the Close."""
        known = self._many.get(closed.name)
        if known is not None and known[1] <= closed.parses:
            del self._many[closed.name]

    def find(self, name: bytes) -> Judged | None:
        """Return the judgement for a Bind of the name; None: like any plain statement."""
        if self._last is not None and self._last[0] == name:
            judged = self._last[1]
            return judged if judged.has_no_bound or judged.more else None
        if not self._many and not self.is_full:
            return None
        if not _NAME.fullmatch(name):
            return _ANY
        known = self._many.get(name)
        if known is None:
            return _ANY if self.is_full else None
        return known[0]


def _join(one: Judged, other: Judged) -> Judged:
    """Merge two judgements on one name, pessimistically: unless both work in steps, treat it as code."""
    has_steps = one.has_steps and other.has_steps
    has_no_bound = one.has_no_bound or other.has_no_bound
    return replace(other, is_code=has_no_bound and not has_steps, has_steps=has_steps, more=max(one.more, other.more))
