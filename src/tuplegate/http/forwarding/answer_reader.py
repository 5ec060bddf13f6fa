"""Reads the data plane's answer to one request: bytes in, a head, then its body. Pure.

Interim answers come first and are reported by their status. Bytes that are no answer raise an error. Bytes after a
complete answer belong to no request, and such a connection is not used again.
"""

import re
from typing import Final

from tuplegate.http.parsing.framing import Body, Buffer, ChunkedBody, SizedBody
from tuplegate.http.parsing.message import BLANK_LINE, LENGTH, TOKEN, VALUE, is_kept_alive
from tuplegate.protocol.errors import ServiceError

_HEAD_BYTES_MAX: Final = 64 * 1024
_CHUNKS_AT_ONCE: Final = 1 << 30
"""No bound: they come from a data plane."""
_HEAD: Final = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: %b+)?+((?:\r\n%b+:%b+)*+)\r\n\r\n" % (VALUE, TOKEN, VALUE)
)
"""The whole head in one match: matching each line in turn would take several times as long."""
_OTHER_LINES: Final = rb"(?:\r\n(?!(?i:content-length|transfer-encoding|connection):)%b+:%b+)*+" % (TOKEN, VALUE)
_SHORT_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ((?!204|304)[2-5][0-9]{2})(?: %b+)?+(%b\r\ncontent-length: ([0-9]{1,18})%b)\r\n\r\n"
    % (VALUE, _OTHER_LINES, _OTHER_LINES)
)
"""The head of an answer with its length, and without a header about its connection. Nearly all are like this."""
_LENGTH_LINE, _CODING_LINE, _CONNECTION_LINE = b"\r\ncontent-length:", b"\r\ntransfer-encoding:", b"\r\nconnection:"


class NoAnswer(Exception):
    """The bytes are no HTTP/1.1 answer."""


_ALL_THERE: Final = SizedBody(0)


class _UntilClose(Body):
    def read(self, buffer: Buffer) -> bytes:
        return buffer.take(buffer.size)


class AnswerReader:
    """Reads one answer. `bodiless`: it has no body, whatever its headers say (HEAD). `may_switch`: after a 101 follow
    bytes of another protocol, up to the end."""

    def __init__(self, *, bodiless: bool, may_switch: bool = False) -> None:
        self._bodiless = bodiless
        self._may_switch = may_switch
        self._buffer = Buffer()
        self._body: Body | None = None
        self.status = 0
        self.lines = b""
        """The headers as they came, each behind a line end."""
        self.length: bytes | None = None
        """The Content-Length as the answer gives it."""
        self.keep_alive = False
        self.tells_connection = False
        """It has a Connection header, which may name others that are meant for this hop only."""
        self.interim: list[int] = []
        """Statuses of interim answers; the reader of the list removes them."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers, with their names in lower case."""
        fields = [line.partition(b":") for line in self.lines.split(b"\r\n")[1:]]
        return [(name.lower(), value.strip(b" \t")) for name, _, value in fields]

    @property
    def has_head(self) -> bool:
        return self._body is not None

    @property
    def complete(self) -> bool:
        return self._body is not None and self._body.complete

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body in the data. Raises NoAnswer."""
        buffer = self._buffer
        if self._body is None and not buffer.size and not self._bodiless:
            found = _SHORT_HEAD.match(data)
            if found is not None and found.end() + int(found[3]) == len(data):
                self.status, self.lines, self.length = int(found[1]), found[2], found[3]
                self.keep_alive = True
                self._body = _ALL_THERE
                return data[found.end() :]
        buffer.feed(data)
        while self._body is None:
            end = buffer.data.find(BLANK_LINE, buffer.at)
            if end < 0:
                if buffer.size > _HEAD_BYTES_MAX:
                    raise NoAnswer("its headers are too long")
                return b""
            self._read_head(buffer.take(end + 4 - buffer.at))
        try:
            got = self._body.read(buffer) if not self._body.complete else b""
        except ServiceError as exc:
            raise NoAnswer("its body is not in chunks") from exc
        if self._body.complete and buffer.size:
            self.keep_alive = False
        return got

    def end(self) -> bool:
        """Note that the connection has ended; return whether the answer is complete."""
        if isinstance(self._body, _UntilClose):
            self._body.complete = True
        return self.complete

    def _read_head(self, raw: bytes) -> None:
        found = _HEAD.fullmatch(raw)
        if found is None:
            raise NoAnswer("it sent what is no HTTP/1.1 answer")
        status = int(found[2])
        if status == 101 and self._may_switch:
            self.status, self.lines, self.tells_connection = status, found[3], True
            self._body = _UntilClose()
            return
        if status < 200:
            self.interim.append(status)
            return
        self.status, self.lines = status, found[3]
        lowered = self.lines.lower()
        if lowered.count(_LENGTH_LINE) + lowered.count(_CODING_LINE) > 1:
            raise NoAnswer("it says twice how long its answer is")
        self.keep_alive = found[1] == b"1"
        connection = self._find_value(lowered, _CONNECTION_LINE)
        self.tells_connection = connection is not None
        if connection is not None:
            self.keep_alive = is_kept_alive({b"connection": connection}, is_http_1_1=self.keep_alive)
        self.length = self._find_value(lowered, _LENGTH_LINE)
        self._body = self._framing(self._find_value(lowered, _CODING_LINE))

    def _find_value(self, lowered: bytes, line: bytes) -> bytes | None:
        """Return the value of the last such header. `lowered` are all headers in lower case. A search for each name is
        quicker than any pattern."""
        at = lowered.rfind(line)
        if at < 0:
            return None
        return self.lines[at + len(line) :].partition(b"\r")[0].strip(b" \t")

    def _framing(self, coding: bytes | None) -> Body:
        if self.length is not None and LENGTH.fullmatch(self.length) is None:
            raise NoAnswer("its Content-Length is no number")
        if coding is not None and coding.lower() != b"chunked":
            raise NoAnswer("its Transfer-Encoding is not chunked")
        if self._bodiless or self.status in (204, 304):
            return SizedBody(0)
        if coding is not None:
            return ChunkedBody(_CHUNKS_AT_ONCE)
        if self.length is not None:
            return SizedBody(int(self.length))
        self.keep_alive = False
        return _UntilClose()
