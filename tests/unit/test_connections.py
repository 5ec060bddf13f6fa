"""HTTP connections that come and go."""

import asyncio
import socket
import weakref

import pytest
import uvloop

from tests.unit.stage import WAIT_S, Line, serving, without_collector
from tests.waiting import eventually_async
from tuplegate.http.connection import HttpBounds, HttpConnection
from tuplegate.http.errors import respond_error
from tuplegate.http.exchange import Exchange
from tuplegate.http.server import HttpServer
from tuplegate.http.sharing.memory import Memory
from tuplegate.protocol.errors import ServiceError


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_that_is_closed_leaves_nothing_behind(loop: type[asyncio.AbstractEventLoop]) -> None:
    """Nothing that only the garbage collector would find: a client may open one for every request."""
    seen: weakref.WeakSet[HttpConnection] = weakref.WeakSet()

    async def run() -> None:
        async def answer(exchange: Exchange) -> None:
            seen.update(stage.server.connections)
            exchange.respond(200, b"answered")

        async with serving(answer, Memory(2**20)) as stage:
            for number in range(3):
                client = await stage.connect()
                client.writer.write(b"GET / HTTP/1.1\r\nHost: %d\r\n\r\n" % number)
                assert await client.answer() == (200, b"answered")
                assert len(seen) == 1
                client.writer.close()
                await eventually_async(lambda: not seen)

    with without_collector(), asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


def test_a_stop_does_not_wait_for_bodies() -> None:
    """A request whose body is still coming is told at once that it was not run; one that runs is waited for."""

    async def run() -> None:
        running = asyncio.Event()
        gate = asyncio.get_running_loop().create_future()

        async def answer(exchange: Exchange) -> None:
            try:
                if exchange.incoming is not None:
                    await exchange.incoming.collect(exchange.outgoing.owner, 100)
                running.set()
                await gate
                exchange.respond(200, b"answered")
            except ServiceError as error:
                respond_error(exchange, error)

        server = HttpServer(answer, HttpBounds(1000, 60.0, 60.0, 60.0, 60.0), Memory(2**20))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            await server.start(listening)
            late, runs = [Line(*await asyncio.open_connection(*listening.getsockname())) for _ in range(2)]
            late.writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")
            runs.writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.wait_for(running.wait(), WAIT_S)
            await eventually_async(lambda: server.running == 2)
            stopping = asyncio.create_task(server.stop(2 * WAIT_S, lambda: None))
            status, body = await late.answer()
            assert status == 503
            assert b"shutting_down" in body
            assert not stopping.done()
            gate.set_result(None)
            assert await runs.answer() == (200, b"answered")
            await asyncio.wait_for(stopping, WAIT_S)
            for client in (late, runs):
                client.writer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_that_is_left_in_the_middle_of_a_body_leaves_nothing_behind(
    loop: type[asyncio.AbstractEventLoop],
) -> None:
    """What its request was told of it knows of nobody."""
    seen: weakref.WeakSet[HttpConnection] = weakref.WeakSet()

    async def run() -> None:
        async def answer(exchange: Exchange) -> None:
            seen.update(stage.server.connections)
            assert exchange.incoming is not None
            try:
                await exchange.incoming.collect("one", 1000)
            except ServiceError:
                exchange.respond(400, b"left")

        async with serving(answer, Memory(2**20)) as stage:
            client = await stage.connect()
            client.writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc")
            await eventually_async(lambda: bool(seen))
            client.writer.close()
            await eventually_async(lambda: not seen)

    with without_collector(), asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
