"""The connections of one target, each clean before it is handed out again, and how what runs on them is ended.

After a text of which every name is known to leave nothing, a connection is clean, or knows of sequences only; after
every other one `DISCARD ALL` removes what is left. A transaction that failed keeps its locks until it is rolled back,
and whoever reads waits for them: so it is rolled back at once.
"""

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Final

import structlog

from tuplegate.engine.cockroach.nodes import Nodes
from tuplegate.engine.cockroach.untold_types import UntoldTypes
from tuplegate.engine.libpq.commands import IDLE, ROLLBACK, ConnectionLost, CopyStarted
from tuplegate.engine.libpq.definitions import Definitions
from tuplegate.engine.libpq.places import Places
from tuplegate.engine.libpq.pool import DISCARD, DISCARD_SEQUENCES, ConnectionPool, Member
from tuplegate.engine.libpq.row_encoder import EncoderCache
from tuplegate.engine.libpq.stocks import Stocks
from tuplegate.engine.libpq.turns import Turns
from tuplegate.engine.port import EngineUnavailable, Target
from tuplegate.engine.sql.facts import Leftovers

_log: Final = structlog.get_logger()

_CANCEL_GRACE_S: Final = 5.0
"""Without a quorum the engine acts on no cancel: after so long its connection is closed."""
_RESET_S: Final = 15.0
"""How long a connection may take to become clean before it is closed."""
_NAMES_FRESH_S: Final = 1.0
"""How long a type that was renamed through another service may keep its old name in answers."""
_DECIDE_S: Final = 30.0
"""How long a commit that nobody waits for may take."""


@dataclass(frozen=True)
class Server:
    """The part that all pools of a worker share."""

    places: Places
    stocks: Stocks
    size_max: int
    queue_max: int
    connect_timeout_s: float
    nodes: Nodes


class DatabaseState:
    """The part that the pools of one database share: its types, and who waits for a turn.

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
        """The bound that the database has met."""

    def refresh(self) -> None:
        """Forget names of types that may be others now, and which types the engine must be told. To be called before a
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
        """Note that a statement has run that can change definitions; every worker sees that with its next one."""
        self._definitions.note_change()


class Pool(ConnectionPool):
    """The connections of one target. `conninfo` is that of its role."""

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
        """The engine rolls back what its connection was lost of."""

    # -- giving back ----------------------------------------------------------------------------------------------

    def give_back(self, member: Member, left: Leftovers) -> None:
        """Take a connection whose statement is answered. One that is inside a transaction is rolled back."""
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
            # Each on its own: none runs in the transaction of the one before.
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
        """Close idle connections to nodes that are left."""
        for member in [member for member in self._free if self._nodes.is_left(member)]:
            member.close("its node is left")

    # -- ending what runs -----------------------------------------------------------------------------------------

    def expire(self, member: Member) -> "asyncio.Task[None]":
        """Cancel the statement. Its answer, an error as a rule, goes to whoever waits for it.

        When the task is done the cancel hits nothing more, and everything is answered or the connection closed.
        """
        return self._spawn(self._cancel_or_close(member))

    def abandon(self, member: Member) -> None:
        """Take a connection whose statement may still be running: cancel that, then close the connection."""
        member.given_up = True
        self._spawn(self._cancel_and_close(member))

    def leave(self, member: Member) -> None:
        """Take a connection whose commit goes on, and that nobody waits for any longer: a commit is never cancelled."""
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
