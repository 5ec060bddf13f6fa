"""Nonsense that a hostile server says: at a login, as an answer to a statement, or to what the service asks for itself.

Each talk returns when it has no more to say, or raises OSError when the other side has had enough.
"""

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

Talk = Callable[[socket.socket], None]

STATEMENT = b"nonsense"
"""A statement with this word gets nonsense for an answer."""
LOGIN = b"user\0"
"""A word of the first message of every connection."""
SETTLING = b"engine.identity"
"""A word of the first question to a cell that was just waked."""

_READ_BYTES = 2**16
_PIECE = b"x" * _READ_BYTES
_MOST = 2**31 - 1
_DRIP_S = 0.5


@dataclass(frozen=True)
class Nonsense:
    """`talk` is said after a message with `word`."""

    name: str
    word: bytes
    talk: Talk


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _columns(count: int = 1, oid: int = 25, form: int = 0) -> bytes:
    one = b"a\0" + struct.pack("!IHIHiH", 0, 0, oid, 65535, -1, form)
    return message(b"T", struct.pack("!H", count) + one * count)


def _row(*values: bytes) -> bytes:
    return message(b"D", struct.pack("!H", len(values)) + b"".join(struct.pack("!i", len(v)) + v for v in values))


def _error(text: bytes) -> bytes:
    return message(b"E", b"SERROR\0C22000\0M" + text + b"\0\0")


_BOUND = message(b"1") + message(b"2")
_READY = message(b"Z", b"I")
_END = message(b"C", b"SELECT 1\0") + _READY
_SASL = message(b"R", struct.pack("!I", 10) + b"SCRAM-SHA-256\0\0")


def _say(data: bytes, *, stays: bool = True) -> Talk:
    def talk(worker: socket.socket) -> None:
        worker.sendall(data)
        while stays and worker.recv(_READ_BYTES):
            pass

    return talk


def _repeat(data: bytes, first: bytes = b"") -> Talk:
    """Say it for ever."""

    def talk(worker: socket.socket) -> None:
        worker.sendall(first)
        many = data * max(1, _READ_BYTES // len(data))
        while True:
            worker.sendall(many)

    return talk


def _drip(data: bytes) -> Talk:
    """Stall after each byte."""

    def talk(worker: socket.socket) -> None:
        for place in range(len(data)):
            worker.sendall(data[place : place + 1])
            time.sleep(_DRIP_S)

    return talk


def _large_row(size: int) -> Talk:
    def talk(worker: socket.socket) -> None:
        worker.sendall(_BOUND + _columns() + b"D" + struct.pack("!IHi", size + 10, 1, size))
        for _ in range(size // len(_PIECE)):
            worker.sendall(_PIECE)
        while worker.recv(_READ_BYTES):
            pass

    return talk


@cache
def _write_parameters() -> bytes:
    return b"".join(message(b"S", b"p%d\0value\0" % number) for number in range(200_000))


def _new_parameters(worker: socket.socket) -> None:
    """libpq keeps the values of all parameters in one list, and looks through it for each."""
    worker.sendall(_write_parameters())
    while worker.recv(_READ_BYTES):
        pass


def _hash_for_an_hour(worker: socket.socket) -> None:
    worker.sendall(_SASL)
    said = worker.recv(_READ_BYTES)
    nonce = said[said.index(b"r=") + 2 :]
    first = b"r=" + nonce + b"abc,s=YWJjZGVmZ2hpamtsbW5vcA==,i=2147483647"
    worker.sendall(message(b"R", struct.pack("!I", 11) + first))
    while worker.recv(_READ_BYTES):
        pass


def _authenticate(code: int, more: bytes = b"") -> Talk:
    return _say(message(b"R", struct.pack("!I", code) + more))


_LONGEST = struct.pack("!I", _MOST)
_OF_LOGINS = {
    "hash_for_an_hour": _hash_for_an_hour,
    "cleartext": _authenticate(3),
    "md5": _authenticate(5, b"salt"),
    "gss": _authenticate(7),
    "no_password": _say(message(b"R", bytes(4)) + message(b"K", bytes(8)) + _READY),
    "endless_sasl": _repeat(message(b"R", struct.pack("!I", 11) + b"r=abc,s=abcd,i=4096")),
    "longest_login": _repeat(_PIECE, b"R" + _LONGEST),
    "endless_refusal": _repeat(_PIECE, b"E" + _LONGEST),
    "endless_notices_at_login": _repeat(message(b"N", b"SNOTICE\0M" + b"x" * 900 + b"\0\0")),
    "login_drips": _drip(_SASL),
    "silent_login": _say(b""),
    "closed_login": _say(b"", stays=False),
}
_EMPTY_ROW = message(b"D", struct.pack("!H", 60_000) + b"\xff" * 240_000)
_OF_STATEMENTS = {
    "endless_rows": _repeat(_row(b"x" * 1000), _BOUND + _columns()),
    "endless_rows_of_nothing": _repeat(_row(b"x" * 1000)),
    "large_row": _large_row(300 * 2**20),
    "largest_row": _large_row(_MOST - 100),
    "longest_row": _say(_BOUND + _columns() + b"D" + _LONGEST),
    "endless_message": _repeat(_PIECE, b"D" + _LONGEST),
    "long_tag": _say(_BOUND + _columns() + message(b"C", b"x" * 20_000_000 + b"\0") + _READY),
    "endless_notices": _repeat(message(b"N", b"SNOTICE\0C00000\0M" + b"x" * 900 + b"\0\0")),
    "long_parameters": _repeat(message(b"S", b"application_name\0" + b"x" * 50_000 + b"\0")),
    "new_parameters": _new_parameters,
    "endless_notifications": _repeat(message(b"A", bytes(4) + b"channel\0" + b"x" * 7000 + b"\0")),
    "endless_errors": _repeat(_error(b"x" * 20_000)),
    "endless_ends": _repeat(_BOUND + _columns() + message(b"C", b"SELECT 1\0")),
    "endless_ready": _repeat(_READY),
    "endless_parsed": _repeat(_BOUND),
    "long_error": _say(_error(b"x" * 60_000_000) + _READY),
    "copy_out": _repeat(message(b"d", b"x" * 1000), message(b"H", bytes(3))),
    "copy_in": _say(message(b"G", bytes(3))),
    "too_many_values": _say(_BOUND + _columns() + _row(b"a", b"b") + _END),
    "many_columns": _say(_BOUND + _columns(60_000) + _EMPTY_ROW + _END),
    "unknown_type": _say(_BOUND + _columns(oid=999_999) + _row(b"abc") + _END),
    "no_number": _say(_BOUND + _columns(oid=23) + _row(b"abc") + _END),
    "binary_values": _say(_BOUND + _columns(oid=20, form=1) + _row(b"a") + _END),
    "no_utf8": _say(_BOUND + _columns() + _row(b"\xff") + message(b"C", b"\xff\0") + _READY),
    "answer_drips": _drip(_BOUND + _columns() + _row(b"abc") + _END),
    "silent_answer": _say(b""),
    "closed_answer": _say(b"", stays=False),
}  # fmt: skip
_OF_SETTLING = {
    "settling_endless_rows": _repeat(_row(b"x" * 1000), _BOUND + _columns()),
    "settling_as_another": _say(_BOUND + _columns(3) + _row(b"a", b"b", b"c") + _END),
    "settling_without_rows": _say(_BOUND + _columns(3) + _END),
}
ALL = [
    Nonsense(name, word, talk)
    for word, talks in ((LOGIN, _OF_LOGINS), (STATEMENT, _OF_STATEMENTS), (SETTLING, _OF_SETTLING))
    for name, talk in talks.items()
]
