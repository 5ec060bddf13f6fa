"""A bounded set of connections to one database: opened on demand, handed on, closed when they stay idle.

A caller that finds none free waits in a bounded queue. All pools of a worker share `Places`, so that a pool may have to
wait for another one's connection to close.

It does not know what runs on a connection: the engine's own pool derives from it, opens connections and takes back only
clean ones.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

from psycopg.pq.abc import PGconn, PGresult

from tuplegate.direct_future import DirectFuture
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.server_errors import find_error
from tuplegate.engine.libpq.connections.unread_rows import Stocks
from tuplegate.engine.libpq.pools.frequent_statements import KeptStatement, Key
from tuplegate.engine.libpq.pools.places import OwnPlaces
from tuplegate.engine.libpq.pools.turns import Turns
from tuplegate.engine.port import CommitsRefused, EngineBusy, EngineUnavailable

DISCARD: Final = Command(b"DISCARD ALL", begins=False)
DISCARD_SEQUENCES: Final = Command(b"DISCARD SEQUENCES", begins=False)
_SUSPENDED_S: Final = 10.0
_RECENT_S: Final = 5.0
"""A pool that has a connection takes no place from another pool whose connection was used this recently: a new
connection costs far more than a short statement."""
_PATIENCE_S: Final = 1.0
"""It takes such a place after all once a request has waited for this long: then the statements are not short."""


# size: most of it is the connection: see there. What a pool notes on each is read with every statement.
class Member(Connection):
    """A connection of a pool.

    `settings_memory` is the memory of the server's settings when the connection was new. `given_up`: no request waits
    for the statement on it any longer. `reset` is sent in front of the next statement, in the same write: so a
    connection is handed on at once while others wait for it. `kept` are the statements that are prepared on it.
    `is_fresh` until it was first handed on. `on_closed` is called when it is lost or closed; it belongs to an owner
    that keeps the connection between statements.
    """

    settings_memory: bytes | None = None
    idle_since: float = 0.0
    given_up: bool = False
    is_fresh: bool = True
    reset: Command | None = None

    def __init__(self, pgconn: PGconn, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(pgconn, loop)
        self.kept: dict[Key, KeptStatement] = {}
        self.on_closed: Callable[[], None] | None = None

    def _lose(self, cause: Exception) -> None:
        if self.closed:
            return
        super()._lose(cause)
        on_closed, self.on_closed = self.on_closed, None
        if on_closed is not None:
            on_closed()

    def take_reset(self) -> Command | None:
        """Return the reset to send before anything else, and forget it: the caller sends it."""
        reset, self.reset = self.reset, None
        return reset

    def discard(self) -> None:
        """Reset the connection before its next statement, prepared statements included."""
        self.reset = DISCARD
        self.kept.clear()

    def hide_kept(self) -> None:
        """Reset the connection if the next statement could see prepared statements on it."""
        if self.kept:
            self.discard()


class EnginePool:
    """All that an engine's own pool adds. `turns` are those of who wants the same rows of its database."""

    turns: Turns

    def refresh(self) -> None:
        """Forget cached facts that may be out of date. Call it before a statement begins."""
        raise NotImplementedError

    async def _connect(self) -> Member:
        """Log in. Raises ConnectionLost."""
        raise NotImplementedError

    async def _make(self) -> Member:
        """Log in, and make the connection ready. Raises EngineUnavailable."""
        raise NotImplementedError

    def give_back_unclean(self, member: Member, *, plain: bool = False) -> None:
        """Take back a connection that must be cleaned."""
        raise NotImplementedError

    def expire(self, member: Member) -> "asyncio.Task[None]":
        """Cancel the statement. Its answer, usually an error, goes to its caller. When the task is done, the cancel can
        hit no later statement."""
        raise NotImplementedError

    def abandon(self, member: Member) -> None:
        """Take a connection whose statement may still be running: cancel the statement, then close the connection."""
        raise NotImplementedError

    def leave(self, member: Member) -> None:
        """Take a connection whose commit takes too long. A commit is never cancelled."""
        raise NotImplementedError

    def _see_cut_off(self, member: Member) -> None:
        """Note that a connection was lost before everything was answered."""
        raise NotImplementedError

    @property
    def refuses(self) -> str | None:
        """Return the reason why nothing can be committed just now, if there is one."""
        return None

    def check(self) -> None:
        """Raise EngineBusy while the database may begin nothing new."""

    def check_commits(self) -> None:
        """Raise CommitsRefused while nothing can be committed."""
        if self.refuses is not None:
            raise CommitsRefused(self.refuses)

    def retire(self, member: Member) -> None:
        """Take a connection whose statement has ended, and on which nothing else may run."""
        member.close("the engine failed in it")


class ConnectionPool(EnginePool):
    """The connections of one database: takes, hands on, opens and closes them. See the module's text."""

    def __init__(self, database: str, size_max: int, queue_max: int, places: OwnPlaces, stocks: Stocks) -> None:
        self.database = database
        self._size_max = size_max
        self._queue_max = queue_max
        self._places = places
        self._stocks = stocks
        self._free: list[Member] = []
        self._members: set[Member] = set()
        self._opening = 0
        self._waiters: deque[tuple[DirectFuture[Member], float, float]] = deque()
        """Each waiter with its deadline, and the time since which it waits."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._suspended = False
        self.held = 0
        """The number of connections that open transactions keep. The pool may exceed its size by as many."""
        self.given_away = 0
        """The number of connections that clients speak over themselves; they are not part of the pool."""

    def hold(self) -> None:
        """Note that an open transaction keeps one of the connections."""
        self.held += 1

    def end_holding(self) -> None:
        self.held -= 1

    @property
    def owner(self) -> str:
        return self._places.owner

    @property
    def _is_shut(self) -> bool:
        """Return whether nobody gets a connection just now."""
        return self._closed or self._suspended

    @property
    def _most(self) -> int:
        """Return the bound on connections."""
        return self._size_max + self.held

    # -- taking and handing on -----------------------------------------------------------------------------------

    def take(self) -> Member | None:
        """Return a free connection, if there is one."""
        while self._free:
            member = self._free.pop()
            if not member.closed:
                return member
        return None

    async def wait(self, deadline: float) -> Member:
        """Open a connection, or wait for one. Raises EngineBusy or EngineUnavailable."""
        if self._closed:
            raise EngineUnavailable("the service is stopping")
        if self._suspended:
            deadline = min(deadline, self._loop.time() + _SUSPENDED_S)
        elif self.size < self._most and self._places.take(self._loop.time() - _RECENT_S if self.size else math.inf):
            member = await self._open_for_one()
            if not self._is_shut:
                return member
            self._free_again(member)
            return await self.wait(deadline)
        if len(self._waiters) >= self._queue_max:
            self._waiters = deque(entry for entry in self._waiters if not entry[0].done())
        if len(self._waiters) >= self._queue_max:
            raise EngineBusy(f"{self._queue_max} statements are waiting for a connection already")
        waiter: DirectFuture[Member] = DirectFuture(self._loop)
        self._waiters.append((waiter, deadline, self._loop.time()))
        if self.size == 0 and not self._suspended:
            self._places.ask(self._use_place)
        try:
            return await waiter
        except asyncio.CancelledError:
            # The task was cancelled, perhaps just as it was given a connection, which must not be lost.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back_unclean(waiter.result())
            raise

    def end_waiting(self, now: float) -> None:
        """Turn away waiters past their deadline, and make a place for one that has waited long."""
        wanted = False
        for waiter, deadline, since in self._waiters:
            if waiter.done():
                continue
            if deadline < now:
                waiter.set_exception_soon(EngineBusy("no connection became free before the statement's time was over"))
            elif since < now - _PATIENCE_S:
                wanted = True
        if wanted and self.size < self._most and not self._is_shut:
            self._spawn(self._replace())

    def turn_away(self, reason: str) -> None:
        """Fail all waiters with this reason."""
        while self._waiters:
            waiter, _, _ = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception_soon(EngineUnavailable(reason))

    def _hand_over(self, member: Member) -> bool:
        """Give the connection to the waiter that has waited longest, if there is one. It resumes in the next pass of
        the loop, with others (see `fairness.Lane.leave`)."""
        member.is_fresh = False
        waiters = self._waiters
        while waiters and not self._suspended:
            waiter, _, _ = waiters.popleft()
            if not waiter.done():
                waiter.set_result_soon(member)
                return True
        return False

    def _use_place(self) -> None:
        self._spawn(self._replace())

    def _is_light(self, member: Member) -> bool:
        """Let go of what it holds; close it where it takes much memory all the same. Return whether it is open."""
        member.let_go()
        if member.is_swollen:
            member.close("it holds the room of a large message")
        return not member.closed

    def _after_reset(self, member: Member, reset: DirectFuture[list[PGresult]]) -> None:
        if reset.cancelled() or reset.exception() is not None or find_error(reset.result()) is not None:
            member.close("its reset failed")
        else:
            self._free_again(member)

    def _free_again(self, member: Member) -> None:
        if self._hand_over(member):
            return
        if self._is_shut or self._places.is_wanted:
            member.close("its place is needed")
            return
        member.idle_since = self._loop.time()
        self._free.append(member)

    # -- opening and closing ------------------------------------------------------------------------------------

    async def _open_for_one(self) -> Member:
        """Open a connection for a request. If the request leaves meanwhile, the next one gets the connection: otherwise
        clients that give up before the engine lets them in would cause one useless login after another."""
        self._opening += 1  # at once: who asks next must see it
        opening = self._loop.create_task(self._open())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._tasks.add(opening)
            opening.add_done_callback(self._take_opened)
            raise

    def _take_opened(self, opening: "asyncio.Task[Member]") -> None:
        self._tasks.discard(opening)
        if not opening.cancelled() and opening.exception() is None:
            self._free_again(opening.result())

    async def _open(self) -> Member:
        """Open one more connection, which is counted as opening, and whose place is taken already."""
        try:
            member = await self._make()
        except BaseException:
            self._give_up_place()
            raise
        finally:
            self._opening -= 1
        self._members.add(member)
        member.on_lost = partial(self._lost, member)
        member.stock = self._stocks.open(self.database, member.note_room)
        if member.closed:
            self._lost(member)
            raise EngineUnavailable("the engine closed the connection")
        return member

    def _take_place_apart(self) -> None:
        """Take a place for a connection that is no part of the pool. Raises EngineUnavailable and EngineBusy."""
        if self._closed:
            raise EngineUnavailable("the service is stopping")
        if self._suspended:
            raise EngineBusy("the database is being copied or replaced just now")
        if not self._places.take():
            raise EngineBusy("every connection to the engine is in use")

    async def open_apart(self) -> Member:
        """Open a connection for the service's own use, beyond this pool's size but within the places. It is never
        handed on: its user closes it."""
        self._take_place_apart()
        try:
            member = await self._connect()
        except BaseException as exc:
            self._give_up_place()
            if isinstance(exc, ConnectionLost):
                raise EngineUnavailable("the engine accepts no connection just now") from exc
            raise
        member.on_lost = self._give_up_place
        return member

    def _lost(self, member: Member) -> None:
        if member not in self._members:
            return
        self._members.discard(member)
        if member in self._free:
            self._free.remove(member)
        if member.cut_off and not self._closed:
            self._see_cut_off(member)
        self._give_up_place()

    def _give_up_place(self) -> None:
        """Release the place of a connection that closed or failed to open, and open another one if requests wait."""
        self._places.give_back()
        if self._waiters and not self._is_shut:
            self._spawn(self._replace())

    async def _replace(self) -> None:
        """Open another connection for waiting requests."""
        if self._suspended or self.size >= self._most or not self._places.take():
            return
        self._opening += 1
        try:
            member = await self._open()
        except EngineUnavailable as exc:
            self.turn_away(str(exc))
        else:
            self._free_again(member)

    def suspend(self) -> None:
        """Suspend the pool: queue requests, close idle connections now and busy ones when they finish."""
        self._suspended = True
        self.close_idle(float("inf"))

    def resume(self) -> None:
        self._suspended = False
        for _ in range(min(len(self._waiters), self._size_max)):
            self._spawn(self._replace())

    def close_idle(self, older_than: float) -> None:
        """Close connections that were not used since `older_than`, on the loop's clock."""
        for member in [m for m in self._free if m.idle_since < older_than]:
            member.close("it was idle")

    @property
    def idle_since(self) -> float | None:
        """Return the time at which the longest idle connection was last used; None if none is idle."""
        return min((member.idle_since for member in self._free), default=None)

    @property
    def is_unused(self) -> bool:
        return not (self._members or self._opening or self._waiters or self._tasks or self.given_away)

    @property
    def is_in_use(self) -> bool:
        """Return whether somebody has a connection, or one is not clean yet."""
        return len(self._members) > len(self._free) or self.given_away > 0

    @property
    def idle(self) -> int:
        return len(self._free)

    @property
    def waiting(self) -> int:
        """Return the number of statements that wait for a connection."""
        return sum(not waiter.done() for waiter, _, _ in self._waiters)

    @property
    def size(self) -> int:
        return len(self._members) + self._opening

    async def close(self) -> None:
        self._closed = True
        self.turn_away("the connections to the database are closed")
        for member in list(self._members):
            member.close("the service is stopping")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def close_longest_idle(pools: Iterable[ConnectionPool], before: float) -> float:
    """Close the connection that has been idle for longest, if it was idle since before `before`. Return the time since
    which it was idle; infinity if none is idle."""
    idle = [(pool.idle_since, pool) for pool in pools if pool.idle_since is not None]
    since, pool = min(idle, key=lambda entry: entry[0], default=(math.inf, None))
    if pool is not None and since < before:
        pool.close_idle(since + 0.000001)
    return since
