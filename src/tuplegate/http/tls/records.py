"""Reads the frames of TLS before OpenSSL does: the number of records, and the announced length of a client's hello.

OpenSSL does not tell how many records it has read, keeps incomplete ones, and allocates memory for the whole announced
hello (128 KiB) after its first four bytes.
"""

import ssl
from typing import Final

HEADER: Final = 5
MESSAGE_HEADER: Final = 4
_LENGTH_MAX: Final = 2**14 + 2048
_CHANGE_CIPHER, _HANDSHAKE, _APPLICATION_DATA = 20, 22, 23
_RETRY: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random number of a server's hello that asks the client for another hello (RFC 8446 §4.1.3)."""

HELLO_MAX: Final = 2**14
"""For comparison: hellos with post-quantum keys have 2 KiB."""


def end_of_records(data: bytes, at: int, records_max: int, bytes_max: int) -> tuple[int, int]:
    """Return the end of the whole records and their number, up to both bounds; the first record may have any size.
    Raises SSLError for bytes that are no record."""
    end, count, size = at, 0, len(data)
    while count < records_max and end + HEADER <= size:
        length = data[end + 3] << 8 | data[end + 4]
        if not _CHANGE_CIPHER <= data[end] <= _APPLICATION_DATA or data[end + 1] != 3 or length > _LENGTH_MAX:
            raise ssl.SSLError("what has come is not a record of TLS")
        following = end + HEADER + length
        if following > size or (count and following - at > bytes_max):
            break
        end = following
        count += 1
    return end, count


class HelloCheck:
    """Checks the length that a client's hello announces."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun: bytes | None = b""
        """The first bytes of the hello, until there are enough."""

    def look(self, records: bytes) -> None:
        """Look at whole records. Raises SSLError for a hello that is too long."""
        at = 0
        while self._begun is not None and at < len(records):
            payload = at + HEADER
            at = payload + (records[at + 3] << 8 | records[at + 4])
            if records[payload - HEADER] != _HANDSHAKE:
                continue
            self._begun += records[payload : min(at, payload + MESSAGE_HEADER)]
            if len(self._begun) >= MESSAGE_HEADER:
                length = int.from_bytes(self._begun[1:MESSAGE_HEADER], "big")
                self._begun = None
                if length > HELLO_MAX:
                    raise ssl.SSLError(f"the hello is over {HELLO_MAX} bytes")

    def look_at_answer(self, flight: bytes) -> None:
        """Look at the server's answer, which may ask for another hello."""
        if flight[11:43] == _RETRY:
            self._begun = b""
