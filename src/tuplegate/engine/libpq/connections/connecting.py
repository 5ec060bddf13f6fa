"""Connects through libpq, and cancels over a separate connection, without blocking the event loop."""

import asyncio
import time
from typing import Final

from psycopg import OperationalError, pq
from psycopg.pq.abc import PGconn

from tuplegate.engine.libpq.connections.commands import ConnectionLost, LoginRefused

# As plain numbers: comparing with a member of an enumeration takes three times as long.
_BAD: Final = int(pq.ConnStatus.BAD)
_READING: Final = int(pq.PollingStatus.READING)
_WRITING: Final = int(pq.PollingStatus.WRITING)
_CUT_OFF: Final = ("server closed the connection", "could not receive data", "could not send data")
"""Words of libpq's own for a connection that has ended. A server that refuses a login gives a reason instead."""


_LOGIN_S: Final = 0.5
"""The bound on the processor time of a login: a hostile server sends messages without an end."""


async def finish_connecting(pgconn: PGconn, loop: asyncio.AbstractEventLoop) -> None:
    step = _WRITING  # a connection that is not there yet would be waited for within the first look at it
    left_s = _LOGIN_S
    while left_s > 0:
        if pgconn.status == _BAD:
            raise ConnectionLost(join_lines(pgconn.get_error_message()))
        await wait_ready(loop, pgconn.socket, reading=step == _READING)
        began = time.thread_time()
        step = pgconn.connect_poll()
        left_s -= time.thread_time() - began
        if step == pq.PollingStatus.OK:
            return
        if step == pq.PollingStatus.FAILED:
            said = join_lines(pgconn.get_error_message())
            is_refused = pgconn.used_password and not any(words in said for words in _CUT_OFF)
            raise LoginRefused(said) if is_refused else ConnectionLost(said)
    raise ConnectionLost("the engine's login takes too long to read")


async def cancel(pgconn: PGconn, loop: asyncio.AbstractEventLoop) -> None:
    """Ask the server to cancel the statement of a connection; return when the server has received that."""
    canceller = pgconn.cancel_conn()
    try:
        canceller.start()
        step = _WRITING
        while step in (_READING, _WRITING):
            await wait_ready(loop, canceller.socket, reading=step == _READING)
            step = canceller.poll()
    except OperationalError:  # a server that cannot be reached has nothing left to cancel
        pass
    finally:
        canceller.finish()


async def wait_ready(loop: asyncio.AbstractEventLoop, fd: int, *, reading: bool) -> None:
    """Wait until a file can be read, or written to."""
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    add, remove = (loop.add_reader, loop.remove_reader) if reading else (loop.add_writer, loop.remove_writer)
    add(fd, wake)
    try:
        await future
    finally:
        remove(fd)


def join_lines(text: str) -> str:
    return " ".join(text.split())
