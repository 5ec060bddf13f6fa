"""Finds the end of a message's body: after a number of bytes, or by its chunks. Pure; for requests and answers.

A body takes its own bytes from a Buffer and leaves the rest there.
"""

import re
from typing import Final

from tuplegate.http.parsing.message import TOKEN, malformed, read_fields

_LINE_BYTES_MAX: Final = 1024
_TRAILER_BYTES_MAX: Final = 8 * 1024
_OVERHEAD_MAX: Final = 64 * 1024
"""The bytes of sizes and line ends that a body may have, beyond as many as it has content."""

_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})

_QUOTED: Final = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;%b(?:=(?:%b|%b))?)*" % (TOKEN, TOKEN, _QUOTED))


class Buffer:
    """Bytes that have arrived and were not taken yet: `data` from `at` on."""

    def __init__(self) -> None:
        self.data = b""
        self.at = 0

    def feed(self, data: bytes) -> None:
        self.data = data if self.at == len(self.data) else self.data[self.at :] + data
        self.at = 0

    @property
    def size(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        """Take this many bytes, or all if there are fewer."""
        at = self.at
        data = self.data
        if at == 0 and len(data) <= size:
            self.data = b""
            return data
        taken = data[at : at + size]
        self.at = at + len(taken)
        return taken

    def take_all(self) -> bytes:
        return self.take(self.size)

    def clear(self) -> None:
        self.data = b""
        self.at = 0

    def compact(self) -> int:
        """Free the memory of the bytes that were taken, unless they are fewer than the rest. Return the bytes in
        memory."""
        if self.at:
            size = self.size
            if size <= self.at:
                self.data = self.data[self.at :]
                self.at = 0
        return len(self.data)


class Body:
    """A body. `read` returns the next bytes of it; once it is `complete` there are no more."""

    def __init__(self) -> None:
        self.complete = False

    def read(self, buffer: Buffer) -> bytes:
        raise NotImplementedError


class SizedBody(Body):
    def __init__(self, length: int) -> None:
        super().__init__()
        self._left = length
        self.complete = length == 0

    def read(self, buffer: Buffer) -> bytes:
        data = buffer.take(self._left)
        self._left -= len(data)
        self.complete = self._left == 0
        return data


class ChunkedBody(Body):
    """Reads at most `at_once` chunks in one call. Raises malformed_request for bytes that are no chunks, and for chunks
    so small that they are mostly sizes."""

    def __init__(self, at_once: int) -> None:
        super().__init__()
        self._at_once = at_once
        self._left = 0
        """Bytes left of the current chunk, including its line end; 0 where the size of the next chunk follows."""
        self._overhead = _OVERHEAD_MAX
        """How many more bytes of sizes and line ends may follow."""
        self._in_trailers = False
        self._trailers = 0

    def read(self, buffer: Buffer) -> bytes:
        pieces = bytearray()
        left = self._at_once
        while not self.complete and left:
            if self._in_trailers:
                if not self._read_trailer(buffer):
                    break
            elif self._left > 2:
                piece = buffer.take(self._left - 2)
                if not piece:
                    break
                pieces += piece
                left -= 1
                self._left -= len(piece)
                self._overhead += len(piece)
            elif self._left > 0:
                if not self._read_chunk_end(buffer):
                    break
            elif not self._read_size(buffer):
                break
        return bytes(pieces)

    def _read_size(self, buffer: Buffer) -> bool:
        line = _take_line(buffer)
        if line is None:
            return False
        found = _SIZE_LINE.fullmatch(line)
        if found is None:
            raise malformed("a chunk of its body does not begin with its size")
        size = int(found[1], 16)
        self._overhead -= len(line) + 4
        if self._overhead < 0:
            raise malformed("the chunks of its body are so small that they are mostly sizes")
        self._left = size + 2 if size else 0
        self._in_trailers = size == 0
        return True

    def _read_chunk_end(self, buffer: Buffer) -> bool:
        if buffer.size < 2:
            if buffer.size and buffer.data[buffer.at] != 13:
                raise malformed("a chunk of its body is longer than it says")
            return False
        if buffer.take(2) != b"\r\n":
            raise malformed("a chunk of its body is longer than it says")
        self._left = 0
        return True

    def _read_trailer(self, buffer: Buffer) -> bool:
        """Read a header behind the body. It says nothing about the request, but has to be well-formed."""
        line = _take_line(buffer)
        if line is None:
            return False
        if not line:
            self.complete = True
            return True
        self._trailers += len(line) + 2
        if self._trailers > _TRAILER_BYTES_MAX:
            raise malformed(f"the headers behind its body are over {_TRAILER_BYTES_MAX} bytes")
        if not _FRAMING.isdisjoint(read_fields([line], 1)):
            raise malformed("a header behind its body says how long it is")
        return True


def _take_line(buffer: Buffer) -> bytes | None:
    """Take the next line, without its end; None if it has not arrived yet."""
    end = buffer.data.find(b"\n", buffer.at, buffer.at + _LINE_BYTES_MAX + 2)
    if end < 0:
        if buffer.size > _LINE_BYTES_MAX:
            raise malformed(f"a line between the chunks of its body is over {_LINE_BYTES_MAX} bytes")
        return None
    line = buffer.take(end + 1 - buffer.at)
    if line[-2:] != b"\r\n":
        raise malformed("a line does not end with CR LF")
    return line[:-2]
