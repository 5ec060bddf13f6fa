"""TLS between sockets and connections: what one side can make the other hold, and for how long it has the loop."""

import asyncio
import os
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.unit.stage import WAIT_S, without_collector
from tests.waiting import eventually_async
from tuplegate.http import server as server_module
from tuplegate.http.connection import HttpBounds
from tuplegate.http.exchange import Exchange
from tuplegate.http.server import HttpServer
from tuplegate.http.sharing.memory import Memory
from tuplegate.http.tls.certificates import TlsContext
from tuplegate.http.tls.self_signed import provide
from tuplegate.http.tls.transport import TlsTransport

Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BOUNDS = HttpBounds(1000, 60.0, 60.0, 60.0, 60.0)

pytestmark = pytest.mark.parametrize("loop", LOOPS)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsContext:
    return made_tls(tmp_path_factory.mktemp("tls"))


def made_tls(directory: Path) -> TlsContext:
    return TlsContext(provide(directory / "files", ["localhost"], datetime.now(UTC)))


def run(loop: Loop, test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(test)


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return how many of the transports that servers of this test have made are there. Others in the process do not
    count."""
    made: list[weakref.ref[TlsTransport]] = []

    def make(*arguments: Any, **named: Any) -> TlsTransport:
        transport = TlsTransport(*arguments, **named)
        made.append(weakref.ref(transport))
        return transport

    monkeypatch.setattr(server_module, "TlsTransport", make)
    return lambda: sum(each() is not None for each in made)


@asynccontextmanager
async def serving(tls: TlsContext, memory: Memory, bounds: HttpBounds = BOUNDS) -> AsyncIterator[tuple[str, int]]:
    """A server that answers everything, by its address."""

    async def answer(exchange: Exchange) -> None:
        exchange.respond(200, b"answered")

    server = HttpServer(answer, bounds, memory, tls=tls)
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listening:
        await server.start(listening)
        yield listening.getsockname()
        await server.stop(WAIT_S, lambda: None)


class Above(asyncio.Protocol):
    """What is above a transport: notes what it gets, and in which turn of the loop."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.turns: list[int] = []
        self.turn = 0
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._count()

    def _count(self) -> None:
        self.turn += 1
        if not self.is_lost:
            asyncio.get_running_loop().call_soon(self._count)

    def data_received(self, data: bytes) -> None:
        self.got.append(data)
        self.turns.append(self.turn)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


@asynccontextmanager
async def above(tls: TlsContext) -> AsyncIterator[tuple[Above, tuple[str, int]]]:
    """One transport alone, and what is above it."""
    listener = Above()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: TlsTransport(tls.choose, lambda _: listener, lambda _, exc: None), "127.0.0.1", 0
    )
    yield listener, server.sockets[0].getsockname()
    server.close()
    listener.transport.abort()
    await eventually_async(lambda: listener.is_lost)


class Peer:
    """A client that makes its records itself."""

    def __init__(self) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def open(self, address: tuple[str, int]) -> None:
        self.reader, self.writer = await asyncio.open_connection(*address)

    async def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.send(b"")
                self.incoming.write(await asyncio.wait_for(self.reader.read(65536), WAIT_S))
        self.send(b"")

    def hello(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def send(self, data: bytes) -> None:
        self.writer.write(self.outgoing.read() + data)

    async def is_cut(self) -> bool:
        try:
            while await asyncio.wait_for(self.reader.read(65536), WAIT_S):
                pass
        except ConnectionResetError:
            pass
        return True


def make_record(payload: bytes, kind: int = 22) -> bytes:
    return bytes([kind, 3, 1]) + len(payload).to_bytes(2, "big") + payload


def hello_of(size: int) -> bytes:
    """The beginning of a hello that says it has so many bytes."""
    return b"\x01" + size.to_bytes(3, "big") + b"\x03\x03" + bytes(32)


UNAGREED = {
    "nothing": b"",
    "no TLS": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "garbage": os.urandom(250_000),
    "garbage in records": b"".join(make_record(os.urandom(16000)) for _ in range(15)),
    "a part of a record": make_record(hello_of(500))[:-3],
    "a part of a hello": make_record(hello_of(500)),
    "a long record": make_record(bytes(16000), 23)[:-3],
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in UNAGREED.items()])
def test_one_that_never_agrees_leaves_nothing_behind(
    loop: Loop, tls: TlsContext, data: bytes, alive: Callable[[], int]
) -> None:
    """Nothing that only the garbage collector would find, and nothing in the budget."""

    async def test() -> None:
        memory = Memory(2**20)
        async with serving(tls, memory) as address:
            for _ in range(3):
                _, writer = await asyncio.open_connection(*address)
                await eventually_async(lambda: alive() > 0)
                writer.write(data)
                writer.close()
                await eventually_async(lambda: alive() == 0)
                assert memory.used == 0

    with without_collector():
        run(loop, test())


@pytest.mark.parametrize("polite", [True, False])
def test_one_that_is_closed_leaves_nothing_behind(
    loop: Loop, tls: TlsContext, polite: bool, alive: Callable[[], int]
) -> None:
    """A client may open one for every request."""

    async def test() -> None:
        memory = Memory(2**20)
        async with serving(tls, memory) as address:
            for _ in range(3):
                peer = Peer()
                await peer.open(address)
                await peer.shake_hands()
                assert alive() > 0
                peer.tls.write(REQUEST)
                peer.send(b"")
                assert await asyncio.wait_for(peer.reader.read(1), WAIT_S)
                if polite:
                    with pytest.raises(ssl.SSLError):
                        peer.tls.unwrap()
                    peer.send(b"")
                    assert await peer.is_cut()
                peer.writer.close()
                await eventually_async(lambda: alive() == 0)
                assert memory.used == 0

    with without_collector():
        run(loop, test())


def test_small_records_come_together_and_let_others_have_their_turn(loop: Loop, tls: TlsContext) -> None:
    """Of 20,000 records in one go none is lost, and no turn of the loop is for more than a few hundred."""

    async def test() -> None:
        async with above(tls) as (listener, address):
            peer = Peer()
            await peer.open(address)
            await peer.shake_hands()
            sent = os.urandom(20_000)
            for number in range(len(sent)):
                peer.tls.write(sent[number : number + 1])
            peer.send(b"")
            await eventually_async(lambda: sum(map(len, listener.got)) == len(sent))
            assert b"".join(listener.got) == sent
            of_turn: dict[int, int] = {}
            for turn, data in zip(listener.turns, listener.got, strict=True):
                of_turn[turn] = of_turn.get(turn, 0) + len(data)
            assert max(of_turn.values()) <= 320
            assert len(listener.got) < 2000
            peer.writer.close()

    run(loop, test())


def test_a_paused_one_is_given_nothing(loop: Loop, tls: TlsContext) -> None:
    """What has come waits, and is there when it is resumed."""

    async def test() -> None:
        class Pausing(Above):
            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                self.transport.pause_reading()

        listener = Pausing()
        server = await asyncio.get_running_loop().create_server(
            lambda: TlsTransport(tls.choose, lambda _: listener, lambda _, exc: None), "127.0.0.1", 0
        )
        peer = Peer()
        await peer.open(server.sockets[0].getsockname())
        await peer.shake_hands()
        for _ in range(1000):
            peer.tls.write(b"x")
        peer.send(b"")
        for number in range(1, 4):
            await eventually_async(lambda number=number: len(listener.got) == number)  # type: ignore[misc]
            turn = listener.turn
            await eventually_async(lambda turn=turn: listener.turn > turn + 10)  # type: ignore[misc]
            assert len(listener.got) == number
            listener.transport.resume_reading()
        peer.writer.close()
        server.close()
        listener.transport.abort()
        await eventually_async(lambda: listener.is_lost)

    run(loop, test())


def test_much_in_both_directions(loop: Loop, tls: TlsContext) -> None:
    """Megabytes arrive whole, in records of any size."""

    async def test() -> None:
        async with above(tls) as (listener, address):
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            reader, writer = await asyncio.open_connection(*address, ssl=context)
            sent = os.urandom(3_000_000)
            writer.write(sent)
            await eventually_async(lambda: sum(map(len, listener.got)) == len(sent))
            assert b"".join(listener.got) == sent
            listener.transport.write(sent)
            assert await asyncio.wait_for(reader.readexactly(len(sent)), WAIT_S) == sent
            writer.close()

    run(loop, test())


TOO_MUCH = {
    "a hello that says it is long": make_record(hello_of(131_000)),
    "one that says so in small records": b"".join(make_record(bytes([each])) for each in hello_of(131_000)),
    "one behind another kind of record": make_record(b"\x01", 20) + make_record(hello_of(131_000)),
    "records without end": make_record(b"\x01", 20) * 10_000,
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in TOO_MUCH.items()])
def test_no_more_is_taken_than_it_takes_to_agree(loop: Loop, tls: TlsContext, data: bytes) -> None:
    """The connection is closed at once, before room was made for what was announced."""

    async def test() -> None:
        memory = Memory(2**20)
        async with serving(tls, memory) as address:
            peer = Peer()
            await peer.open(address)
            peer.send(data)
            assert await peer.is_cut()
            peer.writer.close()
            await eventually_async(lambda: memory.used == 0)

    run(loop, test())


def test_a_second_hello_is_no_longer_than_the_first(loop: Loop, tmp_path: Path) -> None:
    """A server that asks for another one looks at its length too; one of the usual length is welcome."""
    tls = made_tls(tmp_path)
    for context in tls.contexts.values():
        context.set_ecdh_curve("secp384r1")  # clients do not guess it

    async def test() -> None:
        async with serving(tls, Memory(2**20)) as address:
            long, usual = Peer(), Peer()
            await long.open(address)
            long.send(long.hello())
            retry = await asyncio.wait_for(long.reader.read(65536), WAIT_S)
            assert retry[5] == 2
            long.send(make_record(b"\x01", 20) + make_record(hello_of(131_000)))
            assert await long.is_cut()
            await usual.open(address)
            await usual.shake_hands()
            for each in (long, usual):
                each.writer.close()

    run(loop, test())


def test_what_a_handshake_takes_is_in_the_budget(loop: Loop, tls: TlsContext) -> None:
    """An address has as many half-open ones as fit in its share; the next one takes the place of the oldest."""

    async def test() -> None:
        memory = Memory(2**20)
        async with serving(tls, memory) as address:
            peers = [Peer() for _ in range(20)]
            for peer in peers:
                await peer.open(address)
                peer.send(peer.hello())
                assert await asyncio.wait_for(peer.reader.read(65536), WAIT_S)
                assert 2**15 < memory.used <= 2**18
            for peer in peers[:10]:
                assert await peer.is_cut()
            for peer in peers:
                peer.writer.close()
            await eventually_async(lambda: memory.used == 0)
            agreed = Peer()
            await agreed.open(address)
            await agreed.shake_hands()
            agreed.tls.write(REQUEST)
            agreed.send(b"")
            assert await asyncio.wait_for(agreed.reader.read(1), WAIT_S)
            assert memory.used == 0
            agreed.writer.close()

    run(loop, test())


def test_records_that_do_not_end_are_in_the_budget(loop: Loop, tls: TlsContext) -> None:
    """They are held for an address like anything else; where one is too much, the oldest is cut off."""

    async def test() -> None:
        memory = Memory(2**18)
        async with serving(tls, memory) as address:
            peers = [Peer() for _ in range(5)]
            for peer in peers:
                await peer.open(address)
                await peer.shake_hands()
            await eventually_async(lambda: memory.used == 0)
            for peer in peers:
                peer.send(make_record(bytes(16_000), 23)[:-1])
                await eventually_async(lambda peer=peer: memory.used % 16_004 == 0 and memory.used > 0)  # type: ignore[misc]
            assert await peers[0].is_cut()
            assert memory.used <= 4 * 16_004
            for peer in peers:
                peer.writer.close()
            await eventually_async(lambda: memory.used == 0)

    run(loop, test())
