"""One request and its answer, as a handler sees them."""

import asyncio
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tuplegate.eager import EagerRun
from tuplegate.http.body import IncomingBody
from tuplegate.http.heads import Head
from tuplegate.protocol.errors import ServiceError
from tuplegate.reply import Reply

if TYPE_CHECKING:
    from tuplegate.http.server import HttpConnection

STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

CONTENT_POLICY: Final = b"default-src 'none'; frame-ancestors 'none'"
"""Of answers that are no pages: a browser runs and shows nothing of them."""

_LARGE: Final = 16 * 1024
_NO_VALUES: Mapping[str, str] = MappingProxyType({})

Headers = Iterable[tuple[str, str]]


class ClientGone(Exception):
    """The client went away while its answer was being written."""


class Counts:
    """What whoever admits a request counts of it."""

    __slots__ = ("bytes", "errors", "requests", "rows")

    def __init__(self) -> None:
        self.requests = 0
        self.rows = 0
        self.bytes = 0
        self.errors = 0


class Gate:
    """Where a request may have to wait."""

    __slots__ = ()

    def detain(self, exchange: "Exchange") -> bool:
        """Whether the request is not to run yet: then whoever says so calls its `begin` when it is, unless its client
        has left or it was answered meanwhile."""
        raise NotImplementedError

    def forget(self, exchange: "Exchange") -> None:
        """The request waits no more: its client has left, or it was answered without its turn."""
        raise NotImplementedError

    def leave(self) -> None:
        """Gives a place back."""
        raise NotImplementedError


class Exchange:
    """A request with its body complete, or coming in as `incoming`, and the means to answer it once.

    Owned by its connection.

    `extra_headers` are lines that every answer to it carries. `row_count`, `sent_bytes`, `failed` and `error_code` say
    what was answered, for the `usage` that it counts towards and for the metrics. Of one that is `traced` it is noted
    when it was admitted and when the engine was done, by `perf_counter_ns`.

    One that is detained `waits_at` a gate. It is begun with a `place` that is kept for it, or when it is `out_of_time`;
    its handler takes the place or gives it back. One that waits inside its handler waits for its `turn`.
    """

    # What most requests leave as it is, so that making one costs next to nothing.
    method = ""
    path = ""
    query = ""
    body = b""
    head: Head | None = None
    """If it is one that came before."""
    body_error: ServiceError | None = None
    incoming: IncomingBody | None = None
    target = b""
    keep_alive = True
    chunked = True
    started_ns = 0
    status = 0
    extra_headers = b""
    failed = False
    error_code: str | None = None
    row_count = 0
    sent_bytes = 0
    usage: Counts | None = None
    traced = False
    admitted_ns = 0
    engine_ended_ns = 0
    exec_us = 0
    run: EagerRun | None = None
    waits_at: Gate | None = None
    waits_until = 0
    place: Gate | None = None
    out_of_time = False
    turn: Reply[None] | None = None
    drain_waiter: asyncio.Future[None] | None = None
    _started = False

    def __init__(
        self, connection: "HttpConnection", request_id: bytes, headers: dict[bytes, bytes] | None = None
    ) -> None:
        self._connection = connection
        self._request_id = request_id
        self.headers: dict[bytes, bytes] = {} if headers is None else headers
        self.path_values: Mapping[str, str] = _NO_VALUES

    @property
    def request_id(self) -> str:
        return self._request_id.decode()

    @property
    def answered(self) -> bool:
        """Whether a status has left already."""
        return self._started

    @property
    def client_gone(self) -> bool:
        return self._connection.lost

    def begin(self) -> None:
        """Runs it after it was detained."""
        self._connection.begin(self)

    def read_body(self) -> bytes:
        """The body; raises what went wrong with it, which is judged only now, after route and rights."""
        if self.body_error is not None:
            raise self.body_error
        return self.body

    def respond(
        self, status: int, body: bytes, headers: Headers = (), content_type: bytes = b"application/json"
    ) -> None:
        """The whole answer at once."""
        self._started = True
        self.status = status
        self.sent_bytes += len(body)
        if self.incoming is not None and not self.incoming.complete:
            self.keep_alive = False
        if status == 200 and not headers and self.keep_alive and content_type == b"application/json":
            # The same as below, made of parts that are put together once a second.
            start = self._connection.server.json_head
            head = b"%b%b\r\n%bcontent-length: %d\r\n\r\n" % (start, self._request_id, self.extra_headers, len(body))
            self._write_whole(head, body)
            return
        if status == 204:
            self._connection.write(self._head(status, None, headers) + b"\r\n")
            return
        head = b"%bcontent-length: %d\r\n\r\n" % (self._head(status, content_type, headers), len(body))
        self._write_whole(head, body)

    def _write_whole(self, head: bytes, body: bytes) -> None:
        """In one piece, which is what a client can read at once; a large body is not copied for it."""
        if self.method == "HEAD":
            self._connection.write(head)
        elif len(body) < _LARGE:
            self._connection.write(head + body)
        else:
            self._connection.write(head)
            self._connection.write(body)

    def respond_page(self, body: bytes, policy: bytes) -> None:
        """A page of the service's own, which may do what `policy` says and nothing else."""
        self._started = True
        self.status = 200
        self.sent_bytes += len(body)
        head = self._head(200, b"text/html; charset=utf-8", ()).replace(CONTENT_POLICY, policy, 1)
        head += b"content-length: %d\r\n\r\n" % len(body)
        self._write_whole(head, body)

    def start(self, status: int, content_type: bytes, headers: Headers = ()) -> None:
        """Begins an answer whose length is not known; `write` and `finish` follow."""
        self._started = True
        self.status = status
        if not self.chunked:  # HTTP/1.0 knows the end of the answer by the end of the connection
            self.keep_alive = False
        head = self._head(status, content_type, headers)
        self._connection.write(head + (b"transfer-encoding: chunked\r\n\r\n" if self.chunked else b"\r\n"))

    def pass_on(self, status: int, headers: bytes, *, sized: bool) -> None:
        """Begins an answer whose headers were made elsewhere; `sized` if they say its length, or it has no body."""
        self._started = True
        self.status = status
        if sized:
            self.chunked = False
        elif not self.chunked:
            self.keep_alive = False
        if self.incoming is not None and not self.incoming.complete:
            self.keep_alive = False
        self._connection.write(
            b"%b%b%b%b\r\n"
            % (
                STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status,
                headers,
                b"transfer-encoding: chunked\r\n" if self.chunked else b"",
                b"" if self.keep_alive else b"connection: close\r\n",
            )
        )

    def send_continue(self) -> None:
        """Tells the client to send the body."""
        self._connection.send_continue()

    async def write(self, data: bytes) -> None:
        """One piece of the answer. Waits while the client is behind; raises ClientGone when it has left."""
        connection = self._connection
        if connection.lost:
            raise ClientGone
        self.sent_bytes += len(data)
        connection.write(self._framed(data))
        if connection.write_paused:
            await connection.drained(self)
            if connection.lost:
                raise ClientGone

    def write_last(self, data: bytes) -> None:
        """The last piece, without waiting for the client to take it."""
        self._connection.write(self._framed(data))
        self.finish()

    def finish(self) -> None:
        if self.chunked:
            self._connection.write(b"0\r\n\r\n")

    def cut_off(self) -> None:
        """Ends the connection at once, whatever the client has not taken yet."""
        self._connection.transport.abort()

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data

    def _head(self, status: int, content_type: bytes | None, headers: Headers) -> bytes:
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1") if headers else b""
        return b"%b%b%bx-request-id: %b\r\n%b%b%b" % (
            STATUS_LINES[status],
            self._connection.server.common_headers,
            b"" if content_type is None else b"content-type: %b\r\n" % content_type,
            self._request_id,
            self.extra_headers,
            extra,
            b"" if self.keep_alive else b"connection: close\r\n",
        )
