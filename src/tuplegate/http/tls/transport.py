"""TLS between a TCP connection and an HTTP connection.

asyncio can do this too, but its transport hides the one below it: bytes that a slow reader does not take would wait
uncounted, and one direction cannot be closed separately. Here written bytes are not buffered in between. They go to the
transport below at once, whose buffer, pauses and end are passed up unchanged, so that to an HTTP connection this is a
transport like any other. Read bytes wait in an Intake until their record is whole, or for its turn. In one pass of the
loop a connection has as many records decrypted as take about a millisecond, and is not read again before the others had
their turn. OpenSSL gets whole records, a few at a time, because its buffers never shrink. Everything is freed with the
connection, without the garbage collector.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from tuplegate.http.sharing.connection_turns import ConnectionTurns
from tuplegate.http.sharing.intake import Intake
from tuplegate.http.sharing.memory import Holding, Memory, stranger_at
from tuplegate.http.sharing.precedence import NEW_S, Standing, Waiting
from tuplegate.http.tls.records import HelloCheck, end_of_records
from tuplegate.protocol.errors import ServiceError

_PIECE: Final = 16 * 1024
"""The size of a full record. OpenSSL's buffers grow to about the size of its largest input."""
_TURN_RECORDS: Final = 32
_LONG_RECORDS, _LONG_BYTES = 16, 64 * 1024
"""After a turn this long, others have theirs before more is read."""
_NEGOTIATION_MAX: Final = 32 * 1024
"""Bytes that a client may send before the handshake is done: two hellos, and some."""
_NEGOTIATION_COST: Final = 40 * 1024
"""Memory that OpenSSL needs during the handshake, in addition to what the client has sent."""


class _Endpoint:
    """OpenSSL's side of a connection."""

    __slots__ = ("incoming", "outgoing", "tls")

    def __init__(self, context: ssl.SSLContext, server_name: str | None) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_name is None, server_name)


# size: a protocol and a transport at once; asyncio's two interfaces are half of its methods.
class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """A protocol to the transport below, and a transport to the protocol above, which is made after the handshake."""

    def __init__(
        self,
        choose_context: Callable[[bytes], ssl.SSLContext],
        make_above: "Callable[[TlsTransport], asyncio.Protocol]",
        on_refused: "Callable[[TlsTransport, Exception], None]",
        server_name: str | None = None,
        memory: Memory | None = None,
        turns: ConnectionTurns | None = None,
        on_opened: "Callable[[TlsTransport], None] | None" = None,
    ) -> None:
        """`choose_context` is called with the first records of the other side, or with nothing on the client's side,
        which has a `server_name`. `on_refused` is called with an error that came before the handshake was done.

        What is held for the other side is charged to `memory` under its address; a connection at its bound is closed.
        Where `turns` are given, the connection takes its own among them.
        """
        super().__init__()
        self._make_above: Callable[[TlsTransport], asyncio.Protocol] | None = make_above
        self._on_refused: Callable[[TlsTransport, Exception], None] | None = on_refused
        self._on_opened = on_opened
        self._above: asyncio.Protocol | None = None
        self._choose_context = choose_context
        self._server_name = server_name
        self._endpoint: _Endpoint | None = None
        self._is_over = False
        """TLS has ended; bytes that still arrive are thrown away."""
        self._hello: HelloCheck | None = None
        self._negotiated = 0
        """Bytes that were taken during the handshake."""
        self._turns = turns or ConnectionTurns()
        self._memory = memory
        self.is_full = False
        """The protocol above wants no more just now. See `IntakeReader`."""
        self.address = ""

    # -- towards the transport below ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        self.address = stranger_at(transport)
        holding = None if self._memory is None else Holding(self._memory, self.address, self._below)
        self._intake = Intake(self._below, self._turns, holding, self)
        if self._on_opened is not None:
            self._on_opened(self)
        if self._server_name is not None:
            self._negotiate(self._begin(b""))

    def _begin(self, records: bytes) -> _Endpoint:
        """Begin the handshake, but not before the client has sent a record: a silent one costs little."""
        if self._server_name is None:
            self._hello = HelloCheck()
        self._endpoint = _Endpoint(self._choose_context(records), self._server_name)
        return self._endpoint

    def data_received(self, data: bytes) -> None:
        self._intake.feed(data)

    def consume_some(self) -> bool:
        """Decrypt the bytes that have arrived, as far as one turn goes, and pass them up in one piece. See
        `IntakeReader`."""
        if self.is_full:
            return False
        pieces: list[bytes] = []
        try:
            try:
                return self._decrypt(pieces)
            finally:
                if pieces and self._above is not None:
                    self._above.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        except ssl.SSLZeroReturnError:
            self.close()  # the other side has said goodbye, so it waits for no answer
        except (ssl.SSLError, ServiceError) as exc:  # no TLS, a wrong certificate, or too many bytes
            self._give_up(exc)
        return False

    def _decrypt(self, pieces: list[bytes]) -> bool:
        """Decrypt one turn's records. Return whether this turn was a long one."""
        unread, left, size = self._intake.unread, _TURN_RECORDS, 0
        while left:
            end, count = end_of_records(unread.data, unread.at, left, _PIECE)
            if count == 0:
                break
            part = unread.take(end - unread.at)
            left -= count
            size += len(part)
            endpoint = self._endpoint or self._begin(part)
            if self._above is None:
                self._look_at_negotiation(part)
            endpoint.incoming.write(part)
            if self._above is not None or self._negotiate(endpoint):
                _read(endpoint, pieces)
            if endpoint.outgoing.pending:
                self._flush(endpoint)  # a message of TLS itself
        if self._hello is not None:
            self._look_at_size(unread.size)
        return left <= _TURN_RECORDS - _LONG_RECORDS or size >= _LONG_BYTES

    def _negotiate(self, endpoint: _Endpoint) -> bool:
        """Continue the handshake; return whether it is done."""
        try:
            endpoint.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush(endpoint)
            return False
        self._flush(endpoint)
        assert self._make_above is not None
        self._above = self._make_above(self)
        self._hello = self._make_above = self._on_refused = None
        self._above.connection_made(self)
        return True

    def _look_at_negotiation(self, records: bytes) -> None:
        """Check the bytes of the handshake. Raises SSLError for more than any handshake needs, and busy."""
        if self._hello is not None:
            self._hello.look(records)
            self._look_at_size(0)
            self._negotiated += len(records)
            self._intake.charge()

    def _look_at_size(self, unread: int) -> None:
        if self._negotiated + unread > _NEGOTIATION_MAX:
            raise ssl.SSLError(f"over {_NEGOTIATION_MAX} bytes have come, and nothing is agreed")

    @property
    def owner(self) -> str:
        return str(getattr(self._above, "owner", self.address))

    @property
    def held_bytes(self) -> int:
        """Return an estimate of what OpenSSL holds during the handshake."""
        return 0 if self._hello is None else self._negotiated + _NEGOTIATION_COST

    def note_no_room(self, error: ServiceError) -> None:
        self._give_up(error)

    def standing(self) -> Standing | None:
        """See `Places`. After the handshake the connection above has the place."""
        if self._is_over or self._above is not None:
            return None
        is_new = self._loop.time() - self._opened_at < NEW_S
        return Standing(self.address, False, Waiting.FIRST_REQUEST, is_new, self._opened_at)

    def give_way(self) -> None:
        """See `Places`."""
        self.close()

    def _give_up(self, reason: Exception) -> None:
        if self._endpoint is not None:
            self._flush(self._endpoint)
        self._end()
        self._below.close()
        self._refuse(reason)

    def _refuse(self, reason: Exception) -> None:
        on_refused, self._on_refused, self._make_above = self._on_refused, None, None
        if on_refused is not None:
            on_refused(self, reason)

    def _end(self) -> None:
        """Free everything that is held for the connection."""
        self._is_over = True
        self._endpoint = self._hello = None
        self._intake.end()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        above, self._above = self._above, None
        if above is not None:
            above.connection_lost(exc)
        self._refuse(exc or ConnectionAbortedError("the connection was closed"))

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()

    # -- towards the connection above -----------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass everything up to another protocol from now on."""
        self._above = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._above is not None
        return self._above

    def write(self, data: Any) -> None:
        endpoint = self._endpoint
        if endpoint is None or self._below.is_closing():
            return
        with memoryview(data) as whole:
            at = 0
            while at < len(whole):
                at += endpoint.tls.write(whole[at : at + _PIECE])
                self._flush(endpoint)

    def _flush(self, endpoint: _Endpoint) -> None:
        if data := endpoint.outgoing.read():
            if self._hello is not None:
                self._hello.look_at_answer(data)
            self._below.write(data)

    def _say_goodbye(self) -> None:
        """Tell the other side that this is the end, and not a lost connection."""
        endpoint = self._endpoint
        if endpoint is None or self._below.is_closing():
            return
        try:
            endpoint.tls.unwrap()
        except ssl.SSLError:
            pass  # OpenSSL waits for a goodbye in return, which nobody needs
        self._flush(endpoint)
        self._end()

    def write_eof(self) -> None:
        self._say_goodbye()
        self._below.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self._say_goodbye()
        self._below.close()

    def abort(self) -> None:
        self._below.abort()

    def is_closing(self) -> bool:
        return self._below.is_closing()

    def pause_reading(self) -> None:
        self.is_full = True
        self._intake.listen()

    def resume_reading(self) -> None:
        self.is_full = False
        if self._intake.unread.size:
            self._intake.ask_turn()
        self._intake.listen()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)


def _read(endpoint: _Endpoint, pieces: list[bytes]) -> None:
    """Append the content of the records. Raises SSLZeroReturnError after a goodbye."""
    try:
        while endpoint.incoming.pending:
            data = endpoint.tls.read(_PIECE)
            if not data:
                raise ssl.SSLZeroReturnError
            pieces.append(data)
    except ssl.SSLWantReadError:
        pass
