"""A login is refused only where the server says so; one that is cut off is lost, and says nothing of the password."""

import asyncio

import pytest

from tuplegate.engine.libpq.connections.commands import ConnectionLost, LoginRefused
from tuplegate.engine.libpq.connections.connection import Connection

_ASK_PASSWORD = b"R\0\0\0\x08\0\0\0\x03"
_REFUSAL = b"SFATAL\0VFATAL\0C28P01\0Mno\0\0"


async def _log_in(answer: bytes | None) -> None:
    """Log in to a server that gives this answer to the password, and ends the connection; None resets it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(_ASK_PASSWORD)
        await reader.read(1024)
        if answer is None:
            writer.transport.abort()
        else:
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        place = f"host=127.0.0.1 port={port} sslmode=disable gssencmode=disable"
        await Connection.open(f"{place} user=u password=p dbname=d", 10)


def test_a_password_that_the_server_does_not_take() -> None:
    with pytest.raises(LoginRefused):
        asyncio.run(_log_in(b"E" + (4 + len(_REFUSAL)).to_bytes(4, "big") + _REFUSAL))


@pytest.mark.parametrize("answer", [b"", None])
def test_a_connection_that_ends_behind_the_password(answer: bytes | None) -> None:
    with pytest.raises(ConnectionLost) as lost:
        asyncio.run(_log_in(answer))
    assert not isinstance(lost.value, LoginRefused), lost.value
