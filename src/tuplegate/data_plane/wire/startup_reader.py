"""Reads the messages of a client before its key is accepted."""

import struct
from typing import Final

from tuplegate.data_plane.wire.messages import ASK_PASSWORD, NO, PASSWORD, WireError, write_negotiation
from tuplegate.data_plane.wire.startup import (
    PACKET_MAX,
    PASSWORD_MAX,
    AskEncryption,
    CancelRequest,
    Startup,
    check_length,
    read_packet,
)
from tuplegate.http.exchange import ClientGone
from tuplegate.http.websocket import WebSocketConnection

_ASKS_MAX: Final = 2
"""How often a client may ask for encryption: once for each kind."""


class StartupReader:
    """Reads a client's start, in frames of any size."""

    def __init__(self, websocket: WebSocketConnection) -> None:
        self._websocket = websocket
        self._buffer = b""

    async def read_first(self) -> CancelRequest | Startup:
        """Return the client's first packet that does not ask for encryption. Answer such requests with no: there is
        none here."""
        for _ in range(_ASKS_MAX + 1):
            length = struct.unpack(">i", await self._take(4))[0]
            packet = read_packet(await self._take(check_length(length, 8, PACKET_MAX, "the start-up packet") - 4))
            if not isinstance(packet, AskEncryption):
                return packet
            await self._websocket.send(NO)
        raise WireError("08P01", "encryption was asked for again and again; there is none inside of a WebSocket")

    async def ask_password(self, startup: Startup) -> bytes:
        negotiation = write_negotiation(startup.unknown) if startup.must_negotiate else b""
        await self._websocket.send(negotiation + ASK_PASSWORD)
        kind, length = struct.unpack(">Bi", await self._take(5))
        if kind != PASSWORD:
            raise WireError("08P01", f"a message with the password was expected, not one of type {chr(kind)!r}")
        body = await self._take(check_length(length, 5, PASSWORD_MAX, "the message with the password") - 4)
        return body.rstrip(b"\0")

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = await self._websocket.receive()
            if not data:
                raise ClientGone
            self._buffer += data
            self._websocket.hold(len(self._buffer))
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        self._websocket.hold(len(self._buffer))
        return taken

    def take_rest(self) -> bytes:
        rest, self._buffer = self._buffer, b""
        return rest
