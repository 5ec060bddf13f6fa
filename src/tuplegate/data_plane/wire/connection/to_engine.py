"""From the client to the engine: what becomes of each message.

A statement that may not run is replaced by one that the engine itself refuses (`refusals`). So the error comes in its
place among the answers, a transaction that is open fails with it, and what follows up to the next Sync is skipped, all
as PostgreSQL does it.
"""

from typing import Final

from tuplegate.data_plane.wire.admission import WireAdmission
from tuplegate.data_plane.wire.connection.ending import Ending
from tuplegate.data_plane.wire.connection.extended import PARTS, ExtendedQueries
from tuplegate.data_plane.wire.connection.outgoing import Outgoing
from tuplegate.data_plane.wire.connection.refusals import Refusals
from tuplegate.data_plane.wire.connection.simple import SimpleQueries
from tuplegate.data_plane.wire.connection.unit import Rows, Unit
from tuplegate.data_plane.wire.messages import (
    BIND,
    CLOSE,
    COPY_DONE,
    COPY_FAIL,
    DESCRIBE,
    EXECUTE,
    FUNCTION,
    PARSE,
    QUERY,
    SYNC,
    SYNC_MESSAGE,
    WireError,
)

_BEGINS: Final = (QUERY, PARSE, BIND, FUNCTION)
_RUNS: Final = (QUERY, FUNCTION, PARSE, BIND, DESCRIBE, EXECUTE)
"""Behind any other message the engine can wait outside of a transaction."""
_NOT_BEHIND: Final = "behind VACUUM, ANALYZE, CLUSTER and REINDEX nothing else runs up to the next Sync"
_NO_SYNC: Final = "a Query or FunctionCall needs a Sync before it, behind an Execute"


class ToEngine:
    """Judges the client's messages, one after the other."""

    def __init__(
        self,
        out: Outgoing,
        unit: Unit,
        simple: SimpleQueries,
        extended: ExtendedQueries,
        admission: WireAdmission,
        refusals: Refusals,
        ending: Ending,
    ) -> None:
        self._out = out
        self._unit = unit
        self._simple = simple
        self._extended = extended
        self._admission = admission
        self._refusals = refusals
        self._ending = ending

    async def judge(self, message: bytes) -> bytes:
        """Return the bytes for the engine in place of a message."""
        kind = message[0]
        unit, flow = self._unit, self._out.flow
        if unit.is_skipping and kind != SYNC:
            return b""
        if kind in (QUERY, FUNCTION) and flow.is_open:
            # Behind a failure the engine would skip it. What is known of the connection would be wrong from then on.
            if flow.has_statements:
                self._ending.end(WireError("08P01", _NO_SYNC), at_once=True)
                return b""
            await self._add_sync()
            if unit.is_skipping:
                return b""
        unit.names.see(kind)
        ends_rows = unit.rows is not Rows.NONE and kind in (COPY_DONE, COPY_FAIL)
        try:
            if unit.behind and kind in _BEGINS:
                raise WireError("0A000", _NOT_BEHIND)
            message = await self._judge_kind(kind, message)
        except WireError as refusal:
            refused = self._refuse(kind, refusal)
            if kind != SYNC:
                return refused + (unit.end(kind) if kind in (QUERY, FUNCTION) else b"")
            message = refused + message
        flow.sent(kind)
        self._out.parts.sent(kind, unit.names.note_close(message) if kind == CLOSE else None)
        if ends_rows:
            unit.rows = Rows.NONE
            unit.unlisten_behind(in_block=False)
        return message + unit.end(kind) if ends_rows or kind in (QUERY, SYNC, FUNCTION) else message

    async def _add_sync(self) -> None:
        """Send a Sync for a client that has prepared something, run nothing of it, and left its Sync out, as asyncpg
        does. The client does not get the answer. Behind a failure what follows is skipped, as the engine does."""
        judged = await self.judge(SYNC_MESSAGE)
        self._out.add(judged)
        self._unit.has_added_sync = True
        await self._out.settle()

    async def _judge_kind(self, kind: int, message: bytes) -> bytes:
        """Return the bytes for the engine in place of a message. Raises WireError if it is to be refused."""
        unit = self._unit
        if kind == SYNC:
            unit.is_skipping = False
            return await self._extended.judge_sync(message)
        is_part = kind in PARTS
        begins = kind in (QUERY, FUNCTION) or (is_part and not self._out.flow.is_open)
        if unit.level is not None and kind in _RUNS:
            await unit.return_to_level()
        if begins:
            await unit.begin()
        if kind == QUERY:
            return await self._simple.judge(message)
        if is_part:
            return await self._extended.judge(kind, message)
        if kind == FUNCTION:
            await self._admission.admit(1)
            unit.unlisten_behind(in_block=unit.is_in_block)
        elif kind in (COPY_DONE, COPY_FAIL):
            unit.listening.sent(kind)
        return message

    def _refuse(self, kind: int, error: WireError) -> bytes:
        """Return bytes that the engine refuses by itself, in place of a message."""
        if kind in (QUERY, FUNCTION):
            self._out.flow.sent(QUERY)
            self._out.parts.sent(QUERY)
            return self._refusals.write_text(error)
        self._unit.is_skipping = kind != SYNC  # as the engine does, up to the next one
        self._out.flow.sent(EXECUTE)
        return self._refusals.write_part(error)
