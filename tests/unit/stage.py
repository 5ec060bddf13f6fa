"""A server inside of the test, and connections to it."""

import asyncio
from collections.abc import Callable

WAIT_S = 20.0


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true"
        await asyncio.sleep(0.001)


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
        return await asyncio.wait_for(self._reader.read(1), WAIT_S) == b""
