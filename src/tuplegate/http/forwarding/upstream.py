"""A connection to another process of the service: one request at a time.

It belongs to one client's connection and ends with it. So no answer to one client, nor an unread rest of it, can reach
another. It is used again for its own client only after an exchange that was complete on both sides.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

import structlog

from tuplegate.direct_future import Wakeup
from tuplegate.http.body import IncomingBody
from tuplegate.http.forwarding.answer_reader import AnswerReader, NoAnswer
from tuplegate.http.origins import Origin
from tuplegate.http.tls.transport import TlsTransport
from tuplegate.protocol.errors import ServiceError

_HELD_MAX = 64 * 1024
_CONNECT_TIMEOUT_S = 5.0
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


_log: Final = structlog.get_logger()


class UpstreamLost(Exception):
    """The connection ended, or sent bytes that are no answer, before the answer was complete."""


class UpstreamUnreachable(Exception):
    """No connection could be opened; nothing was sent."""


class UpstreamCall:
    """One request on its way, with its answer. It has all of the request's state, so that none can be mistaken for
    another's."""

    def __init__(
        self,
        body: IncomingBody | None,
        on_continue: Callable[[], None] | None,
        *,
        chunked: bool,
        bodiless: bool,
        may_switch: bool,
    ) -> None:
        self.answer = AnswerReader(bodiless=bodiless, may_switch=may_switch)
        self.body = body
        self.chunked = chunked
        self.on_continue = on_continue
        self.sent_all = body is None
        """The whole request was sent. Otherwise it is never run."""
        self.got_nothing = True
        """Not a byte of the answer has arrived."""
        self.failure: Exception | None = None
        self.pieces: list[bytes] = []
        self.held = 0

    def frame(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked and data else data


class UpstreamConnection(asyncio.Protocol):
    """Use it in this order: `ask`, `read_head`, `read_body` until it returns nothing, `release`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._call: UpstreamCall | None = None
        self._progress = Wakeup()
        self.is_lost = False
        self.idle_since = 0.0
        self.address: UpstreamAddress | None = None

    # -- asking ---------------------------------------------------------------------------------------------------

    def ask(
        self,
        head: bytes,
        body: bytes,
        rest: IncomingBody | None,
        *,
        chunked: bool,
        bodiless: bool,
        may_switch: bool = False,
        on_continue: Callable[[], None] | None = None,
    ) -> UpstreamCall:
        """Send a request, with the part of its body that is there, and the `rest` as it arrives. `bodiless`: the answer
        has no body, whatever its headers say (HEAD). `may_switch`: the request asks for another protocol."""
        assert self._call is None, "one at a time"
        call = self._call = UpstreamCall(rest, on_continue, chunked=chunked, bodiless=bodiless, may_switch=may_switch)
        if rest is not None:
            body = rest.flow_to(self)
        end = b"0\r\n\r\n" if chunked and rest is None else b""
        self.transport.write(head + call.frame(body) + end)
        return call

    def body_piece(self, data: bytes) -> None:
        if self._call is not None and not self.transport.is_closing():
            self.transport.write(self._call.frame(data))

    def body_end(self) -> None:
        if self._call is None or self.transport.is_closing():
            return
        self._call.sent_all = True
        if self._call.chunked:
            self.transport.write(b"0\r\n\r\n")

    def body_failed(self, error: ServiceError) -> None:
        self._fail(error)

    # -- the answer -----------------------------------------------------------------------------------------------

    async def read_head(self) -> AnswerReader:
        """Wait for status and headers of the answer. Raises UpstreamLost, or the error of a body that failed."""
        call = self._current_call()
        while not call.answer.has_head:
            if call.failure is not None:
                raise call.failure
            await self._progress.wait()
        return call.answer

    async def read_body(self) -> bytes:
        """Return the part of the body that has arrived, at least a byte; nothing at its end."""
        call = self._current_call()
        while not call.pieces:
            if call.answer.complete:
                return b""
            if call.failure is not None:
                raise call.failure
            await self._progress.wait()
        return self.take_body()

    @property
    def has_given_all(self) -> bool:
        """Return whether the whole body has come and was taken."""
        call = self._current_call()
        return call.answer.complete and not call.pieces

    def take_body(self) -> bytes:
        """Return the part of the body that has arrived, possibly nothing yet."""
        call = self._current_call()
        data = call.pieces[0] if len(call.pieces) == 1 else b"".join(call.pieces)
        call.pieces = []
        if call.held > _HELD_MAX and not self.is_lost:
            self.transport.resume_reading()
        call.held = 0
        return data

    def _current_call(self) -> UpstreamCall:
        assert self._call is not None, "nothing was asked"
        return self._call

    def _fail(self, failure: Exception) -> None:
        if self._call is not None and self._call.failure is None:
            self._call.failure = failure
        self._progress.wake()

    def release(self) -> None:
        """End the exchange. The connection is closed, unless it may serve its client again."""
        call, self._call = self._current_call(), None
        self.idle_since = self._loop.time()
        is_good = call.answer.complete and not call.pieces and call.sent_all and call.failure is None
        if not (is_good and call.answer.keep_alive):
            self.end()

    def take_over(self, successor: asyncio.Protocol) -> bytes:
        """Give the transport to a successor, after an answer of 101. Return the bytes that have arrived after that."""
        call, self._call = self._current_call(), None
        if not self.is_lost:
            self.transport.set_protocol(successor)
        return b"".join(call.pieces)

    @property
    def is_usable(self) -> bool:
        return self._call is None and not self.is_lost and not self.transport.is_closing()

    def end(self) -> None:
        if not self.is_lost:
            self.transport.abort()

    # -- the transport --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_HELD_MAX)
        _enable_keepalive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None:
            self.end()  # there was no request
            return
        call.got_nothing = False
        try:
            piece = call.answer.feed(data)
        except NoAnswer as exc:
            self._fail(UpstreamLost(str(exc)))
            self.end()
            return
        while call.answer.interim:
            if call.answer.interim.pop(0) == 100 and call.on_continue is not None:
                call.on_continue()
        if piece:
            call.pieces.append(piece)
            before, call.held = call.held, call.held + len(piece)
            if before <= _HELD_MAX < call.held:
                self.transport.pause_reading()
        if call.answer.has_head:
            self._progress.wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._call is not None and not (exc is None and self._call.answer.end()):
            self._fail(UpstreamLost("it closed the connection"))
        self._progress.wake()

    def pause_writing(self) -> None:
        if self._call is not None and self._call.body is not None:
            self._call.body.pause()

    def resume_writing(self) -> None:
        if self._call is not None and self._call.body is not None:
            self._call.body.resume()


class UpstreamAddress:
    """Opens connections to one address. `tls` returns the context to check its certificate with.

    With a `path` it is a socket of this machine, and the origin only a name.
    """

    def __init__(
        self, origin: Origin, tls: Callable[[], ssl.SSLContext] | None, idle_s: float, path: str | None = None
    ) -> None:
        self.origin = origin
        self._tls = tls
        self._idle_s = idle_s
        self._path = path

    def is_fresh(self, connection: UpstreamConnection) -> bool:
        """Return whether the connection can be used again: it is recent enough that the other side is not just closing
        it."""
        if connection.address is not self:
            return False
        return connection.is_usable and connection.idle_since > asyncio.get_running_loop().time() - self._idle_s

    async def open(self) -> UpstreamConnection:
        """Open a connection. Raises UpstreamUnreachable."""
        # Connecting needs a task for its time limit, and a handler is none.
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
                if self._path is not None:
                    _, connection = await loop.create_unix_connection(
                        UpstreamConnection, sock=await _connect_unix(self._path)
                    )
                elif self._tls is None:
                    _, connection = await loop.create_connection(UpstreamConnection, self.origin.host, self.origin.port)
                else:
                    connection = await self._open_with_tls(self._tls())
        except ssl.SSLCertVerificationError as refusal:
            _log.warning("the certificate of the data plane was refused", reason=refusal.verify_message)
            raise UpstreamUnreachable("its certificate was refused") from refusal
        except TimeoutError as late:
            raise UpstreamUnreachable("it took too long to connect") from late
        except OSError as exc:
            raise UpstreamUnreachable("it cannot be connected to") from exc
        connection.address = self
        return connection

    async def _open_with_tls(self, context: ssl.SSLContext) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        connection = UpstreamConnection()
        agreed: asyncio.Future[None] = loop.create_future()

        def make_above(_: TlsTransport) -> UpstreamConnection:
            if not agreed.done():
                agreed.set_result(None)
            return connection

        def refused(_: TlsTransport, exc: Exception) -> None:
            if not agreed.done():
                agreed.set_exception(exc)

        host = self.origin.host
        transport, _ = await loop.create_connection(
            lambda: TlsTransport(lambda _: context, make_above, refused, host), host, self.origin.port
        )
        try:
            await agreed
        except BaseException:
            transport.abort()
            raise
        return connection


async def _connect_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, path)
    except BaseException:
        sock.close()
        raise
    return sock


def _abandon(opening: "asyncio.Task[UpstreamConnection]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().end()


def _enable_keepalive(sock: socket.socket | None) -> None:
    """Notice within half a minute a machine that vanished silently, however long its answer may take."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
