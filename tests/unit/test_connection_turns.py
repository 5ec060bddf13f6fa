"""Turns of connections: what a pass of the loop begins, and whose turn is next."""

import asyncio
import time
from collections.abc import Callable

import pytest

from tuplegate.http.sharing import connection_turns
from tuplegate.http.sharing.connection_turns import ConnectionTurns
from tuplegate.http.sharing.memory import STRANGER

LONG_NS = 5_000_000
LONG_S = LONG_NS / 1e9
"""Longer than what a pass has for turns."""


def work() -> None:
    time.sleep(LONG_S)


@pytest.fixture
def pass_ns(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets time pass on a clock of its own."""
    now = 1_000_000_000

    def add(ns: int) -> None:
        nonlocal now
        now += ns

    monkeypatch.setattr(connection_turns, "perf_counter_ns", lambda: now)
    return add


async def passed() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_a_pass_in_which_much_was_done_begins_nothing_more_for_strangers(pass_ns: Callable[[int], None]) -> None:
    async def run() -> None:
        turns = ConnectionTurns()
        assert not turns.is_late(f"{STRANGER}10.0.0.1")
        pass_ns(LONG_NS)
        assert turns.is_late(f"{STRANGER}10.0.0.2")
        assert not turns.is_late("organization")
        pass_ns(10 * LONG_NS)
        assert turns.is_late("organization")
        await passed()
        assert not turns.is_late("organization")
        await passed()
        assert not turns.is_late(f"{STRANGER}10.0.0.1")

    asyncio.run(run())


def test_one_owner_has_its_turn_after_the_other() -> None:
    """In the order of asking; and the loop goes on between turns that take long."""

    async def run() -> None:
        turns = ConnectionTurns()
        done: list[str] = []

        def turn(name: str) -> Callable[[], None]:
            def act() -> None:
                work()
                done.append(name)

            return act

        def look() -> None:
            done.append("-")
            if "one 2" not in done:
                asyncio.get_running_loop().call_soon(look)

        for number in range(3):
            turns.ask("one", turn(f"one {number}"))
        turns.ask("two", turn("two"))
        look()
        while "one 2" not in done:
            await asyncio.sleep(0)
        assert [name for name in done if name != "-"] == ["one 0", "two", "one 1", "one 2"]
        for earlier, later in (("one 0", "two"), ("two", "one 1"), ("one 1", "one 2")):
            assert "-" in done[done.index(earlier) : done.index(later)]

    asyncio.run(run())


def test_who_asks_again_in_its_turn_waits_for_the_next_pass() -> None:
    async def run() -> None:
        turns = ConnectionTurns()
        had = 0

        def act() -> None:
            nonlocal had
            had += 1
            turns.ask("one", act)

        turns.ask("one", act)
        for expected in range(1, 5):
            await asyncio.sleep(0)
            assert had == expected

    asyncio.run(run())


def test_a_turn_that_is_not_wanted_any_more() -> None:
    async def run() -> None:
        turns = ConnectionTurns()
        done: list[str] = []
        turns.ask("one", lambda: done.append("first")).cancel()
        turns.ask("one", lambda: done.append("second"))
        await passed()
        assert done == ["second"]

    asyncio.run(run())
