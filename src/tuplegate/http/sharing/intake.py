"""Takes in the bytes of one connection: one discipline for HTTP, TLS and WebSocket.

An Intake holds the bytes that have arrived and were not consumed. It lets its reader consume a bounded part in one pass
of the event loop, and asks for another turn if more is left. While a turn is put off, or the reader is full, nothing is
read from the transport. All of the client's bytes that the connection holds are charged to memory.
"""

import asyncio
from typing import Protocol

from tuplegate.http.parsing.framing import Buffer
from tuplegate.http.sharing.connection_turns import ConnectionTurns, Turn
from tuplegate.http.sharing.memory import Holding
from tuplegate.protocol.errors import ServiceError


class IntakeReader(Protocol):
    """Consumes the bytes of an Intake."""

    @property
    def owner(self) -> str:
        """The owner for whom bytes are held."""

    @property
    def held_bytes(self) -> int:
        """The bytes that the reader holds itself after it has consumed them."""

    @property
    def is_full(self) -> bool:
        """Return whether no more bytes should arrive just now."""

    def consume_some(self) -> bool:
        """Consume unread bytes, as far as one turn goes. Return whether another turn is needed before more is read."""

    def note_no_room(self, error: ServiceError) -> None:
        """Note that there was no memory for the bytes that arrived; the unread ones were dropped."""


class Intake:
    """`unread` has the bytes that were not consumed. Without a `holding` nothing is charged."""

    def __init__(
        self, transport: asyncio.Transport, turns: ConnectionTurns, holding: Holding | None, reader: IntakeReader | None
    ) -> None:
        self._transport = transport
        self._turns = turns
        self._holding = holding
        self._reader = reader
        """None once nothing is consumed any more: bytes that arrive are dropped."""
        self._turn: Turn | None = None
        """The turn that was asked for."""
        self.unread = Buffer()
        self.is_consuming = False
        self.is_paused = False

    def feed(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        if self._reader is not None:
            self.unread.feed(data)
            self.advance()

    def advance(self) -> None:
        """Have the reader consume what it can now, or in its next turn if this pass of the loop has done much."""
        reader = self._reader
        if reader is None or self.is_consuming:
            return
        if self._turn is None:
            if not self._turns.is_late(reader.owner):
                self._consume(reader)
                return
            self.ask_turn()
        self.settle()

    def ask_turn(self) -> None:
        """Have the reader consume what it can in another pass of the loop. `settle` or `listen` must follow."""
        if self._turn is None and self._reader is not None:
            self._turn = self._turns.ask(self._reader.owner, self._have_turn)

    def _have_turn(self) -> None:
        self._turn = None
        if self._reader is not None:
            self._consume(self._reader)

    def _consume(self, reader: IntakeReader) -> None:
        self.is_consuming = True
        try:
            if reader.consume_some():
                self.ask_turn()
        finally:
            self.is_consuming = False
        self.settle()

    def settle(self) -> None:
        """Account for the bytes held now, and continue to read unless that must wait."""
        try:
            self.charge()
        except ServiceError as error:
            self.unread.clear()
            if self._reader is not None:
                self._reader.note_no_room(error)
        self.listen()

    def charge(self) -> None:
        """Account for the bytes held now. Raises busy, and then nothing is accounted for."""
        reader, holding = self._reader, self._holding
        if reader is None or holding is None:
            return
        held = self.unread.compact() + reader.held_bytes
        if held or holding.size:
            holding.resize_for(reader.owner, held)

    def listen(self) -> None:
        """Read from the transport, unless a turn was put off or the reader is full."""
        reader = self._reader
        pause = reader is not None and (self._turn is not None or reader.is_full)
        if pause is self.is_paused or self._transport.is_closing():
            return
        self.is_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pass_to(self, reader: IntakeReader) -> None:
        """Give the bytes to another reader, from its next turn on."""
        self._reader = reader
        self.ask_turn()
        self.settle()

    def end(self) -> None:
        """Drop everything. Later bytes are read, so that the client can read too, and dropped."""
        self._reader = None
        self.unread.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._holding is not None:
            self._holding.resize(0)
        self.listen()
