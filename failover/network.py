"""The network between what uses the cluster and its nodes: a gate before each node, which can be harmed.

Bytes go on in their order or not at all. The gates run in a thread of their own; the methods may be called from any.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, by which closing a connection resets it."""


class Mode(Enum):
    OPEN = "open"
    SILENT = "silent"
    """Nothing passes, in either direction, and nobody hears of an end. What waits goes on later."""
    HALF_OPEN = "half-open"
    """What is sent to the node arrives. Answers are lost, and nobody hears of an end; later these connections are
    reset."""


class Network:
    """`with` opens a gate for each of the ports; `entries` are the ports of the gates, in the same order."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._gates: list[_Gate] = []

    @property
    def entries(self) -> list[int]:
        return [gate.port for gate in self._gates]

    def __enter__(self) -> "Network":
        self._thread.start()
        for port in self._ports:
            gate = _Gate(port)
            asyncio.run_coroutine_threadsafe(gate.open(), self._loop).result()
            self._gates.append(gate)
        return self

    def __exit__(self, *exc: object) -> None:
        self._do(_Gate.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set_mode(self, mode: Mode) -> None:
        self._do(lambda gate: gate.set_mode(mode))

    def set_delay(self, seconds: float) -> None:
        """Let whatever comes from now on take that much longer, each way."""
        self._do(lambda gate: gate.set_delay(seconds))

    def reset(self) -> None:
        """Reset all connections."""
        self._do(_Gate.reset)

    def _do(self, work: "Callable[[_Gate], None]") -> None:
        async def run() -> None:
            for gate in self._gates:
                work(gate)

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()


class _Gate:
    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.mode = Mode.OPEN
        self.delay_s = 0.0
        self.links: set[_Link] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Link(self).near, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.reset()

    def reset(self) -> None:
        for link in list(self.links):
            link.reset()

    def set_delay(self, seconds: float) -> None:
        self.delay_s = seconds

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode
        for link in list(self.links):
            link.follow(mode)


class _End(asyncio.Protocol):
    """One end of a link; `peer` is the other. What is on its way to the peer waits in `_queue`."""

    def __init__(self, link: "_Link") -> None:
        self._link = link
        self.transport: asyncio.Transport | None = None
        self.peer: _End = self
        self.is_closed = False
        self._queue: deque[tuple[float, bytes]] = deque()
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.made(self)

    def data_received(self, data: bytes) -> None:
        if not self._link.passes(self):
            return
        loop = asyncio.get_running_loop()
        delay_s = self._link.gate.delay_s
        if delay_s or self._queue:
            self._queue.append((loop.time() + delay_s, data))
            self._pass_on()
        else:
            self.peer.write(data)

    def _pass_on(self) -> None:
        self._due = None
        loop = asyncio.get_running_loop()
        while self._queue and self._queue[0][0] <= loop.time():
            self.peer.write(self._queue.popleft()[1])
        if self._queue:
            self._due = self._due or loop.call_at(self._queue[0][0], self._pass_on)
        elif self.is_closed:
            self._link.end()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.is_closed:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if not self._queue:
            self._link.end()

    def set_reading(self, reads: bool) -> None:
        if self.transport is not None and not self.is_closed:
            (self.transport.resume_reading if reads else self.transport.pause_reading)()

    def reset(self) -> None:
        if self.transport is not None and not self.is_closed:
            with contextlib.suppress(OSError):
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()


class _Link:
    """A connection through a gate: `near` is who has opened it, `far` the node."""

    def __init__(self, gate: _Gate) -> None:
        self.gate = gate
        self.near, self.far = _End(self), _End(self)
        self.near.peer, self.far.peer = self.far, self.near
        self._is_torn = False
        self._connecting: asyncio.Task[None] | None = None

    def made(self, end: _End) -> None:
        if end is self.far:
            self.follow(self.gate.mode)
            return
        self.gate.links.add(self)
        end.set_reading(False)
        self.follow(self.gate.mode)

    def follow(self, mode: Mode) -> None:
        """Take over the gate's mode."""
        if mode is Mode.OPEN and self._is_torn:
            self.reset()
        elif self.far.transport is None:
            if mode is not Mode.SILENT and self._connecting is None:
                self._connecting = asyncio.get_running_loop().create_task(self._connect())
        else:
            for end in (self.near, self.far):
                end.set_reading(mode is not Mode.SILENT)

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.far, "127.0.0.1", self.gate.target)
        except OSError:
            self.reset()

    def passes(self, end: _End) -> bool:
        if self.gate.mode is Mode.HALF_OPEN and end is self.far:
            self._is_torn = True
        return not self._is_torn or end is self.near

    def end(self) -> None:
        """An end is closed, so the other is closed, too, unless nobody may hear of it."""
        if self.gate.mode is Mode.OPEN:
            for end in (self.near, self.far):
                if end.transport is not None:
                    end.transport.close()
            self.gate.links.discard(self)
        else:
            self._is_torn = True

    def reset(self) -> None:
        self.gate.links.discard(self)
        self.near.reset()
        self.far.reset()
