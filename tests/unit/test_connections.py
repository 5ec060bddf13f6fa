"""HTTP connections that come and go."""

import asyncio
import gc
import socket
import weakref

import pytest
import uvloop

from querygate.http.exchange import Exchange
from querygate.http.server import HttpBounds, HttpConnection, HttpServer

_WAIT_S = 20.0


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_that_is_closed_leaves_nothing_behind(loop: type[asyncio.AbstractEventLoop]) -> None:
    """Nothing that only the garbage collector would find: a client may open one for every request."""
    seen: weakref.WeakSet[HttpConnection] = weakref.WeakSet()

    async def answer(exchange: Exchange) -> None:
        seen.add(exchange._connection)
        exchange.respond(200, b"answered")

    async def run() -> None:
        server = HttpServer(answer, HttpBounds(1000, 1000, 60.0, 60.0, 60.0, 60.0))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            await server.start(listening)
            for number in range(3):
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                writer.write(b"GET / HTTP/1.1\r\nHost: %d\r\n\r\n" % number)
                await asyncio.wait_for(reader.readuntil(b"answered"), _WAIT_S)
                assert len(seen) == 1
                writer.close()
                deadline = asyncio.get_running_loop().time() + _WAIT_S
                while seen and asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(0.001)
                assert not seen
            await server.stop(_WAIT_S, lambda: None)

    gc.disable()
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(run())
    finally:
        gc.enable()
