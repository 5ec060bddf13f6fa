"""WebSocket on our own server: what is taken, what is refused and how, and what one side can make the other hold."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import Protocol, Side

from tests.unit.stage import WAIT_S
from tests.unit.test_tls_transport import made_tls
from tests.unit.test_turns_of_connections import Turns
from tests.waiting import eventually_async
from tests.websocket import ACCEPT, frame, upgrade
from tuplegate.admission.paths import gather_paths
from tuplegate.alias.plane import Alias
from tuplegate.http.connection import HttpBounds
from tuplegate.http.errors import respond_error
from tuplegate.http.exchange import Exchange
from tuplegate.http.forwarding.upstream import UpstreamAddress
from tuplegate.http.origins import Origin, PageOrigins
from tuplegate.http.server import HttpServer
from tuplegate.http.sharing.connection_turns import ConnectionTurns, Turn
from tuplegate.http.sharing.memory import Memory
from tuplegate.http.tls.certificates import TlsContext
from tuplegate.http.websocket import Serve, WebSocketBounds, WebSocketConnection, check_upgrade
from tuplegate.protocol.errors import ServiceError

Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
BOUNDS = WebSocketBounds(frame_bytes_max=2**20, message_bytes_max=2 * 2**20)
HTTP_BOUNDS = HttpBounds(1000, 60.0, 60.0, 60.0, 60.0)
PAGE = "https://app.example"
OWN = Origin("https", "db.example", 443)


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Loop:
    chosen: Loop = request.param
    return chosen


def run(loop: Loop, test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(test, WAIT_S))


async def echo(websocket: WebSocketConnection) -> None:
    while data := await websocket.receive():
        await websocket.send(data)


class Peer:
    """A client that speaks by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._protocol = Protocol(Side.CLIENT, max_size=None)
        self._events: list[Frame] = []

    async def begin(self, request: bytes | None = None) -> tuple[int, bytes]:
        """Status and headers of the answer."""
        self.writer.write(request or upgrade("/v2"))
        head = await self.reader.readuntil(b"\r\n\r\n")
        return int(head.split()[1]), head

    async def event(self) -> Frame | None:
        """The next frame; None at the end."""
        while not self._events:
            try:
                data = await self.reader.read(2**16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._protocol.receive_data(data)
            self._events += [event for event in self._protocol.events_received() if isinstance(event, Frame)]
        return self._events.pop(0)

    async def take(self, size: int) -> bytes:
        """So many bytes of messages."""
        taken = bytearray()
        while len(taken) < size:
            event = await self.event()
            assert event is not None
            assert event.opcode is Opcode.BINARY, event
            taken += event.data
        return bytes(taken)

    async def close_code(self) -> int:
        """The code with which the server closes."""
        while (event := await self.event()) is not None:
            if event.opcode is Opcode.CLOSE:
                return int(Close.parse(event.data).code)
        raise AssertionError("it was cut off without a word")


class HeldUpTurns(ConnectionTurns):
    """While it is held up, every turn is put off until `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held_up = False
        self._put_off: list[Turn] = []

    def is_late(self, owner: str) -> bool:
        return self.is_held_up

    def ask(self, owner: str, act: Callable[[], None]) -> Turn:
        if not self.is_held_up:
            return super().ask(owner, act)
        self._put_off.append(Turn(act))
        return self._put_off[-1]

    def go_on(self) -> None:
        self.is_held_up = False
        for turn in self._put_off:
            if turn.act is not None:
                turn.act()


class Stage:
    def __init__(self, server: HttpServer, address: tuple[str, int], tls: bool) -> None:
        self.server = server
        self.address = address
        self._tls = tls
        self._peers: list[Peer] = []

    async def connect(self) -> Peer:
        context = None
        if self._tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        peer = Peer(*await asyncio.open_connection(*self.address, ssl=context))
        self._peers.append(peer)
        return peer

    async def end(self) -> None:
        for peer in self._peers:
            peer.writer.transport.abort()
        await self.server.stop(0.1, lambda: None)

    async def open(self) -> Peer:
        peer = await self.connect()
        status, _ = await peer.begin()
        assert status == 101
        return peer


@asynccontextmanager
async def serving(
    serve: Serve = echo,
    bounds: WebSocketBounds = BOUNDS,
    *,
    memory: Memory | None = None,
    tls: TlsContext | None = None,
    turns: ConnectionTurns | None = None,
) -> AsyncIterator[Stage]:
    pages = PageOrigins([OWN], frozenset({PAGE}))

    async def handle(exchange: Exchange) -> None:
        try:
            headers = check_upgrade(exchange, pages)
        except ServiceError as error:
            respond_error(exchange, error)
            return
        exchange.switch_protocols(headers, lambda handed: WebSocketConnection(handed, bounds, serve))

    server = HttpServer(handle, HTTP_BOUNDS, memory or Memory(2**26), tls=tls, turns=turns)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await server.start(listening)
        stage = Stage(server, listening.getsockname(), tls is not None)
        try:
            yield stage
        finally:
            await stage.end()


# -- the request ------------------------------------------------------------------------------------------------------


def test_the_example_of_the_rfc_is_answered_as_there() -> None:
    async def test() -> None:
        async with serving() as stage:
            status, head = await (await stage.connect()).begin()
            assert status == 101
            assert f"sec-websocket-accept: {ACCEPT}\r\n".encode() in head
            assert b"sec-websocket-extensions" not in head

    run(uvloop.new_event_loop, test())


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        (upgrade(upgrade=None), 426, b"does not ask for it"),
        (upgrade(connection="keep-alive"), 426, b"does not ask for it"),
        (upgrade(line="HTTP/1.0"), 426, b"does not ask for it"),
        (upgrade(sec_websocket_version="8"), 426, b"'8'"),
        (upgrade(sec_websocket_version=None), 426, b"13"),
        (upgrade(sec_websocket_key=None), 400, b"Sec-WebSocket-Key"),
        (upgrade(sec_websocket_key="abcd"), 400, b"Sec-WebSocket-Key"),
        (upgrade(content_length="3") + b"abc", 400, b"no body"),
        (upgrade(origin="https://stranger.example"), 403, b"cors_origins"),
        (upgrade(origin="null"), 403, b"cors_origins"),
        (upgrade(origin=PAGE), 101, b""),
        (upgrade(origin="http://a"), 403, b"cors_origins"),
        (upgrade(origin="http://rebound.example", host="rebound.example"), 403, b"cors_origins"),
        (upgrade(origin=str(OWN)), 101, b""),
        (upgrade(origin="http://db.example"), 403, b"cors_origins"),
    ],
)
def test_a_request_for_a_websocket(request_: bytes, status: int, says: bytes) -> None:
    """What is wrong is said, and pages of other origins are refused unless they are allowed."""

    async def test() -> None:
        async with serving() as stage:
            peer = await stage.connect()
            got, head = await peer.begin(request_)
            assert got == status, head
            if status == 426:
                assert b"sec-websocket-version: 13\r\n" in head
            if says:
                assert says in await peer.reader.read(2000)

    run(uvloop.new_event_loop, test())


# -- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
def test_bytes_go_both_ways_however_they_are_cut(loop: Loop, with_tls: bool, tmp_path: Path) -> None:
    """One message over many frames and pieces, many in one piece, and one that came with the request."""
    tls = made_tls(tmp_path) if with_tls else None

    async def test() -> None:
        async with serving(tls=tls) as stage:
            peer = await stage.connect()
            status, _ = await peer.begin(upgrade() + frame(b"early"))
            assert status == 101
            assert await peer.take(5) == b"early"
            for byte in frame(b"slowly"):
                peer.writer.write(bytes([byte]))
                await peer.writer.drain()
            assert await peer.take(6) == b"slowly"
            cut = [frame(b"a", fin=False), frame(b"b", Opcode.CONT, fin=False), frame(b"c", Opcode.CONT)]
            peer.writer.write(b"".join(cut) + frame(b"") + frame(b"de") + frame(b"f"))
            assert await peer.take(6) == b"abcdef"
            large = bytes(range(256)) * 4096
            peer.writer.write(frame(large))
            assert await peer.take(len(large)) == large
            assert (stage.server.open, stage.server.running, len(stage.server.connections)) == (1, 0, 0)
            peer.writer.close()
            await eventually_async(lambda: stage.server.open == 0)

    run(loop, test())


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"text", Opcode.TEXT), 1003),
        (frame(b"bare", masked=False), 1002),
        (frame(b"", announced=2**31), 1009),
        (frame(b"", announced=2**63), 1009),
        (frame(b"x" * (2**20 + 1)), 1009),
        (frame(b"x" * 2**20, fin=False) + 2 * frame(b"x" * 2**20, Opcode.CONT, fin=False), 1009),
        (frame(b"", fin=False) + 3000 * frame(b"", Opcode.CONT, fin=False), 1008),
        (frame(b"", bits=64), 1002),
        (frame(b"x", Opcode.CONT), 1002),
        (frame(b"a", fin=False) + frame(b"b"), 1002),
        (frame(b"x" * 126, Opcode.PING), 1002),
        (b"\x83\x80" + b"abcd", 1002),
        (frame(b"\x03\xe8bye", Opcode.CLOSE), 1000),
    ],
    ids=[
        "text", "unmasked", "two gigabytes", "more than there is", "a large frame", "a large message",
        "fragments without end", "a reserved bit", "a continuation of nothing", "two messages at once", "a large ping",
        "an unknown kind", "a goodbye",
    ],
)  # fmt: skip
def test_what_ends_a_connection(sent: bytes, code: int) -> None:
    """The client learns why, and nothing of what it sends behind is taken."""
    received = bytearray()

    async def collect(websocket: WebSocketConnection) -> None:
        while data := await websocket.receive():
            received.extend(data)

    async def test() -> None:
        async with serving(collect) as stage:
            peer = await stage.open()
            peer.writer.write(sent + frame(b"behind"))
            assert await peer.close_code() == code
            assert await peer.event() is None
            assert b"behind" not in received
            peer.writer.close()
            await eventually_async(lambda: stage.server.open == 0)

    run(uvloop.new_event_loop, test())


def test_a_ping_is_answered(loop: Loop) -> None:
    async def test() -> None:
        async with serving() as stage:
            peer = await stage.open()
            peer.writer.write(frame(b"are you there", Opcode.PING))
            answer = await peer.event()
            assert answer is not None
            assert (answer.opcode, bytes(answer.data)) == (Opcode.PONG, b"are you there")

    run(loop, test())


def test_silence_is_asked_about_and_then_ended() -> None:
    """After a pong everything begins anew."""

    async def test() -> None:
        async with serving() as stage:
            peer = await stage.open()
            (websocket,) = stage.server.upgraded
            now = asyncio.get_running_loop().time()
            websocket.check_time(now + BOUNDS.ping_s - 1)
            websocket.check_time(now + BOUNDS.ping_s + 1)
            ping = await peer.event()
            assert ping is not None
            assert ping.opcode is Opcode.PING
            peer.writer.write(frame(b"", Opcode.PONG) + frame(b"x"))
            assert await peer.take(1) == b"x"
            later = asyncio.get_running_loop().time() + BOUNDS.ping_s + 1
            websocket.check_time(later)
            websocket.check_time(later + BOUNDS.pong_s - 1)
            assert stage.server.open == 1
            websocket.check_time(later + BOUNDS.pong_s + 1)
            await eventually_async(lambda: stage.server.open == 0)

    run(uvloop.new_event_loop, test())


# -- back-pressure and bounds -----------------------------------------------------------------------------------------


def test_what_nobody_takes_is_not_read(loop: Loop) -> None:
    """The client cannot send more than a little, until somebody takes it; then all of it comes."""
    taking = asyncio.Event()
    total, piece = 16 * 2**20, frame(b"x" * 2**16)
    received = 0

    async def serve(websocket: WebSocketConnection) -> None:
        nonlocal received
        await taking.wait()
        while data := await websocket.receive():
            received += len(data)
            if received == total:
                await websocket.send(b"all")

    async def test() -> None:
        memory = Memory(2**26)
        async with serving(serve, memory=memory) as stage:
            peer = await stage.open()
            for _ in range(total // 2**16):
                peer.writer.write(piece)
            (websocket,) = stage.server.upgraded
            await eventually_async(lambda: websocket._intake.is_paused)
            for _ in range(2000):  # as many turns as reading all of it would take
                await asyncio.sleep(0)
            assert 2**16 <= memory.used < 2**20
            assert peer.writer.transport.get_write_buffer_size() > 2**20
            taking.set()
            assert await peer.take(3) == b"all"
            assert memory.used == 0

    run(loop, test())


def test_a_client_that_takes_nothing_stops_who_sends(loop: Loop) -> None:
    sent = 0

    async def serve(websocket: WebSocketConnection) -> None:
        nonlocal sent
        while True:
            await websocket.send(b"x" * 2**16)
            sent += 1

    async def test() -> None:
        async with serving(serve) as stage:
            peer = await stage.open()
            (websocket,) = stage.server.upgraded
            await eventually_async(lambda: websocket._out.is_behind)
            before = sent
            await peer.take((before + 10) * 2**16)

    run(loop, test())


def test_whoever_holds_too_much_is_told_so() -> None:
    async def never(websocket: WebSocketConnection) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        async with serving(never, memory=Memory(2**18)) as stage:
            peer = await stage.open()
            peer.writer.write(frame(b"x" * 2**20))
            assert await peer.close_code() == 1013

    run(uvloop.new_event_loop, test())


def test_many_small_frames_leave_others_their_turn(loop: Loop) -> None:
    frames = 40_000

    async def test() -> None:
        async with serving() as stage:
            peer = await stage.open()
            peer.writer.write(frame(b"") * frames + frame(b"done"))
            turns = Turns()
            assert await peer.take(4) == b"done"
            turns.end()
            assert turns.number > frames / 1000

    run(loop, test())


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
def test_a_client_whose_turn_is_put_off_is_not_read_on(loop: Loop, with_tls: bool, tmp_path: Path) -> None:
    """However much it sends: what has come is charged to it, and the rest stays with the client until its turn."""
    count = 8 * 2**10
    tls = made_tls(tmp_path) if with_tls else None

    async def serve(websocket: WebSocketConnection) -> None:
        received = 0
        while received < count * 2**10:
            received += len(await websocket.receive())
        await websocket.send(b"all")

    async def test() -> None:
        memory, turns = Memory(2**26), HeldUpTurns()
        async with serving(serve, memory=memory, tls=tls, turns=turns) as stage:
            peer = await stage.open()
            turns.is_held_up = True
            peer.writer.write(frame(b"x" * 2**10) * count)
            await eventually_async(lambda: memory.used > 0)
            for _ in range(2000):  # as many passes as reading all of it would take
                await asyncio.sleep(0)
            assert 0 < memory.used < 2**19
            turns.go_on()
            assert await peer.take(3) == b"all"
            await eventually_async(lambda: memory.used == 0)

    run(loop, test())


def test_what_a_stranger_sends_is_charged_until_it_is_used() -> None:
    """Also between its being received and being read by whoever serves it."""
    has_received, goes_on = asyncio.Event(), asyncio.Event()

    async def serve(websocket: WebSocketConnection) -> None:
        await websocket.receive()
        has_received.set()
        await goes_on.wait()
        websocket.hold(10)
        await asyncio.Event().wait()

    async def test() -> None:
        memory = Memory(2**26)
        async with serving(serve, memory=memory) as stage:
            peer = await stage.open()
            peer.writer.write(frame(b"x" * 2**19))
            await has_received.wait()
            assert memory.used == 2**19
            goes_on.set()
            await eventually_async(lambda: memory.used == 10)

    run(uvloop.new_event_loop, test())


def test_a_flood_of_pings_whose_answers_nobody_takes_is_not_read_on() -> None:
    async def test() -> None:
        memory = Memory(2**26)
        async with serving(memory=memory) as stage:
            peer = await stage.open()
            pings = frame(b"x" * 125, Opcode.PING) * 500
            (websocket,) = stage.server.upgraded
            while not websocket._intake.is_paused:
                peer.writer.write(pings)
                await asyncio.sleep(0)
            assert memory.used < 2**20

    run(uvloop.new_event_loop, test())


# -- the end ----------------------------------------------------------------------------------------------------------


def test_who_serves_is_cancelled_when_the_client_leaves(loop: Loop) -> None:
    over = asyncio.Event()

    async def serve(websocket: WebSocketConnection) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            over.set()

    async def test() -> None:
        async with serving(serve) as stage:
            peer = await stage.open()
            peer.writer.transport.abort()
            await over.wait()
            await eventually_async(lambda: stage.server.open == 0)

    run(loop, test())


def test_a_fault_of_ours_closes_the_connection_and_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(websocket: WebSocketConnection) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        async with serving(serve) as stage:
            assert await (await stage.open()).close_code() == 1011

    run(uvloop.new_event_loop, test())
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_a_stop_says_goodbye() -> None:
    async def test() -> None:
        async with serving() as stage:
            peer = await stage.open()
            stopping = asyncio.ensure_future(stage.server.stop(WAIT_S, lambda: None))
            assert await peer.close_code() == 1001
            peer.writer.close()
            await stopping

    run(uvloop.new_event_loop, test())


def test_a_stranger_gives_way_when_all_places_are_taken() -> None:
    async def test() -> None:
        async with serving() as stage:
            peer = await stage.open()
            stage.server._shared.bounds = HttpBounds(1, 60.0, 60.0, 60.0, 60.0)
            other = await stage.open()
            assert await peer.event() is None
            other.writer.write(frame(b"here"))
            assert await other.take(4) == b"here"

    run(uvloop.new_event_loop, test())


# -- through the alias ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def fronting(stage: Stage, tls: TlsContext | None) -> AsyncIterator[Stage]:
    """The alias of a stage."""
    host, port = stage.address
    trusting = None if tls is None else _trust_all
    origin = Origin("http" if tls is None else "https", host, port)
    alias = Alias(UpstreamAddress(origin, trusting, 20.0), None, gather_paths(()), b"", PageOrigins([OWN]))
    server = HttpServer(alias.handle, HTTP_BOUNDS, Memory(2**26), tls=tls)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await server.start(listening)
        stage = Stage(server, listening.getsockname(), tls is not None)
        try:
            yield stage
        finally:
            await stage.end()


def _trust_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
def test_the_alias_joins_both_sides(loop: Loop, with_tls: bool, tmp_path: Path) -> None:
    """Large messages and small ones, and neither side outlives the other."""
    tls = made_tls(tmp_path) if with_tls else None

    async def test() -> None:
        async with serving(tls=tls) as behind, fronting(behind, tls) as front:
            peer = await front.connect()
            status, head = await peer.begin(upgrade("/v2") + frame(b"early"))
            assert status == 101, head
            assert b"via: 1.1 tuplegate-alias" in head
            assert await peer.take(5) == b"early"
            large = bytes(range(256)) * 4096
            peer.writer.write(8 * frame(large))
            assert await peer.take(8 * len(large)) == 8 * large
            assert (front.server.open, front.server.running) == (1, 0)
            peer.writer.transport.abort()
            await eventually_async(lambda: behind.server.open == 0 and front.server.open == 0)
            other = await front.open()
            other.writer.write(frame(b"", announced=2**31))
            assert await other.close_code() == 1009
            other.writer.close()
            await eventually_async(lambda: behind.server.open == 0 and front.server.open == 0)

    run(loop, test())


def test_the_alias_passes_a_refusal_on_and_keeps_pages_out() -> None:
    async def test() -> None:
        async with serving() as behind, fronting(behind, None) as front:
            for request, status in (
                (upgrade("/v2", sec_websocket_version="8"), 426),
                (upgrade("/v2", origin=PAGE), 403),
                (upgrade("/v2", origin="http://a"), 403),
                (upgrade("/v2", origin=str(OWN)), 101),
            ):
                got, _ = await (await front.connect()).begin(request)
                assert got == status

    run(uvloop.new_event_loop, test())


def test_a_slow_client_of_the_alias_slows_who_sends(loop: Loop) -> None:
    sent = 0

    async def serve(websocket: WebSocketConnection) -> None:
        nonlocal sent
        while True:
            await websocket.send(b"x" * 2**16)
            sent += 1

    async def test() -> None:
        memory = Memory(2**26)
        async with serving(serve, memory=memory) as behind, fronting(behind, None) as front:
            peer = await front.open()
            (websocket,) = behind.server.upgraded
            await eventually_async(lambda: websocket._out.is_behind)
            before = sent
            await peer.take((before + 10) * 2**16)

    run(loop, test())
