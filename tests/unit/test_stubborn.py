"""What is done, and when, about server processes that ignore being told to end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tuplegate.engine.port import EngineBusy, EngineUnavailable
from tuplegate.engine.postgres.safety.stubborn import (
    KILL_AFTER_LOOKS,
    STUCK_AFTER_LOOKS,
    STUCK_MAX,
    Ending,
    Stubborn,
)

PROCESS, OTHER = 100, 101
STARTED, SEEN, LATER = 1.0, 2.0, 3.0
Row = tuple[str | None, ...]


class Stage:
    """An engine's table of processes, and what was told and killed; `look` looks again and again."""

    def __init__(self, *, can_kill: bool = False, stuck_max: int = STUCK_MAX) -> None:
        self.rows: list[Row] = []
        self.told: list[int] = []
        self.killed: list[str] = []
        self.down = False
        kill = self.killed.append if can_kill else None
        self.stubborn = Stubborn(self._fetch, self._terminate, kill=kill, stuck_max=stuck_max)

    async def _fetch(self, sql: str, numbers: str) -> list[Row]:
        if self.down:
            raise EngineUnavailable("it is down")
        return self.rows

    async def _terminate(self, database: str, process: int, seen_at: float) -> None:
        if self.down:
            raise EngineUnavailable("it is down")
        self.told.append(process)

    def run(self, process: int = PROCESS, *, database: str = "one", started: float = STARTED) -> None:
        self.rows.append((str(process), database, str(started)))

    async def end(self, process: int = PROCESS, *, seen_at: float = SEEN) -> Ending:
        return await self.stubborn.end("one", process, seen_at)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.stubborn._look()


Story = Callable[[Stage], Coroutine[Any, Any, None]]


def play(story: Story, *, can_kill: bool = False, stuck_max: int = STUCK_MAX) -> Stage:
    async def whole() -> Stage:
        stage = Stage(can_kill=can_kill, stuck_max=stuck_max)
        await story(stage)
        await stage.stubborn.close()
        return stage

    return asyncio.run(whole())


def test_the_server_of_a_database_is_killed_when_that_is_due() -> None:
    """Once, however many of its processes ignore that they were told to end; and again for those of the next server."""

    async def story(stage: Stage) -> None:
        stage.run()
        stage.run(OTHER)
        ending = await stage.end()
        await stage.end(OTHER)
        assert not ending.looks
        await stage.look(KILL_AFTER_LOOKS - 1)
        assert stage.killed == []
        await stage.look(2)
        assert stage.killed == ["one"]
        stage.rows.clear()
        await stage.look()
        stage.run(started=LATER)
        await stage.end(seen_at=LATER)
        await stage.look(KILL_AFTER_LOOKS - 1)
        assert stage.killed == ["one"]
        await stage.look()

    assert play(story, can_kill=True).killed == ["one", "one"]


def test_the_looks_count_from_when_it_was_told() -> None:
    """At a look it is told, the engine was away before: that look says nothing of whether it ignores it."""

    async def story(stage: Stage) -> None:
        stage.run()
        stage.down = True
        await stage.end()
        stage.down = False
        await stage.look(KILL_AFTER_LOOKS)
        assert stage.killed == []
        await stage.look()
        assert stage.killed == ["one"]

    play(story, can_kill=True)


@pytest.mark.parametrize("reason", ["not told", "number of another"])
def test_no_server_is_killed_for_a_process_that_ignores_nothing(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    async def story(stage: Stage) -> None:
        stage.run()
        stage.down = reason == "not told"
        ending = await stage.end()
        if reason == "not told":
            stage.down = False
            monkeypatch.setattr(stage.stubborn, "_tell", _nothing)
        if reason == "number of another":
            stage.rows.clear()
            stage.run(started=LATER)
        await stage.look(2 * KILL_AFTER_LOOKS)
        assert ending.is_gone == (reason == "number of another")

    assert play(story, can_kill=True).killed == []


async def _nothing(ending: Ending) -> None:
    pass


def test_a_process_that_is_gone_gives_its_place_back_once() -> None:
    given_back: list[bool] = []

    async def story(stage: Stage) -> None:
        stage.run()
        ending = await stage.end()
        assert await stage.end() is ending
        ending.on_gone = lambda: given_back.append(True)
        await stage.look()
        assert not given_back
        assert not ending.settled.is_set()
        stage.rows.clear()
        await stage.look()
        await stage.look()
        assert ending.is_gone
        assert ending.settled.is_set()

    stage = play(story)
    assert given_back == [True]
    assert stage.told == [PROCESS]


def test_a_database_with_too_many_stuck_processes_takes_no_requests() -> None:
    """Others do, and it does again when they are gone."""

    async def story(stage: Stage) -> None:
        for number in range(STUCK_MAX):
            stage.run(PROCESS + number)
            ending = await stage.end(PROCESS + number)
            stage.stubborn.check("one")
        await stage.look(STUCK_AFTER_LOOKS)
        assert ending.settled.is_set()
        assert stage.stubborn.stuck == STUCK_MAX
        with pytest.raises(EngineBusy, match="ignore that they were told to end"):
            stage.stubborn.check("one")
        stage.stubborn.check("two")
        stage.rows.pop()
        await stage.look()
        stage.stubborn.check("one")
        assert stage.stubborn.stuck == STUCK_MAX - 1

    play(story)


def test_one_stuck_process_is_too_many_for_a_standby() -> None:
    """It may hold up the replay, which all databases there wait for."""

    async def story(stage: Stage) -> None:
        stage.run()
        await stage.end()
        await stage.look(STUCK_AFTER_LOOKS)
        with pytest.raises(EngineBusy):
            stage.stubborn.check("one")

    play(story, stuck_max=1)


def test_an_engine_that_is_away_is_told_when_it_is_back() -> None:
    async def story(stage: Stage) -> None:
        stage.run()
        stage.down = True
        await stage.end()
        with pytest.raises(EngineUnavailable):
            await stage.look()
        stage.down = False
        await stage.look()

    assert play(story).told == [PROCESS]
