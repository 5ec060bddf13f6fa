"""Messages of PostgreSQL's protocol, versions 3.0 and 3.2, as bytes. Pure."""

import struct
from typing import Final

PROTOCOL_MAJOR: Final = 3
MINOR_MAX: Final = 2
"""The highest supported minor version. There was no 3.1."""

ASK_PASSWORD: Final = b"R" + struct.pack(">ii", 8, 3)
NO: Final = b"N"
"""The answer to a client that asks for encryption inside of the WebSocket."""

QUERY, PARSE, BIND, DESCRIBE, CLOSE, EXECUTE, SYNC, FUNCTION, TERMINATE = b"QPBDCESFX"
COPY_DATA, COPY_DONE, COPY_FAIL, PASSWORD, FLUSH = b"dcfpH"
CLIENT_TYPES: Final = frozenset(b"QPBESFXdcfHDC")
"""Types of messages that a client may send after the start-up."""

READY, ERROR, COMPLETE, COPY_IN, ROW = b"ZECGD"
PARSED, BOUND, CLOSED = b"123"
"""The answers to Parse, Bind and Close."""


class WireError(Exception):
    """An error for the client."""

    def __init__(self, sqlstate: str, message: str, hint: str | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.hint = hint
        self.detail = detail

    def write(self, severity: str) -> bytes:
        fields = [("S", severity), ("V", severity), ("C", self.sqlstate), ("M", self.message)]
        fields += [("D", self.detail)] if self.detail else []
        fields += [("H", self.hint)] if self.hint else []
        body = b"".join(name.encode() + value.replace("\0", "").encode() + b"\0" for name, value in fields)
        return write_message(ERROR, body + b"\0")


def write_message(kind: int, body: bytes) -> bytes:
    return b"%c%b%b" % (kind, struct.pack(">i", len(body) + 4), body)


def write_key_data(process: int, secret: bytes) -> bytes:
    return write_message(ord("K"), struct.pack(">i", process) + secret)


def write_negotiation(unknown: list[bytes]) -> bytes:
    """Tell a client that asked for more the supported version, and the options that are unknown."""
    body = struct.pack(">ii", PROTOCOL_MAJOR << 16 | MINOR_MAX, len(unknown))
    return write_message(ord("v"), body + b"".join(name + b"\0" for name in unknown))


def write_query(sql: bytes) -> bytes:
    return write_message(QUERY, sql + b"\0")


def write_execute(portal: bytes) -> bytes:
    return write_message(EXECUTE, portal + b"\0" + struct.pack(">i", 0))


def write_run(name: bytes, sql: bytes) -> bytes:
    """Prepare a statement without parameters under the name, replacing any other, and run it, in the extended protocol.

    The answers are two to Close, one to Parse and one to Bind, and those to Execute.
    """
    close = b"".join(write_message(CLOSE, kind + name + b"\0") for kind in (b"S", b"P"))
    parse = write_message(PARSE, name + b"\0" + sql + b"\0" + bytes(2))
    bind = write_message(BIND, name + b"\0" + name + b"\0" + bytes(6))
    return close + parse + bind + write_execute(name)


SYNC_MESSAGE: Final = write_message(SYNC, b"")


def read_fields(error: bytes) -> dict[str, bytes]:
    """Return the fields of an ErrorResponse, header included, by their letters."""
    return {chr(part[0]): part[1:] for part in error[5:].split(b"\0") if part}


def read_first_value(row: bytes) -> bytes:
    """Return the first value of a DataRow, header included, as text; a NULL is none."""
    length = struct.unpack_from(">i", row, 7)[0]
    return row[11 : 11 + max(length, 0)]
