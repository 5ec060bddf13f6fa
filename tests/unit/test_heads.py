"""Heads that came before: one for all connections of a server, for as long as one of them is open."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from querygate.http.exchange import Exchange
from querygate.http.server import HttpBounds, HttpServer

_WAIT_S = 20.0


class Stage:
    """A server that answers everything, and says whether it knew the head."""

    def __init__(self) -> None:
        self.server = HttpServer(self._answer, HttpBounds(1000, 1000, 60.0, 60.0, 60.0, 60.0))
        self._writers: list[asyncio.StreamWriter] = []

    async def _answer(self, exchange: Exchange) -> None:
        exchange.respond(200, b"known" if exchange.head is not None else b"is new")

    async def __aenter__(self) -> "Stage":
        self._socket = socket.create_server(("127.0.0.1", 0))
        await self.server.start(self._socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        await self.server.stop(_WAIT_S, lambda: None)
        self._socket.close()

    async def client(self) -> "Client":
        reader, writer = await asyncio.open_connection(*self._socket.getsockname())
        self._writers.append(writer)
        return Client(reader, writer)

    async def connections_are(self, count: int) -> None:
        deadline = asyncio.get_running_loop().time() + _WAIT_S
        while len(self.server.connections) != count:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.001)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def knows(self, token: str, header: str = "Authorization") -> bool:
        """Whether the server knew the head of a request with this token."""
        self.writer.write(f"GET / HTTP/1.1\r\nHost: x\r\n{header}: Bearer {token}\r\n\r\n".encode())
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), _WAIT_S)
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        return await self._reader.readexactly(length) == b"known"


def on_stage(play: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Stage() as stage:
            await play(stage)

    asyncio.run(run())


def test_what_one_connection_has_read_another_need_not() -> None:
    async def play(stage: Stage) -> None:
        one, another = await stage.client(), await stage.client()
        assert [await one.knows("a"), await one.knows("a")] == [False, True]
        assert await another.knows("a")
        assert not await another.knows("b")
        assert await one.knows("b")
        assert len(stage.server.heads) == 2

    on_stage(play)


def test_one_without_a_token_is_read_every_time() -> None:
    """What somebody unknown makes of a head is nobody else's."""

    async def play(stage: Stage) -> None:
        one, another = await stage.client(), await stage.client()
        assert not any([await client.knows("a", "X-Other") for client in (one, one, another)])
        assert len(stage.server.heads) == 0

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
