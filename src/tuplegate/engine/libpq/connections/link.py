"""The bytes of a connection to a server, without libpq: for clients that speak the protocol themselves."""

import asyncio
import os
import socket
from collections import deque
from typing import Final, cast

from psycopg.pq.abc import PGconn

from tuplegate.engine.libpq.connections.tls_transport import TlsTransport

_HELD_MAX: Final = 256 * 1024
"""The bound on bytes of the server that wait to be read, and on bytes that wait to be sent to it."""


class Link(asyncio.Protocol):
    """A connection that libpq has opened. `read` and `write` are for one coroutine each."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_behind = False
        self.is_lost = False

    @classmethod
    async def open(cls, pgconn: PGconn) -> "Link":
        """Take over the connection; libpq must only cancel on it and close it from now on. Raises NoAccess if it uses
        TLS whose state cannot be reached."""
        if pgconn.ssl_in_use:
            link = cls()
            TlsTransport(pgconn, link)
            return link
        return await cls._open_plain(pgconn.socket)

    @classmethod
    async def _open_plain(cls, descriptor: int) -> "Link":
        sock = socket.socket(fileno=os.dup(descriptor))
        loop = asyncio.get_running_loop()
        try:
            sock.setblocking(False)
            create = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
            _, link = await create(cls, sock=sock)
        except BaseException:
            sock.close()
            raise
        return link

    async def read(self) -> bytes:
        """Return the data that have arrived, at least a byte; nothing at the end."""
        while not self._pieces:
            if self.is_lost:
                return b""
            self._reader = self._loop.create_future()
            await self._reader
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._held > _HELD_MAX and not self.is_lost:
            self._transport.resume_reading()
        self._held = 0
        return data

    async def write(self, data: bytes) -> None:
        """Write, and wait while the server does not take the data. Writes to a lost connection are dropped."""
        if self.is_lost:
            return
        self._transport.write(data)
        if self._is_behind:
            self._writer = self._loop.create_future()
            await self._writer

    def close(self) -> None:
        if not self.is_lost:
            self._transport.abort()

    # -- the transport --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HELD_MAX)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        before, self._held = self._held, self._held + len(data)
        if before <= _HELD_MAX < self._held:
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        _wake(self._reader)
        _wake(self._writer)

    def pause_writing(self) -> None:
        self._is_behind = True

    def resume_writing(self) -> None:
        self._is_behind = False
        _wake(self._writer)


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
