"""An HTTP/1.1 server on asyncio protocols, with httptools as its parser.

Why not an ASGI server: on the hot path the bookkeeping of one costs about a third of the whole request (see
docs/decisions). What a service on the open net needs is here: bounds on headers, body, time and connections, answers to
pipelined requests in order, back-pressure, a client that leaves ends its request at once, a reader that takes nothing
is cut off, and a stop that lets running requests finish.

A handler is a coroutine that answers its Exchange. It is cancelled when its client goes away. See `eager` for what it
may not do.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from time import perf_counter_ns
from typing import Any, Final, cast
from urllib.parse import unquote_to_bytes

import httptools

from tuplegate.eager import EagerRun
from tuplegate.http.acceptor import Acceptor, Balance
from tuplegate.http.answers import respond_error
from tuplegate.http.body import IncomingBody
from tuplegate.http.cors import CorsPolicy
from tuplegate.http.exchange import CONTENT_POLICY, STATUS_LINES, Exchange
from tuplegate.http.heads import Head, Heads, Reading, add_header
from tuplegate.http.reader import Reader
from tuplegate.http.tls import TlsContext
from tuplegate.http.tls_transport import TlsTransport
from tuplegate.keeping import keep
from tuplegate.protocol.errors import ServiceError

Handler = Callable[[Exchange], Coroutine[Any, Any, None]]

_TICK_S: Final = 1.0
_HEADER_BYTES_MAX: Final = 32 * 1024
_HEADERS_MAX: Final = 100
_PIPELINED_MAX: Final = 8
_WRITE_HIGH: Final = 64 * 1024
_LINGER_S: Final = 2.0
_HEADS_MAX: Final = 8
"""Heads that a connection holds."""
_HEAD_BYTES_MAX: Final = 8 * 1024
"""Of a head that is held."""
_TARGET_KEPT_MAX: Final = 512
"""Bytes of a request target that is remembered."""

_HEX: Final = [b"%02x" % number for number in range(256)]
_BLANK_LINE: Final = b"\r\n\r\n"
_LATE_S: Final = 5.0
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# For answers that are no pages: nothing in them may be run, framed, guessed at or kept.
_SECURITY_HEADERS: Final = (
    "cache-control: no-store\r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n"
    f"content-security-policy: {CONTENT_POLICY.decode()}\r\n"
)
_NO_PARSER: Final = httptools.HttpRequestParser(None)
TLS_HEADERS: Final = "strict-transport-security: max-age=31536000\r\n"


@dataclass(frozen=True, slots=True)
class HttpBounds:
    body_bytes_max: int
    connections_max: int
    header_timeout_s: float
    body_timeout_s: float
    keep_alive_s: float
    reader_timeout_s: float


class HttpServer:
    """Listens on one socket and gives every request to one handler.

    With `whole_bodies` the handler runs when a request's body is complete. Without, it runs when the headers are, and
    `Exchange.incoming` is the body; then its size is not judged here.
    """

    def __init__(
        self,
        handler: Handler,
        bounds: HttpBounds,
        *,
        tls: TlsContext | None = None,
        cors: CorsPolicy | None = None,
        whole_bodies: bool = True,
    ) -> None:
        self.handler = handler
        self.bounds = bounds
        self.tls = tls
        self.cors = cors
        self.whole_bodies = whole_bodies
        self._negotiating: dict[TlsTransport, float] = {}
        self.connections: set[HttpConnection] = set()
        self.heads = Heads()
        self.common_headers = b""
        self.json_head = b""
        self.stopping = False
        self._request_prefix = b"req_" + secrets.token_hex(4).encode()
        self._request_number = 0
        self._request_stem = b""
        self._server: Acceptor | None = None
        self._open: memoryview | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] | None = None

    async def start(self, sock: Any, balance: Balance | None = None, worker: int = 0) -> None:
        """`balance` is shared with other workers that listen on the same socket."""
        loop = asyncio.get_running_loop()
        self._set_common_headers()
        balance = balance or Balance(1)
        self._open = balance.open[worker : worker + 1]
        self.connections_changed()
        self._server = Acceptor(sock, self._protocol_factory(loop), balance, worker)
        self._ticker = keep("http", self._tick)

    def _protocol_factory(self, loop: asyncio.AbstractEventLoop) -> Callable[[], asyncio.Protocol]:
        tls = self.tls
        if tls is None:
            return lambda: HttpConnection(self, loop)

        def negotiate() -> TlsTransport:
            def agreed() -> HttpConnection:
                del self._negotiating[newcomer]
                return HttpConnection(self, loop)

            def refused(_: Exception) -> None:
                self._negotiating.pop(newcomer, None)

            newcomer = TlsTransport(tls.context, agreed, refused)
            self._negotiating[newcomer] = loop.time() + (self.bounds.header_timeout_s if self.has_room() else 0)
            return newcomer

        return negotiate

    def has_room(self) -> bool:
        """For one more connection."""
        return not self.stopping and len(self.connections) + len(self._negotiating) < self.bounds.connections_max

    async def stop(self, timeout_s: float, on_late: Callable[[], None]) -> None:
        """Takes no more requests and lets the running ones finish within the time.

        `on_late` is to bring the others to an end; those that even then do not are cut off, their outcome unknown.
        """
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for newcomer in list(self._negotiating):
            newcomer.abort()
        for connection in list(self.connections):
            connection.stop_when_idle()
        if self._running() and not await self._finished(timeout_s):
            for connection in list(self.connections):
                connection.refuse_detained()
            on_late()
        if self._running() and not await self._finished(_LATE_S):
            for exchange in self._running():
                if exchange.run is not None:
                    exchange.run.cancel()
            await self._finished(_LINGER_S)
        for connection in list(self.connections):
            connection.close()
        if self._ticker is not None:
            self._ticker.cancel()

    def connections_changed(self) -> None:
        if self._open is not None:
            self._open[0] = len(self.connections)

    @property
    def running(self) -> int:
        """Requests in hand."""
        return len(self._running())

    def _running(self) -> list[Exchange]:
        return [connection.current for connection in self.connections if connection.current is not None]

    async def _finished(self, timeout_s: float) -> bool:
        """Whether no request runs any more, within the time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._running() and (left := deadline - asyncio.get_running_loop().time()) > 0:
            self._ended = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._ended], timeout=left)
        return not self._running()

    def one_less(self) -> None:
        """A request ended while the server stops."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def next_request_id(self) -> bytes:
        self._request_number += 1
        last = self._request_number & 255
        if last == 0 or not self._request_stem:
            self._request_stem = b"%b%06x" % (self._request_prefix, self._request_number >> 8)
        return self._request_stem + _HEX[last]

    def _set_common_headers(self) -> None:
        self.common_headers = (
            f"date: {formatdate(usegmt=True)}\r\nserver: tuplegate\r\n{_SECURITY_HEADERS}"
            f"{'' if self.tls is None else TLS_HEADERS}"
        ).encode()
        self.json_head = STATUS_LINES[200] + self.common_headers + b"content-type: application/json\r\nx-request-id: "

    async def _tick(self) -> None:
        """Once a second: the date, and whoever is too slow."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_S)
            self._set_common_headers()
            now = loop.time()
            for connection in list(self.connections):
                connection.check_time(now)
            for newcomer, deadline in list(self._negotiating.items()):
                if now > deadline:
                    newcomer.abort()


class HttpConnection(asyncio.Protocol):
    """One client connection. Requests are answered one after the other, in the order they came."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.loop = loop
        self.lost = False
        self.write_paused = False
        self.current: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._incoming: Exchange | None = None
        self._body: list[bytes] = []
        self._body_size = 0
        self._received = 0
        self._in_headers = False
        self._header_count = 0
        self._upgrading: Exchange | None = None
        self._resuming: Exchange | None = None
        self._refused: ServiceError | None = None
        self._url = b""
        self._deadline: float | None = None
        self._deadline_closes_quietly = False
        self._closing = False
        self._data = b""
        self._written = 0
        self._heads: list[Head] = []
        self._last_head: Head | None = None

    # -- the transport ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self._reader = Reader(self.transport, self.loop.time())
        self._parser = httptools.HttpRequestParser(self)
        self._expect_request(self.server.bounds.header_timeout_s)
        if not self.server.has_room():
            self._refuse(ServiceError("busy", "too many connections are open"))
        self.server.connections.add(self)
        self.server.connections_changed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.server.connections.discard(self)
        self.server.connections_changed()
        for head in self._heads:
            self.server.heads.let_go(head)
        self._heads.clear()
        self._waiting.clear()
        self._parser = _NO_PARSER  # it holds the connection as well, which could not be freed at once
        exchange = self.current
        if exchange is not None and exchange.run is not None:
            # Before it is told that it may write on: else the first wait of its clean-up would be what is cancelled.
            exchange.run.cancel()
        else:
            self._forget_detained()
            self.current = None
            if self.server.stopping:
                self.server.one_less()
        self.resume_writing()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._closing or self._refused is not None:
            return
        if self._is_known(data):
            return
        self._received += len(data)
        self._data = data
        try:
            self._parser.feed_data(data)
            if self._in_headers and self._received > _HEADER_BYTES_MAX:
                self._refuse_headers()
        except httptools.HttpParserUpgrade as exc:
            self._decline_upgrade(data[exc.args[0] :])
        except _Refused:
            pass
        except httptools.HttpParserError as exc:
            if isinstance(exc.__context__, _Refused):
                return
            self._refuse(ServiceError("malformed_request", f"this is not an HTTP/1.1 request: {exc}"))
        self._data = b""
        if self._waiting and self.current is None and not self._closing:
            self._run(self._waiting.popleft())

    def _is_known(self, data: bytes) -> bool:
        """Whether this is a whole request with a head that came before: then it is run right away."""
        if self._incoming is not None or self.current is not None or self._waiting or self._resuming is not None:
            return False
        if self.server.stopping:
            return False
        head = self._last_head
        if head is None or not data.startswith(head.raw):
            head = self.server.heads.find(data[: data.find(_BLANK_LINE) + 4])
            if head is None:
                return False
            self._hold(head)
        size = len(head.raw)
        if len(data) != size + head.length:
            return False
        exchange = Exchange(self, self.server.next_request_id(), head.headers)
        exchange.method = head.method
        exchange.target = head.target
        exchange.path = head.path
        exchange.query = head.query
        if head.extra_headers:
            exchange.extra_headers = head.extra_headers
        exchange.head = head
        exchange.body = data[size:]
        self._deadline = None
        self._run(exchange)
        return True

    def _get_to_know(self, exchange: Exchange) -> None:
        """Keeps the head of a request that came in one piece and filled it, if it reads the same when it stands alone:
        the piece may have begun with the end of another request, or was made up."""
        data, body, headers = self._data, exchange.body, exchange.headers
        size = len(data) - len(body)
        if size > _HEAD_BYTES_MAX or data.find(_BLANK_LINE) + 4 != size or data[size:] != body:
            return
        raw = data[:size]
        known = self.server.heads.find(raw)
        if known is not None:  # it had to be read because another request was in hand
            self._hold(known)
            return
        alone = Reading(raw)
        if (
            not alone.is_plain
            or (alone.method, alone.target, alone.headers) != (exchange.method, exchange.target, headers)
            or alone.length != b"%d" % len(body)
        ):
            return
        self._hold(
            Head(
                raw,
                exchange.method,
                exchange.target,
                exchange.path,
                exchange.query,
                headers,
                exchange.extra_headers,
                len(body),
            )
        )

    def _hold(self, head: Head) -> None:
        """The next request has most likely the same."""
        self._last_head = head
        if len(self._heads) < _HEADS_MAX and head not in self._heads:
            self._heads.append(head)
            self.server.heads.hold(head)

    def _decline_upgrade(self, rest: bytes) -> None:
        """A client that offers another protocol is answered in this one. The parser has left the body unread."""
        exchange, self._upgrading = self._upgrading, None
        if exchange is None:
            return
        framing = b"".join(
            b"%b: %b\r\n" % (name, exchange.headers[name])
            for name in (b"content-length", b"transfer-encoding")
            if name in exchange.headers
        )
        self._parser = httptools.HttpRequestParser(self)
        self._resuming = exchange
        self.data_received(b"POST / HTTP/1.1\r\nhost: -\r\n" + framing + b"\r\n" + rest)

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.current is not None and self.current.drain_waiter is not None:
            waiter, self.current.drain_waiter = self.current.drain_waiter, None
            if not waiter.done():
                waiter.set_result(None)

    async def drained(self, exchange: Exchange) -> None:
        exchange.drain_waiter = self.loop.create_future()
        await exchange.drain_waiter

    def write(self, data: bytes) -> None:
        if not self.lost:
            self._written += len(data)
            self.transport.write(data)

    def send_continue(self) -> None:
        self.write(_CONTINUE)

    def close(self) -> None:
        self._closing = True
        self.transport.close()

    # -- time ---------------------------------------------------------------------------------------------------

    def check_time(self, now: float) -> None:
        if not self._reader.up_to_date(now, self._written):
            if self._reader.stalled_for(now, self._written) > self.server.bounds.reader_timeout_s:
                self.transport.abort()
            elif self._deadline is not None and self.current is None:
                self._deadline = max(self._deadline, now + _LINGER_S)
            return
        if self._deadline is None or now <= self._deadline:
            return
        in_hand = self.current is not None and not self._is_body_of_current()
        if self._closing or self._deadline_closes_quietly or in_hand:
            self.transport.abort()
        else:
            self._deadline = None
            self._refuse(ServiceError("request_timeout", "the request did not arrive in time"))

    def _is_body_of_current(self) -> bool:
        """What is coming in is the body of the very request that is being answered."""
        return self._incoming is not None and self._incoming is self.current

    def _expect_request(self, timeout_s: float) -> None:
        """Nothing of a request is there yet: if nothing comes, the connection is closed without a word."""
        self._deadline = self.loop.time() + timeout_s
        self._deadline_closes_quietly = True

    def stop_when_idle(self) -> None:
        if self.current is None:
            self.close()

    # -- what the parser says -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._incoming = Exchange(self, self.server.next_request_id())
        self._body = []
        self._body_size = 0
        self._in_headers = True
        self._header_count = 0
        self._url = b""
        self._deadline = self.loop.time() + self.server.bounds.header_timeout_s
        self._deadline_closes_quietly = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_headers:  # a trailer: what comes behind the body says nothing about the request
            return
        assert self._incoming is not None
        self._header_count += 1
        add_header(self._incoming.headers, name, value)

    def _refuse_headers(self) -> None:
        limits = f"{_HEADER_BYTES_MAX} bytes or {_HEADERS_MAX} in number"
        self._refuse(ServiceError("malformed_request", f"the headers are over {limits}"))

    def on_headers_complete(self) -> None:
        exchange = self._incoming
        assert exchange is not None
        if self._resuming is not None:
            self._in_headers = False
            self._incoming, self._resuming = self._resuming, None
            if not self.server.whole_bodies:
                self._accept_with_body_to_come(self._incoming)
            return
        self._in_headers = False
        exchange.chunked = self._parser.get_http_version() != "1.0"
        if self._received > _HEADER_BYTES_MAX or self._header_count > _HEADERS_MAX:
            size = len(self._url) + sum(len(name) + len(value) for name, value in exchange.headers.items())
            if size > _HEADER_BYTES_MAX or self._header_count > _HEADERS_MAX:
                self._refuse_headers()
                raise _Refused
        if exchange.chunked and b"host" not in exchange.headers:
            self._refuse(ServiceError("malformed_request", "an HTTP/1.1 request needs a Host header"))
            raise _Refused
        exchange.method = self._parser.get_method().decode("latin-1")
        exchange.keep_alive = self._parser.should_keep_alive() and not self.server.stopping
        exchange.target = self._url
        split = _split_target if len(self._url) <= _TARGET_KEPT_MAX else _split_target.__wrapped__
        exchange.path, exchange.query = split(self._url)
        if self.server.cors is not None and b"origin" in exchange.headers:
            exchange.extra_headers = self.server.cors.answer_headers(exchange.headers[b"origin"])
        self._deadline = self.loop.time() + self.server.bounds.body_timeout_s
        if not self.server.whole_bodies:
            if not self._parser.should_upgrade():
                self._accept_with_body_to_come(exchange)
            return
        length = exchange.headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self.server.bounds.body_bytes_max:
            self._refuse_body(exchange)
        elif exchange.headers.get(b"expect", b"").lower() == b"100-continue" and self.current is None:
            self.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        exchange = self._incoming
        if exchange is None or exchange.body_error is not None:
            return
        if exchange.incoming is not None:
            exchange.incoming.feed(data)
            return
        self._body_size += len(data)
        if self._body_size > self.server.bounds.body_bytes_max:
            self._refuse_body(exchange)
        else:
            self._body.append(data)

    def _refuse_body(self, exchange: Exchange) -> None:
        """The handler runs now, to judge route and rights first; the rest of the body is read and thrown away."""
        exchange.body_error = ServiceError(
            "body_too_large", f"the request body is over the limit of {self.server.bounds.body_bytes_max} bytes"
        )
        exchange.keep_alive = False
        self._body = []
        self._accept(exchange)

    def on_message_complete(self) -> None:
        exchange, self._incoming = self._incoming, None
        if exchange is None or exchange.body_error is not None:
            return
        if self._parser.should_upgrade():
            self._upgrading = exchange
            return
        if exchange.incoming is not None:
            self._deadline = None
            self._received = 0
            exchange.incoming.end()
            return
        exchange.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        if len(self._heads) < _HEADS_MAX:
            self._get_to_know(exchange)
        self._accept(exchange)

    # -- running requests ---------------------------------------------------------------------------------------

    def _accept(self, exchange: Exchange) -> None:
        self._deadline = None
        self._received = 0
        if self.current is None:
            self._run(exchange)
            return
        self._waiting.append(exchange)
        if len(self._waiting) >= _PIPELINED_MAX:
            self.transport.pause_reading()

    def _accept_with_body_to_come(self, exchange: Exchange) -> None:
        """It runs as soon as all that has come was looked at: as a rule its body is complete by then."""
        self._received = 0
        exchange.incoming = IncomingBody(self.transport)
        self._waiting.append(exchange)
        if len(self._waiting) >= _PIPELINED_MAX:
            self.transport.pause_reading()

    def _run(self, exchange: Exchange) -> None:
        self.current = exchange
        exchange.started_ns = perf_counter_ns()
        head = exchange.head
        if head is None or head.gate is None or not head.gate.detain(exchange):
            self.begin(exchange)

    def begin(self, exchange: Exchange) -> None:
        exchange.run = EagerRun(self.server.handler(exchange), self._done)
        exchange.run.resume()

    def refuse_detained(self) -> None:
        """Answers a request whose turn has not come. The server stops, and it is too late for it to run."""
        exchange = self.current
        if exchange is not None and exchange.run is None:
            self._forget_detained()
            exchange.keep_alive = False
            respond_error(exchange, ServiceError("shutting_down", "the service is stopping; the request was not run"))
            self._done(cancelled=False)

    def _forget_detained(self) -> None:
        """Its turn is not waited for any more."""
        if self.current is not None and self.current.waits_at is not None:
            self.current.waits_at.forget(self.current)
            self.current.waits_at = None

    def _done(self, cancelled: bool) -> None:
        exchange, self.current = self.current, None
        assert exchange is not None
        if cancelled and not self.lost and not exchange.answered:
            exchange.keep_alive = False
            respond_error(
                exchange, ServiceError("outcome_unknown", "the service had to stop; it may have been applied")
            )
        if self.server.stopping:
            self.server.one_less()
        if self.lost:
            return
        if not exchange.keep_alive or not exchange.answered or self.server.stopping:
            self._linger()
        elif self._refused is not None and not self._waiting:
            self._refuse(self._refused)
        elif self._waiting:
            self._run(self._waiting.popleft())
            self.transport.resume_reading()
        elif self._incoming is None:
            self._expect_request(self.server.bounds.keep_alive_s)

    def _refuse(self, error: ServiceError) -> None:
        """Answers what is not a request, or none that will be read, and closes the connection."""
        if self._closing:
            return
        if self._incoming is not None and self._incoming.incoming is not None:
            # What is wrong is a body whose request was accepted already.
            accepted, body = self._incoming, self._incoming.incoming
            self._incoming = None
            if accepted is self.current:
                accepted.keep_alive = False
                body.fail(error)
                return
            self._waiting.remove(accepted)
        if self.current is not None or self._waiting:
            # The requests before it are answered first.
            self._refused = error
            self.transport.pause_reading()
            return
        exchange = Exchange(self, self.server.next_request_id())
        exchange.keep_alive = False
        respond_error(exchange, error)
        self._linger()

    def _linger(self) -> None:
        """Closes, but not before the client could read the answer: closing on unread input would reset it away."""
        self._closing = True
        self._deadline = self.loop.time() + _LINGER_S
        if self.transport.is_closing():
            return
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()


@lru_cache(maxsize=1024)
def _split_target(target: bytes) -> tuple[str, str]:
    """Path and query of a request target."""
    path, _, query = target.partition(b"?")
    if path[:1] != b"/":
        path = _origin_form(path)
    return (unquote_to_bytes(path) if b"%" in path else path).decode("utf-8", "replace"), query.decode("latin-1")


def _origin_form(target: bytes) -> bytes:
    """The path of a request target that names its host too, as for a proxy."""
    _, scheme, rest = target.partition(b"://")
    if not scheme:
        return target
    _, slash, path = rest.partition(b"/")
    return slash + path if slash else b"/"


class _Refused(Exception):
    """Ends the parsing of a request that was refused."""
