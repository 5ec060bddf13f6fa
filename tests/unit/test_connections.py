"""HTTP connections that come and go."""

import asyncio
import gc
import socket
import weakref

import pytest
import uvloop

from tests.unit.stage import WAIT_S, Line, until
from tuplegate.http.connection import HttpBounds, HttpConnection
from tuplegate.http.exchange import Exchange
from tuplegate.http.memory import Memory
from tuplegate.http.server import HttpServer


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_that_is_closed_leaves_nothing_behind(loop: type[asyncio.AbstractEventLoop]) -> None:
    """Nothing that only the garbage collector would find: a client may open one for every request."""
    seen: weakref.WeakSet[HttpConnection] = weakref.WeakSet()

    async def run() -> None:
        async def answer(exchange: Exchange) -> None:
            seen.update(server.connections)
            exchange.respond(200, b"answered")

        server = HttpServer(answer, HttpBounds(1000, 60.0, 60.0, 60.0, 60.0), Memory(2**20))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            await server.start(listening)
            for number in range(3):
                client = Line(*await asyncio.open_connection(*listening.getsockname()))
                client.writer.write(b"GET / HTTP/1.1\r\nHost: %d\r\n\r\n" % number)
                assert await client.answer() == (200, b"answered")
                assert len(seen) == 1
                client.writer.close()
                await until(lambda: not seen)
            await server.stop(WAIT_S, lambda: None)

    gc.disable()
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(run())
    finally:
        gc.enable()
