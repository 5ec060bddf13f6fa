"""Connections to the data plane: one request at a time over each, kept for the next one when all went well.

A connection is used again only after an exchange that was complete on both sides. One that says anything while nobody
asked is closed.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import cast

import httptools

from tuplegate.http.body import IncomingBody
from tuplegate.http.origins import Origin
from tuplegate.http.tls_transport import TlsTransport
from tuplegate.protocol.errors import ServiceError

_HELD_MAX = 64 * 1024
_HEAD_BYTES_MAX = 64 * 1024
_CONNECT_TIMEOUT_S = 5.0
_IDLE_MAX = 256
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


class UpstreamLost(Exception):
    """The connection ended, or said what is no answer, before the answer was complete."""


class UpstreamUnreachable(Exception):
    """There is no connection to be had; nothing was sent."""


class UpstreamConnection(asyncio.Protocol):
    """`ask`, then `head`, then `read` until it gives nothing more."""

    def __init__(self, on_idle_end: Callable[["UpstreamConnection"], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_idle_end = on_idle_end
        self._asking = False
        self._body: IncomingBody | None = None
        self._body_paused = False
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._pieces: list[bytes] = []
        self.lost = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self._chunked = False
        self._bodiless = False
        self._request_sent = False
        self._interim = False
        self._until_close = False
        self._received = 0
        self._held = 0
        self._keep_alive = False
        self._on_continue: Callable[[], None] | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.length: bytes | None = None
        self.complete = False
        self._answered = False

    # -- asking -------------------------------------------------------------------------------------------------

    def ask(
        self,
        head: bytes,
        body: IncomingBody | None,
        *,
        chunked: bool,
        bodiless: bool,
        on_continue: Callable[[], None] | None = None,
    ) -> None:
        """Sends a request, its body as it comes. `bodiless`: the answer has none, whatever it says (HEAD)."""
        self._reset()
        self._asking = True
        self._parser = httptools.HttpResponseParser(self)
        self._chunked = chunked
        self._bodiless = bodiless
        self._on_continue = on_continue
        self._body = body
        start = body.flow_to(self) if body is not None else b""
        data = head + self._framed(start) if start else head
        if body is None or body.complete:
            self._request_sent = True
            data += b"0\r\n\r\n" if chunked else b""
        self.transport.write(data)

    def body_piece(self, data: bytes) -> None:
        if self._asking and not self.transport.is_closing():
            self.transport.write(self._framed(data))

    def body_end(self) -> None:
        if not self._asking or self.transport.is_closing():
            return
        self._request_sent = True
        if self._chunked:
            self.transport.write(b"0\r\n\r\n")

    def body_failed(self, error: ServiceError) -> None:
        if self._asking:
            self._fail(error)

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    # -- the answer ---------------------------------------------------------------------------------------------

    async def head(self) -> None:
        """Waits for status and headers of the answer. Raises UpstreamLost, or what went wrong with the body."""
        while not self._answered:
            if self._failure is not None:
                raise self._failure
            await self._wait()

    async def read(self) -> bytes:
        """What has come of the answer's body, at least a byte; nothing when it is over."""
        while not self._pieces:
            if self.complete:
                return b""
            if self._failure is not None:
                raise self._failure
            await self._wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        if self._held > _HELD_MAX and not self.lost:
            self.transport.resume_reading()
        self._held = 0
        return data

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure
        self._wake()

    @property
    def got_nothing(self) -> bool:
        """Not a byte of an answer has come."""
        return self._received == 0

    @property
    def sent_all(self) -> bool:
        """The request has left whole. What has not is never run."""
        return self._request_sent

    def release(self) -> bool:
        """Ends the exchange; whether the connection may serve another one. If not, it is closed."""
        self._asking = False
        self.resume_writing()
        self._body = None
        good = self.complete and self._request_sent and self._keep_alive and self._failure is None and not self.lost
        if not good:
            self.transport.abort()
        return good

    # -- the transport ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_HELD_MAX)
        _keep_alive_probes(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if not self._asking or self.complete:
            self._fail(UpstreamLost("it sent more than it was asked for"))
            self.transport.abort()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._fail(UpstreamLost(f"it sent what is no HTTP/1.1 answer: {exc}"))
            self.transport.abort()
            return
        if not self._answered and self._received > _HEAD_BYTES_MAX:
            self._fail(UpstreamLost("its headers are too long"))
            self.transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self._asking:
            self._on_idle_end(self)
        elif self._until_close and exc is None:
            self.complete = True
        elif not self.complete:
            self._fail(UpstreamLost("it closed the connection"))
        self._wake()

    def pause_writing(self) -> None:
        if self._body is not None:
            self._body_paused = True
            self._body.pause()

    def resume_writing(self) -> None:
        if self._body is not None and self._body_paused:
            self._body_paused = False
            self._body.resume()

    # -- what the parser says -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._answered:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._answered:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._interim = True
            self.headers = []
            if status == 100 and self._on_continue is not None:
                self._on_continue()
            return
        names = dict(self.headers)
        chunked = b"transfer-encoding" in names
        self.length = None if chunked else names.get(b"content-length")
        self.status = status
        self._answered = True
        self._bodiless = self._bodiless or status in (204, 304)
        self._until_close = not chunked and self.length is None and not self._bodiless
        if self._bodiless:
            self._complete()
        self._wake()

    def on_body(self, data: bytes) -> None:
        if self.complete:  # of an answer that nobody asked for, or that has no body
            self._keep_alive = False
            return
        self._pieces.append(data)
        held, self._held = self._held, self._held + len(data)
        if held <= _HELD_MAX < self._held:
            self.transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self.complete:
            self._complete()
            self._wake()

    def _complete(self) -> None:
        self.complete = True
        self._keep_alive = self._parser.should_keep_alive()


class UpstreamPool:
    """Connections to one address, opened when they are needed. `tls` gives what to check its certificate with."""

    def __init__(self, origin: Origin, tls: Callable[[], ssl.SSLContext] | None, idle_s: float) -> None:
        self.origin = origin
        self._tls = tls
        self._idle_s = idle_s
        self._idle: list[UpstreamConnection] = []
        self._closed = False

    async def take(self) -> tuple[UpstreamConnection, bool]:
        """A connection, and whether it served before. Raises UpstreamUnreachable."""
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing() and connection.idle_since > oldest:
                return connection, True
            connection.transport.abort()
        return await self.open(), False

    async def open(self) -> UpstreamConnection:
        # A task, because a handler has none, and what connects needs one for its time limit.
        opening = asyncio.get_running_loop().create_task(self._open())
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            opening.cancel()
            opening.add_done_callback(_abandon)
            raise
        return opening.result()

    async def _open(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                if self._tls is None:
                    _, connection = await loop.create_connection(
                        lambda: UpstreamConnection(self._drop), self.origin.host, self.origin.port
                    )
                else:
                    connection = await self._open_with_tls(self._tls())
        except ssl.SSLCertVerificationError as exc:
            raise UpstreamUnreachable(f"its certificate was refused: {exc.verify_message}") from exc
        except TimeoutError as exc:
            raise UpstreamUnreachable("it took too long to connect") from exc
        except OSError as exc:
            raise UpstreamUnreachable("it cannot be connected to") from exc
        return connection

    async def _open_with_tls(self, context: ssl.SSLContext) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        connection = UpstreamConnection(self._drop)
        agreed: asyncio.Future[None] = loop.create_future()

        def make_above() -> UpstreamConnection:
            if not agreed.done():
                agreed.set_result(None)
            return connection

        def refused(exc: Exception) -> None:
            if not agreed.done():
                agreed.set_exception(exc)

        host = self.origin.host
        transport, _ = await loop.create_connection(
            lambda: TlsTransport(context, make_above, refused, host), host, self.origin.port
        )
        try:
            await agreed
        except BaseException:
            transport.abort()
            raise
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        if not connection.release():
            return
        if self._closed or len(self._idle) >= _IDLE_MAX:
            connection.transport.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def _drop(self, connection: UpstreamConnection) -> None:
        """A connection that waited here has ended."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        self._closed = True
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()


def _abandon(opening: "asyncio.Task[UpstreamConnection]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().transport.abort()


def _keep_alive_probes(sock: socket.socket | None) -> None:
    """A machine that vanished without a word is noticed in half a minute, however long its answer may take."""
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
