"""Requests for a WebSocket, and frames as bytes: also such as no client should send."""

import os
import struct

from websockets.frames import Opcode
from websockets.utils import apply_mask

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The example of RFC 6455."""


def upgrade(path: str = "/", host: str = "a", line: str = "HTTP/1.1", **headers: str | None) -> bytes:
    """A request for a WebSocket. A header that is None is left out."""
    given: dict[str, str | None] = {
        "host": host,
        "connection": "keep-alive, Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": KEY,
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join([f"GET {path} {line}", *lines, "", ""]).encode()


def frame(
    data: bytes,
    opcode: Opcode = Opcode.BINARY,
    *,
    fin: bool = True,
    masked: bool = True,
    bits: int = 0,
    announced: int | None = None,
) -> bytes:
    """A frame, of whatever length it says that it has."""
    size = len(data) if announced is None else announced
    head = bytes([(128 if fin else 0) | bits | opcode])
    mask = 128 if masked else 0
    if size < 126:
        head += bytes([mask | size])
    elif size < 65536:
        head += bytes([mask | 126]) + struct.pack(">H", size)
    else:
        head += bytes([mask | 127]) + struct.pack(">Q", size)
    if not masked:
        return head + data
    key = os.urandom(4)
    return head + key + apply_mask(data, key)
