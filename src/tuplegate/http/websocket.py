"""WebSocket (RFC 6455) as a stream of bytes in both directions, on a connection of our own server.

`check_upgrade` judges the request, `Frames` is the protocol without a socket, `WebSocketConnection` joins that to a
connection. Only binary messages are taken, without compression. The limits of messages have no meaning: payloads are
passed on as their frames arrive. Everything is bounded: the size of a frame and of a message, its fragments, waiting
bytes, the time without a sign of life. Nothing is read while the other side has not taken earlier bytes, or while the
client does not take its own, including answers to its pings.
"""

import asyncio
import base64
import binascii
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side, State
from websockets.utils import accept_key

from tuplegate.http.exchange import ClientGone, Exchange
from tuplegate.http.origins import PageOrigins
from tuplegate.http.parsing.framing import Buffer
from tuplegate.http.parsing.message import Head
from tuplegate.http.short_frames import measure_frame, read_frame, write_frame
from tuplegate.http.upgraded import Handed, UpgradedConnection
from tuplegate.protocol.errors import ServiceError

_log: Final = structlog.get_logger()

# The library would write payloads to its log at the level debug, and so passwords.
_SILENT: Final = logging.getLogger("tuplegate.websocket")
_SILENT.setLevel(logging.CRITICAL)

_FRAGMENTS_MAX: Final = 1024
"""The frames of one message. Otherwise, empty ones could go on for ever."""
_STEP: Final = 1024
_STEPS_MAX: Final = 64
_FRAMES_MAX: Final = 128
"""The bounds of one turn: pieces of that size, until this many frames have come. A piece of the smallest frames takes
about a millisecond."""
_QUEUE_MAX: Final = 64 * 1024
"""Bytes that may wait to be taken before nothing more is read."""
_END_S: Final = 2.0
"""How long the client may take to answer a close."""
_REASON_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class WebSocketBounds:
    """A ping is sent after `ping_s` of silence; without a sign of life for `pong_s` more the connection is cut off."""

    frame_bytes_max: int
    message_bytes_max: int
    ping_s: float = 20.0
    pong_s: float = 20.0


# -- the request ------------------------------------------------------------------------------------------------------


def asks_for_websocket(head: Head) -> bool:
    """Return whether the request asks for a WebSocket, of any version. In HTTP/1.0 none can."""
    if not head.is_http_1_1:
        return False
    options = {option.strip().lower() for option in head.headers.get(b"connection", b"").split(b",")}
    return b"upgrade" in options and head.headers.get(b"upgrade", b"").strip().lower() == b"websocket"


def check_upgrade(exchange: Exchange, pages: PageOrigins) -> bytes:
    """Return the headers of the answer that opens a WebSocket. Raises the error of a malformed request."""
    head = exchange.head
    if not (head.method == "GET" and asks_for_websocket(head)):
        raise _upgrade_required("this route speaks WebSocket, and the request does not ask for it")
    version = head.headers.get(b"sec-websocket-version", b"")
    if version != b"13":
        raise _upgrade_required(f"the version of WebSocket is 13, not {version[:20].decode('latin-1')!r}")
    if head.length != 0:
        raise ServiceError("malformed_request", "a request for a WebSocket has no body")
    check_origin(exchange, pages)
    key = head.headers.get(b"sec-websocket-key", b"")
    try:
        is_good = len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        is_good = False
    if not is_good:
        raise ServiceError("malformed_request", "the header Sec-WebSocket-Key is not 16 bytes in base64")
    accept = accept_key(key.decode()).encode()
    return b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: %b\r\n" % accept


def check_origin(exchange: Exchange, pages: PageOrigins) -> None:
    """Raise forbidden for a page of an origin that is not allowed: browsers do not check this for WebSockets."""
    origin = exchange.headers.get(b"origin")
    if origin is not None and not pages.allow(origin, exchange.headers.get(b"host")):
        raise ServiceError(
            "forbidden",
            "pages of this origin may not use the service",
            hint="The operator allows origins with the setting cors_origins, and names the service's own with data_url,"
            " alias_url and control_url.",
        )


def _upgrade_required(message: str) -> ServiceError:
    headers = (("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-version", "13"))
    return ServiceError("upgrade_required", message, headers=headers)


# -- the protocol -----------------------------------------------------------------------------------------------------


class Frames:
    """The protocol: bytes of the client in, payloads out, and bytes for the client. Pure but for its mask.

    `is_over`: the client has said goodbye, or broken a rule; nothing more of it is taken.
    """

    def __init__(self, bounds: WebSocketBounds) -> None:
        self._protocol = Protocol(
            Side.SERVER, max_size=(bounds.message_bytes_max, bounds.frame_bytes_max), logger=_SILENT
        )
        self._short_max = bounds.frame_bytes_max
        self._fragments = 0
        self._inside = 0
        """Bytes of a frame that the library has only in part."""
        self.is_over = False
        self.ends = False
        """The connection is to be closed once everything was written."""

    @property
    def held(self) -> int:
        """Bytes of a frame that is not whole."""
        return len(self._protocol.reader.buffer)

    def _look_at_state(self) -> None:
        self.is_over = self._protocol.state is not State.OPEN

    def read_some(self, unread: Buffer) -> tuple[list[bytes], int]:
        """Take a piece of the bytes. Return the payloads that are whole now, and the number of frames."""
        protocol = self._protocol
        if unread.at == 0 and self._fragments == 0 and self._inside == 0 and not self.is_over:
            payload = read_frame(unread.data, masked=True)
            if payload is not None and len(payload) <= self._short_max:
                unread.clear()
                return [payload], 1
        data = unread.take(_STEP)
        protocol.receive_data(data)
        self._look_at_state()
        payloads: list[bytes] = []
        frames = protocol.events_received()
        self._inside += len(data)
        for frame in frames:
            assert isinstance(frame, Frame)
            self._inside -= measure_frame(len(frame.data), masked=True)
            if frame.opcode is Opcode.TEXT:
                self.fail(CloseCode.UNSUPPORTED_DATA, "only binary messages are taken, not text")
                break
            if frame.opcode in (Opcode.BINARY, Opcode.CONT):
                self._fragments = 0 if frame.fin else self._fragments + 1
                if self._fragments > _FRAGMENTS_MAX:
                    self.fail(CloseCode.POLICY_VIOLATION, f"a message has more than {_FRAGMENTS_MAX} fragments")
                    break
                if frame.data:
                    payloads.append(bytes(frame.data))
        return payloads, len(frames)

    def take_output(self) -> bytes:
        """Return the bytes to write now."""
        writes = self._protocol.data_to_send()
        if b"" in writes:
            self.ends = True
        return writes[0] if len(writes) == 1 else b"".join(writes)

    def send(self, data: bytes) -> None:
        if not self.is_over:  # else it is being closed, and nobody takes it any more
            self._protocol.writes.append(write_frame(data))

    def ping(self) -> None:
        try:
            self._protocol.send_ping(b"")
        except InvalidState:
            pass  # as above

    def close(self, code: CloseCode, reason: str) -> None:
        """Say goodbye. The client answers, and then the connection ends."""
        try:
            self._protocol.send_close(code, reason[:_REASON_MAX])
        except InvalidState:
            pass  # as above
        self._look_at_state()

    def fail(self, code: CloseCode, reason: str) -> None:
        """Send the reason, and end."""
        self._protocol.fail(code, reason[:_REASON_MAX])
        self._look_at_state()


# -- the connection ---------------------------------------------------------------------------------------------------


Serve = Callable[["WebSocketConnection"], Coroutine[Any, Any, None]]
"""Serves one WebSocket, in a task of its own. It is cancelled when the client has left, or the server cannot wait."""


# size: the life of a WebSocket is one state machine, as that of a connection before it.
class WebSocketConnection(UpgradedConnection):
    """One WebSocket. `serve` receives and sends; when it returns, the connection is closed."""

    def __init__(self, handed: Handed, bounds: WebSocketBounds, serve: Serve) -> None:
        super().__init__(handed)
        self._bounds = bounds
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._frames = Frames(bounds)
        self._queue: deque[bytes] = deque()
        self._queued = self._received = self._held_above = 0
        self._arrived: asyncio.Future[None] | None = None
        self._heard_at = self._loop.time()
        self._pinged_at: float | None = None
        self._ends_at: float | None = None
        self._has_ended = False
        self._task: asyncio.Task[None] | None = None
        self.on_stop: Callable[[], None] | None = None
        """Called when the server stops."""
        self.is_stopping = False
        self._out.pass_to(self._intake.advance)

    # -- for whoever serves it ------------------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """Return the received bytes, at least one; nothing after the client has said goodbye. They are charged to the
        client until the next call, or until `hold` tells how many are left of all that were received."""
        if self._received:
            self._received = 0
            self._intake.settle()
        while not self._queue:
            if self._frames.is_over or self._out.is_lost:
                return b""
            self._arrived = self._loop.create_future()
            await self._arrived
        data = self._queue[0] if len(self._queue) == 1 else b"".join(self._queue)
        self._queue.clear()
        self._received, self._queued = self._queued, 0
        self._intake.advance()
        return data

    async def send(self, data: bytes) -> None:
        """Send a message. Wait while the client is behind; raises ClientGone if it has left."""
        self.send_now(data)
        if self._out.is_behind:
            await self._out.wait_until_taken()
        if self._out.is_lost:
            raise ClientGone

    def send_now(self, data: bytes) -> None:
        """Send a message, however far the client is behind: for a short one."""
        if self._out.is_lost or self._frames.is_over or self._transport.is_closing():
            raise ClientGone
        self._frames.send(data)
        self._flush()

    def hold(self, size: int) -> None:
        """Account for received bytes that the server of this WebSocket still holds."""
        self._held_above, self._received = size, 0
        self._intake.settle()

    def belong_to(self, owner: str) -> None:
        """Note that the client has shown a key of this organization."""
        self._out.belong_to(owner)
        self._intake.settle()

    def close(self, code: CloseCode = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        if self._ends_at is None:
            self._ends_at = self._loop.time() + _END_S
            self._frames.close(code, reason)
            self._flush()
            self._intake.advance()

    # -- the transport --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._task = self._loop.create_task(self._serve(self))
        self._task.add_done_callback(self._on_served)
        self._intake.pass_to(self)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._pinged_at = None
        self._intake.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        super().connection_lost(exc)
        self._wake()

    def consume_some(self) -> bool:
        """Read frames, unless one side is behind. See `IntakeReader`."""
        unread = self._intake.unread
        steps = frames = 0
        while unread.size and not self.is_full and steps < _STEPS_MAX and frames < _FRAMES_MAX:
            was_over = self._frames.is_over
            payloads, count = self._frames.read_some(unread)
            steps += 1
            frames += count
            if payloads and not was_over:
                self._queue.extend(payloads)
                self._queued += sum(map(len, payloads))
            self._flush()
        if self._queue or self._frames.is_over:
            self._wake()
        return unread.size > 0 and not self.is_full

    @property
    def is_full(self) -> bool:
        """Return whether one side is behind: the reader of received bytes, or the client."""
        return (self._queued >= _QUEUE_MAX or self._out.is_behind) and not self._frames.is_over

    @property
    def held_bytes(self) -> int:
        return self._frames.held + self._queued + self._received + self._held_above

    def note_no_room(self, error: ServiceError) -> None:
        """Close the connection of a client that holds too much memory, and say so."""
        self._frames.fail(CloseCode.TRY_AGAIN_LATER, error.body.message)
        self._flush()

    def _flush(self) -> None:
        data = self._frames.take_output()
        if data:
            self._out.write(data)
        if self._frames.ends and not self._has_ended:
            # Not closed at once: with something unread the client would get a reset instead of the last words.
            self._has_ended = True
            self._ends_at = self._loop.time() + _END_S
            if self._transport.can_write_eof() and not self._transport.is_closing():
                self._transport.write_eof()

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None and not arrived.done():
            arrived.set_result(None)

    # -- time and the end -----------------------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        return self._ends_at is not None

    def check_time(self, now: float) -> None:
        super().check_time(now)
        if self._ends_at is not None:
            if now > self._ends_at:
                self._transport.abort()
            return
        if self._intake.is_paused:  # its pongs are not read either
            self._heard_at, self._pinged_at = now, None
        elif self._pinged_at is not None:
            if now - self._pinged_at > self._bounds.pong_s:
                self._out.cut_off()
        elif now - self._heard_at > self._bounds.ping_s:
            self._pinged_at = now
            self._frames.ping()
            self._flush()

    def stop(self) -> None:
        self.is_stopping = True
        if self.on_stop is not None:
            self.on_stop()
        else:
            self.cut_short()

    def cut_short(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.close(CloseCode.GOING_AWAY, "the service is stopping")

    def _on_served(self, task: "asyncio.Task[None]") -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is None or isinstance(failure, ClientGone):
            self.close()
            return
        _log.error("unexpected failure", route="websocket", exc_info=failure)
        self.close(CloseCode.INTERNAL_ERROR, "the service failed; its log has the cause")
