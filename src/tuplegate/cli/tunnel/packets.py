"""Reads and writes the few messages of PostgreSQL's protocol that a tunnel must understand: those of the start. Pure.

Everything after the start passes through the tunnel as it is.
"""

import struct
from dataclasses import dataclass, field

CANCEL, SSL, GSS = 80877102, 80877103, 80877104
_STARTUP_BYTES_MAX = 10_000
_MESSAGE_BYTES_MAX = 10_000
_TLS_RECORD = 0x16
_CLEAR_TEXT = struct.pack("!ci i", b"R", 8, 3)
_INT = struct.Struct("!i")
_TWO = struct.Struct("!ii")


class NotPostgres(Exception):
    """The program does not begin as a PostgreSQL client does."""


@dataclass
class ClientStart:
    """Takes what a client sends until it has said what it wants.

    `first` is its first packet, a start-up or a cancel request, and `rest` what came after it. `answers` are to be sent
    back: a tunnel on the same machine offers no encryption of its own.
    """

    first: bytes = b""
    rest: bytes = b""
    answers: list[bytes] = field(default_factory=list)
    _data: bytes = b""

    def take(self, data: bytes) -> bool:
        """Return whether the start is complete. Raises NotPostgres."""
        self._data += data
        while len(self._data) >= 8:
            length, code = _TWO.unpack_from(self._data)
            if self._data[0] == _TLS_RECORD:
                raise NotPostgres("the tunnel is not encrypted: connect with sslmode=disable")
            if not 8 <= length <= _STARTUP_BYTES_MAX:
                raise NotPostgres("this is not the start of a PostgreSQL connection")
            if len(self._data) < length:
                return False
            packet, self._data = self._data[:length], self._data[length:]
            if code not in (SSL, GSS):
                self.first, self.rest = packet, self._data
                return True
            self.answers.append(b"N")
        return False

    @property
    def cancels(self) -> bool:
        return bool(_TWO.unpack_from(self.first)[1] == CANCEL)


def write_startup(packet: bytes, key: str, database: str | None) -> bytes:
    """Return the start-up packet, with the database if one is given, followed by the key as the password."""
    if database is not None:
        version = _TWO.unpack_from(packet)[1]
        fields = packet[8:].rstrip(b"\0").split(b"\0")
        parameters = dict(zip(fields[::2], fields[1::2], strict=False))
        parameters[b"database"] = database.encode()
        packet = make_startup(parameters, version)
    return packet + write_message(b"p", key.encode() + b"\0")


def make_startup(parameters: dict[bytes, bytes], version: int = 3 << 16) -> bytes:
    body = b"".join(b"%b\0%b\0" % item for item in parameters.items()) + b"\0"
    return _TWO.pack(len(body) + 8, version) + body


def write_message(kind: bytes, body: bytes) -> bytes:
    return kind + _INT.pack(len(body) + 4) + body


def write_error(message: str, sqlstate: str) -> bytes:
    """Return the message of a failure that ends the connection."""
    fields = {"S": "FATAL", "V": "FATAL", "C": sqlstate, "M": message}
    return write_message(b"E", b"".join(f"{name}{value}\0".encode() for name, value in fields.items()) + b"\0")


@dataclass
class ServiceStart:
    """Passes the service's start on, except for its request for the password, which was sent already."""

    is_over: bool = False
    _data: bytes = b""

    def take(self, data: bytes) -> bytes:
        """Return the bytes to pass on."""
        self._data += data
        passed = b""
        while not self.is_over and len(self._data) >= 5:
            length = 1 + _INT.unpack_from(self._data, 1)[0]
            if not 5 <= length <= _MESSAGE_BYTES_MAX:
                break
            if len(self._data) < length:
                return passed
            message, self._data = self._data[:length], self._data[length:]
            self.is_over = message[:1] in b"RE"
            if message != _CLEAR_TEXT:
                passed += message
        if not self.is_over and len(self._data) < 5:
            return passed
        self.is_over = True
        passed, self._data = passed + self._data, b""
        return passed


def read_error(message: bytes) -> tuple[str, str]:
    """Return SQLSTATE and text of an error message of the protocol."""
    fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in message[5:].split(b"\0") if part}
    return fields.get(b"C", ""), fields.get(b"M", "")
