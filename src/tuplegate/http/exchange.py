"""One request and its answer, as a handler sees them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tuplegate.eager import EagerRun
from tuplegate.http.body import IncomingBody, too_large
from tuplegate.http.parsing.message import Head
from tuplegate.http.upgraded import Upgrade
from tuplegate.http.writing import CONTENT_POLICY, NO_STORE, STATUS_LINES, Outgoing
from tuplegate.protocol.errors import ServiceError

_LARGE: Final = 16 * 1024
_NO_VALUES: Mapping[str, str] = MappingProxyType({})
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

Headers = Iterable[tuple[str, str]]
ErrorWriter = Callable[[ServiceError, str], tuple[int, bytes]]
"""Writes an error, for the id of a request, in another form than the service's: returns the status and the body."""


class ClientGone(Exception):
    """The client left while its answer was being written."""


class Counts:
    """Counts of an organization's requests."""

    def __init__(self) -> None:
        self.requests = 0
        self.rows = 0
        self.bytes = 0
        self.errors = 0


# size: everything that a request carries through the layers is here, so that no layer needs an object of its own.
class Exchange:
    """A request, and the means to answer it once. Owned by its connection.

    The body is in `body`, or has not arrived whole and is `incoming`: then `collect` completes it.

    `extra_headers` are lines that every answer to the request carries. `row_count`, `sent_bytes`, `failed` and
    `error_code` describe the answer, for metrics and for the `usage` that the request counts towards. `error_writer` is
    set where a route has a form of its own for errors. If `traced`, the
    exchange also records when it was admitted and when the engine was done, by `perf_counter_ns`. `sign_of_life` may be
    written at any time in the middle of the answer.
    """

    # Defaults that most requests keep: as attributes of the class they cost nothing when an exchange is made.
    body = b""
    incoming: IncomingBody | None = None
    keep_alive = True
    chunked = True
    started_ns = 0
    status = 0
    extra_headers = b""
    failed = False
    error_code: str | None = None
    error_writer: ErrorWriter | None = None
    row_count = 0
    sent_bytes = 0
    usage: Counts | None = None
    traced = False
    admitted_ns = 0
    engine_ended_ns = 0
    exec_us = 0
    run: EagerRun | None = None
    sign_of_life = b""
    upgrade: Upgrade | None = None
    _started = False

    def __init__(self, outgoing: Outgoing, request_id: bytes, head: Head) -> None:
        self.outgoing = outgoing
        self._request_id = request_id
        self.head = head
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.headers = head.headers
        self.path_values: Mapping[str, str] = _NO_VALUES

    @property
    def request_id(self) -> str:
        return self._request_id.decode()

    @property
    def answered(self) -> bool:
        """Return whether a status was written already."""
        return self._started

    @property
    def client_gone(self) -> bool:
        return self.outgoing.is_lost

    async def collect(self, owner: str, most: int) -> None:
        """Wait until the whole body is there, held in memory for the `owner`. Raises what went wrong with it."""
        if self.incoming is None:
            if len(self.body) > most:
                raise too_large(most)
            return
        if self.head.expects_continue and not self._started and self.incoming.length <= most:
            self.send_continue()
        self.body = await self.incoming.collect(owner, most)

    def send_continue(self) -> None:
        """Tell the client to send the body."""
        self.outgoing.write(_CONTINUE)

    def respond(
        self, status: int, body: bytes, headers: Headers = (), content_type: bytes = b"application/json"
    ) -> None:
        """Write the whole answer at once."""
        self._started = True
        self.status = status
        self.sent_bytes += len(body)
        self._note_unread_body()
        if status == 200 and not headers and self.keep_alive and content_type == b"application/json":
            # The same as below, from parts that are assembled once a second.
            start = self.outgoing.common.json_head
            head = b"%b%b\r\n%bcontent-length: %d\r\n\r\n" % (start, self._request_id, self.extra_headers, len(body))
            self._write_whole(head, body)
            return
        if status == 204:
            self.outgoing.write(self._head(status, None, headers) + b"\r\n")
            return
        head = b"%bcontent-length: %d\r\n\r\n" % (self._head(status, content_type, headers), len(body))
        self._write_whole(head, body)

    async def respond_large(self, parts: Sequence[bytes], status: int = 200) -> None:
        """Write an answer in JSON without a copy of its parts, and wait until the client has taken most of it."""
        self._started = True
        self.status = status
        size = sum(map(len, parts))
        self.sent_bytes += size
        self._note_unread_body()
        self.outgoing.write(b"%bcontent-length: %d\r\n\r\n" % (self._head(status, b"application/json", ()), size))
        for part in parts:
            self.outgoing.write(part)
        await self.outgoing.wait_until_taken()

    def _note_unread_body(self) -> None:
        """Close after the answer if the body has not arrived: nothing more will be read from this client."""
        if self.incoming is not None and not self.incoming.complete:
            self.keep_alive = False

    def _write_whole(self, head: bytes, body: bytes) -> None:
        """Write in one piece, which a client can read at once, unless the body is too large to be copied for it."""
        if self.method == "HEAD":
            self.outgoing.write(head)
        elif len(body) < _LARGE:
            self.outgoing.write(head + body)
        else:
            self.outgoing.write(head)
            self.outgoing.write(body)

    async def respond_in_pieces(self, body: bytes) -> None:
        """Write an answer in JSON that is the same for all clients, as fast as the client takes it: whoever does not
        take it holds one piece. Raises ClientGone."""
        self._note_unread_body()
        await self._write_in_pieces(self._head(200, b"application/json", ()), body)

    async def respond_page(
        self,
        body: bytes,
        policy: bytes,
        status: int = 200,
        headers: Headers = (),
        caching: bytes = NO_STORE,
        content_type: bytes = b"text/html; charset=utf-8",
    ) -> None:
        """Respond with a page of the service's own, or a file of one, in pieces as well. It may do only what `policy`
        allows, and is cached as `caching` says. With 304 the browser has it already."""
        self._note_unread_body()
        head = self._head(status, None if status == 304 else content_type, headers)
        head = head.replace(CONTENT_POLICY, policy, 1).replace(NO_STORE, caching, 1)
        if status == 304:
            self._started = True
            self.status = status
            self.outgoing.write(head + b"\r\n")
            return
        await self._write_in_pieces(head, body, status)

    async def _write_in_pieces(self, head: bytes, body: bytes, status: int = 200) -> None:
        self._started = True
        self.status = status
        self.chunked = False
        head += b"content-length: %d\r\n\r\n" % len(body)
        if self.method == "HEAD":
            self.outgoing.write(head)
            return
        self.outgoing.write(head + body[:_LARGE])
        self.sent_bytes += min(len(body), _LARGE)
        for at in range(_LARGE, len(body), _LARGE):
            await self.outgoing.wait_until_taken()
            await self.write(body[at : at + _LARGE])

    def start(self, status: int, content_type: bytes, headers: Headers = ()) -> None:
        """Begin an answer of unknown length; `write` and `finish` follow."""
        self._started = True
        self.status = status
        self._note_unread_body()
        if not self.chunked:  # HTTP/1.0 knows the end of the answer by the end of the connection
            self.keep_alive = False
        head = self._head(status, content_type, headers)
        self.outgoing.write(head + (b"transfer-encoding: chunked\r\n\r\n" if self.chunked else b"\r\n"))

    def pass_on(self, status: int, headers: bytes, *, sized: bool, first: bytes = b"") -> None:
        """Begin an answer whose headers were made elsewhere. `sized`: they give its length, or it has no body. `first`,
        the part of the body that is there already, goes in the same write."""
        self._started = True
        self.status = status
        if sized:
            self.chunked = False
        elif not self.chunked:
            self.keep_alive = False
        self._note_unread_body()
        self.outgoing.write(
            b"%b%b%b%b\r\n%b"
            % (
                STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status,
                headers,
                b"transfer-encoding: chunked\r\n" if self.chunked else b"",
                b"" if self.keep_alive else b"connection: close\r\n",
                self._frame(first) if first else b"",
            )
        )
        self.sent_bytes += len(first)

    def switch_protocols(self, headers: bytes, upgrade: Upgrade) -> None:
        """Answer with 101. When the handler has returned, `upgrade` makes the object that owns the connection from then
        on."""
        self._started = True
        self.status = 101
        self.keep_alive = False
        self.upgrade = upgrade
        self.outgoing.write(b"%b%b\r\n" % (STATUS_LINES[101], headers))

    async def write(self, data: bytes) -> None:
        """Write a piece of the answer. Waits while the client is behind; raises ClientGone when it has left."""
        outgoing = self.outgoing
        if outgoing.is_lost:
            raise ClientGone
        self.sent_bytes += len(data)
        outgoing.write(self._frame(data))
        if outgoing.is_behind:
            await outgoing.wait_until_taken()
            if outgoing.is_lost:
                raise ClientGone

    def write_last(self, data: bytes) -> None:
        """Write the last piece, without waiting for the client to take it."""
        self.sent_bytes += len(data)
        self.outgoing.write(self._frame(data))
        self.finish()

    def finish(self) -> None:
        if self.chunked:
            self.outgoing.write(b"0\r\n\r\n")

    @property
    def can_show_life(self) -> bool:
        """Return whether a sign of life can be sent. In HTTP/1.0 none can before the answer."""
        return self._started or self.head.is_http_1_1

    def show_life(self) -> None:
        """Write something that means nothing: the write fails if the client has left."""
        if self._started:
            if self.sign_of_life:
                self.outgoing.write(self._frame(self.sign_of_life))
        elif self.head.is_http_1_1:
            self.outgoing.write(STATUS_LINES[102] + b"\r\n")

    def cut_off(self) -> None:
        """Drop the connection at once, with everything that the client has not taken yet."""
        self.outgoing.cut_off()

    def _frame(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data

    def _head(self, status: int, content_type: bytes | None, headers: Headers) -> bytes:
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1") if headers else b""
        return b"%b%b%bx-request-id: %b\r\n%b%b%b" % (
            STATUS_LINES[status],
            self.outgoing.common.lines,
            b"" if content_type is None else b"content-type: %b\r\n" % content_type,
            self._request_id,
            self.extra_headers,
            extra,
            b"" if self.keep_alive else b"connection: close\r\n",
        )
