"""Whoever watches what runs rests while nothing does."""

import asyncio
from typing import cast

import pytest

from tuplegate.engine import port
from tuplegate.engine.postgres.query import rules
from tuplegate.engine.postgres.query.run import Run, Running


def test_all_who_wait_for_something_that_runs_are_woken_by_the_first() -> None:
    async def run() -> None:
        running, run = Running(), cast(Run, object())
        for _ in range(2):
            waiting = [asyncio.create_task(running.wait_for_some()) for _ in range(2)]
            await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            running.enter(run, 1.0)
            await asyncio.gather(*waiting)
            await running.wait_for_some()  # something runs already
            del running.runs[run]

    asyncio.run(run())


def test_what_has_ended_at_once_wakes_nobody_for_nothing() -> None:
    async def run() -> None:
        running, run = Running(), cast(Run, object())
        waiting = asyncio.create_task(running.wait_for_some())
        await asyncio.sleep(0)
        running.enter(run, 1.0)
        del running.runs[run]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        running.enter(run, 2.0)
        await waiting

    asyncio.run(run())


def test_a_text_is_searched_once_for_what_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again and again while the statement runs, and may have ten megabytes."""
    read: list[str] = []

    def fold(sql: str) -> str:
        read.append(sql)
        return sql

    monkeypatch.setattr(rules, "fold", fold)
    statement = port.Statement("select 1", "select")
    assert [rules.text_may_write(statement) for _ in range(3)] == [False] * 3
    assert read == ["select 1"]
