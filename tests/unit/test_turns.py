"""Turns of those who want the same rows: when a database is hot, and who may go on."""

import asyncio

from tuplegate.engine.libpq.pools.turns import Turns

LONG_S, SHORT_S = 60.0, 0.01


def test_a_few_conflicts_among_many_tries_make_nothing_hot() -> None:
    """One in twenty is no reason to wait."""
    turns = Turns()
    for attempt in range(2000):
        turns.note(conflict=attempt % 20 == 0)
        assert not turns.hot


def test_it_grows_hot_by_conflicts_and_cools_by_successes() -> None:
    """A run of conflicts makes it hot; it stays so for a while of successes, and then is as if nothing had been."""
    turns = Turns()
    states = []
    for times, conflict in ((16, True), (16, False), (200, False)):
        for _ in range(times):
            turns.note(conflict=conflict)
        states.append(turns.hot)
    assert states == [True, True, False]
    assert turns.heat == 0


def test_turns_come_in_order_and_one_at_a_time() -> None:
    """Whoever waits is called when the one before has left."""

    async def play() -> list[str]:
        turns, said = Turns(), []

        async def one(name: str) -> None:
            assert await turns.wait(LONG_S)
            said.append(f"{name} in")
            await asyncio.sleep(0)
            said.append(f"{name} out")
            turns.leave()

        await asyncio.gather(*(one(name) for name in "abc"))
        assert await turns.wait(LONG_S), "the last one has left"
        return said

    assert asyncio.run(play()) == ["a in", "a out", "b in", "b out", "c in", "c out"]


def test_nobody_waits_for_ever() -> None:
    """A turn that is not left in time is not waited for, and who gave up is passed over."""

    async def play() -> None:
        turns = Turns()
        assert await turns.wait(LONG_S)
        assert await turns.wait(SHORT_S) is False
        waiting = asyncio.create_task(turns.wait(LONG_S))
        left = asyncio.create_task(turns.wait(LONG_S))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        turns.leave()
        assert await left is True

    asyncio.run(play())
