"""Ends statements on connections: cancels them, ends their server processes, and knows when both are over.

A commit is never cancelled. The cached facts about a database's code are in doubt until a statement that was given up
has certainly ended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from tuplegate.engine.libpq.connections.commands import ConnectionLost, CopyStarted, Meter
from tuplegate.engine.libpq.connections.unread_rows import Stocks
from tuplegate.engine.libpq.pools.places import Places
from tuplegate.engine.libpq.pools.pool import ConnectionPool, Member
from tuplegate.engine.port import EngineFailure
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.engine.postgres.safety.database_state import DatabaseState
from tuplegate.engine.postgres.safety.stubborn import Ending, Stubborn

_CANCEL_GRACE_S: Final = 5.0
_GONE_PAUSE_S: Final = 0.05
_GONE_PAUSE_MAX_S: Final = 1.0


class HeldCounts:
    """The number of connections that open transactions keep: `total` of all pools, and by database."""

    def __init__(self) -> None:
        self.total = 0
        self._by_database: dict[str, int] = {}

    def of(self, database: str) -> int:
        return self._by_database.get(database, 0)

    def add(self, database: str, number: int) -> None:
        self.total += number
        left = self._by_database.get(database, 0) + number
        if left:
            self._by_database[database] = left
        else:
            del self._by_database[database]


@dataclass(frozen=True)
class Server:
    """The parts that all pools of one server share.

    `is_certain` tells whether everything committed on a server is on disk, `is_confirmed` whether a standby has it, and
    `waits_for_standby` whether the commit of a server process waits for one.
    """

    primary: Primary
    places: Places
    stocks: Stocks
    meter: Meter
    stubborn: Stubborn
    held: HeldCounts
    size_max: int
    queue_max: int
    connect_timeout_s: float
    code_check_s: float
    is_certain: Callable[[str, float], Awaitable[bool]]
    is_confirmed: Callable[[str, float], Awaitable[bool]]
    waits_for_standby: Callable[[int], Awaitable[bool]]


class _Committing(Exception):
    """The statement has ended, and its commit waits for a standby: it is too late to cancel it."""


class EndingPool(ConnectionPool):
    """A pool that can end statements on its connections."""

    def __init__(self, server: Server, database: str, owner: str, state: DatabaseState) -> None:
        super().__init__(database, server.size_max, server.queue_max, server.places.of(owner), server.stocks)
        self.state = state
        self.turns = state.turns
        self.primary = server.primary
        self._server = server
        self._stubborn = server.stubborn

    def refresh(self) -> None:
        self.state.refresh()

    @property
    def _most(self) -> int:
        """Return the bound on connections. It doubles while commits wait for a standby and hold theirs, so that reads
        continue."""
        size = self._size_max + self.held
        return 2 * size if self.primary.replication.stands_still else size

    def hold(self) -> None:
        super().hold()
        self._server.held.add(self.database, 1)

    def end_holding(self) -> None:
        super().end_holding()
        self._server.held.add(self.database, -1)

    def _see_cut_off(self, member: Member) -> None:
        self._give_up(member, None)

    def abandon(self, member: Member) -> None:
        """Take a connection whose statement is still running: cancel the statement in the engine, then close the
        connection.

        While the server waits for a slow reader it acts on no cancel, and reading on could let the statement commit:
        then closing the connection ends it.
        """
        ending = self._end(member, "its reader is gone") if member.is_paused else self._cancel_and_close(member)
        self._give_up(member, ending)

    def _give_up(self, member: Member, ending: Coroutine[Any, Any, None] | None) -> None:
        """Distrust all cached facts about the database's code until the statement on the connection has certainly
        ended: it may commit after its connection was given up, and make code."""
        if member.given_up:
            if ending is not None:
                self._spawn(ending)
            return
        member.given_up = True
        self.state.begin_doubt()
        self._spawn(self._see_gone(member, ending))

    async def _see_gone(self, member: Member, ending: Coroutine[Any, Any, None] | None) -> None:
        try:
            if ending is not None:
                await ending
            await self._until_gone(member)
        finally:
            self.state.end_doubt()

    async def _until_gone(self, member: Member) -> None:
        pause = _GONE_PAUSE_S
        while True:
            # Usually the process ends by itself; telling it to end writes to the engine's log.
            await asyncio.sleep(pause)
            if await self._is_gone(member):
                return
            pause = min(2 * pause, _GONE_PAUSE_MAX_S)

    async def _is_gone(self, member: Member) -> bool:
        """Return whether the server process of a closed connection has ended; if it has not, ask it to."""
        if self.primary.has_left(member.server):
            return True
        if any(other.backend == member.backend for other in self._members if not other.closed):
            return True  # the number was given to a new connection of this pool
        try:
            return await self._stubborn.is_gone(self.database, member.backend, member.seen_at)
        except EngineFailure:
            return False

    def expire(self, member: Member) -> "asyncio.Task[None]":
        """Cancel the statement. Its answer, usually an error, goes to its caller.

        The task ends when no cancel is under way any more.
        """
        return self._spawn(self._cancel_or_close(member))

    async def _cancel_or_close(self, member: Member) -> None:
        try:
            await self._cancel(member)
        except TimeoutError:
            await self._end(member, "the engine did not cancel its statement in time")
        except _Committing:
            await self._see_committed(member)
        except (ConnectionLost, CopyStarted):
            member.close("its statement was cancelled")

    async def _end(self, member: Member, reason: str) -> None:
        """End the server process, and then close the connection.

        Closing the connection first is not enough: code can swallow every cancel, and tell its process not to check for
        its client. While the process lives, the connection keeps its place in the pool and among all connections.
        """
        ending: Ending | None = None
        try:
            ending = await self._stubborn.end(self.database, member.backend, member.seen_at)
            # One that waits for a reader is ended by closing the connection.
            if not member.is_paused:
                await ending.settled.wait()
        finally:
            if ending is not None and not ending.is_gone and not member.closed and not self._closed:
                ending.on_gone, member.on_lost = member.on_lost, None
            member.close(reason)

    async def _cancel(self, member: Member) -> None:
        """Cancel the statement. Return when the engine is done with the statement."""
        member.drain()  # while the server waits for a reader it acts on no cancel
        async with asyncio.timeout(_CANCEL_GRACE_S):
            if self.primary.replication.waits and await self._server.waits_for_standby(member.backend):
                raise _Committing
            await member.cancel()
            await member.wait_for_answers()

    def leave(self, member: Member) -> None:
        """Take a connection whose commit takes too long, and let it finish: a commit is never cancelled."""
        self._spawn(self._see_committed(member))

    async def _see_committed(self, member: Member) -> None:
        """Close the connection; the commit does not notice. Keep its place until the commit has ended."""
        on_gone, member.on_lost = member.on_lost, None
        member.given_up = True
        self.state.begin_doubt()
        member.close("its commit waits for too long, as for a standby that is away")
        try:
            await self._until_gone(member)
        finally:
            self.state.end_doubt()
            if on_gone is not None:
                on_gone()

    async def end_process(self, member: Member) -> None:
        """End the server process of a connection that was given away, and watch it until it is gone."""
        await self._stubborn.end(self.database, member.backend, member.seen_at)

    async def waits_for_standby(self, member: Member) -> bool:
        return await self._server.waits_for_standby(member.backend)

    def see_off(self, member: Member, *, is_running: bool, in_doubt: bool) -> None:
        """Close a connection that was given away, and cancel its statement. Its place stays taken until its process is
        gone, and until then its effects are in doubt."""
        self._spawn(self._see_off(member, is_running, in_doubt))

    async def _see_off(self, member: Member, is_running: bool, in_doubt: bool) -> None:
        try:
            if is_running and not (self.primary.replication.waits and await self.waits_for_standby(member)):
                try:
                    async with asyncio.timeout(_CANCEL_GRACE_S):
                        await member.cancel()
                except TimeoutError:
                    pass  # its process is told to end below
            member.close("its client has left")
            await self._until_gone(member)
        finally:
            member.close("its client has left")
            self.given_away -= 1
            if in_doubt:
                self.state.end_doubt()
            self._give_up_place()

    async def _cancel_and_close(self, member: Member) -> None:
        try:
            await self._cancel_or_close(member)
        finally:
            member.close("its statement was cancelled")
