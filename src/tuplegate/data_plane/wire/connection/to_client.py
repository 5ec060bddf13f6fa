"""From the engine to the client: what becomes of the messages that have to be looked at."""

from typing import Final

from tuplegate.data_plane.wire.connection.ending import Ending
from tuplegate.data_plane.wire.connection.outgoing import Outgoing
from tuplegate.data_plane.wire.connection.refusals import Refusals
from tuplegate.data_plane.wire.connection.simple import SimpleQueries
from tuplegate.data_plane.wire.connection.unit import Rows, Unit
from tuplegate.data_plane.wire.flow import FAILED, IDLE, OWN, EngineMessages
from tuplegate.data_plane.wire.messages import (
    BOUND,
    CLOSED,
    COPY_IN,
    ERROR,
    PARSED,
    READY,
    WireError,
    read_fields,
)
from tuplegate.data_plane.wire.prepared_names import ClosedName
from tuplegate.engine import port
from tuplegate.http.exchange import Counts

_NOT_LISTENING: Final = b"UNLISTEN\0"
_ENDED: Final = (b"COMMIT\0", b"ROLLBACK\0")
_NOT_SET_BACK: Final = "after a statement, the session could not be brought back to how it must wait for the next one"


class ToClient:
    """Gives the client the engine's messages, but for those to statements of the service's own."""

    def __init__(
        self,
        link: port.WireSession,
        out: Outgoing,
        unit: Unit,
        simple: SimpleQueries,
        refusals: Refusals,
        ending: Ending,
        usage: Counts,
    ) -> None:
        self._link = link
        self._out = out
        self._unit = unit
        self._simple = simple
        self._refusals = refusals
        self._ending = ending
        self._usage = usage
        self._engine = EngineMessages(self._look, out.shown)
        self._has_failed = self._has_ended = False
        """Since the last ReadyForQuery something has failed, or a transaction has ended."""
        self._hides = 0
        """So many of the next answers to statements are to the service's own."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes for the client, of those that the engine sent."""
        return self._engine.feed(data)

    def _look(self, kind: int, message: bytes) -> bytes | None:
        """See `flow.Look`."""
        out = self._out
        if kind in (PARSED, BOUND, CLOSED):
            answered = out.parts.take(kind, hides=out.flow.hides)
            if answered is OWN:
                self._hides = 1 if kind == BOUND else self._hides
                return b""
            if isinstance(answered, ClosedName):
                self._unit.names.forget(answered)
            return None
        if out.flow.hides:
            return self._look_at_own(kind, message)
        if kind == READY:
            is_added = self._unit.take_added_sync(has_failed=self._has_failed)
            self._note_ready(message[5])
            return b"" if is_added else None
        if kind == COPY_IN:
            out.flow.note_rows_wanted()
            out.wake()
        elif kind == ERROR:
            out.flow.note_error()
            return self._look_at_error(message)
        elif self._hides:
            self._hides -= 1
            return b""
        elif message[5:] == _NOT_LISTENING and self._simple.hidden:
            self._simple.hidden -= 1
            self._hides = len(self._unit.closing) - 1
            return b""
        elif message[5:] in _ENDED:
            self._has_ended = True
        return None

    def _note_ready(self, status: int) -> None:
        out = self._out
        out.flow.note_ready(status)
        out.shown.rows = out.flow.hides
        out.tell_ready()
        out.parts.end()
        self._check_unlistened(status)
        out.wake()
        if not out.flow.is_running:
            self._refusals.forget()
            self._simple.hidden = 0

    def _check_unlistened(self, status: int) -> None:
        """End the connection where a COPY has wanted no rows, and so nothing was sent behind it."""
        unit, listening = self._unit, self._unit.listening
        is_missing = unit.rows is Rows.AWAITED_BEHIND_END or (unit.rows is Rows.AWAITED and not self._has_failed)
        if listening.awaits_rows:
            listening.ended()
            is_missing = is_missing or not self._has_failed
        if is_missing and status == IDLE:
            self._ending.end(WireError("57P01", _NOT_SET_BACK), at_once=True)
        unit.rows = Rows.NONE
        self._has_failed = self._has_ended = False
        self._hides = 0

    def _look_at_own(self, kind: int, message: bytes) -> bytes | None:
        """Take a part of the answer to a statement of the service's own. The last words of the engine are passed on."""
        if kind == READY:
            own = self._out.own.popleft()
            failure = own.end()
            self._note_ready(message[5])
            if failure is not None and own.must_succeed and message[5] != FAILED:
                self._ending.end(WireError("57P01", f"{_NOT_SET_BACK}: {failure.message}"), at_once=True)
        elif kind == ERROR and read_fields(message).get("V") in (b"FATAL", b"PANIC"):
            return self._look_at_error(message)
        else:
            self._out.own[0].take(kind, message)
        return b""

    def _look_at_error(self, message: bytes) -> bytes | None:
        self._usage.errors += 1
        self._has_failed = True
        self._hides = 0
        flow = self._out.flow
        if (self._has_ended or self._unit.listening.is_on) and flow.is_open and not flow.has_asked:
            # The engine waits for a Sync outside of a transaction, where it would read notifications. Code may have
            # listened as it committed.
            self._ending.end(WireError("57P01", _NOT_SET_BACK), at_once=True)
        fields = read_fields(message)
        severity = fields.get("V", b"ERROR").decode()
        is_last = severity in ("FATAL", "PANIC")
        if is_last:
            self._ending.is_expected = True
        told = self._refusals.take(fields.get("M", b""))
        if told is not None:
            return told
        why = self._link.explain(fields.get("C", b"").decode())
        if why is None:
            return None
        return WireError("57P01" if is_last else why.sqlstate or "57014", why.message, why.hint).write(severity)
