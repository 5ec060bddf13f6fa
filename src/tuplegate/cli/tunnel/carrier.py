"""Carries connections of local programs to the service: each over a WebSocket of its own.

Nothing is stored here. While one side does not take data, the other side is not read.
"""

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from tuplegate.cli.tunnel.packets import (
    ClientStart,
    NotPostgres,
    ServiceStart,
    write_error,
    write_startup,
)
from tuplegate.http.short_frames import measure_frame, read_frame, write_frame

_CONNECT_S = 10.0
_AGAIN_S = 0.25
_FRAME_BYTES_MAX = 16 * 2**20
_START_S = 30.0
_LOOKS = 3
"""How often the kernel's list is read: while others come and go, one reading may miss an entry."""


@dataclass
class Counts:
    """Connections that are open, all so far, and bytes to and from the service."""

    open: int = 0
    all: int = 0
    sent: int = 0
    received: int = 0


@dataclass(frozen=True)
class Service:
    """The address of the service, and the tunnel's identification. `database` is for every connection, if it is
    given."""

    url: str
    key: str = field(repr=False)
    database: str | None
    trust: ssl.SSLContext | None

    @property
    def wire_url(self) -> str:
        return "ws" + self.url.removeprefix("http").rstrip("/") + "/v2"


class Unreachable(Exception):
    """There is no way to the service, or it refuses to be one; the text says why."""


class WebSocket(asyncio.Protocol):
    """One WebSocket to the service. `take` gets what arrives, `ended` is called once, with a reason or none."""

    def __init__(self, service: Service, take: Callable[[bytes], None], ended: Callable[[str], None]) -> None:
        self._protocol = ClientProtocol(parse_uri(service.wire_url), max_size=_FRAME_BYTES_MAX)
        self._take = take
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._inside = 0
        """Bytes of a frame that the library has only in part."""
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.transport: asyncio.Transport | None = None
        self.on_pause: Callable[[bool], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._protocol.send_request(self._protocol.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        protocol = self._protocol
        if protocol.state is OPEN and protocol.current_size is None and self._inside == 0:
            payload = read_frame(data, masked=False)
            if payload is not None:
                self._take(payload)
                return
        protocol.receive_data(data)
        self._inside += len(data)
        for event in protocol.events_received():
            if isinstance(event, Frame):
                self._inside -= measure_frame(len(event.data), masked=False)
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    self._take(bytes(event.data))
                elif event.opcode is Opcode.CLOSE:
                    self.close()
            elif isinstance(event, Response) and not self.opened.done():
                if protocol.state is OPEN:
                    # Behind its answer the service waits for the client. Should it not, the library reads all of it.
                    self._inside = 0 if data.endswith(b"\r\n\r\n") else 1
                    self.opened.set_result(None)
                else:
                    self._refuse(_explain_refusal(event))
        if protocol.handshake_exc is not None:
            self._refuse(f"it does not speak WebSocket: {protocol.handshake_exc}")
        self._flush()

    def eof_received(self) -> None:
        self._protocol.receive_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._refuse("the connection was closed")
        self._ended("" if exc is None else str(exc))

    def _refuse(self, reason: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(Unreachable(reason))

    def pause_writing(self) -> None:
        if self.on_pause is not None:
            self.on_pause(True)

    def resume_writing(self) -> None:
        if self.on_pause is not None:
            self.on_pause(False)

    def send(self, data: bytes) -> None:
        if self._protocol.state is OPEN:
            assert self.transport is not None
            self.transport.write(write_frame(data, os.urandom(4)))

    def close(self) -> None:
        if self._protocol.state is OPEN:
            self._protocol.send_close(1000)
        self._flush()
        if self.transport is not None:
            self.transport.close()

    def _flush(self) -> None:
        assert self.transport is not None
        for data in self._protocol.data_to_send():
            if data:
                self.transport.write(data)
            else:
                self.transport.close()


def _explain_refusal(response: Response) -> str:
    text = (response.body or b"").decode("utf-8", "replace")
    if response.status_code == 404:
        return "it has no wire protocol: the setting `wire` is off, or it is too old"
    return f"it answered {response.status_code} {response.reason_phrase} {text[:300]}".strip()


async def open_websocket(
    service: Service, take: Callable[[bytes], None], ended: Callable[[str], None], *, patience_s: float = 0.0
) -> WebSocket:
    """Open a WebSocket; for `patience_s` it is tried again while nobody listens. Raises Unreachable."""
    parts = urlsplit(service.url)
    assert parts.hostname is not None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    while True:
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, socket = await loop.create_connection(
                    lambda: WebSocket(service, take, ended), parts.hostname, port, ssl=service.trust
                )
                try:
                    await socket.opened
                except BaseException:
                    socket.close()
                    raise
            return socket
        except TimeoutError:
            raise Unreachable("it did not answer in time") from None
        except ssl.SSLCertVerificationError as exc:
            raise Unreachable(f"its certificate is not trusted: {exc.verify_message}; --ca-file names one") from exc
        except OSError as exc:
            if loop.time() >= until:
                raise Unreachable(exc.strerror or str(exc)) from exc
        await asyncio.sleep(_AGAIN_S)


class Carried(asyncio.Protocol):
    """One connection of a local program."""

    def __init__(self, tunnel: "Tunnel") -> None:
        self._tunnel = tunnel
        self._start: ClientStart | None = ClientStart()
        self._answer = ServiceStart()
        self._transport: asyncio.Transport | None = None
        self._socket: WebSocket | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast(asyncio.Transport, transport)
        self._tunnel.add(self)
        if not self._tunnel.lets_in(transport):
            self._fail(
                "the tunnel lets in programs of its own user alone, and this one is another's, or nobody knows whose;"
                " --all-users lets in everybody on this machine",
                "28000",
            )
            return
        self._late = asyncio.get_running_loop().call_later(_START_S, transport.close)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._tunnel.counts.sent += len(data)
        if self._socket is not None:
            self._socket.send(data)
            return
        if self._start is None:
            return
        try:
            is_whole = self._start.take(data)
        except NotPostgres as exc:
            self._fail(str(exc), "08P01")
            return
        self._transport.writelines(self._start.answers)
        self._start.answers = []
        if is_whole:
            self._transport.pause_reading()
            self._tunnel.run(self._open(self._start))
            self._start = None

    async def _open(self, start: ClientStart) -> None:
        service = self._tunnel.service
        if self._late is not None:
            self._late.cancel()
        try:
            socket = await open_websocket(service, self._pass_on, self._end, patience_s=self._tunnel.patience_s)
        except Unreachable as exc:
            self._fail(f"the service at {service.url} cannot be reached: {exc}", "08006")
            return
        assert self._transport is not None
        if self._transport.is_closing():
            socket.close()
            return
        self._socket = socket
        socket.on_pause = self._pause_reading
        if start.cancels:
            self._answer.is_over = True
            socket.send(start.first + start.rest)
        else:
            socket.send(write_startup(start.first, service.key, service.database) + start.rest)
        self._transport.resume_reading()

    def _pass_on(self, data: bytes) -> None:
        assert self._transport is not None
        self._tunnel.counts.received += len(data)
        if not self._answer.is_over:
            data = self._answer.take(data)
        if data:
            self._transport.write(data)

    def _pause_reading(self, pause: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def pause_writing(self) -> None:
        if self._socket is not None and self._socket.transport is not None:
            with contextlib.suppress(RuntimeError):  # it is being closed
                self._socket.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._socket is not None and self._socket.transport is not None:
            with contextlib.suppress(RuntimeError):
                self._socket.transport.resume_reading()

    def _fail(self, message: str, sqlstate: str) -> None:
        assert self._transport is not None
        self._transport.write(write_error(message, sqlstate))
        self._transport.close()

    def _end(self, _reason: str) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        if self._socket is not None:
            self._socket.close()
        self._tunnel.drop(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Tunnel:
    """Listens, and carries every connection to the service. `patience_s` is how long it waits for one that is away."""

    def __init__(self, service: Service, *, patience_s: float = 5.0, all_users: bool = False) -> None:
        self.service = service
        self.patience_s = patience_s
        self.counts = Counts()
        self._all_users = all_users
        self._open: set[Carried] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, ports: list[int]) -> tuple[asyncio.Server, int]:
        """Listen on the first of the ports that is free, on loopback; return it. Raises OSError if none is."""
        loop = asyncio.get_running_loop()
        for number, port in enumerate(ports):
            try:
                server = await loop.create_server(lambda: Carried(self), "127.0.0.1", port)
            except OSError:
                if number == len(ports) - 1:
                    raise
            else:
                return server, int(server.sockets[0].getsockname()[1])
        raise AssertionError("there is at least one port")

    async def listen_at(self, path: Path) -> asyncio.AbstractServer:
        return await asyncio.get_running_loop().create_unix_server(lambda: Carried(self), path)

    def lets_in(self, transport: asyncio.Transport) -> bool:
        """Return whether the program at the other end belongs to the user of the tunnel, or to root. Only Linux tells:
        there nobody is let in whose user is unknown."""
        here, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        is_tcp = isinstance(here, tuple)  # a socket in a directory is guarded by that
        if self._all_users or not is_tcp or sys.platform != "linux":
            return True
        return peer is not None and find_user(peer, here) in (0, os.getuid())

    def add(self, carried: Carried) -> None:
        self._open.add(carried)
        self.counts.open += 1
        self.counts.all += 1

    def drop(self, carried: Carried) -> None:
        self._open.discard(carried)
        self.counts.open -= 1

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for carried in list(self._open):
            carried.close()


def find_user(end: tuple[str, int], other_end: tuple[str, int]) -> int | None:
    """Return the id of the user whose program has the first end of a connection on this machine; None if it is unknown.

    An end that nobody has open any more is listed as root's, without an inode: its user is unknown.
    """
    for table in _LOOKS * ("tcp", "tcp6"):
        mapped = table == "tcp6"
        wanted = f" {_write_end(*end, mapped=mapped)} {_write_end(*other_end, mapped=mapped)} "
        try:
            _, _, found = Path("/proc/net", table).read_text("ascii").partition(wanted)
        except OSError:
            continue
        if found:
            user, inode = (found.split(maxsplit=7)[field] for field in (4, 6))
            return int(user) if inode != "0" else None
    return None


def _write_end(address: str, port: int, *, mapped: bool) -> str:
    """Return an IPv4 address and a port as the kernel lists them: 32 bits at a time, as numbers of this machine.

    `mapped`: as an IPv6 socket has it, which reaches 127.0.0.1 by `::ffff:127.0.0.1`.
    """
    packed = (b"\0" * 10 + b"\xff\xff" if mapped else b"") + bytes(map(int, address.split(".")))
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
