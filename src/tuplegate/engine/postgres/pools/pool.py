"""The connections of one target, each cleaned before it is handed out again.

Cleaning. A query of harmless names only, on a database without code of the tenant's own, leaves nothing behind, and
nothing is done. A change leaves the state of sequences, and `DISCARD SEQUENCES` removes that. After every other request
`DISCARD ALL` removes settings, role, temporary tables, prepared statements, cursors, listens, advisory locks and
sequence caches. Two things survive it: the random seed, and the names of custom settings (`app.user` reads as ''
instead of NULL for ever after). Only a statement that names a function or command for that can touch them, or code that
does (see `database_state`). After such a statement the seed is set anew, and the server is asked how much memory its
settings take: if that differs from a new connection's, the connection is closed. The service checks whether a database
has code after every statement that is not plain, before any other connection to it is trusted, and at least once a
second while it is used, because of other workers' changes.
"""

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
from psycopg.pq.abc import PGresult

from tuplegate.direct_future import DirectFuture
from tuplegate.engine.libpq.connections.commands import (
    IDLE,
    ROLLBACK,
    Command,
    ConnectionLost,
    CopyStarted,
    LoginRefused,
)
from tuplegate.engine.libpq.connections.server_errors import check, find_error
from tuplegate.engine.libpq.pools.frequent_statements import KEPT_MAX
from tuplegate.engine.libpq.pools.pool import DISCARD, DISCARD_SEQUENCES, Member
from tuplegate.engine.port import EngineUnavailable, OutcomeUnknown
from tuplegate.engine.postgres.pools.ending_pool import EndingPool, Server
from tuplegate.engine.postgres.replication.verified import Expected
from tuplegate.engine.postgres.safety.database_state import CODE, DatabaseState
from tuplegate.engine.postgres.safety.left_settings import UNTOLD
from tuplegate.engine.sql.facts import Leftovers

_log: Final = structlog.get_logger()


_SEQUENCES: Final = Leftovers.SEQUENCES
_ANYTHING: Final = Leftovers.ANYTHING

# The server knows the settings of PL/pgSQL once it is used. The service's own records use it, so it is there from the
# start: else every connection would look changed after its first record.
_LOAD_PLPGSQL: Final = Command(b"DO $$BEGIN END$$")
_TRACES: Final = b"SELECT tuplegate.traces($1)"
_RESTORE_EVERY_S: Final = 2.0
_TYPES_FRESH_S: Final = 1.0
"""How long a type renamed by a function, or through another worker, may keep its old name in answers."""


class SettingsRefused(Exception):
    """The engine refuses a login because of the settings that came with it; the message has its words."""


@dataclass(frozen=True)
class Login:
    """The login of a pool's connections, and repairs for it.

    `forget_settings` undoes settings that the role was given, `restore_password` gives it the service's password again.
    `position` asks for the engine's position; None if nobody needs it.
    """

    database: str
    owner: str
    conninfo: str
    expected: Expected
    forget_settings: Callable[[], Awaitable[None]]
    restore_password: Callable[[], Awaitable[None]]
    position: list[Command] | None


# size: half of it is what any bounded pool has.
class Pool(EndingPool):
    """The connections of one target of PostgreSQL."""

    def __init__(self, server: Server, login: Login, state: DatabaseState) -> None:
        super().__init__(server, login.database, login.owner, state)
        self.position = login.position
        self.encoders = state.encoders
        self._login = login
        self._restored_at = -math.inf
        self._role_has_settings = False

    # -- taking and giving back ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise EngineBusy while the database may begin nothing new."""
        if self._stubborn.full:
            self._stubborn.check(self.database)

    @property
    def refuses(self) -> str | None:
        return self.primary.refuses

    def must_inspect(self, plain: bool, now: float) -> bool:
        """Return whether the connection must be inspected after this statement, not only reset."""
        state = self.state
        state.refresh()
        return not plain or state.has_lasting_code or now - state.code_checked_at > self._server.code_check_s

    def give_back(self, member: Member, left: Leftovers) -> None:
        """Take back a connection whose statement is answered and that needs no inspection, but at most a reset.

        An open transaction is rolled back. If the connection turns out to be lost, nothing more is done: its answers
        stand.
        """
        if (member.collected or member.is_heavy) and not self._is_light(member):
            return
        try:
            if member.pgconn.transaction_status != IDLE:
                member.send([ROLLBACK])
            self._give_back(member, left)
        except ConnectionLost:
            pass

    def _give_back(self, member: Member, left: Leftovers) -> None:
        state = self.state
        if left is _ANYTHING or state.has_code or not state.may_keep or len(member.kept) > KEPT_MAX:
            member.discard()
        elif left is _SEQUENCES:
            member.reset = DISCARD_SEQUENCES
        else:
            member.flush()
            self._free_again(member)
            return
        if self._waiters and self._hand_over(member):
            return
        reset = member.take_reset()
        assert reset is not None
        sent = member.send([reset])
        member.flush()
        sent.add_done_callback(lambda done: self._after_reset(member, done))

    async def freshen(self, member: Member) -> None:
        """Send the pending reset, if it cannot go along with a statement."""
        reset = member.take_reset()
        if reset is not None:
            check(await member.run(reset))

    def freshen_ahead(self, member: Member) -> DirectFuture[list[PGresult]] | None:
        """Send the pending reset in front of the next segment. Its answer comes before that segment's; the caller must
        check both."""
        reset = member.take_reset()
        return None if reset is None else member.send([reset])

    def give_back_unclean(self, member: Member, *, plain: bool = False) -> None:
        """Take back a connection that may still be inside a transaction, and clean and inspect it. `plain`: its text
        has left nothing that DISCARD ALL does not remove."""
        self._spawn(self._inspect(member, plain))

    @property
    def demands_standby(self) -> bool:
        """Return whether a standby must confirm a write before it is acknowledged."""
        return self.primary.demands_standby

    async def see_confirmed(self, member: Member, until: float) -> None:
        """Raise OutcomeUnknown unless a standby has the connection's commits by then."""
        if not await self._server.is_confirmed(member.server, until):
            raise OutcomeUnknown("it was applied, but no standby is known to have it, so that it could still be lost")

    async def flush_commits(self, member: Member, until: float) -> None:
        """Return when the connection's commits are durable. Raises OutcomeUnknown if that is not known by then."""
        if not await self._server.is_certain(member.server, until):
            raise OutcomeUnknown("it was applied, but the engine did not say in time that it is so for good")

    # -- cleaning -----------------------------------------------------------------------------------------------

    async def _inspect(self, member: Member, plain: bool) -> None:
        member.reset = None
        member.kept.clear()
        if not self._is_light(member):
            return
        try:
            member.send([ROLLBACK])
            discarded = member.send([DISCARD])
            memory = await self._ask_memory(member, self._loop.time() - self._server.code_check_s)
        except (ConnectionLost, CopyStarted):
            return
        if find_error(discarded.result()) is not None:
            member.close("its reset failed")
        elif memory is None or memory != member.settings_memory:
            member.close("a setting could not be undone")
        elif memory == UNTOLD and (not plain or self.state.has_lasting_code):
            member.close("a setting may be left")
        else:
            self._free_again(member)

    async def _ask_memory(self, member: Member, oldest: float = math.inf) -> bytes | None:
        """Set the seed anew. Return the size of the server's settings, or None if it does not tell.

        Also ask whether there is code, unless that was answered since `oldest`.
        """
        seed = str(random.uniform(-1, 1)).encode()  # noqa: S311 - it replaces the server's own, which is no secret either
        asked = self.state.ask()
        traces = Command(_TRACES, [seed])
        asks = self.state.must_ask(oldest)
        results = await (member.run(traces, CODE) if asks else member.run(traces))
        if find_error(results) is not None or not results or results[0].ntuples != 1:
            return None
        now = self._loop.time()
        if asks:
            told = results[1]
            lasting, any_code, self._role_has_settings = (told.get_value(0, column) == b"t" for column in range(3))
            self.state.answer(asked, has_code=any_code, has_lasting_code=lasting, now=now)
        self._forget_types(now)
        return results[0].get_value(0, 0)

    def _forget_types(self, now: float) -> None:
        """Forget the types: code that ran before the inspection may have changed them."""
        if now - self.encoders.forgotten_at > _TYPES_FRESH_S:
            self.encoders.forgotten_at = now
            self.encoders.forget()

    # -- opening ------------------------------------------------------------------------------------------------

    async def _make(self) -> Member:
        member: Member | None = None
        try:
            member = await self._connect()
            await member.run(_LOAD_PLPGSQL)
            member.settings_memory = await self._ask_memory(member)
            if self._role_has_settings:
                # A statement has given its own role settings; a connection that starts with them is not clean.
                member.close("its role has settings")
                await self._login.forget_settings()
                member = await self._connect()
                await member.run(_LOAD_PLPGSQL)
                member.settings_memory = await self._ask_memory(member)
        except ConnectionLost as exc:
            _log.warning("no connection to the engine", reason=str(exc))
            raise EngineUnavailable("the engine accepts no connection just now") from exc
        except BaseException:
            if member is not None:
                member.close("whoever wanted it is gone")
            raise
        return member

    async def _connect(self) -> Member:
        return await self._log_in(self._login)

    async def open_given(self, login: Login) -> Member:
        """Open a connection apart from the pool, with a login of a client's own; `see_off` must follow. Raises
        ConnectionLost, SettingsRefused and EngineBusy."""
        self._take_place_apart()
        try:
            member = await self._log_in_given(login)
        except BaseException:
            self._give_up_place()
            raise
        self.given_away += 1
        return member

    async def _log_in_given(self, login: Login) -> Member:
        """Log in with a client's settings. If the role can log in without them, and then still not with them, the
        settings are wrong: then neither its password nor the primary is in doubt."""
        try:
            return await self._log_in_once(login, doubts=False)
        except ConnectionLost:
            plain = await self._connect()
        plain.close("it was only to see that the role gets in")
        try:
            return await self._log_in_once(login, doubts=False)
        except ConnectionLost as refused:
            raise SettingsRefused(str(refused)) from refused

    async def _log_in(self, login: Login) -> Member:
        """Log in. A statement can give its own role another password; then restore the service's."""
        try:
            return await self._log_in_once(login)
        except LoginRefused:
            if self._loop.time() < self._restored_at + _RESTORE_EVERY_S:
                raise
            self._restored_at = self._loop.time()
            await self._login.restore_password()
            return await self._log_in_once(login)

    async def _log_in_once(self, login: Login, *, doubts: bool = True) -> Member:
        server = self._server
        return await self.primary.open(
            Member, login.conninfo, server.connect_timeout_s, login.expected, server.meter, doubts=doubts
        )
