"""A head that came before, byte for byte, is not read again: what follows from it must be the same all the same."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service import Service
from tests.wire import Wire


@pytest.fixture
def wire(service: Service) -> Iterator[Wire]:
    opened = Wire(service)
    yield opened
    opened.socket.close()


def body_of(number: int) -> bytes:
    return b'{"sql": "select %04d as n"}' % number


def rows(answer: tuple[int, dict[str, Any]]) -> Any:
    assert answer[0] == 200, answer
    return answer[1]["rows"]


def test_the_same_head_with_other_bodies(wire: Wire) -> None:
    """Each body is the one that was sent; request ids differ."""
    for number in range(20):
        wire.send(wire.head(len(body_of(number))) + body_of(number))
        assert rows(wire.answer()) == [{"n": number}]


def test_a_known_head_in_pieces(wire: Wire) -> None:
    """It may come cut anywhere, also within its body, and together with the next one."""
    whole = wire.head(len(body_of(1))) + body_of(1)
    wire.send(whole)
    assert rows(wire.answer()) == [{"n": 1}]
    for cut in (1, 20, len(whole) - 5, whole.index(b"\r\n\r\n") + 2, whole.index(b"\r\n\r\n") + 4):
        wire.send(whole[:cut])
        assert wire.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        wire.send(whole[cut:])
        assert rows(wire.answer()) == [{"n": 1}]
    wire.send(whole + whole[:30])
    assert rows(wire.answer()) == [{"n": 1}]
    wire.send(whole[30:])
    assert rows(wire.answer()) == [{"n": 1}]


def test_another_length_is_another_head(wire: Wire) -> None:
    """A body that is longer or shorter than the head says is never taken for a whole one."""
    short, long = b'{"sql": "select 1 as n"}', b'{"sql": "select 1 as n, 2 as m"}'
    for _ in range(2):
        wire.send(wire.head(len(short)) + short)
        assert rows(wire.answer()) == [{"n": 1}]
        wire.send(wire.head(len(long)) + long)
        assert rows(wire.answer()) == [{"n": 1, "m": 2}]


def test_a_body_with_an_empty_line_in_it(wire: Wire) -> None:
    """The head ends at the first one."""
    body = b'{"sql":\r\n\r\n"select 7 as n"}'
    for _ in range(3):
        wire.send(wire.head(len(body)) + body)
        assert rows(wire.answer()) == [{"n": 7}]


def test_heads_that_say_how_to_read_are_read_every_time(wire: Wire) -> None:
    """Chunks, and a client that waits for leave to send its body."""
    body = body_of(5)
    chunked = wire.head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    for _ in range(3):
        wire.send(chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert rows(wire.answer()) == [{"n": 5}]
    wire.send(wire.head(len(body), "Expect: 100-continue"))
    assert wire.socket.recv(100).startswith(b"HTTP/1.1 100 ")
    wire.send(body)
    assert rows(wire.answer()) == [{"n": 5}]


def test_a_head_that_closes_the_connection_closes_it(wire: Wire) -> None:
    """Also after the same request without that wish."""
    body = body_of(3)
    wire.send(wire.head(len(body)) + body)
    assert rows(wire.answer()) == [{"n": 3}]
    wire.send(wire.head(len(body), "Connection: close") + body)
    assert rows(wire.answer()) == [{"n": 3}]
    assert wire.socket.recv(100) == b""


def test_known_headers_behind_another_first_line(wire: Wire) -> None:
    """They are read once, and mean something else behind another version of HTTP."""
    whole = wire.head(len(body_of(4))) + body_of(4)
    for _ in range(2):
        wire.send(whole)
        assert rows(wire.answer()) == [{"n": 4}]
        for path in (b"/v1/%71uery", b"/%761/query"):
            wire.send(whole.replace(b"/v1/query", path, 1))
            assert rows(wire.answer()) == [{"n": 4}]
        wire.send(whole.replace(b"/v1/query", b"/v1/elsewhere", 1))
        assert wire.answer()[0] == 404
    wire.send(whole.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert rows(wire.answer()) == [{"n": 4}]
    assert wire.socket.recv(100) == b""


def test_a_key_that_is_revoked_meanwhile(service: Service, wire: Wire) -> None:
    """What is remembered of a head is how it reads, not what it may."""
    headers = {"Authorization": f"Bearer {service.key}"}

    with httpx.Client(
        base_url=service.control_url, headers=headers, trust_env=False, verify=False, timeout=60
    ) as control:
        made = control.post("/v1/keys", json={"name": "short-lived", "scopes": ["read"]}).json()
        wire.key = made["key"]
        whole = wire.head(len(body_of(1))) + body_of(1)
        for _ in range(3):
            wire.send(whole)
            assert rows(wire.answer()) == [{"n": 1}]
        assert control.delete(f"/v1/keys/{made['id']}").status_code == 200
        wire.send(whole)
        status = wire.answer()[0]
        while status == 200:  # until the worker has heard of it, which the tests of revocation bound
            wire.send(whole)
            status = wire.answer()[0]
        assert status == 401


def test_the_end_of_a_request_is_no_head(wire: Wire) -> None:
    """It begins behind another request in the same piece; what follows looks like a request, and is part of it."""
    for first in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", wire.head(len(body_of(1))) + body_of(1)):
        wire.send(first + b"POST /v1/query HTTP/1.1\r\nAuthorization: Bearer " + wire.key.encode() + b"\r\nX: ")
        assert wire.answer()[0] == 200
        rest = b"POST /v1/elsewhere HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body_of(2)) + body_of(2)
        wire.send(rest)
        assert rows(wire.answer()) == [{"n": 2}]
        for _ in range(2):
            wire.send(rest)
            assert wire.answer()[0] == 404


def test_an_offer_of_another_protocol_is_not_taken_for_a_known_head(wire: Wire) -> None:
    """The parser is started anew behind it, with a head that the service makes up: a client may have sent that one."""
    for length in (b"", b"content-length: %d\r\n" % len(body_of(1))):
        wire.send(b"POST / HTTP/1.1\r\nhost: -\r\n" + length + b"\r\n" + (body_of(1) if length else b""))
        assert wire.answer()[0] == 405
    offer = ("Connection: Upgrade", "Upgrade: h2c")
    for number in range(3):
        wire.send(wire.head(len(body_of(number)), *offer) + body_of(number))
        assert rows(wire.answer()) == [{"n": number}]
        wire.send(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert wire.answer()[1]["status"] == "ok"
        wire.send(wire.head(len(body_of(number))) + body_of(number))
        assert rows(wire.answer()) == [{"n": number}]
