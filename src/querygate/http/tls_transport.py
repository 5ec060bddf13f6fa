"""TLS between a TCP connection and an HTTP connection, for the server's side.

asyncio can do this too, but its transport hides the one below it: bytes that a slow reader does not take would wait
where nobody counts them, and one side cannot be closed alone. Here nothing is kept in between. What is written goes to
the transport below at once, whose buffer, pauses and end are passed up as they are, so that to an HTTP connection this
is a transport like any other.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

_PIECE = 256 * 1024


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """A protocol to what is below, a transport to what is above, which is made when both sides have agreed."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make_above: Callable[[], asyncio.Protocol],
        negotiating: "set[TlsTransport]",
        has_room: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        super().__init__()
        self._make_above = make_above
        self._above: asyncio.Protocol | None = None
        self._negotiating = negotiating
        self._has_room = has_room
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._said_goodbye = False

    # -- towards the transport below ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        if self._has_room():
            self._negotiating.add(self)
        else:
            self._below.abort()

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        try:
            if self._above is None and not self._negotiate():
                return
            self._read()
        except ssl.SSLError:  # of the client's making: no TLS, one that is too old, or bytes that are not its own
            self._flush()
            self._below.close()

    def _negotiate(self) -> bool:
        """Whether both sides have agreed."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        self._flush()
        self._negotiating.discard(self)
        self._above = self._make_above()
        self._above.connection_made(self)
        return True

    def _read(self) -> None:
        assert self._above is not None
        try:
            while data := self._tls.read(_PIECE):
                self._above.data_received(data)
        except ssl.SSLWantReadError:
            self._flush()  # TLS itself may have had something to say
            return
        except ssl.SSLZeroReturnError:
            pass
        # The client has said that it sends nothing more.
        if not self._above.eof_received():
            self.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._negotiating.discard(self)
        if self._above is not None:
            self._above.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()

    def check_time(self, now: float) -> None:
        """Called while the two sides negotiate."""
        if now > self._deadline:
            self._below.abort()

    # -- towards the connection above -----------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._said_goodbye or self._below.is_closing():
            return
        with memoryview(data) as whole:
            at = 0
            while at < len(whole):
                at += self._tls.write(whole[at : at + _PIECE])
                self._flush()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._below.write(data)

    def _say_goodbye(self) -> None:
        """So that the client can tell the end from a connection that was cut."""
        if self._said_goodbye or self._below.is_closing():
            return
        self._said_goodbye = True
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # it waits for the client's goodbye, which nobody needs
        self._flush()

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
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)
