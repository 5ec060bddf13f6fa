"""TLS between a TCP connection and an HTTP connection.

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
        on_refused: Callable[[Exception], None],
        server_name: str | None = None,
    ) -> None:
        """With the name of a server this is the client's side. `on_refused` gets what went wrong before they agreed."""
        super().__init__()
        self._make_above = make_above
        self._on_refused = on_refused
        self._above: asyncio.Protocol | None = None
        self._is_client = server_name is not None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, not self._is_client, server_name)
        self._said_goodbye = False

    # -- towards the transport below ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        if self._is_client:
            self._negotiate()

    def data_received(self, data: bytes) -> None:
        if self._said_goodbye:
            return  # nobody listens any more; it is read so that the other side gets to read too
        self._incoming.write(data)
        try:
            if self._above is None and not self._negotiate():
                return
            self._read()
        except ssl.SSLError as exc:  # the other side speaks no TLS, one that is too old, or is not who it should be
            self._flush()
            self._below.close()
            if self._above is None:
                self._on_refused(exc)

    def _negotiate(self) -> bool:
        """Whether both sides have agreed."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        self._flush()
        self._above = self._make_above()
        self._above.connection_made(self)
        return True

    def _read(self) -> None:
        assert self._above is not None
        try:
            while data := self._tls.read(_PIECE):
                self._above.data_received(data)
                if self._said_goodbye:
                    return
        except ssl.SSLWantReadError:
            self._flush()  # TLS itself may have had something to say
            return
        except ssl.SSLZeroReturnError:
            pass
        self.close()  # the other side has said goodbye: nobody does who waits for an answer

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._above is not None:
            self._above.connection_lost(exc)
        else:
            self._on_refused(exc or ConnectionAbortedError("the connection was closed"))

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()

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
        """So that the other side can tell the end from a connection that was cut."""
        if self._said_goodbye or self._below.is_closing():
            return
        self._said_goodbye = True
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # it waits for a goodbye in return, which nobody needs
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
