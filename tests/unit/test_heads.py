"""Heads that came before: one for all connections of a server, for as long as one of them is open."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.unit.stage import WAIT_S, Line, until
from tuplegate.http.exchange import Exchange
from tuplegate.http.heads import Reading
from tuplegate.http.server import HttpBounds, HttpServer

_BODY_MAX = 1000


class Stage:
    """A server that answers everything, and says whether it knew the head; a POST waits until it is `let_go`."""

    def __init__(self) -> None:
        self.server = HttpServer(self._answer, HttpBounds(_BODY_MAX, 1000, 60.0, 60.0, 60.0, 60.0))
        self.let_go: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writers: list[asyncio.StreamWriter] = []

    async def _answer(self, exchange: Exchange) -> None:
        if exchange.method == "POST":
            await self.let_go
        exchange.respond(200, b"known" if exchange.head is not None else b"is new")

    async def __aenter__(self) -> "Stage":
        self._socket = socket.create_server(("127.0.0.1", 0))
        await self.server.start(self._socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        await self.server.stop(WAIT_S, lambda: None)
        self._socket.close()

    async def client(self) -> "Client":
        reader, writer = await asyncio.open_connection(*self._socket.getsockname())
        self._writers.append(writer)
        return Client(reader, writer)

    async def connections_are(self, count: int) -> None:
        await until(lambda: len(self.server.connections) == count)


class Client(Line):
    async def knows(self, token: str) -> bool:
        """Whether the server knew the head of a request with this token."""
        self.writer.write(f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        return await self.was_known()

    async def was_known(self) -> bool:
        return await self.answer() == (200, b"known")


def on_stage(play: Callable[[Stage], Awaitable[None]]) -> None:
    """Nothing may fail behind the scenes either."""
    failures: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
        async with Stage() as stage:
            await play(stage)

    asyncio.run(run())
    assert failures == []


def test_what_one_connection_has_read_another_need_not() -> None:
    async def play(stage: Stage) -> None:
        one, another = await stage.client(), await stage.client()
        assert [await one.knows("a"), await one.knows("a")] == [False, True]
        assert await another.knows("a")
        assert not await another.knows("b")
        assert await one.knows("b")
        assert len(stage.server.heads) == 2

    on_stage(play)


def test_it_goes_with_the_last_connection_that_has_sent_it() -> None:
    """And so does the token in it."""

    async def play(stage: Stage) -> None:
        one, another, third = [await stage.client() for _ in range(3)]
        assert [await one.knows("a"), await another.knows("a"), await another.knows("b")] == [False, True, False]
        one.writer.close()
        await stage.connections_are(2)
        assert await another.knows("a")
        another.writer.close()
        await stage.connections_are(1)
        assert len(stage.server.heads) == 0
        assert not await third.knows("a")

    on_stage(play)


def test_a_connection_holds_a_few() -> None:
    """Whoever sends another head each time fills no memory with them."""

    async def play(stage: Stage) -> None:
        one, another = await stage.client(), await stage.client()
        assert not any([await one.knows(f"token {number}") for number in range(20)])
        held = len(stage.server.heads)
        assert held == 8
        assert await another.knows("token 0")
        one.writer.close()
        await stage.connections_are(1)
        assert len(stage.server.heads) == 1
        assert not await another.knows("token 1")

    on_stage(play)


def test_one_that_holds_no_more_uses_what_others_hold() -> None:
    async def play(stage: Stage) -> None:
        one, another = await stage.client(), await stage.client()
        for number in range(8):
            await one.knows(f"token {number}")
        assert not await another.knows("other")
        assert [await one.knows("other"), await one.knows("token 3"), await one.knows("other")] == [True] * 3
        another.writer.close()
        await stage.connections_are(1)
        assert len(stage.server.heads) == 8
        assert await one.knows("other"), "it was its last"
        assert [await one.knows("token 3"), await one.knows("other")] == [True, False]

    on_stage(play)


def test_one_that_is_read_again_is_still_one() -> None:
    """What comes while another request runs is read by the parser, also if its head came before. Whoever goes first
    takes nothing from the others."""
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"

    async def play(stage: Stage) -> None:
        one, another = await stage.client(), await stage.client()
        one.writer.write(request)
        await until(lambda: len(stage.server.heads) == 1)
        another.writer.write(request)
        await until(lambda: stage.server.running == 2)
        another.writer.write(request)
        await until(lambda: any(connection._waiting for connection in stage.server.connections))
        assert len(stage.server.heads) == 1
        stage.let_go.set_result(None)
        assert not await one.was_known()
        assert [await another.was_known(), await another.was_known()] == [True, False]
        one.writer.close()
        await stage.connections_are(1)
        assert len(stage.server.heads) == 1
        another.writer.close()
        await stage.connections_are(0)
        assert len(stage.server.heads) == 0

    on_stage(play)


def test_a_large_one_is_not_held() -> None:
    async def play(stage: Stage) -> None:
        one = await stage.client()
        assert not any([await one.knows("a" * 9000) for _ in range(2)])
        assert len(stage.server.heads) == 0

    on_stage(play)


@pytest.mark.parametrize("body", [b"", b"12345"])
def test_a_head_that_the_server_makes_up_is_never_known(body: bytes) -> None:
    """Behind an offer of another protocol the parser is started anew with one. Here the offer, which is one without a
    header that says so, comes behind another request: what is made up then looks like a piece of its own."""
    length = b"content-length: %d\r\n" % len(body) if body else b""
    offer = b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\nAuthorization: x\r\n" + length + b"\r\n" + body

    async def play(stage: Stage) -> None:
        one, another = await stage.client(), await stage.client()
        stage.let_go.set_result(None)
        one.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + offer)
        assert not any([await one.was_known(), await one.was_known()])
        assert len(stage.server.heads) == 0
        another.writer.write(b"POST / HTTP/1.1\r\nhost: -\r\n" + length + b"\r\n" + body)
        assert not await another.was_known()

    on_stage(play)


@pytest.mark.parametrize("end", [b"UN", b"LOCK / HTTP/1.1\r\nContent-Length: 100\r\nX: "])
def test_the_rest_of_a_body_that_is_too_large_is_part_of_no_head(end: bytes) -> None:
    """It is refused before it has come, and what follows it would look like the first of its piece. Were its end taken
    for the beginning of a head, it could hide how long a request is from whoever sends the same bytes."""
    large = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (_BODY_MAX + len(end))

    async def play(stage: Stage) -> None:
        one = await stage.client()
        one.writer.write(large + b"x" * _BODY_MAX)
        await until(lambda: stage.server.running == 1)
        one.writer.write(end + b"LOCK / HTTP/1.1\r\nHost: x\r\n\r\n")
        connection = next(iter(stage.server.connections))
        await until(lambda: bool(connection._waiting))
        assert len(stage.server.heads) == 0
        stage.let_go.set_result(None)

    on_stage(play)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: x",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n",
        b"no request\r\n\r\n",
    ],
)
def test_what_cannot_be_known(raw: bytes) -> None:
    assert not Reading(raw).is_plain


def test_what_can() -> None:
    alone = Reading(b"POST /a?b HTTP/1.1\r\nHost: x\r\nX: 1\r\ncontent-length: 4\r\nx: 2\r\n\r\n")
    assert alone.is_plain
    assert (alone.method, alone.target, alone.length) == ("POST", b"/a?b", b"4")
    assert alone.headers == {b"host": b"x", b"x": b"1, 2", b"content-length": b"4"}
