"""Follows both directions of a connection by the types of messages, and matches answers to requests. Pure.

The engine answers each Query, FunctionCall and Sync with one ReadyForQuery, in order. While it takes rows (COPY … FROM
STDIN) it skips every Sync, up to the end of the rows.
"""

import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from tuplegate.data_plane.wire.messages import (
    BIND,
    BOUND,
    CLIENT_TYPES,
    CLOSE,
    CLOSED,
    COMPLETE,
    COPY_DATA,
    COPY_DONE,
    COPY_FAIL,
    COPY_IN,
    ERROR,
    EXECUTE,
    FLUSH,
    FUNCTION,
    PARSE,
    PARSED,
    QUERY,
    READY,
    ROW,
    SYNC,
    TERMINATE,
    WireError,
)

IDLE, IN_BLOCK, FAILED = b"ITE"
"""The status that comes with a ReadyForQuery."""

HIDDEN: Final = 0
"""Stands for a Query of the service's own, whose answer the client does not get."""

OWN: Final = object()
"""Stands for a message of the service's own."""

_ENDS_MAX: Final = 1000
"""The ends of rows that a client may send before the engine asks for rows."""
_CUT_MAX: Final = 128
_CUT_BYTES_MAX: Final = 64 * 1024
"""The number of a client's messages, and their bytes, that are cut off at once; the last one may be longer."""
_LOOKED_AT_MAX: Final = 8 * 1024
"""Of longer messages of the engine, only the type is looked at."""


class Flow:
    """The unanswered messages of a connection. `status` is the engine's last one."""

    def __init__(self) -> None:
        self.status = IDLE
        self._asked: deque[int] = deque()
        """Every Query, FunctionCall (as a Query) and Sync that is not answered, and the ends of rows that the engine
        has not asked for yet."""
        self._ends = 0
        """The number of them that are ends of rows."""
        self._takes_rows = False
        self.is_open = False
        """Messages were sent after the last Sync that need one."""
        self.has_executed = False
        """One of them was an Execute."""

    @property
    def is_running(self) -> bool:
        return self.is_open or self.has_asked

    @property
    def answers_own(self) -> bool:
        """Return whether only statements of the service's own are under way."""
        return not self.is_open and bool(self._asked) and all(kind == HIDDEN for kind in self._asked)

    @property
    def has_asked(self) -> bool:
        """Return whether a message is unanswered that the engine answers with ReadyForQuery."""
        return len(self._asked) > self._ends

    @property
    def waits_for_client(self) -> bool:
        """Return whether the engine can be waiting for the client's next message."""
        return self._takes_rows or not self.has_asked

    @property
    def hides(self) -> bool:
        """Return whether the engine is now answering a statement of the service's own."""
        for kind in self._asked:
            if kind != COPY_DONE:  # the engine ignores the end of rows that it did not want
                return kind == HIDDEN
        return False

    @property
    def has_statements(self) -> bool:
        """Return whether a message is under way that can change the status."""
        return self.has_executed or self.has_asked

    def sent(self, kind: int) -> None:
        """Note a message of the client, or of the service."""
        if kind in (QUERY, FUNCTION, HIDDEN):
            if not self.has_asked:
                self._forget_ends()
            self._asked.append(HIDDEN if kind == HIDDEN else QUERY)
        elif kind == SYNC:
            if not self._takes_rows:
                self._asked.append(SYNC)
            self.is_open = self.has_executed = False
        elif kind in (COPY_DONE, COPY_FAIL):
            self._end_rows()
        elif kind not in (COPY_DATA, TERMINATE, FLUSH):
            self.is_open = True
            self.has_executed = self.has_executed or kind == EXECUTE

    def _end_rows(self) -> None:
        if self._takes_rows:
            self._takes_rows = False
        elif self.has_statements:  # else the engine ignores it
            if self._ends == _ENDS_MAX:
                raise WireError("08P01", f"rows that nobody has asked for have ended {_ENDS_MAX} times")
            self._ends += 1
            self._asked.append(COPY_DONE)

    def _forget_ends(self) -> None:
        """Forget the ends of rows that the engine did not read to the end."""
        self._asked.clear()
        self._ends = 0

    def _take_first(self) -> int:
        kind = self._asked.popleft()
        self._ends -= kind == COPY_DONE
        return kind

    def note_ready(self, status: int) -> None:
        if not self.has_asked:
            raise WireError("08P01", "the engine has answered more than it was asked")
        self.status = status
        self._takes_rows = False
        while self._asked and self._take_first() == COPY_DONE:
            pass

    def note_rows_wanted(self) -> None:
        """Note that the engine takes rows now: it skips messages behind the statement, up to the end of the rows."""
        is_query = bool(self._asked) and self._asked[0] == QUERY
        if is_query:
            self._asked.popleft()
        self._takes_rows = True
        while self._asked and self._takes_rows:
            self._takes_rows = self._take_first() != COPY_DONE
        if is_query:
            self._asked.appendleft(QUERY)
        else:
            self.is_open = self._takes_rows

    def note_error(self) -> None:
        if self._takes_rows:
            self._takes_rows = False
            if not self._asked:
                self.is_open = True


class Parts:
    """Tells the answers to the service's own Parse, Bind and Close messages from those to the client's.

    They come in the order of the messages. `is_exact`: it knows of all unanswered ones, so that some of the service's
    own may be sent. `has_bound`: one of the client's was a Bind.
    """

    def __init__(self) -> None:
        self.is_exact = self.has_bound = False
        self._unanswered: dict[int, deque[object]] = {answer: deque() for answer in _ANSWERS.values()}
        """For each kind of answer, the unanswered messages: `OWN` for the service's own, otherwise the subject of the
        client's."""

    def begin(self) -> None:
        """Count from now on. Nothing is under way."""
        self.end()
        self.is_exact = True
        self.has_bound = False

    def sent(self, kind: int, about: object = None) -> None:
        """Note a message of the client, and its subject."""
        if not self.is_exact:
            return
        if kind in _ANSWERS:
            self._unanswered[_ANSWERS[kind]].append(about)
            self.has_bound = self.has_bound or kind == BIND
        elif kind in (SYNC, QUERY, FUNCTION):
            self.is_exact = False  # what comes behind it is answered after a ReadyForQuery

    def sent_own(self) -> None:
        """Note the messages of one `write_run`."""
        for answer in (CLOSED, CLOSED, PARSED, BOUND):
            self._unanswered[answer].append(OWN)

    def take(self, answer: int, *, hides: bool) -> object:
        """Return the message that was answered: `OWN`, or the subject of the client's message; None if that is unknown.

        `hides`: statements of the service's own come next.
        """
        unanswered = self._unanswered[answer]
        if unanswered:
            return unanswered.popleft()
        return OWN if hides else None

    def end(self) -> None:
        """Note a ReadyForQuery. After an error the rest was not answered."""
        self.is_exact = False
        for unanswered in self._unanswered.values():
            unanswered.clear()


class ClientMessages:
    """Cuts the client's bytes into messages. `bytes_max` bounds each. `has_more`: the last call of `feed` has stopped
    at the bound of one turn, and there may be more without further bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self.has_more = False

    @property
    def held(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the first complete messages. Raises WireError for bytes that are none."""
        buffer = self._buffer
        buffer += data
        messages: list[bytes] = []
        at = 0
        self.has_more = False
        while len(buffer) - at >= 5:
            if len(messages) == _CUT_MAX or at >= _CUT_BYTES_MAX:
                self.has_more = True
                break
            kind = buffer[at]
            if kind not in CLIENT_TYPES:
                raise WireError("08P01", f"{chr(kind)!r} is no type of a message that a client may send here")
            length = struct.unpack_from(">i", buffer, at + 1)[0]
            if not 4 <= length <= self._bytes_max:
                raise WireError(
                    "08P01" if length < 4 else "54000",
                    f"a message says that it has {length} bytes; it can have 4 to {self._bytes_max}",
                )
            if len(buffer) - at < length + 1:
                break
            messages.append(bytes(buffer[at : at + 1 + length]))
            at += 1 + length
        del buffer[:at]
        return messages


Look = Callable[[int, bytes], bytes | None]
"""Takes a type and a whole message of the engine. Returns the bytes for the client in its place, or None to pass it
on."""


class Shown:
    """Which messages of the engine are shown beside those that always are: rows; the answers to Parse, Bind, Close."""

    def __init__(self) -> None:
        self.rows = False
        self.parts = False


class EngineMessages:
    """Passes the engine's bytes on, and shows some messages on their way."""

    def __init__(self, look: Look, shown: Shown) -> None:
        self._look = look
        self._shown = shown
        self._left = 0
        """Bytes that are left of a message that is being passed on."""
        self._held = b""
        """The beginning of a message that has not come far enough to be judged."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes for the client."""
        if self._held:
            data, self._held = self._held + data, b""
        shown = self._shown
        size = len(data)
        at = min(self._left, size)
        self._left -= at
        cut = 0
        parts: list[bytes] = []
        while size - at >= 5:
            kind = data[at]
            length = int.from_bytes(data[at + 1 : at + 5])
            end = at + 1 + length
            is_shown = kind in _LOOKED_AT or (shown.rows and kind == ROW) or (shown.parts and kind in _PARTS)
            if kind == ERROR and length > _LOOKED_AT_MAX:
                self._look(kind, b"")
            if is_shown and length <= _LOOKED_AT_MAX:
                if end > size:
                    break
                instead = self._look(kind, data[at:end])
                if instead is not None:
                    parts += [data[cut:at], instead]
                    cut = end
            elif end > size:
                self._left = end - size
                at = size
                break
            at = end
        self._held = data[at:]
        if not parts and cut == 0 and at == size:
            return data
        parts.append(data[cut:at])
        return b"".join(parts)


_LOOKED_AT: Final = frozenset((READY, ERROR, COMPLETE, COPY_IN))
_ANSWERS: Final = {PARSE: PARSED, BIND: BOUND, CLOSE: CLOSED}
_PARTS: Final = frozenset(_ANSWERS.values())
