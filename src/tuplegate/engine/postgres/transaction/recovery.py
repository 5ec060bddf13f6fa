"""Transactions in doubt: finishing what was prepared, and finding out what became of a transaction.

A prepared transaction of this installation is decided, so whoever finds one commits it; that may be its own worker, or
another, on this machine or elsewhere, when it is not committed after a while. Who commits what another has prepared
notes that first: so an owner that does not find its own any more can tell "committed by somebody" from "never prepared"
(and does not run it again), whoever is alive and whoever is thought to be. Prepared transactions of others, which carry
another name, are left alone. Finding out waits until the lost connection's server process is gone: while it lives it
may still be doing what it was told.
"""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import structlog

from tuplegate.access.transaction_ids import NONCE_BYTES, make_word
from tuplegate.direct_future import DirectFuture
from tuplegate.eager import see_through
from tuplegate.engine.libpq.connection import Connection
from tuplegate.engine.port import EngineFailure, EngineUnavailable, Outcome, StatementFailed, Ticket
from tuplegate.engine.postgres.own import metadata
from tuplegate.engine.postgres.own.admin import (
    CANCELED,
    LOCK_NOT_AVAILABLE,
    METADATA_DATABASE,
    AdminConnector,
    AdminSession,
    TenantSession,
    terminate,
)
from tuplegate.keeping import keep, within

_log: Final = structlog.get_logger()
_T = TypeVar("_T")

_EVERY_S: Final = 1.0
_AGE_S: Final = 1.0
"""Younger ones are left to the worker that prepared them."""

_PID_BITS: Final = 32
_SETTLE_S: Final = 25.0
_SETTLE_PAUSE_S: Final = 0.1
_CLOSING_PAUSE_S: Final = 0.01

_CERTAIN_S: Final = 10.0
# A commit that writes waits for the disk, and for standbys, and so for all that was committed before it.
_COMMIT_SOMETHING: Final = """SELECT CASE WHEN current_setting('synchronous_standby_names') <> ''
                                       OR pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()
                                     THEN pg_logical_emit_message(true, 'tuplegate', '') END"""
_FIND_STANDBY: Final = (
    "SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum') AND flush_lsn >= $1::pg_lsn"
)
_CONFIRM_PAUSE_S: Final = 0.005
_NOT_YET: Final = frozenset({"55000", LOCK_NOT_AVAILABLE, CANCELED})
"""What COMMIT PREPARED says while another session is at it, and where it did not get on in time."""
_STATES: Final = {"committed": Outcome.COMMITTED, "aborted": Outcome.ABORTED, "in progress": Outcome.IN_PROGRESS}


def _ignore(_database: str) -> None:
    pass


class Recovery:
    """`async with` resolves what is there and goes on looking until it is closed."""

    def __init__(self, connector: AdminConnector, installation: str, secret: bytes, *, alone: bool = True) -> None:
        self._connector = connector
        self._secret = secret
        self._prefix = f"tuplegate_{installation}_"
        self._alone = alone
        self._primary = connector.primary
        self._session = AdminSession(connector, METADATA_DATABASE)
        self._certain = AdminSession(connector, METADATA_DATABASE) if self._primary.follows else self._session
        """Waits for standbys, and whoever waits behind it, where there are such."""
        self._seen_through = 0
        self._watcher: asyncio.Task[None] | None = None
        self.in_hand: set[str] = set()
        """What its own transaction sees to; the watcher does not touch it."""
        self.events = {
            "in_doubt_recovered_total": 0,
            **{f"in_doubt_settled_total {outcome}": 0 for outcome in ("committed", "aborted", "unknown")},
        }
        """How often what happened, in the words of the table of metrics."""
        self.on_commit: Callable[[str], None] = _ignore
        """Is told the database of every transaction that is committed here."""

    async def __aenter__(self) -> "Recovery":
        await self._resolve_first()
        self._watcher = keep("recovery", self._watch)
        return self

    async def __aexit__(self, *exc: object) -> None:
        deadline = asyncio.get_running_loop().time() + _SETTLE_S
        while self._seen_through and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - it is rarely asked
            await asyncio.sleep(_CLOSING_PAUSE_S)
        if self._watcher is not None:
            self._watcher.cancel()
        await self._session.close()
        await self._certain.close()

    def new_gid(self) -> str:
        """The process id is for whoever looks at the list."""
        return self._gid(os.getpid(), make_word(secrets.token_bytes(NONCE_BYTES)))

    def _gid(self, worker: int, word: str) -> str:
        return f"{self._prefix}{worker}_{word}"

    def ticket(self, gid: str, backend: int) -> Ticket:
        """With what `outcome_of_lost` finds it later."""
        return Ticket((os.getpid() << _PID_BITS) + backend, gid.rpartition("_")[2])

    async def outcome_of_lost(self, database: str, ticket: Ticket) -> Outcome:
        """What became of a transaction that was being prepared when the engine was lost. The watcher commits it, if it
        was prepared, and notes that first."""
        worker, backend = divmod(ticket.number, 1 << _PID_BITS)
        gid = self._gid(worker, ticket.word)
        gone = not await terminate(self._session, database, backend)
        if await self._is_prepared(gid):
            return Outcome.IN_PROGRESS
        if await self._session.fetch(metadata.FIND_RECOVERED, gid):
            return Outcome.COMMITTED if await self.is_certain() else Outcome.IN_PROGRESS
        return Outcome.ABORTED if gone else Outcome.IN_PROGRESS

    async def outcome_of_former(self, ticket: Ticket) -> Outcome:
        """The same where the database was another then, perhaps on another engine: its server processes are gone, and
        what it had prepared was committed and noted, with the notes brought here."""
        gid = self._gid(ticket.number >> _PID_BITS, ticket.word)
        if await self._is_prepared(gid):
            return Outcome.IN_PROGRESS
        return Outcome.COMMITTED if await self._session.fetch(metadata.FIND_RECOVERED, gid) else Outcome.ABORTED

    def see_through(self, work: Coroutine[Any, Any, _T]) -> DirectFuture[_T]:
        """Begins work that goes on even if whoever waits for it is cancelled. What `eager` says of handlers holds for
        it, but that nothing cancels it."""
        self._seen_through += 1
        return see_through(work, self._one_less)

    def _one_less(self, _cancelled: bool) -> None:
        self._seen_through -= 1

    # -- prepared transactions ----------------------------------------------------------------------------------

    async def resolve(self, older_than_s: float) -> int:
        """Commits the prepared transactions of this installation; how many."""
        rows = await self._session.fetch(
            "SELECT gid, database FROM pg_prepared_xacts WHERE starts_with(gid, $1)"
            " AND prepared <= clock_timestamp() - $2::float8 * interval '1 second' ORDER BY prepared",
            self._prefix,
            str(older_than_s),
        )
        for gid, database in rows:
            if gid in self.in_hand:
                continue
            try:
                await self._certain.fetch(metadata.NOTE_RECOVERED, gid)
                await self._commit_in_doubt(str(database), str(gid))
            except StatementFailed as exc:
                if exc.sqlstate not in _NOT_YET:
                    _log.error("a transaction in doubt could not be committed", gid=gid, reason=str(exc))
        if rows:
            await self._certain.fetch(metadata.EXPIRE_RECOVERED)
        return len(rows)

    async def _commit_in_doubt(self, database: str, gid: str) -> None:
        """Commit it. Where its database alone cannot be entered, those of other databases do not wait for it."""
        try:
            if await self._commit(database, gid):
                self.events["in_doubt_recovered_total"] += 1
        except EngineUnavailable as unavailable:
            _log.error("a transaction in doubt could not be committed", gid=gid, reason=str(unavailable))

    async def _resolve_first(self) -> None:
        """What was prepared before now is committed when this returns: by its owner, if that lives, or by us."""
        if self._alone:
            await self.resolve(older_than_s=0)
            return
        started = (await self._session.fetch("SELECT clock_timestamp()"))[0][0]
        before = "SELECT 1 FROM pg_prepared_xacts WHERE starts_with(gid, $1) AND prepared <= $2::timestamptz"
        deadline = asyncio.get_running_loop().time() + _SETTLE_S
        while await self._session.fetch(before, self._prefix, started):
            await self.resolve(_AGE_S)
            if asyncio.get_running_loop().time() > deadline:
                return  # one that cannot be committed; the log has it
            await asyncio.sleep(_SETTLE_PAUSE_S)

    async def _commit(self, database: str, gid: str) -> bool:
        """Whether it was done here: as the role that prepared it, since nobody else may. Only who writes prepares."""
        async with TenantSession(self._connector, self._secret, database) as session:
            try:
                await session.fetch("COMMIT PREPARED '" + gid.replace("'", "''") + "'")
            except StatementFailed as exc:
                if exc.sqlstate != "42704":  # somebody else was quicker
                    raise
                return False
        self.on_commit(database)
        _log.warning("a transaction in doubt was committed", gid=gid, database=database)
        return True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.resolve(_AGE_S)
            except EngineFailure:
                continue  # it is asked again in a second

    # -- outcomes -----------------------------------------------------------------------------------------------

    async def outcome(self, number: int) -> Outcome | None:
        """What the engine says of a transaction; None where it is too old for it."""
        try:
            rows = await self._session.fetch("SELECT pg_xact_status($1::text::xid8)", str(number))
        except StatementFailed as exc:
            if exc.sqlstate != "22023":
                raise
            return None  # a number that the engine has lost in a crash, and will give out again
        return _STATES.get(str(rows[0][0]))

    async def is_certain(self) -> bool:
        """Whether what is committed now is so for good: it is on disk, and standbys that commits wait for have it."""
        try:
            await within(_CERTAIN_S, self._certain.fetch(_COMMIT_SOMETHING))
            return not self._primary.demands or await self._is_confirmed()
        except (TimeoutError, EngineUnavailable):
            return False

    async def is_confirmed(self) -> bool:
        """Whether what is committed now is on a standby, whatever the engine's commits wait for just now."""
        try:
            return await self._is_confirmed()
        except EngineUnavailable:
            return False

    async def _is_confirmed(self) -> bool:
        [(position,)] = await self._session.fetch("SELECT pg_current_wal_flush_lsn()")
        deadline = asyncio.get_running_loop().time() + _CERTAIN_S
        while not await self._session.fetch(_FIND_STANDBY, position):
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_CONFIRM_PAUSE_S)
        return True

    async def settle_prepared(self, database: str, member: Connection, gid: str) -> bool | None:
        """Whether a transaction whose connection was lost while it prepared is committed now: it is if it was prepared,
        and then this commits it. None where the engine could not be asked in time."""
        seen: str | None = None

        async def look() -> bool | None:
            nonlocal seen
            gone = await self._is_gone(database, member)
            if seen is not None and self._primary.has_left(seen):
                seen = None  # what was prepared there may not have got here
            if await self._is_prepared(gid):
                seen = self._primary.server  # also when the answer to the commit is lost, and the name with it
                try:
                    await self._commit(database, gid)
                except StatementFailed as failure:
                    # It is prepared, so this only means that it is not committed yet.
                    if failure.sqlstate not in _NOT_YET:
                        _log.error("a prepared transaction could not be committed", gid=gid, reason=str(failure))
                    return None
            elif seen is None and not await self._session.fetch(metadata.FIND_RECOVERED, gid):
                return False if gone else None
            return True if await self.is_certain() else None

        known = await self._until_known(look)
        # What is prepared is decided: it will be committed, also where nobody can be asked any more.
        return self._settled(True if seen is not None and not self._primary.replication.waits else known)

    async def settle_recorded(
        self, database: str, member: Connection, is_recorded: Callable[[], Awaitable[bool]]
    ) -> bool | None:
        """Whether a transaction that carries a record, and whose connection was lost while it committed, is committed.
        None where the engine could not be asked in time."""

        async def look() -> bool | None:
            if not await self._is_gone(database, member):
                return None
            if not await is_recorded():
                return False
            return True if await self.is_certain() else None

        return self._settled(await self._until_known(look))

    def _settled(self, committed: bool | None) -> bool | None:
        outcome = "unknown" if committed is None else "committed" if committed else "aborted"
        self.events[f"in_doubt_settled_total {outcome}"] += 1
        return committed

    async def _until_known(self, look: Callable[[], Awaitable[_T | None]]) -> _T | None:
        """In a task of its own, which a time limit needs."""
        return await asyncio.get_running_loop().create_task(self._look_until_known(look))

    async def _look_until_known(self, look: Callable[[], Awaitable[_T | None]]) -> _T | None:
        deadline = asyncio.get_running_loop().time() + _SETTLE_S
        while asyncio.get_running_loop().time() < deadline:
            known: _T | None = None
            try:
                async with asyncio.timeout_at(deadline):
                    known = await look()
            except (EngineUnavailable, TimeoutError):
                pass  # it may be starting again
            if known is not None:
                return known
            await asyncio.sleep(_SETTLE_PAUSE_S)
        return None

    async def _is_prepared(self, gid: str) -> bool:
        return bool(await self._session.fetch("SELECT 1 FROM pg_prepared_xacts WHERE gid = $1", gid))

    async def _is_gone(self, database: str, member: Connection) -> bool:
        """Whether the server process of a lost connection has ended; asks it to, where it has not."""
        if self._primary.has_left(member.server):
            return True
        return not await terminate(self._session, database, member.backend)
