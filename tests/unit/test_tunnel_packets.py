"""What a tunnel reads and writes at the start of a connection, however the bytes are cut."""

import struct

import pytest

from tuplegate.cli.tunnel.packets import (
    CANCEL,
    GSS,
    SSL,
    ClientStart,
    NotPostgres,
    ServiceStart,
    make_startup,
    read_error,
    write_error,
    write_message,
    write_startup,
)

STARTUP = make_startup({b"user": b"me", b"database": b"mine", b"application_name": b"x"})
ASKED = struct.pack("!cii", b"R", 8, 3)
ALLOWED = struct.pack("!cii", b"R", 8, 0)


def request(code: int) -> bytes:
    return struct.pack("!ii", 8, code)


def test_a_start_is_read_byte_by_byte() -> None:
    data = request(SSL) + request(GSS) + STARTUP
    start = ClientStart()
    whole = [start.take(data[at : at + 1]) for at in range(len(data))]
    assert whole == [False] * (len(data) - 1) + [True]
    assert (start.answers, start.first, start.rest, start.cancels) == ([b"N", b"N"], STARTUP, b"", False)


def test_what_follows_the_start_is_kept() -> None:
    start = ClientStart()
    assert start.take(STARTUP + b"more")
    assert (start.first, start.rest) == (STARTUP, b"more")


def test_a_cancel_request_is_recognized() -> None:
    start = ClientStart()
    assert start.take(struct.pack("!iiii", 16, CANCEL, 1, 2))
    assert start.cancels


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack("!ii", 7, 0), struct.pack("!ii", -1, 0), b"\x16\x03\x01\x02\0\0\0\0"],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(NotPostgres):
        ClientStart().take(data)


def test_the_key_follows_the_start() -> None:
    password = write_message(b"p", b"svc_k_1\0")
    assert write_startup(STARTUP, "svc_k_1", None) == STARTUP + password
    changed = make_startup({b"user": b"me", b"database": b"other", b"application_name": b"x"})
    assert write_startup(STARTUP, "svc_k_1", "other") == changed + password
    added = make_startup({b"user": b"me", b"database": b"other"}, 196610)
    assert write_startup(make_startup({b"user": b"me"}, 196610), "svc_k_1", "other") == added + password


def test_the_question_for_a_password_is_left_out() -> None:
    negotiated = write_message(b"v", bytes(8))
    data = negotiated + ASKED + ALLOWED + b"S\0\0\0\x06ab"
    for size in (1, 3, 9, 100):
        start = ServiceStart()
        passed = b"".join(start.take(data[at : at + size]) for at in range(0, len(data), size))
        assert passed == negotiated + ALLOWED + b"S\0\0\0\x06ab"


def test_a_refusal_passes() -> None:
    refused = write_error("no such key", "28P01")
    assert ServiceStart().take(refused) == refused
    assert read_error(refused) == ("28P01", "no such key")
    start = ServiceStart()
    assert start.take(b"what is this") == b"what is this"
    assert start.take(ASKED) == ASKED
