"""The places of databases: an engine that is always there, or a cell, which wakes on demand."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol

from tuplegate.engine import port
from tuplegate.engine.cells.line import CellLine, Stay

_HEARD_S = 0.5
"""A worker learns from a refused connection that a server ends, a moment before the supervisor tells it."""
_LOOK_S = 0.01


class Cells(Protocol):
    """The cells as a worker reaches them."""

    @property
    def line(self) -> CellLine: ...

    def open(self, name: str) -> AbstractAsyncContextManager[port.OpenEngine]:
        """Open the engine of a cell that is awake."""

    def find_failures(self) -> dict[str, str]:
        """Return the reasons why cells do not start, by their names."""

    def measure(self) -> port.Measured:
        """Return the counts of the cells themselves."""


class Place:
    """An engine as a place of databases. `engine` is None until it was reached; `reason` says why. `stay` counts its
    users."""

    def __init__(
        self, name: str, engine: port.OpenEngine | None = None, reason: str = "it was not reached yet"
    ) -> None:
        self.name = name
        self.engine = engine
        self.reason = reason
        self.tried = asyncio.Event()
        self.stay = Stay(name)

    async def reach(self) -> port.OpenEngine:
        """Return the engine. Raises EngineUnavailable if it is not there."""
        if self.engine is None:
            raise port.EngineUnavailable("the engine of the database is not there just now", self.reason)
        return self.engine

    async def has_left(self, stay: Stay) -> bool:
        """Return whether the server of the stay was stopped or has died, and a refused request can use the next
        server."""
        return False

    def explain(self, failure: port.EngineFailure) -> port.EngineFailure:
        """Return the failure with the engine's name in it, if the failure is the engine's and not the request's."""
        if type(failure) not in (port.EngineUnavailable, port.EngineLost):
            return failure
        return type(failure)(f"the engine {self.name} is not available: {failure}")


class CellPlace(Place):
    """A cell, by the name of its database. It has an engine while the cell is awake and this worker stays there."""

    def __init__(self, database: str, cells: Cells, retire: Callable[[port.OpenEngine], None]) -> None:
        """Open nothing yet. `retire` is called with an engine before it is closed."""
        super().__init__(database, reason="it is asleep")
        self._cells = cells
        self._retire = retire
        self._opening: asyncio.Task[port.OpenEngine] | None = None
        self._kept: port.OpenEngine | None = None
        """The engine of the stay, even while its server is down."""
        self.is_paused = False
        self.bytes_max: int | None = None

    async def reach(self) -> port.OpenEngine:
        """Return the engine, once the cell is awake. Raises EngineBusy or EngineUnavailable."""
        if self.engine is not None:
            return self.engine
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._note_opened)
        return await asyncio.shield(self._opening)

    def _note_opened(self, opening: asyncio.Task[port.OpenEngine]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # who waited has it, if anybody still does

    async def _open(self) -> port.OpenEngine:
        while True:
            async with self._cells.line.use(self.name) as stay:
                try:
                    return await self._open_in(stay)
                except port.EngineUnavailable:
                    await _hear_of_end(stay)
                    if not stay.has_ended:  # else it was put to sleep again meanwhile
                        raise

    async def _open_in(self, stay: Stay) -> port.OpenEngine:
        if stay is self.stay and self._kept is not None:
            self.engine = self._kept  # its server has died, and there is another
            self._tell(self._kept)
            return self._kept
        async with AsyncExitStack() as opened:
            engine = await opened.enter_async_context(self._cells.open(self.name))
            if stay.has_ended:
                raise port.EngineUnavailable("the server of the database has ended")
            stack = opened.pop_all()
            self._tell(engine)

            def leave() -> None:
                if self._kept is engine:
                    self.engine = self._kept = None
                self._retire(engine)

            def note_down() -> None:
                self.engine = None

            stay.on_leave.append(leave)
            stay.on_end.append(stack.aclose)
            stay.on_down.append(note_down)
            self.stay, self.engine, self._kept = stay, engine, engine
            return engine

    async def has_left(self, stay: Stay) -> bool:
        left = (stay is self.stay or stay.has_ended) and await _hear_of_end(stay)
        if left and stay is self.stay:
            self.engine = None  # also before it is closed: whoever asks again would be refused for ever
        return left

    def _tell(self, engine: port.OpenEngine) -> None:
        """Tell an engine the state that was set while there was none."""
        engine.pause(frozenset([self.name]) if self.is_paused else frozenset())
        engine.bound_size(self.name, self.bytes_max)

    def explain(self, failure: port.EngineFailure) -> port.EngineFailure:
        return failure


async def _hear_of_end(stay: Stay) -> bool:
    """Wait until the worker has heard that the server of the stay was stopped or has died. Return whether it has."""
    deadline = asyncio.get_running_loop().time() + _HEARD_S
    while not (stay.has_ended or stay.is_down):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True
