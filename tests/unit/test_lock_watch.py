"""How often the engine's locks are counted."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from tuplegate.engine.postgres.own.admin import AdminSession
from tuplegate.engine.postgres.pools import Pools
from tuplegate.engine.postgres.query.run import Run, Running
from tuplegate.engine.postgres.safety import lock_watch
from tuplegate.engine.postgres.safety.lock_watch import LockWatch
from tuplegate.engine.postgres.safety.locks import NAMES_SQL

CAPACITY = 1000


class Transaction:
    """One that waits for its client, after as many statements as `rest` says."""

    rest: int | None = 1
    is_own = False
    ended = None
    member = SimpleNamespace(backend=1)
    target = SimpleNamespace(database="one")

    def end(self, *_: object) -> None:
        pass


class Session:
    def __init__(self) -> None:
        self.counted = 0
        self.locks = 1

    async def fetch(self, sql: str) -> list[tuple[str | None, ...]]:
        if sql == NAMES_SQL:
            return [("5", "one")]
        self.counted += 1
        return [("5", "1", "t", str(self.locks), "f")]


class Stage:
    """A watch whose ticks pass one by one, a quarter of a second each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session, self.running, self.transaction = Session(), Running(), Transaction()
        self._now = 100.0
        self._may_pass = asyncio.Semaphore(0)
        self._is_waiting = asyncio.Semaphore(0)
        pools = cast(Pools, SimpleNamespace(states={}))
        self._watch = LockWatch(cast(AdminSession, self.session), pools, self.running, CAPACITY)
        self._watch._time = lambda: self._now
        monkeypatch.setattr(lock_watch, "tick", self._tick)
        self.running.enter(cast(Run, self.transaction), 0.0)

    async def _tick(self, _: float) -> None:
        self._is_waiting.release()
        await self._may_pass.acquire()

    async def begin(self) -> None:
        self.watching = asyncio.create_task(self._watch.watch())
        await self._is_waiting.acquire()

    async def count_after(self, ticks: int) -> int:
        """Return how often the locks were counted while so many ticks passed."""
        before = self.session.counted
        for _ in range(ticks):
            self._now += 0.25
            self._may_pass.release()
            await self._is_waiting.acquire()
        return self.session.counted - before


def test_what_waits_for_its_client_is_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        stage = Stage(monkeypatch)
        await stage.begin()
        assert await stage.count_after(1) == 1
        assert await stage.count_after(12) == 3
        stage.watching.cancel()

    asyncio.run(run())


def test_locks_are_counted_at_the_next_tick_after_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """And at each tick while there is one."""

    async def run() -> None:
        stage = Stage(monkeypatch)
        await stage.begin()
        assert await stage.count_after(2) == 1
        stage.transaction.rest = 2
        assert await stage.count_after(2) == 1
        stage.transaction.rest = None
        assert await stage.count_after(5) == 5
        stage.transaction.rest = 3
        assert await stage.count_after(2) == 1
        stage.watching.cancel()

    asyncio.run(run())


def test_locks_are_counted_at_each_tick_while_there_is_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        stage = Stage(monkeypatch)
        stage.session.locks = CAPACITY // 4
        await stage.begin()
        assert await stage.count_after(5) == 5
        stage.session.locks -= 1
        assert await stage.count_after(2) == 1
        stage.watching.cancel()

    asyncio.run(run())
