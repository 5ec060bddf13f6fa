"""However much one client sends at once, in one turn of the loop little is done for it."""

import asyncio

import pytest
import uvloop

from tests.unit.stage import serving
from tuplegate.http.errors import respond_error
from tuplegate.http.exchange import Exchange
from tuplegate.http.sharing.memory import STRANGER, Memory
from tuplegate.protocol.errors import ServiceError

AT_ONCE = 16
"""A turn may have two parts: what has just come, and what was put off."""

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Turns:
    """Counts the loop's turns, and what is done in each."""

    def __init__(self) -> None:
        self._done: dict[int, int] = {}
        self.number = 0
        self._count()

    def _count(self) -> None:
        self.number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._count)

    def note(self) -> None:
        self._done[self.number] = self._done.get(self.number, 0) + 1

    def end(self) -> int:
        """The most that was done in one turn."""
        self._handle.cancel()
        return max(self._done.values(), default=0)


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
@pytest.mark.parametrize("loop", LOOPS)
def test_requests_that_come_at_once(loop: type[asyncio.AbstractEventLoop], waits: bool) -> None:
    """They are answered in order, a few in each turn; each may be answered at once or later."""
    count = 5000

    async def run() -> None:
        turns = Turns()

        async def answer(exchange: Exchange) -> None:
            turns.note()
            if waits:
                await asyncio.sleep(0)
            exchange.respond(200, exchange.path.encode())

        async with serving(answer, Memory(2**24)) as stage:
            client = await stage.connect()
            client.writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in range(count)))
            for number in range(count):
                assert await client.answer() == (200, b"/%d" % number)
            client.writer.close()
        assert turns.end() <= AT_ONCE

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_body_in_small_chunks(loop: type[asyncio.AbstractEventLoop]) -> None:
    """Nobody else has to wait until all of it is read, wanted or not; and nothing of it is lost."""
    chunks = 40_000

    async def run() -> None:
        turns = Turns()
        taken = 0

        async def answer(exchange: Exchange) -> None:
            nonlocal taken
            body = exchange.body
            if exchange.incoming is not None:
                began = turns.number
                body = await exchange.incoming.collect("one", 2**20)
                taken = turns.number - began
            exchange.respond(200, b"%d" % len(body))

        async with serving(answer, Memory(2**24)) as stage:
            client = await stage.connect()
            head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.writer.write(head + b"6\r\nsix...\r\n" * chunks + b"0\r\n\r\n")
            assert await client.answer() == (200, b"%d" % (6 * chunks))
            client.writer.close()
        turns.end()
        assert taken > chunks / 256 / AT_ONCE

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_body_that_there_is_no_room_for_while_its_key_is_looked_up(loop: type[asyncio.AbstractEventLoop]) -> None:
    """Its request is told so at once: it does not wait for what was thrown away."""

    async def run() -> None:
        memory = Memory(4000)
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def answer(exchange: Exchange) -> None:
            assert exchange.incoming is not None
            begun.set()
            await goes_on.wait()
            try:
                await exchange.incoming.collect("one", 2**20)
            except ServiceError as error:
                respond_error(exchange, error)

        async with serving(answer, memory) as stage:
            client = await stage.connect()
            client.writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n")
            await begun.wait()
            memory.charge(f"{STRANGER}127.0.0.1", 1000)
            client.writer.write(b"x" * 100)
            asyncio.get_running_loop().call_later(0.1, goes_on.set)
            status, body = await client.answer()
            assert (status, b'"busy"' in body) == (503, True), body
            client.writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
