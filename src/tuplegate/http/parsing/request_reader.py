"""Reads requests: bytes in, events out. It calls nobody, and knows nothing of connections.

From the bytes of a Buffer, `next` returns one event after the other: a Head, pieces of its body, END, and then the next
Head; or None when more bytes are needed. Bytes that are no request raise an error, and nothing can be read after them.
"""

from typing import Final

from tuplegate.http.parsing.framing import Body, Buffer, ChunkedBody, SizedBody
from tuplegate.http.parsing.message import BLANK_LINE, CHUNKED, REQUEST_LINE, Head, HeadCache, malformed
from tuplegate.protocol.errors import ServiceError

_EMPTY_LINES_MAX: Final = 4
"""Empty lines that may come before a request."""
_CHUNKS_AT_ONCE: Final = 256


class End:
    """The end of a request."""


END: Final = End()

Event = Head | bytes | End


class RequestReader:
    def __init__(self, heads: HeadCache, unread: Buffer) -> None:
        self._heads = heads
        self._bytes_max = heads.limits.bytes_max
        self._buffer = unread
        self._body: Body | None = None
        self._refused = ""
        """The message of the first error."""
        self._searched = 0
        """Bytes of the current head that were searched for its end in vain."""
        self._empty_lines = 0

    @property
    def has_whole_body(self) -> bool:
        """Return whether only the END of the current request is left to read."""
        return self._body is not None and self._body.complete

    def next(self) -> Event | None:
        """Return the next event. Raises malformed_request, and from then on always."""
        if self._refused:
            raise ServiceError("malformed_request", self._refused)
        try:
            return self._next()
        except ServiceError as exc:
            self._refused = exc.body.message
            self._buffer.clear()
            raise

    def _next(self) -> Event | None:
        body = self._body
        if body is None:
            head = self._read_head()
            if head is not None:
                self._body = ChunkedBody(_CHUNKS_AT_ONCE) if head.length == CHUNKED else SizedBody(head.length)
            return head
        if not body.complete:
            data = body.read(self._buffer)
            if data:
                return data
            if not body.complete:
                return None
        self._body = None
        return END

    def _read_head(self) -> Head | None:
        buffer = self._buffer
        data = buffer.data
        if buffer.at == len(data):
            return None
        while self._searched == 0 and data.startswith(b"\r\n", buffer.at):
            if self._empty_lines == _EMPTY_LINES_MAX:
                raise malformed(f"there are more than {_EMPTY_LINES_MAX} empty lines in front of it")
            self._empty_lines += 1
            buffer.at += 2  # RFC 9112 §2.2: a few are ignored
        at = buffer.at
        end = data.find(BLANK_LINE, at + self._searched, at + self._bytes_max)
        if end < 0:
            self._look_at_part()
            return None
        self._searched = self._empty_lines = 0
        buffer.at = end + 4
        return self._heads.read(data[at : end + 4])

    def _look_at_part(self) -> None:
        """Refuse bytes that cannot become a head, before the end of the head has arrived."""
        buffer = self._buffer
        size = buffer.size
        if size == 0 or buffer.data[buffer.at :] == b"\r":
            return
        if size >= self._bytes_max:
            raise malformed(f"its headers are over {self._bytes_max} bytes")
        start = buffer.at + max(0, self._searched - 1)
        line_end = buffer.data.find(b"\n", start)
        while line_end >= 0:
            if line_end == buffer.at or buffer.data[line_end - 1] != 13:
                raise malformed("a line does not end with CR LF")
            if (
                self._first_line_ends_at(line_end)
                and REQUEST_LINE.fullmatch(buffer.data[buffer.at : line_end - 1]) is None
            ):
                raise malformed("its first line is not of the form METHOD target HTTP/1.1")
            line_end = buffer.data.find(b"\n", line_end + 1)
        if buffer.data[buffer.at] <= 32 or buffer.data[buffer.at] >= 127:
            raise malformed("it begins with no method")
        self._searched = max(0, size - 3)

    def _first_line_ends_at(self, line_end: int) -> bool:
        return self._buffer.data.find(b"\n", self._buffer.at) == line_end
