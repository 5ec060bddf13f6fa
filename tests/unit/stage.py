"""A server inside of the test, and connections to it."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from tests.waiting import eventually_async
from tuplegate.http.connection import Handler, HttpBounds
from tuplegate.http.server import HttpServer
from tuplegate.http.sharing.memory import Memory

WAIT_S = 20.0


class Line:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, bytes]:
        """Status and body."""
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), WAIT_S)
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head.split()[1]), await self._reader.readexactly(length)

    async def is_cut(self) -> bool:
        try:
            return await asyncio.wait_for(self._reader.read(1), WAIT_S) == b""
        except ConnectionResetError:
            return True


class Stage:
    """A server that listens."""

    def __init__(self, server: HttpServer, address: tuple[str, int]) -> None:
        self.server = server
        self.address = address

    async def connect(self) -> Line:
        return Line(*await asyncio.open_connection(*self.address))


@asynccontextmanager
async def serving(handler: Handler, memory: Memory) -> AsyncIterator[Stage]:
    """Until the block is left, and all connections are gone."""
    server = HttpServer(handler, HttpBounds(1000, 60.0, 60.0, 60.0, 60.0), memory)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await server.start(listening)
        try:
            yield Stage(server, listening.getsockname())
            await eventually_async(lambda: not server.connections)
        finally:
            await server.stop(WAIT_S, lambda: None)


@contextmanager
def without_collector() -> Iterator[None]:
    """What is freed meanwhile is freed because nobody holds it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
