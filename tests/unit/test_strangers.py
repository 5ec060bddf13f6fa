"""What clients without a key can hold is little, and is taken from them when others want it."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.unit.stage import Line, Stage, serving
from tests.waiting import eventually_async
from tuplegate.http.connection import HttpConnection
from tuplegate.http.errors import respond_error
from tuplegate.http.exchange import ClientGone, Exchange
from tuplegate.http.sharing.memory import Memory
from tuplegate.protocol.errors import ServiceError

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
PIECE = 16 * 1024
HEAD_MAX = 1024


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


async def connect_deaf(stage: Stage, data: bytes) -> Line:
    """Send the data, and take nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(stage.address)
    client = Line(*await asyncio.open_connection(sock=sock, limit=1))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.writer.write(data)
    return client


def unsent(connection: HttpConnection) -> int:
    return connection._transport.get_write_buffer_size()


@pytest.mark.parametrize("size", [1000, 40_000])
def test_no_request_is_begun_while_a_stranger_has_not_taken_the_last_answer(size: int) -> None:
    """However many it has sent: one answer waits for it, beside what the kernel has taken."""
    begun = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal begun
        begun += 1
        exchange.respond(200, bytes(size))

    async def test() -> None:
        memory = Memory(2**24)
        async with serving(answer, memory) as stage:
            client = await connect_deaf(stage, 20_000 * GET)
            await eventually_async(lambda: any(unsent(each) for each in stage.server.connections))
            [connection] = stage.server.connections
            then = begun
            for _ in range(100):
                await asyncio.sleep(0)
                assert 0 < unsent(connection) <= size + HEAD_MAX
            assert begun == then
            client.writer.transport.abort()

    run(test)


def test_an_answer_that_all_share_is_held_by_the_piece() -> None:
    """Whoever does not take it holds one piece, and whoever does gets all of it."""
    shared = bytes(range(256)) * 2**15

    async def answer(exchange: Exchange) -> None:
        try:
            await exchange.respond_in_pieces(shared)
        except ClientGone:
            pass

    async def test() -> None:
        memory = Memory(2**24)
        async with serving(answer, memory) as stage:
            deaf = [await connect_deaf(stage, 3 * GET) for _ in range(20)]
            await eventually_async(lambda: sum(unsent(each) > 0 for each in stage.server.connections) == len(deaf))
            assert max(unsent(each) for each in stage.server.connections) <= PIECE + HEAD_MAX
            assert memory.used <= len(deaf) * (PIECE + HEAD_MAX)
            client = await stage.connect()
            client.writer.write(2 * GET)
            for _ in range(2):
                assert await client.answer() == (200, shared)
            for each in (client, *deaf):
                each.writer.transport.abort()
            await eventually_async(lambda: memory.used == 0)

    run(test)


@pytest.mark.parametrize("full", [False, True], ids=["strangers hold their part", "organizations hold everything"])
def test_a_stranger_gets_room_from_those_who_have_held_it_longest(full: bool) -> None:
    """And those are closed, in their order."""

    begun = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal begun
        begun += 1
        try:
            assert exchange.incoming is not None
            await exchange.incoming.collect(exchange.outgoing.owner, 2**16)
        except ServiceError as error:
            respond_error(exchange, error)
        else:
            exchange.respond(200, b"answered")

    async def test() -> None:
        memory = Memory(2**22)
        if full:
            for owner in "abcd":
                memory.charge(owner, 2**20)
        async with serving(answer, memory) as stage:
            holding: list[Line] = []
            for number in range(60):
                holding.append(await stage.connect())
                holding[-1].writer.write(POST % 50_000 + bytes(40_000))
                await eventually_async(lambda number=number: begun > number)  # type: ignore[misc]
            newcomer = await stage.connect()
            newcomer.writer.write(POST % 10)
            await eventually_async(lambda: begun > len(holding))
            newcomer.writer.write(bytes(10))
            assert await newcomer.answer() == (200, b"answered")
            held = memory.used - (2**22 if full else 0)
            assert held <= (2**16 if full else 2**20)
            assert [await each.is_cut() for each in holding[:10]] == 10 * [True]
            holding[-1].writer.write(bytes(10_000))
            assert full or await holding[-1].answer() == (200, b"answered")
            for each in (newcomer, *holding):
                each.writer.transport.abort()

    run(test)
