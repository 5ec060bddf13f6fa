"""Remembers which prepared statements of a client can begin more than one transaction.

The engine and the service can come to think of different texts by one name: a Parse or a Close that the engine refuses
changes nothing there, names are cut, and they are converted from the client's encoding. So nothing is inferred from an
answer. A name that once stood for such a statement is never taken for another one's. It is remembered if it consists of
characters that are the same in every encoding, and while there are few. From the first one on that is not, every name
that is not known is taken for that of code. Only a Bind behind its own Parse, with nothing in between that is run, is
certain: the engine has this text, or skips both.
"""

import re
from dataclasses import replace
from typing import Final

from tuplegate.data_plane.wire.messages import BIND, DESCRIBE, PARSE
from tuplegate.data_plane.wire.texts import Judged, judge_text

_NAMES_MAX: Final = 100
_NAME: Final = re.compile(rb"[A-Za-z0-9_.:$-]{0,60}")
"""The engine cuts names to 63 bytes."""
_ANY: Final = judge_text(b"do")
"""Of what can be anything: it is run as code is."""
_BETWEEN: Final = frozenset({PARSE, BIND, DESCRIBE, ord("H")})
"""Messages that run nothing; the last is Flush."""


class PreparedNames:
    def __init__(self) -> None:
        self._many: dict[bytes, Judged] = {}
        self._last: tuple[bytes, Judged] | None = None
        self.is_full = False
        """Some name was not remembered."""
        self.has_none_to_lose = True
        """No statement was prepared without a name, and none that could begin a block: outside of one there is neither
        a statement nor a cursor without a name between a Sync and what follows it."""

    def see(self, kind: int) -> None:
        """Note that a message is sent."""
        if kind not in _BETWEEN:
            self._last = None

    def note_parse(self, name: bytes, judged: Judged) -> None:
        """Note a Parse that the engine gets next."""
        if not name or judged.is_inert or judged.ends or not judged.is_alone:
            self.has_none_to_lose = False
        known = self._many.get(name)
        if judged.has_no_bound or judged.more or known is not None:
            if known is None and (len(self._many) >= _NAMES_MAX or not _NAME.fullmatch(name)):
                self.is_full = True
            else:
                self._many[name] = judged if known is None else _join(known, judged)
        self._last = (name, judged)

    def find(self, name: bytes) -> Judged | None:
        """Return how a Bind of the name is to be treated; None: like any plain statement."""
        if self._last is not None and self._last[0] == name:
            judged = self._last[1]
            return judged if judged.has_no_bound or judged.more else None
        if not self._many and not self.is_full:
            return None
        known = self._many.get(name) if _NAME.fullmatch(name) else _ANY
        return _ANY if known is None and self.is_full else known


def _join(one: Judged, other: Judged) -> Judged:
    """Return what holds for both. What is not certain to have steps is run as code."""
    has_steps = one.has_steps and other.has_steps
    has_no_bound = one.has_no_bound or other.has_no_bound
    return replace(other, is_code=has_no_bound and not has_steps, has_steps=has_steps, more=max(one.more, other.more))
