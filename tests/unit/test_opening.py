"""A connection that is being opened is not lost with the request that has asked for it."""

import asyncio
import math
from typing import Any, cast

from tuplegate.engine.libpq.connections.unread_rows import Stocks
from tuplegate.engine.libpq.pools.places import Places
from tuplegate.engine.libpq.pools.pool import ConnectionPool, Member
from tuplegate.engine.port import EngineUnavailable


class _Member:
    closed = False
    is_fresh = True
    on_lost: Any = None

    def note_room(self) -> None:
        pass

    def close(self, _reason: str) -> None:
        self.closed = True


class _Stocks:
    def open(self, *_: object) -> None:
        pass


class _SlowPool(ConnectionPool):
    """Logs in when `let_in` is set; then raises `failure`, if that is set."""

    let_in: asyncio.Event
    failure: Exception | None = None

    async def _make(self) -> Member:
        await self.let_in.wait()
        if self.failure is not None:
            raise self.failure
        return cast(Member, _Member())


def _make_pool(places: int = 2) -> _SlowPool:
    pool = _SlowPool("d", 2, 10, Places(places, places, lambda *_: None).of("d"), cast(Stocks, _Stocks()))
    pool.let_in = asyncio.Event()
    return pool


async def _give_up(pool: _SlowPool) -> None:
    """Ask for a connection, and leave before there is one."""
    asking = asyncio.create_task(pool.wait(math.inf))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_next_request_gets_the_connection() -> None:
    """Else clients who give up sooner than the engine lets them in would have it log in for ever, for nobody."""

    async def run() -> None:
        pool = _make_pool()
        await _give_up(pool)
        assert pool.size == 1
        pool.let_in.set()
        await _settle()
        assert pool.take() is not None
        await pool.close()

    asyncio.run(run())


def test_a_failure_that_nobody_waits_for_gives_the_place_back() -> None:
    async def run() -> None:
        pool = _make_pool()
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        pool.failure = EngineUnavailable("no")
        await _give_up(pool)
        pool.let_in.set()
        await _settle()
        assert (pool.size, pool._places.take(), pool._places.take()) == (0, True, True)
        assert complaints == []

    asyncio.run(run())


def test_a_pool_that_closes_does_not_wait_for_it() -> None:
    async def run() -> None:
        pool = _make_pool()
        await _give_up(pool)
        await pool.close()
        assert pool.size == 0

    asyncio.run(run())


def test_no_more_are_opened_at_once_than_there_may_be() -> None:
    """Whoever asks in the same turn of the loop sees those that are to be opened."""

    async def run() -> None:
        pool = _make_pool(places=10)
        asking = [asyncio.create_task(pool.wait(math.inf)) for _ in range(5)]
        await _settle()
        assert (pool.size, pool.waiting) == (2, 3)
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        await pool.close()

    asyncio.run(run())
