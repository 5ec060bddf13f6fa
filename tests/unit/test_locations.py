"""A request that a cell does not let in: it goes to the cell's next server, if this one ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import Mock

import pytest

from tuplegate.engine import port
from tuplegate.engine.cells.line import Stay
from tuplegate.engine.routing.engines import SeveralEngines

CELL = "cell"


class Engine:
    """An engine that answers, or refuses whoever asks; the worker hears of the end of its server `after_s`, or before
    that."""

    def __init__(self, hear: Callable[[], None] | None, after_s: float = 0.02) -> None:
        self._hear = hear
        self._after_s = after_s
        self._is_heard = False

    async def query(self, *_: object) -> str:
        if self._hear is None:
            return "answer"
        if not self._is_heard:
            self._is_heard = True  # a server ends once, however late the next one asks
            if self._after_s:
                asyncio.get_running_loop().call_later(self._after_s, self._hear)
            else:
                self._hear()
        raise port.EngineUnavailable("the engine accepts no connection just now")

    def pause(self, databases: frozenset[str]) -> None: ...

    def bound_size(self, database: str, bytes_max: int | None) -> None: ...

    def measure(self) -> port.Measured:
        return port.Measured({}, {}, {})


class Cells:
    """A worker's cells, of which there is one. `end` and `fall` are what the worker hears of its server."""

    def __init__(self) -> None:
        self.line = self
        self.stay = Stay(CELL)
        self.engines: list[Engine] = []
        self.closed = Engine(None)
        """It cannot even be opened before its server ends."""

    @asynccontextmanager
    async def use(self, cell: str) -> AsyncIterator[Stay]:
        if self.stay.has_ended:
            self.stay = Stay(cell)
        self.stay.is_down = False
        yield self.stay

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Engine]:
        engine = self.engines.pop(0)
        if engine is self.closed:
            asyncio.get_running_loop().call_later(0.02, self.end)
            raise port.EngineUnavailable("no connection to the engine")
        yield engine

    def end(self) -> None:
        self.stay.has_ended = True
        for close in self.stay.on_end:
            asyncio.get_running_loop().create_task(cast("Any", close()))

    def fall(self) -> None:
        self.stay.is_down = True
        for note in self.stay.on_down:
            note()

    async def ask(self, engines: Sequence[Engine], times: int) -> list[Any]:
        """Return the answers to so many requests at once, and to one more."""

        async def locate(names: Sequence[str]) -> dict[str, str]:
            return dict.fromkeys(names, port.FIRST_ENGINE)

        self.engines = list(engines)
        several = SeveralEngines(Mock(), {}, locate, (), cast("Any", self))
        target = port.Target(CELL, port.Access.WRITE)

        async def ask() -> port.Result:
            return await several.query(target, cast("Any", None), cast("Any", None))

        return [*await asyncio.gather(*(ask() for _ in range(times)), return_exceptions=True), await ask()]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("after_s", [0.0, 0.02])
@pytest.mark.parametrize("times", [1, 3])
def test_who_was_refused_as_the_server_ended_asks_the_next_one(times: int, after_s: float) -> None:
    """Also before the engine is closed that it was refused by."""
    cells = Cells()
    engines = [Engine(cells.end, after_s), Engine(None)]
    assert asyncio.run(cells.ask(engines, times)) == ["answer"] * (times + 1)


def test_who_came_as_the_server_ended_goes_to_the_next_one() -> None:
    cells = Cells()
    assert asyncio.run(cells.ask([cells.closed, cells.closed, Engine(None)], 2)) == ["answer"] * 3


def test_who_was_refused_as_the_server_died_asks_again_when_there_is_another() -> None:
    cells = Cells()
    engine = Engine(None)

    def fall() -> None:
        cells.fall()
        engine._hear = None

    engine._hear = fall
    assert asyncio.run(cells.ask([engine], 1)) == ["answer"] * 2


def test_who_was_refused_by_a_server_that_stays_is_told() -> None:
    cells = Cells()
    engine = Engine(None)
    engine._hear = lambda: setattr(engine, "_hear", None)
    refused, answer = asyncio.run(cells.ask([engine], 1))
    assert type(refused) is port.EngineUnavailable
    assert answer == "answer"
