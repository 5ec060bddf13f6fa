"""One kept connection to one of the nodes, over which a client of the workload posts JSON and reads streams.

Small, since it shares two cores with what it drives.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from tests.service import Service

_UNKNOWN = "unknown"


class Gone(Exception):
    """The connection ended, or nothing came, before there was an answer."""


class HttpClient:
    """`position` is the latest one that an answer has told, to be sent back; None where none has."""

    def __init__(self, nodes: Sequence[Service], first: int, answer_s: float) -> None:
        self._nodes = nodes
        self._at = first
        self._answer_s = answer_s
        self.told: dict[bool, str] = {}
        """The last request, and what it was answered; under True the last look at the service's health."""
        self.position: str | None = None
        self.served_by: str | None = None
        """Who gave the last answer, where that is told: the primary or a replica."""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def node(self) -> int:
        return self._at % len(self._nodes)

    @property
    def _service(self) -> Service:
        return self._nodes[self.node]

    def move_on(self) -> None:
        """Takes the next node from now on."""
        self.close()
        self._at += 1

    async def request(self, method: str, path: str, body: bytes = b"", more: str = "") -> tuple[int, dict[str, Any]]:
        status, text = await self._answer(method, path, body, more)
        return status, json.loads(text)

    async def stream(self, path: str, body: bytes, more: str) -> tuple[int, list[tuple[str, dict[str, Any]]]]:
        """The events of an answer, in either form; one event `answer` where it is plain JSON. Raises Gone where the
        stream was cut off."""
        status, text = await self._answer("POST", path, body, more)
        events = _read_events(text.decode())
        for name, data in events:
            if name == "done" and "position" in data:
                self._note_position(data["position"], carried=None)
        return status, events

    async def _answer(self, method: str, path: str, body: bytes, more: str) -> tuple[int, bytes]:
        about = path == "/health"
        self.told[about] = f"{method} {path}: no answer yet"
        try:
            async with asyncio.timeout(self._answer_s):
                status, text = await self._exchange(method, path, body, more)
        except (OSError, EOFError, TimeoutError) as exc:
            self.told[about] = f"{method} {path}: {exc!r}"
            self.close()
            raise Gone from exc
        self.told[about] = f"{method} {path}: {status} {text[:200]!r}"
        return status, text

    async def _exchange(self, method: str, path: str, body: bytes, more: str) -> tuple[int, bytes]:
        if self._streams is None:
            address = urlsplit(self._service.url)
            self._streams = await asyncio.open_connection(address.hostname, address.port, limit=1 << 22)
        reader, writer = self._streams
        carried = self.position
        sent = "" if carried is None else f"Tuplegate-Position: {carried}\r\n"
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._service.key}\r\n{sent}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        )
        writer.write(head.encode() + body)
        start = (await reader.readuntil(b"\r\n\r\n")).lower()
        text = await _read_body(reader, start)
        self.served_by = _header(start, b"tuplegate-served-by")
        if (position := _header(start, b"tuplegate-position")) is not None:
            self._note_position(position, carried)
        if b"connection: close" in start:
            self.close()
        return int(start.split(b" ", 2)[1]), text

    def _note_position(self, told: str, carried: str | None) -> None:
        """Keep the latest. An unknown one is kept until a request that carried it was answered with another."""
        if told == _UNKNOWN or self.position is None or (self.position == _UNKNOWN and carried == _UNKNOWN):
            self.position = told
        elif self.position != _UNKNOWN:
            self.position = max(self.position, told)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _header(start: bytes, name: bytes) -> str | None:
    _, found, rest = start.partition(b"\r\n%b: " % name)
    return rest.split(b"\r\n", 1)[0].decode() if found else None


async def _read_body(reader: asyncio.StreamReader, start: bytes) -> bytes:
    length = _header(start, b"content-length")
    if length is not None:
        return await reader.readexactly(int(length))
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(parts)


def _read_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    if text.startswith(("event:", ":")):
        blocks = [block for block in text.split("\n\n") if block.startswith("event: ")]
        pairs = (block.removeprefix("event: ").split("\ndata: ", 1) for block in blocks)
        return [(name, json.loads(data)) for name, data in pairs]
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line["event"], line["data"]) if "event" in line else ("answer", line) for line in lines]
