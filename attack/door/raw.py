"""A client that sends bytes as they are given, and takes answers apart strictly: anything odd in one is a finding."""

import asyncio
import re
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

_HEAD = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) [ -~]*\r\n((?:[A-Za-z0-9-]+:[ \t]?[^\r\n\0]*\r\n)*)\r\n")
_LENGTH = re.compile(rb"^content-length: *([0-9]+)\r$", re.IGNORECASE | re.MULTILINE)
_CHUNKED = re.compile(rb"^transfer-encoding: *chunked\r$", re.IGNORECASE | re.MULTILINE)
_CLOSE = re.compile(rb"^connection: *close\r$", re.IGNORECASE | re.MULTILINE)
_REQUEST_ID = re.compile(rb"^x-request-id: *([^\r]*)\r$", re.IGNORECASE | re.MULTILINE)
_HEAD_BYTES_MAX = 64 * 1024
_CHUNK_LINE_MAX = 32


class Broken(Exception):
    """The bytes are no answer."""


@dataclass(frozen=True, slots=True)
class RawAnswer:
    status: int
    head: bytes
    body: bytes
    request_id: bytes
    closes: bool


class AnswerReader:
    """Bytes in, answers out. `rest` is what came and is no whole answer yet, framing included."""

    def __init__(self) -> None:
        self.rest = bytearray()
        self.continues = 0
        """Interim answers that came."""
        self._head: bytes | None = None
        self._parts: list[bytes] = []

    def next(self, *, has_body: bool = True) -> RawAnswer | None:
        """The next answer, once it is complete. One to HEAD has no body, whatever its headers say."""
        while self._head is None:
            head = self._take_head()
            if head is None:
                return None
            if head.startswith(b"HTTP/1.1 1"):
                self.continues += 1
            else:
                self._head = head
        head = self._head
        status = int(head[9:12])
        body = self._body(head) if has_body and status not in (204, 304) else b""
        if body is None:
            return None
        self._head = None
        found = _REQUEST_ID.search(head)
        return RawAnswer(status, head, body, found[1] if found else b"", _CLOSE.search(head) is not None)

    @property
    def is_between(self) -> bool:
        """No answer is there in part."""
        return self._head is None and not self.rest

    def partial(self) -> bytes:
        """All of the answer that has begun, as far as it came."""
        return b"".join([self._head or b"", *self._parts, bytes(self.rest)])

    def _take_head(self) -> bytes | None:
        end = self.rest.find(b"\r\n\r\n")
        if end < 0:
            if not b"HTTP/1.1 ".startswith(self.rest[:9]) and not self.rest.startswith(b"HTTP/1.1 "):
                raise Broken(f"no answer begins so: {bytes(self.rest[:200])!r}")
            if len(self.rest) > _HEAD_BYTES_MAX:
                raise Broken("a head that does not end")
            return None
        head = bytes(self.rest[: end + 4])
        if _HEAD.fullmatch(head) is None:
            raise Broken(f"no head of an answer: {head[:300]!r}")
        del self.rest[: end + 4]
        return head

    def _body(self, head: bytes) -> bytes | None:
        lengths = _LENGTH.findall(head)
        chunked = _CHUNKED.search(head) is not None
        if len(lengths) + chunked != 1:
            raise Broken(f"an answer without one length: {head[:500]!r}")
        if chunked:
            return self._chunks()
        size = int(lengths[0])
        if len(self.rest) < size:
            return None
        body = bytes(self.rest[:size])
        del self.rest[:size]
        return body

    def _chunks(self) -> bytes | None:
        while True:
            end = self.rest.find(b"\r\n", 0, _CHUNK_LINE_MAX)
            if end < 0:
                if len(self.rest) >= _CHUNK_LINE_MAX:
                    raise Broken(f"no chunk: {bytes(self.rest[:100])!r}")
                return None
            try:
                size = int(self.rest[:end], 16)
            except ValueError as exc:
                raise Broken(f"no chunk: {bytes(self.rest[:100])!r}") from exc
            if len(self.rest) < end + size + 4:
                return None
            if self.rest[end + 2 + size : end + 4 + size] != b"\r\n":
                raise Broken(f"a chunk that does not end: {bytes(self.rest[:100])!r}")
            self._parts.append(bytes(self.rest[end + 2 : end + 2 + size]))
            del self.rest[: end + 4 + size]
            if size == 0:
                body, self._parts = b"".join(self._parts), []
                return body


class RawConnection(asyncio.Protocol):
    """One connection. `is_over` once the service has ended it."""

    def __init__(self) -> None:
        self.answers = AnswerReader()
        self.is_over = False
        self.error: Exception | None = None
        self.received = 0
        self._news: asyncio.Future[None] | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closes_too = True
        """Close when the service has closed its side."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.answers.rest += data
        self._tell()

    def eof_received(self) -> bool:
        self.is_over = True
        self._tell()
        return not self.closes_too

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self.error = exc
        if not self.lost.done():
            self.lost.set_result(None)
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def send(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    async def news(self, timeout_s: float) -> None:
        """Wait until something comes or the connection ends. Raises TimeoutError."""
        if self.is_over:
            return
        self._news = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(timeout_s):
            await self._news

    async def answer(self, timeout_s: float, *, has_body: bool = True) -> RawAnswer | None:
        """The next answer; None where the connection ends before. Raises TimeoutError where nothing comes."""
        while True:
            answer = self.answers.next(has_body=has_body)
            if answer is not None or self.is_over:
                return answer
            await self.news(timeout_s)

    def reset(self) -> None:
        """Leave without a word: the service sees a reset."""
        sock: Any = self.transport.get_extra_info("socket")
        if sock is not None and not self.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    async def gone(self) -> None:
        """Close, and wait until nothing of the connection is left."""
        self.transport.abort()
        await self.lost


async def open_raw(
    url: str, trust: ssl.SSLContext | None = None, timeout_s: float = 30, *, source: str | None = None
) -> RawConnection:
    """Connect to the address, from another one of this machine if `source` names it; with TLS where the URL says so."""
    address = urlsplit(url)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        _, connection = await loop.create_connection(
            RawConnection,
            address.hostname or "",
            address.port or 0,
            ssl=trust if address.scheme == "https" else None,
            server_hostname="localhost" if address.scheme == "https" else None,
            local_addr=(source, 0) if source else None,
        )
    return connection


def unchecked() -> ssl.SSLContext:
    """Trusts any certificate: the one of a service under attack is of its own making."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def post(path: str, key: str, body: bytes, *more: str, content_type: str = "application/json") -> bytes:
    """A request with a key, in one piece."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {key}",
        f"Content-Type: {content_type}",
    ]
    return "\r\n".join([*lines, *more, f"Content-Length: {len(body)}", "", ""]).encode() + body
