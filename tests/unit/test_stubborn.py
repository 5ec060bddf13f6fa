"""What is done, and when, about server processes that ignore being told to end."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tuplegate.engine.port import EngineBusy, EngineUnavailable
from tuplegate.engine.postgres.safety import stubborn
from tuplegate.engine.postgres.safety.stubborn import (
    SIGNAL_AFTER_S,
    STUCK_AFTER_S,
    STUCK_MAX,
    Ending,
    Sample,
    Stubborn,
    only_computes,
    read_sample,
)

PROCESS, WORKER = 100, 101
Row = tuple[str | None, ...]


class Stage:
    """An engine's table of processes, a kernel's, and the signals that were sent; `look` is one look at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, may_signal: bool = True) -> None:
        self.rows: list[Row] = []
        self.samples: dict[int, Sample] = {}
        self.told: list[int] = []
        self.sent: list[tuple[int, int]] = []
        self.down = False
        self.stubborn = Stubborn(self._fetch, self._terminate, may_signal=may_signal)
        monkeypatch.setattr(stubborn, "read_sample", self.samples.get)
        self.yielding: list[int] = []
        monkeypatch.setattr(os, "setpriority", lambda _, process, __: self.yielding.append(process))
        monkeypatch.setattr(os, "kill", lambda process, number: self.sent.append((process, number)))

    async def _fetch(self, sql: str, numbers: str) -> list[Row]:
        if self.down:
            raise EngineUnavailable("it is down")
        return self.rows

    async def _terminate(self, database: str, process: int) -> None:
        if self.down:
            raise EngineUnavailable("it is down")
        self.told.append(process)

    def run(self, process: int = PROCESS, leader: int = 0, *, started: str = "now", computes: bool = True) -> None:
        self.rows.append((str(process), str(leader) if leader else None, "one", started, "t" if computes else "f"))
        self.samples[process] = Sample(is_running=True, user=0, kernel=0, waits=7)

    async def look(self, ending: Ending, age: float) -> None:
        for process, sample in self.samples.items():
            self.samples[process] = sample._replace(user=sample.user + 50)
        await self.stubborn._look(ending.since + age)


Story = Callable[[Stage], Coroutine[Any, Any, None]]


def play(monkeypatch: pytest.MonkeyPatch, story: Story, *, may_signal: bool = True) -> Stage:
    stage = Stage(monkeypatch, may_signal=may_signal)

    async def whole() -> None:
        await story(stage)
        await stage.stubborn.close()

    asyncio.run(whole())
    return stage


async def _press(stage: Stage, process: int = PROCESS) -> Ending:
    """Looks up to the moment when a signal is due."""
    ending = await stage.stubborn.end("one", process)
    for age in (0.5, SIGNAL_AFTER_S - 0.5, SIGNAL_AFTER_S):
        await stage.look(ending, age)
    return ending


def test_a_process_that_computes_is_sent_the_signal_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        stage.run()
        ending = await stage.stubborn.end("one", PROCESS)
        await stage.look(ending, SIGNAL_AFTER_S - 0.5)
        assert stage.sent == []
        await stage.look(ending, SIGNAL_AFTER_S)

    stage = play(monkeypatch, story)
    assert stage.told == [PROCESS]
    assert stage.sent == [(PROCESS, signal.SIGFPE)]


def test_a_parallel_worker_is_signalled_in_place_of_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        stage.run(computes=False)
        stage.run(WORKER, leader=PROCESS)
        await _press(stage)

    assert play(monkeypatch, story).sent == [(WORKER, signal.SIGFPE)]


@pytest.mark.parametrize("reason", ["engine elsewhere", "it waits or commits", "not told", "number of another"])
def test_no_signal_is_sent_where_it_could_hurt(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    async def story(stage: Stage) -> None:
        stage.run(computes=reason != "it waits or commits")
        if reason == "not told":
            stage.down = True
        ending = await stage.stubborn.end("one", PROCESS)
        if reason == "not told":
            ending.is_told = False
            stage.down = False
            monkeypatch.setattr(stage.stubborn, "_tell", _nothing)
        await stage.look(ending, 0.5)
        if reason == "number of another":
            stage.rows.clear()
            stage.run(started="later")
        for age in (SIGNAL_AFTER_S - 0.5, SIGNAL_AFTER_S, SIGNAL_AFTER_S + 1):
            if not ending.is_gone:
                await stage.look(ending, age)
        assert ending.is_gone == (reason == "number of another")

    assert play(monkeypatch, story, may_signal=reason != "engine elsewhere").sent == []


async def _nothing(ending: Ending) -> None:
    pass


def test_a_process_that_is_gone_gives_its_place_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[bool] = []

    async def story(stage: Stage) -> None:
        stage.run()
        ending = await stage.stubborn.end("one", PROCESS)
        assert await stage.stubborn.end("one", PROCESS) is ending
        ending.on_gone = lambda: given_back.append(True)
        await stage.look(ending, 0.5)
        assert not given_back
        assert not ending.settled.is_set()
        stage.rows.clear()
        await stage.look(ending, 1.0)
        await stage.look(ending, 1.5)
        assert ending.is_gone
        assert ending.settled.is_set()

    stage = play(monkeypatch, story)
    assert given_back == [True]
    assert stage.told == [PROCESS]


@pytest.mark.parametrize("may_signal", [True, False])
def test_a_stuck_process_gives_way_to_all_others(monkeypatch: pytest.MonkeyPatch, may_signal: bool) -> None:
    """With its parallel workers; once, and only where the processes are on this machine."""

    async def story(stage: Stage) -> None:
        stage.run(computes=False)
        stage.run(WORKER, PROCESS, computes=False)
        ending = await _press(stage)
        assert stage.yielding == []
        await stage.look(ending, STUCK_AFTER_S + 1)
        await stage.look(ending, STUCK_AFTER_S + 2)

    assert play(monkeypatch, story, may_signal=may_signal).yielding == ([PROCESS, WORKER] if may_signal else [])


def test_a_database_with_too_many_stuck_processes_takes_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others do, and it does again when they are gone."""

    async def story(stage: Stage) -> None:
        for number in range(STUCK_MAX):
            stage.run(PROCESS + number)
            ending = await stage.stubborn.end("one", PROCESS + number)
            stage.stubborn.check("one")
        await stage.look(ending, STUCK_AFTER_S + 1)
        assert ending.settled.is_set()
        assert stage.stubborn.stuck == STUCK_MAX
        with pytest.raises(EngineBusy, match="ignore that they were told to end"):
            stage.stubborn.check("one")
        stage.stubborn.check("two")
        stage.rows.pop()
        await stage.look(ending, STUCK_AFTER_S + 2)
        stage.stubborn.check("one")
        assert stage.stubborn.stuck == STUCK_MAX - 1

    play(monkeypatch, story, may_signal=False)


def test_one_stuck_process_is_too_many_for_a_standby() -> None:
    """It may hold up the replay, which all databases there wait for."""

    async def run() -> None:
        rows: list[Row] = [(str(PROCESS), None, "one", "now", "t")]

        async def fetch(sql: str, numbers: str) -> list[Row]:
            return rows

        async def terminate(database: str, process: int) -> None:
            pass

        on_standby = Stubborn(fetch, terminate, may_signal=False, stuck_max=1)
        ending = await on_standby.end("one", PROCESS)
        await on_standby._look(ending.since + STUCK_AFTER_S)
        with pytest.raises(EngineBusy):
            on_standby.check("one")
        await on_standby.close()

    asyncio.run(run())


def test_an_engine_that_is_away_is_told_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        stage.run()
        stage.down = True
        ending = await stage.stubborn.end("one", PROCESS)
        with pytest.raises(EngineUnavailable):
            await stage.look(ending, 0.5)
        stage.down = False
        await stage.look(ending, 1.0)

    assert play(monkeypatch, story).told == [PROCESS]


BEFORE = Sample(is_running=True, user=100, kernel=10, waits=5)


@pytest.mark.parametrize(
    ("now", "computes"),
    [
        (BEFORE._replace(user=150), True),
        (BEFORE._replace(user=150, kernel=15), True),
        (BEFORE._replace(user=150, kernel=20), False),
        (BEFORE._replace(user=150, waits=6), False),
        (BEFORE._replace(user=150, is_running=False), False),
        (BEFORE, False),
        (None, False),
    ],
)
def test_only_user_mode_without_a_wait_counts_as_computing(now: Sample | None, computes: bool) -> None:
    assert only_computes(BEFORE, now) is computes
    assert not only_computes(None, now)


def test_a_sample_is_read_of_a_process_with_any_name(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) R (b) R 1 7 7 0 -1 4194560 1 0 0 0 31 4 0 0 20 0 1 0 5 6 7\n")
    (tmp_path / "7" / "status").write_text("Name:\ta\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n")
    assert read_sample(7, tmp_path) == Sample(is_running=True, user=31, kernel=4, waits=12)
    assert read_sample(8, tmp_path) is None
