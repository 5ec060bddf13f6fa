"""Whoever only holds a connection gives way to whoever wants one."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.unit.stage import WAIT_S, Line
from tests.waiting import eventually_async
from tuplegate.http.connection import HttpBounds
from tuplegate.http.exchange import Exchange
from tuplegate.http.server import HttpServer
from tuplegate.http.sharing.memory import Memory
from tuplegate.http.sharing.places import Places
from tuplegate.http.sharing.precedence import Standing, Waiting
from tuplegate.http.tls.certificates import TlsContext
from tuplegate.http.tls.self_signed import provide

PLACES = 8
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BUSY = b"GET /busy HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"
NO_BODY = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"
REFUSED = b"no request\r\n\r\n"
BUSY_KNOWN, LARGE_KNOWN, NO_BODY_KNOWN, REFUSED_KNOWN = (
    each.replace(b"Host: a\r\n", b"Host: a\r\nAuthorization: good\r\n")
    for each in (BUSY, LARGE, NO_BODY, b"GET /refused HTTP/1.1\r\nHost: a\r\n\r\n")
)
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"


class Street:
    """A server with few places."""

    def __init__(self, listening: socket.socket, tls: TlsContext | None) -> None:
        self.address = listening.getsockname()
        self.server = HttpServer(self._answer, HttpBounds(PLACES, 60.0, 60.0, 60.0, 60.0), Memory(2**22), tls=tls)
        self.clients: list[Line] = []
        self.waiters: list[asyncio.Future[None]] = []

    def count(self, waiting: Waiting) -> int:
        standings = [each.standing() for each in self.server.connections]
        return sum(standing is not None and standing.waiting is waiting for standing in standings)

    def look_again(self) -> None:
        """As once a second."""
        self.server._check_connections(asyncio.get_running_loop().time() + 1)

    async def _answer(self, exchange: Exchange) -> None:
        if b"authorization" in exchange.headers:
            exchange.outgoing.belong_to("organization")
        if exchange.path == "/refused":
            exchange.keep_alive = False
            exchange.respond(400, b"")
            return
        if exchange.incoming is not None:
            await exchange.incoming.collect(exchange.outgoing.owner, 1000)
        elif exchange.path == "/large":
            await exchange.respond_in_pieces(bytes(2**23))
            return
        elif exchange.path == "/busy":
            self.waiters.append(asyncio.get_running_loop().create_future())
            await self.waiters[-1]
        exchange.respond(200, b"answered")

    async def _open(self, address: str, trust: ssl.SSLContext | None = None) -> Line:
        sock = socket.create_connection(self.address, WAIT_S, (address, 0))
        name = None if trust is None else "localhost"
        opening = asyncio.open_connection(sock=sock, ssl=trust, server_hostname=name)
        self.clients.append(Line(*await asyncio.wait_for(opening, WAIT_S)))
        return self.clients[-1]

    async def come(self, data: bytes = b"", address: str = HERE) -> Line:
        """Wait until it has its place; there must be one."""
        before = len(self.server.connections)
        client = await self._open(address)
        client.writer.write(data)
        await eventually_async(lambda: len(self.server.connections) > before)
        return client

    async def fill(self, data: bytes = b"", address: str = HERE) -> list[Line]:
        clients = [await self.come(data, address) for _ in range(PLACES - len(self.server.connections))]
        if data in (BUSY, BUSY_KNOWN):
            await eventually_async(lambda: len(self.waiters) == len(clients))
        return clients

    async def ask(self, address: str = HERE, trust: ssl.SSLContext | None = None) -> tuple[int, bytes]:
        client = await self._open(address, trust)
        client.writer.write(REQUEST)
        return await client.answer()


@asynccontextmanager
async def street(tls: TlsContext | None = None) -> AsyncIterator[Street]:
    with socket.create_server((HERE, 0), backlog=100) as listening:
        opened = Street(listening, tls)
        await opened.server.start(listening)
        try:
            yield opened
        finally:
            for waiter in opened.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            for client in opened.clients:
                client.writer.close()
            await opened.server.stop(WAIT_S, lambda: None)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


async def again(client: Line) -> int:
    """Ask on a connection that was kept."""
    client.writer.write(REQUEST)
    return (await client.answer())[0]


@pytest.mark.parametrize(
    "data", [pytest.param(b"", id="nothing"), pytest.param(b"G", id="a part"), pytest.param(NO_BODY, id="no body")]
)
def test_those_who_ask_nothing_give_way(data: bytes) -> None:
    """In the order in which they came, however many come, and none of those that ask is refused."""

    async def test() -> None:
        async with street() as opened:
            silent = await opened.fill(data)
            for oldest in silent[:3]:
                assert await opened.ask() == (200, b"answered")
                assert await oldest.is_cut()
            assert len(opened.server.connections) == PLACES

    run(test)


def test_those_between_two_requests_give_way_last() -> None:
    """One that has asked keeps its place while others have never asked anything; then the one that waits longest."""

    async def test() -> None:
        async with street() as opened:
            kept = [await opened.come() for _ in range(2)]
            for client in kept:
                assert await again(client) == 200
            await opened.fill()
            for _ in range(PLACES - 2):
                assert await opened.ask() == (200, b"answered")
            for client in kept:
                assert await again(client) == 200

    run(test)


def test_requests_of_organizations_in_hand_do_not_give_way() -> None:
    """Where nobody waits for nothing, the newcomer is told so."""

    async def test() -> None:
        async with street() as opened:
            busy = await opened.fill(BUSY_KNOWN)
            assert (await opened.ask())[0] == 503
            for waiter in opened.waiters:
                waiter.set_result(None)
            for client in busy:
                assert (await client.answer())[0] == 200

    run(test)


def test_those_who_linger_give_way() -> None:
    """A client that was refused and does not close keeps nobody out, whether it is known or not."""

    async def test() -> None:
        async with street() as opened:
            refused = [await opened.come(REFUSED_KNOWN), *await opened.fill(REFUSED)]
            for client in refused:
                assert (await client.answer())[0] == 400
            for _ in range(2 * PLACES):
                assert await opened.ask() == (200, b"answered")
            assert len(opened.server.connections) == PLACES

    run(test)


def test_strangers_whose_request_is_in_hand_give_way() -> None:
    """As those whose token is looked up, however many wait for it."""

    async def test() -> None:
        async with street() as opened:
            waiting = await opened.fill(BUSY)
            for oldest in waiting[:3]:
                assert await opened.ask() == (200, b"answered")
                assert await oldest.is_cut()
            assert len(opened.server.connections) == PLACES

    run(test)


@pytest.mark.parametrize("is_slow_reader", [False, True])
def test_an_organization_waits_for_its_clients_in_its_share_of_places(is_slow_reader: bool) -> None:
    """Bodies that trickle, and answers that it does not take: what is beyond its share gives way."""

    async def test() -> None:
        async with street() as opened:
            slow = []
            for _ in range(PLACES):
                slow.append(await opened.come(address=ELSEWHERE))
                if is_slow_reader:
                    slow[-1].writer.transport.pause_reading()  # type: ignore[attr-defined]
                slow[-1].writer.write(LARGE_KNOWN if is_slow_reader else NO_BODY_KNOWN)
            waits = Waiting.READER if is_slow_reader else Waiting.BODY
            await eventually_async(lambda: opened.count(waits) == PLACES)
            for number in range(2 * PLACES):
                assert await opened.ask(f"127.0.1.{number + 1}") == (200, b"answered")
            assert opened.count(waits) == PLACES // 4
            assert len(opened.server.connections) == PLACES

    run(test)


def test_refused_connections_that_linger_take_no_places() -> None:
    """However many are refused: once they are gone there are as many as before."""

    async def test() -> None:
        async with street() as opened:
            await opened.fill(BUSY_KNOWN)
            for _ in range(PLACES):
                assert (await opened.ask())[0] == 503
            opened.look_again()
            assert (await opened.ask())[0] == 503
            assert len(opened.server.connections) == PLACES + 1

    run(test)


def test_strangers_who_do_not_take_their_answers_give_way() -> None:
    """After those who ask nothing. What waits for them is dropped."""

    async def test() -> None:
        async with street() as opened:
            unread = [await opened.come(address=ELSEWHERE) for _ in range(PLACES - 1)]
            for client in unread:
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                client.writer.write(LARGE)
            await eventually_async(lambda: opened.count(Waiting.READER) == len(unread))
            silent = await opened.come(address=ELSEWHERE)
            for _ in range(3):
                assert (await opened.ask())[0] == 200
            assert await silent.is_cut()
            assert len(opened.server.connections) == PLACES

    run(test)


def test_an_address_that_holds_most_places_gives_way() -> None:
    """And to itself: those of others keep theirs."""

    async def test() -> None:
        async with street() as opened:
            others = [await opened.come(address=ELSEWHERE) for _ in range(2)]
            silent = await opened.fill()
            for _ in range(3 * PLACES):
                assert (await opened.ask())[0] == 200
            assert (await opened.ask(ELSEWHERE))[0] == 200
            for client in silent:
                assert await client.is_cut()
            for client in others:
                assert await again(client) == 200

    run(test)


def test_an_address_that_holds_most_places_takes_none_of_others() -> None:
    """Its requests in hand give way, and the others go on."""

    async def test() -> None:
        async with street() as opened:
            others = [await opened.come(address=ELSEWHERE) for _ in range(3)]
            await opened.fill(BUSY)
            for _ in range(PLACES):
                assert (await opened.ask())[0] == 200
            for client in others:
                assert await again(client) == 200

    run(test)


def test_handshakes_that_do_not_begin_give_way(tmp_path: Path) -> None:
    """Over TLS a place is taken before anything is agreed."""
    tls = TlsContext(provide(tmp_path / "files", ["localhost"], datetime.now(UTC)))
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE

    async def test() -> None:
        async with street(tls) as opened:
            silent = [Line(*await asyncio.open_connection(*opened.address)) for _ in range(PLACES)]
            opened.clients += silent
            for oldest in silent[:3]:
                assert await opened.ask(trust=trust) == (200, b"answered")
                assert await oldest.is_cut()

    run(test)


class Counted:
    """An occupant that counts how often it was looked at."""

    looks = 0

    def __init__(self, number: int, *, is_known: bool) -> None:
        self._standing = Standing(HERE, is_known, Waiting.HANDLER, False, number)

    def standing(self) -> Standing:
        Counted.looks += 1
        return self._standing

    def give_way(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("ready", [0, 1, 1000])
def test_a_flood_of_newcomers_looks_at_each_once(ready: int) -> None:
    """Whether many can give way or hardly any."""
    Counted.looks = 0
    occupants = [Counted(number, is_known=number >= ready) for number in range(1000)]
    places = Places(1000)
    there, found = list(occupants), []
    for _ in range(1000):
        leaving = places.find(HERE, lambda: there)
        if isinstance(leaving, Counted):
            there.remove(leaving)
            found.append(leaving)
    assert found == occupants[:ready]
    assert Counted.looks <= 4 * len(occupants)


def test_a_second_later_all_are_looked_at_again() -> None:
    """Whoever has become ready meanwhile gives way then, also where nobody was before."""
    occupants = [Counted(number, is_known=True) for number in range(100)]
    places = Places(100)
    assert places.find(HERE, lambda: occupants) is None
    stranger = Counted(100, is_known=False)
    assert places.find(HERE, lambda: [*occupants, stranger]) is None
    places.forget()
    assert places.find(HERE, lambda: [*occupants, stranger]) is stranger


class Placed:
    def __init__(self, owner: str, waiting: Waiting, *, is_known: bool) -> None:
        self._standing = Standing(owner, is_known, waiting, False, 0.0)
        self.is_known = is_known

    def standing(self) -> Standing:
        return self._standing

    def give_way(self) -> None:
        raise AssertionError


def test_strangers_of_many_addresses_leave_half_to_those_who_are_known() -> None:
    """Each has one connection, and the organization has many that are idle: it keeps them."""
    there: list[Placed] = [Placed("organization", Waiting.NEXT_REQUEST, is_known=True) for _ in range(20)]
    there += [Placed(f"address {n}", Waiting.FIRST_REQUEST, is_known=False) for n in range(40)]
    places = Places(60)
    for number in range(200):
        if number % 16 == 0:
            places.forget()
        leaving = places.find(f"another {number}", lambda: there)
        assert isinstance(leaving, Placed)
        assert not leaving.is_known
        there.remove(leaving)
        there.append(Placed(f"another {number}", Waiting.FIRST_REQUEST, is_known=False))


def test_an_organization_that_has_most_makes_room_while_strangers_have_little() -> None:
    there = [Placed("organization", Waiting.NEXT_REQUEST, is_known=True) for _ in range(50)]
    there += [Placed(f"address {n}", Waiting.FIRST_REQUEST, is_known=False) for n in range(10)]
    leaving = Places(60).find("another", lambda: there)
    assert isinstance(leaving, Placed)
    assert leaving.is_known
