"""A unit, which is a text or the messages up to a Sync, and the statements that must follow it. See `listening`."""

from enum import Enum
from functools import lru_cache
from typing import Final

from tuplegate.data_plane.wire.connection.outgoing import Outgoing
from tuplegate.data_plane.wire.flow import IDLE, IN_BLOCK
from tuplegate.data_plane.wire.listening import READ_ONLY, SYNCHRONOUS, UNLISTEN, Listening
from tuplegate.data_plane.wire.messages import QUERY, write_query
from tuplegate.data_plane.wire.own_statements import LEAVE_SERIALIZABLE, OwnStatements, return_to
from tuplegate.data_plane.wire.prepared_names import PreparedNames
from tuplegate.engine import port

_NOTHING: Final = b"UNLISTEN tuplegate"
"""Does nothing, in a session that listens: nobody listens to that."""
_CLOSING: Final = (UNLISTEN,)
_CLOSING_READER: Final = (UNLISTEN, READ_ONLY)
_CLOSING_LAZY: Final = (UNLISTEN, SYNCHRONOUS)


class Rows(Enum):
    """The rows that a text takes from the client. Statements that must follow the text must follow the rows."""

    NONE = "takes none"
    AWAITED = "takes some"
    AWAITED_BEHIND_END = "takes some, and can have ended a transaction before"


class Unit:
    """The present unit, and what stays for the next ones: `listening`, `names`.

    `closing` ends each thing that is run, and `behind` is to be sent behind the client's statement. `began_in` is the
    status in which the unit began; 0 where that was not known. `level` tells the level of a session that listens, and
    has set it aside.
    """

    def __init__(self, out: Outgoing, link: port.WireSession, may_write: bool) -> None:
        self._out = out
        self._link = link
        self.names = PreparedNames()
        self.listening = Listening()
        self.level: OwnStatements | None = None
        self.closing = _CLOSING if may_write else _CLOSING_READER
        self.behind: tuple[bytes, ...] = ()
        self.began_in = IDLE
        self.rows = Rows.NONE
        self.is_skipping = False
        """A message of the extended protocol was refused, and what follows it is not passed on."""
        self.has_added_sync = False
        """A Sync is not answered that the client has left out."""

    @property
    def is_lazy(self) -> bool:
        """Return whether commits of the session do not wait for the disk by themselves."""
        return self.closing == _CLOSING_LAZY

    def make_lazy(self) -> None:
        self.closing = _CLOSING_LAZY

    @property
    def is_in_block(self) -> bool:
        """Return whether a transaction block is open, and nothing is under way that could end it."""
        return self._out.flow.status == IN_BLOCK and not self._out.flow.has_statements

    @property
    def _must_settle(self) -> bool:
        """Return whether what begins now must wait for what is under way."""
        flow = self._out.flow
        return flow.answers_own or (flow.is_running and (self.listening.can_end or self.names.is_full))

    async def begin(self) -> None:
        """See to what begins now: a text, or what comes up to the next Sync."""
        out = self._out
        if self._must_settle:
            await out.settle()
        if not out.flow.is_running:
            out.parts.begin()
            out.shown.parts = True
        self.began_in = 0 if out.flow.has_asked else out.flow.status

    def end(self, kind: int) -> bytes:
        """Return the bytes that must follow a message which the engine answers with ReadyForQuery."""
        if self.rows is not Rows.NONE:
            return b""
        behind, self.behind = self.behind, ()
        if self.listening.is_on:
            closing = self._out.make_own(behind + self.closing[1:] + LEAVE_SERIALIZABLE, must_succeed=True)
            self.level = self._out.own[-1]
            return closing
        if not behind:
            return b""
        # A simple query is answered with less. It drops the client's statement and cursor that have no name.
        if kind == QUERY or (self.names.has_none_to_lose and self.began_in == IDLE):
            self._out.note_own(must_succeed=True)
            return _write_text(behind)
        return self._out.make_own(behind, must_succeed=True)

    def unlisten_behind(self, *, in_block: bool) -> None:
        if not in_block and not self.listening.is_on:
            self._link.count_begun(1)
            self.behind += self.closing

    @property
    def inside(self) -> tuple[bytes, ...]:
        """Return the statements of ours that end the client's, in their own transaction."""
        return (_NOTHING, *self.closing[1:]) if self.listening.is_on else self.closing

    def make_inside(self) -> bytes:
        """Return these statements in the form for the middle of a client's messages."""
        return self._out.make_between(self.inside)

    def take_added_sync(self, *, has_failed: bool) -> bool:
        """Note that a Sync was answered; return whether the client has left it out. Where the unit `has_failed`, the
        client's messages are skipped up to its own."""
        is_added, self.has_added_sync = self.has_added_sync, False
        self.is_skipping = self.is_skipping or (is_added and has_failed)
        return is_added

    # -- isolation ------------------------------------------------------------------------------------------------

    async def leave_serializable(self) -> None:
        """Change the session's isolation level for the statement that follows. Raises WireError where that fails."""
        self.behind = return_to(await self._out.run_own(LEAVE_SERIALIZABLE))

    async def return_to_level(self) -> None:
        """Give a session that listens its level for what is sent next. The engine can read notifications at that level
        before it, and behind it."""
        assert self.level is not None
        await self._out.write()
        level = await self.level.wait_for_any()
        if level:  # else it was not set aside: the transaction has failed, and gives back what it has changed
            self._link.count_begun(2)
            await self._out.run_own(return_to(level))
        self.level = None


@lru_cache(maxsize=100)
def _write_text(statements: tuple[bytes, ...]) -> bytes:
    return write_query(b";".join(statements))
