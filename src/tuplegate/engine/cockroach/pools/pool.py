"""The connections of one target: cleans each before its next use, and ends statements that run on them.

A text in which every name is known to be harmless leaves a connection clean, or with the state of sequences only. After
any other text, `DISCARD ALL` removes what is left. A failed transaction keeps its locks until it is rolled back, and
readers wait for them: so it is rolled back at once.
"""

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Final

import structlog

from tuplegate.engine.cockroach.cluster.nodes import Nodes
from tuplegate.engine.cockroach.dialect.untold_types import UntoldTypes
from tuplegate.engine.libpq.connections.commands import IDLE, ROLLBACK, ConnectionLost, CopyStarted
from tuplegate.engine.libpq.connections.unread_rows import Stocks
from tuplegate.engine.libpq.pools.definitions import Definitions
from tuplegate.engine.libpq.pools.places import Places
from tuplegate.engine.libpq.pools.pool import DISCARD, DISCARD_SEQUENCES, ConnectionPool, Member
from tuplegate.engine.libpq.pools.turns import Turns
from tuplegate.engine.libpq.values.row_encoder import EncoderCache
from tuplegate.engine.port import EngineUnavailable, Target
from tuplegate.engine.sql.facts import Leftovers

_log: Final = structlog.get_logger()

_CANCEL_GRACE_S: Final = 5.0
"""Without a quorum the engine ignores a cancel: after this time the connection is closed."""
_RESET_S: Final = 15.0
"""The time for a reset before the connection is closed."""
_NAMES_FRESH_S: Final = 1.0
"""How long a type that was renamed through another service may keep its old name in answers."""
_DECIDE_S: Final = 30.0
"""The time for a commit that no request waits for."""


@dataclass(frozen=True)
class Server:
    """The parts that all pools of a worker share."""

    places: Places
    stocks: Stocks
    size_max: int
    queue_max: int
    connect_timeout_s: float
    nodes: Nodes


class DatabaseState:
    """The parts that the pools of one database share: its types, and the turns of transactions.

    `functions_write`: the engine has functions that write, so a SELECT may. `changing`: names of functions that may
    change their session, or the engine. `definitions` tells of changes by all workers of this service.
    """

    def __init__(
        self, encoders: EncoderCache, changing: frozenset[str], definitions: Definitions, *, functions_write: bool
    ) -> None:
        self.encoders = encoders
        self._definitions = definitions
        self._version = definitions.version
        self.changing = changing
        self.functions_write = functions_write
        self.turns = Turns()
        self.untold = UntoldTypes()
        self.full_at: int | None = None
        """The bound that the database has reached; None if it is not full."""

    def refresh(self) -> None:
        """Forget names of types that may have changed, and the types that the engine must be told. Call it before a
        statement begins."""
        now = monotonic()
        if self._definitions.version != self._version:
            self._version = self._definitions.version
            self.untold.forget()
        elif now - self.encoders.forgotten_at < _NAMES_FRESH_S:
            return
        self.encoders.forgotten_at = now
        self.encoders.forget()

    def note_change(self) -> None:
        """Note that a statement has run that can change definitions; every worker sees that before its next
        statement."""
        self._definitions.note_change()


class Pool(ConnectionPool):
    """The connections of one target. `conninfo` is its role's login."""

    def __init__(self, server: Server, target: Target, conninfo: str, state: DatabaseState) -> None:
        places = server.places.of(target.bounded_with)
        super().__init__(target.database, server.size_max, server.queue_max, places, server.stocks)
        self.state = state
        self.turns = state.turns
        self._conninfo = conninfo
        self._connect_timeout_s = server.connect_timeout_s
        self._nodes = server.nodes

    def refresh(self) -> None:
        self.state.refresh()

    async def _connect(self) -> Member:
        return await self._nodes.open(Member, self._conninfo, self._connect_timeout_s)

    async def _make(self) -> Member:
        try:
            return await self._connect()
        except ConnectionLost as exc:
            _log.warning("no connection to the engine", reason=str(exc))
            raise EngineUnavailable("the engine accepts no connection just now") from exc

    def _see_cut_off(self, member: Member) -> None:
        """Do nothing: the engine rolls back whatever ran on a lost connection."""

    # -- giving back ----------------------------------------------------------------------------------------------

    def give_back(self, member: Member, left: Leftovers) -> None:
        """Take back a connection whose statement is answered. Roll back an open transaction."""
        if member.closed or ((member.collected or member.is_heavy) and not self._is_light(member)):
            return
        try:
            commands = [] if member.pgconn.transaction_status == IDLE else [ROLLBACK]
            if left is Leftovers.ANYTHING or self.state.functions_write:
                commands.append(DISCARD)
            elif left is Leftovers.SEQUENCES:
                commands.append(DISCARD_SEQUENCES)
            if not commands:
                self._free_again(member)
                return
            # Each in its own segment, so none runs in the transaction of the one before.
            sent = [member.send([command]) for command in commands]
            member.flush()
        except ConnectionLost:
            return
        late = self._loop.call_later(_RESET_S, member.close, f"no answer to its reset within {_RESET_S:g} s")
        sent[-1].add_done_callback(lambda _: late.cancel())
        sent[-1].add_done_callback(lambda done: self._after_reset(member, done))

    def give_back_unclean(self, member: Member, *, plain: bool = False) -> None:
        self.give_back(member, Leftovers.ANYTHING)

    def _free_again(self, member: Member) -> None:
        member.take_notices()  # this engine tells of settings that it resets
        if self._nodes.should_leave(member):
            member.close("its node is left, or has too many connections")
        else:
            super()._free_again(member)

    def leave_nodes(self) -> None:
        """Close idle connections to nodes that are not well."""
        for member in [member for member in self._free if self._nodes.is_left(member)]:
            member.close("its node is left")

    # -- ending what runs -----------------------------------------------------------------------------------------

    def expire(self, member: Member) -> "asyncio.Task[None]":
        """Cancel the statement. Its answer, usually an error, goes to its caller.

        When the task is done, the cancel can hit no later statement, and everything is answered or the connection
        closed.
        """
        return self._spawn(self._cancel_or_close(member))

    def abandon(self, member: Member) -> None:
        """Take a connection whose statement may still be running: cancel the statement, then close the connection."""
        member.given_up = True
        self._spawn(self._cancel_and_close(member))

    def leave(self, member: Member) -> None:
        """Take a connection whose commit still runs, after its caller has gone: a commit is never cancelled."""
        member.given_up = True
        self._spawn(self._see_answered(member))

    async def _see_answered(self, member: Member) -> None:
        try:
            async with asyncio.timeout(_DECIDE_S):
                await member.wait_for_answers()
        except (TimeoutError, ConnectionLost):
            pass  # it is decided without this connection
        finally:
            member.close("its commit was left to itself")

    async def _cancel_or_close(self, member: Member) -> None:
        try:
            async with asyncio.timeout(_CANCEL_GRACE_S):
                member.drain()  # while the server waits for a reader it acts on no cancel
                await member.cancel()
                await member.wait_for_answers()
        except (TimeoutError, ConnectionLost, CopyStarted):
            member.close("its statement was cancelled")

    async def _cancel_and_close(self, member: Member) -> None:
        try:
            if not member.is_paused:
                await self._cancel_or_close(member)
        finally:
            member.close("its statement was cancelled")
