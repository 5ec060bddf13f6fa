"""A worker's end of its line to the supervisor: asks for cells, and says which of them it uses.

The worker has connections to a cell only between AWAKE and RESTED. Asked to rest, it closes them if nobody uses the
cell; otherwise it answers that the cell is in use. So no cell is stopped under a request. Asked to leave, since
somebody halts the cell, it closes them if no statement runs there: requests that wait for the database come back later.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf

from tuplegate.background import keep, tick
from tuplegate.engine import port
from tuplegate.engine.cells.messages import AT_ONCE, KILLED, STARTED, Message, MessageSocket, Word
from tuplegate.metrics.cells import new_cell, observe

_TICK_S = 1.0
_AGAIN_S = 0.05
_WAKE_AGAIN_S = 0.5
_HALT_NUMBERS = count(1)


@dataclass(slots=True, eq=False)
class Stay:
    """The time that a worker has connections to an awake cell. `number` is the one that the supervisor knows it by."""

    cell: str
    number: int = 0
    users: int = 0
    """The number of requests and other work under way there."""
    was_used: bool = True
    """Whether something was under way since the last look."""
    is_told_used: bool = True
    idle_since: float = 0.0
    on_leave: list[Callable[[], None]] = field(default_factory=list)
    """Callbacks that let no request in any more."""
    on_end: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Callbacks that close connections to the cell, some time after that."""
    has_ended: bool = False
    on_down: list[Callable[[], None]] = field(default_factory=list)
    is_down: bool = False
    """The server has died under its users. They wait for the next server, to learn the outcome of their work."""
    revival: asyncio.Task[None] | None = None


class CellLine:
    """A worker's line. A wake takes at most `wake_s_max`. After `leave_s` without use the worker closes its connections
    to a cell, which may stay awake. `find_busy` returns the cells in which something runs that is not counted as a
    user. `let_go` lets nothing more begin in a cell, if nothing runs there, and returns whether that is so."""

    def __init__(self, end: socket.socket, wake_s_max: float, leave_s: float = inf) -> None:
        self._socket = MessageSocket(end)
        self._wake_s_max = wake_s_max
        self._leave_s = leave_s
        self._stays: dict[str, Stay] = {}
        self._waking: dict[str, asyncio.Task[Stay]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, asyncio.Future[Message]] = {}
        self._halts: dict[int, asyncio.Future[None]] = {}
        self._is_closing = False
        self.find_busy: Callable[[], Collection[str]] = tuple
        self.let_go: Callable[[str], bool] = lambda cell: True
        self.wakes = new_cell()
        """The times that wakes took, in the form of the table of metrics."""
        self.awake_count = 0
        """How many cells are awake, of all workers."""
        self.failures: dict[str, str] = {}
        """The reasons why cells failed that nobody has waked since."""

    async def __aenter__(self) -> "CellLine":
        asyncio.get_running_loop().add_reader(self._socket.end, self._read)
        self._watcher = keep("cells", self._watch)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._is_closing = True
        self._watcher.cancel()
        for stay in list(self._stays.values()):
            self._end_stay(stay)
            await self._close(stay, tell=False)
        asyncio.get_running_loop().remove_reader(self._socket.end)
        asyncio.get_running_loop().remove_writer(self._socket.end)
        self._socket.end.close()

    # -- using cells --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def use(self, cell: str) -> AsyncIterator[Stay]:
        """Wake the cell, and keep it awake until the block is left."""
        stay = await self.stay(cell)
        stay.users += 1
        try:
            yield stay
        finally:
            stay.users -= 1
            stay.was_used = True

    async def stay(self, cell: str) -> Stay:
        """Return the stay at an awake cell. Raises EngineBusy or EngineUnavailable."""
        stay = self._stays.get(cell)
        if stay is not None and not stay.is_down:
            return stay
        if self._is_closing:
            raise port.EngineUnavailable("the service is stopping")
        return await asyncio.shield(self._waking.get(cell) or self._begin_waking(cell))

    def _begin_waking(self, cell: str) -> asyncio.Task[Stay]:
        waking = self._waking[cell] = asyncio.get_running_loop().create_task(self._wake(cell))
        waking.add_done_callback(partial(self._note_woken, cell))
        return waking

    def _note_woken(self, cell: str, waking: asyncio.Task[Stay]) -> None:
        del self._waking[cell]
        if not waking.cancelled():
            waking.exception()  # who waited has it, if anybody still does

    async def _wake(self, cell: str) -> Stay:
        loop = asyncio.get_running_loop()
        started = loop.time()
        if leaving := self._leaving.get(cell):
            await asyncio.wait([leaving])  # else the supervisor would hear of the end after the new beginning
        reason = "it is being copied, reset or removed"
        while (left := started + self._wake_s_max - loop.time()) > 0:
            answer = self._answers[cell] = loop.create_future()
            try:
                self.say(Word.WANT, cell)
                async with asyncio.timeout(left):
                    said = await answer
            except TimeoutError:
                reason = "its server is not ready yet"
                break
            finally:
                del self._answers[cell]
            match said.word:
                case Word.AWAKE:
                    if said.text == STARTED:
                        observe(self.wakes, int((loop.time() - started) * 1e9))
                    if stay := self._stays.get(cell):
                        return stay
                case Word.BUSY:
                    raise port.EngineBusy("as many databases are awake and in use as may be; try again in a moment")
                case Word.FAILED if said.text.startswith(KILLED):
                    raise port.EngineUnavailable(said.text)
                case Word.FAILED:
                    raise port.EngineUnavailable("the database does not start just now", said.text)
                case _:
                    await asyncio.sleep(_AGAIN_S)
        raise port.EngineUnavailable(f"the database was not awake within {self._wake_s_max:g} s: {reason}")

    @asynccontextmanager
    async def halt(self, cell: str, *, let_end_s: float) -> AsyncIterator["Halt"]:
        """Put the cell to sleep once no statement runs there, and have its directory alone until the block is left.
        Nobody else gets into it meanwhile. Raises EngineBusy if statements have not ended after `let_end_s`; 0 is for a
        cell whose data nobody needs any more."""
        stay = self._stays.get(cell)
        if stay is not None and not let_end_s:
            self._leave(stay, tell=True)
        if leaving := self._leaving.get(cell):
            await asyncio.wait([leaving])
        number = next(_HALT_NUMBERS)
        halted = self._halts[number] = asyncio.get_running_loop().create_future()
        held = Halt()
        self.say(Word.HALT, cell, number, "" if let_end_s else AT_ONCE)
        try:
            try:
                async with asyncio.timeout(let_end_s or None):
                    await halted
            except TimeoutError:
                raise port.EngineBusy("statements in the database have not ended in time; nothing was done") from None
            yield held
        finally:
            del self._halts[number]
            self.say(Word.GONE if held.is_gone else Word.RELEASE, cell, number)

    def kill(self, cell: str, reason: str) -> None:
        """Kill the cell's server, with all that runs in it."""
        self.say(Word.KILL, cell, text=reason)

    # -- the line -----------------------------------------------------------------------------------------------

    def say(self, word: Word, cell: str, number: int = 0, text: str = "") -> None:
        if not self._socket.send(Message(word, cell, number, text)):
            asyncio.get_running_loop().add_writer(self._socket.end, self._flush)

    def _flush(self) -> None:
        if self._socket.flush():
            asyncio.get_running_loop().remove_writer(self._socket.end)

    def _read(self) -> None:
        try:
            for message in self._socket.read():
                self._hear(message)
        except EOFError:  # the supervisor is gone, and this worker ends
            asyncio.get_running_loop().remove_reader(self._socket.end)

    def _hear(self, message: Message) -> None:
        cell = message.cell
        if message.word is Word.HALTED:
            halted = self._halts.get(message.number)
            if halted is not None and not halted.done():  # else it was given up, which the supervisor hears
                halted.set_result(None)
            return
        if message.word is Word.COUNT:
            self.awake_count = message.number
            return
        stay = self._stays.get(cell)
        if message.word in (Word.REST, Word.LEAVE):
            if stay is None:
                return  # it is just left
            is_needed = message.word is Word.REST and (stay.users or stay.was_used or cell in self.find_busy())
            if is_needed or not self.let_go(cell):
                self.say(Word.USE, cell, stay.number)
                stay.is_told_used = True
            else:
                self._leave(stay, tell=True)
            return
        if message.word is Word.AWAKE:
            self.failures.pop(cell, None)
            if stay is None:
                self._stays[cell] = Stay(cell, message.number)  # at once: the next message can be about it
            else:
                stay.number = message.number
        elif message.word is Word.FAILED:
            self.failures[cell] = message.text
        if message.word is Word.FAILED and stay is not None and stay.users:
            if not stay.is_down:
                self._wake_again(stay)
        elif message.word in (Word.FAILED, Word.WITHHELD) and stay is not None:
            self._leave(stay, tell=False)
        answer = self._answers.get(cell)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _wake_again(self, stay: Stay) -> None:
        stay.is_down = True
        for tell in stay.on_down:
            tell()
        stay.revival = asyncio.get_running_loop().create_task(self._wake_for_users(stay))

    async def _wake_for_users(self, stay: Stay) -> None:
        """Wake a cell again for its users, also while it lets no other request in: they wait for a bounded time to
        learn the outcome of their work. Leave the cell if it does not wake while they wait."""
        while stay.users and not stay.has_ended:
            try:
                await asyncio.shield(self._waking.get(stay.cell) or self._begin_waking(stay.cell))
            except port.EngineFailure:
                await asyncio.sleep(_WAKE_AGAIN_S)
            else:
                stay.is_down = False
                return
        if not stay.has_ended:
            self._leave(stay, tell=False)

    def _leave(self, stay: Stay, *, tell: bool) -> None:
        """Close the connections of a stay. The next request asks for the cell anew."""
        self._end_stay(stay)
        leaving = self._leaving[stay.cell] = asyncio.get_running_loop().create_task(self._close(stay, tell=tell))
        leaving.add_done_callback(partial(self._note_left, stay.cell))

    def _note_left(self, cell: str, leaving: asyncio.Task[None]) -> None:
        if self._leaving.get(cell) is leaving:
            del self._leaving[cell]

    def _end_stay(self, stay: Stay) -> None:
        stay.has_ended = True
        del self._stays[stay.cell]
        for tell in stay.on_leave:
            tell()

    async def _close(self, stay: Stay, *, tell: bool) -> None:
        try:
            for end in stay.on_end:
                await end()
        finally:
            if tell:
                self.say(Word.RESTED, stay.cell, stay.number)

    async def _watch(self) -> None:
        """Tell the supervisor when a cell comes into use or falls idle. Leave cells that were not used for a while."""
        while True:
            await tick(_TICK_S)
            busy, now = self.find_busy(), asyncio.get_running_loop().time()
            for stay in list(self._stays.values()):
                used = bool(stay.users or stay.was_used or stay.cell in busy)
                stay.was_used = False
                if used is not stay.is_told_used:
                    stay.is_told_used = used
                    self.say(Word.USE if used else Word.IDLE, stay.cell, stay.number)
                    stay.idle_since = now
                if not used and now - stay.idle_since >= self._leave_s and self.let_go(stay.cell):
                    self._leave(stay, tell=True)


@dataclass(slots=True)
class Halt:
    """A cell that a worker has to itself. The code that removes the cell's directory sets `is_gone`."""

    is_gone: bool = False
