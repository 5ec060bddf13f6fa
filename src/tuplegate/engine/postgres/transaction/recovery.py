"""Transactions in doubt: finishes prepared ones, and finds the outcome of others.

A prepared transaction of this installation is decided, so anyone who finds one commits it: its own worker, or another
one, on this machine or elsewhere, if it is not committed after a while. A worker that commits another's transaction
first makes a note of it. So an owner that no longer finds its own transaction can tell "committed by somebody" from
"never prepared" (and does not run it again), whoever is alive or believed to be. Prepared transactions with a name of
another form are left alone. The search for an outcome waits until the lost connection's server process is gone: while
that lives, it may still do its work.

The answer of one server proves nothing about another that has replaced it: every question names its server. A prepared
transaction that is no longer there was committed, on the server that has prepared it; on another server it may never
have arrived. A server that replaces another reuses transaction numbers, so ids that carry numbers carry their history,
too.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any, Final, TypeVar

import structlog

from tuplegate.access.transaction_ids import Words
from tuplegate.background import within
from tuplegate.direct_future import DirectFuture
from tuplegate.eager import see_through
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.values.quoting import quote_text
from tuplegate.engine.port import EngineFailure, EngineUnavailable, Outcome, OutcomeUnknown, StatementFailed, Ticket
from tuplegate.engine.postgres.service import metadata
from tuplegate.engine.postgres.service.admin import (
    CANCELED,
    LOCK_NOT_AVAILABLE,
    METADATA_DATABASE,
    AdminConnector,
    AdminSession,
    TenantSession,
    terminate,
)
from tuplegate.engine.postgres.transaction.certainty import Certainty
from tuplegate.engine.postgres.transaction.histories import Histories, is_replicated, must_be_confirmed

_log: Final = structlog.get_logger()
_T = TypeVar("_T")

EVERY_S: Final = 0.5
_AGE_S: Final = 1.0
"""Younger transactions are left to the worker that prepared them."""
_ASKED_S: Final = 2.0
"""The time for which a question about an outcome waits until left transactions are committed."""

_PID_BITS: Final = 32
_SETTLE_S: Final = 25.0
_SETTLE_PAUSE_S: Final = 0.1
_CLOSING_PAUSE_S: Final = 0.01

_NOT_YET: Final = frozenset({"55000", LOCK_NOT_AVAILABLE, CANCELED})
"""The SQLSTATEs of COMMIT PREPARED while another session commits the transaction, or if it took too long."""
_XACT_STATUS: Final = "SELECT pg_xact_status($1::text::xid8)"
_STATES: Final = {"committed": Outcome.COMMITTED, "aborted": Outcome.ABORTED, "in progress": Outcome.IN_PROGRESS}


class Settled(Enum):
    """The outcome that was found for a transaction whose connection was lost."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


def _ignore(_database: str) -> None:
    pass


class Recovery:
    """Commits prepared transactions that were left behind: those there on entry, then later ones at every look."""

    def __init__(self, connector: AdminConnector, installation: str, secret: bytes) -> None:
        self._connector = connector
        self._secret = secret
        self._prefix = f"tuplegate_{installation}_"
        self._words = Words(os.urandom)
        self._primary = connector.primary
        self._session = AdminSession(connector, METADATA_DATABASE)
        self._certain = (
            AdminSession(connector, METADATA_DATABASE, waits=True) if self._primary.follows else self._session
        )
        """Waits for standbys if there can be any, and so do all later statements on it."""
        self.certainty = Certainty(self._primary, self._session, self._certain)
        self.histories = Histories(self._primary)
        self.seen_through = 0
        self.in_hand: set[str] = set()
        """The names of transactions that their own run commits; the watcher leaves these alone."""
        self.events = {
            "in_doubt_recovered_total": 0,
            **{f"in_doubt_settled_total {outcome}": 0 for outcome in ("committed", "aborted", "unknown")},
        }
        """Counts of events, in the words of the table of metrics."""
        self.on_commit: Callable[[str], None] = _ignore
        """Called with the database of every transaction that is committed here."""

    async def __aenter__(self) -> "Recovery":
        await self._resolve_first()
        return self

    async def __aexit__(self, *exc: object) -> None:
        deadline = asyncio.get_running_loop().time() + _SETTLE_S
        while self.seen_through and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - it is rarely asked
            await asyncio.sleep(_CLOSING_PAUSE_S)
        await self.rest()

    async def rest(self) -> None:
        """Close the sessions; they open again when they are needed."""
        await self._session.close()
        await self._certain.close()

    def new_gid(self) -> str:
        """Return a new name for a prepared transaction. The process id in it is for people who read the list."""
        return self._gid(os.getpid(), self._words.make())

    def _gid(self, worker: int, word: str) -> str:
        return f"{self._prefix}{worker}_{word}"

    def ticket(self, gid: str, member: Connection) -> Ticket:
        """Return the ticket by which `outcome_of_lost` finds the transaction later."""
        number = (os.getpid() << _PID_BITS) + member.backend
        return Ticket(number, gid.rpartition("_")[2], self.histories.of(member))

    async def outcome_of_lost(self, database: str, ticket: Ticket) -> Outcome:
        """Return the outcome of a transaction that was being prepared when the engine was lost. If it was prepared, the
        watcher notes that and commits it."""
        worker, backend = divmod(ticket.number, 1 << _PID_BITS)
        gid = self._gid(worker, ticket.word)
        server = await self._session.server()
        # On another server the number of the process is that of a stranger.
        gone = not self.histories.fits(ticket.history, server) or not await terminate(self._session, database, backend)
        if await self._is_prepared(server, gid):
            await _look_for_asker(self)
        if await self._is_prepared(server, gid):
            return Outcome.IN_PROGRESS
        if await self._session.fetch_of(server, metadata.FIND_RECOVERED, gid):
            return Outcome.COMMITTED if await self.certainty.is_certain(server) else Outcome.IN_PROGRESS
        return Outcome.ABORTED if gone else Outcome.IN_PROGRESS

    async def outcome_of_former(self, ticket: Ticket) -> Outcome:
        """Return the outcome of a transaction from before its database was moved or reset. Its server processes are
        gone; its prepared transactions were committed, and the notes about them were brought here."""
        gid = self._gid(ticket.number >> _PID_BITS, ticket.word)
        server = await self._session.server()
        if await self._is_prepared(server, gid):
            await _look_for_asker(self)
            return Outcome.IN_PROGRESS
        noted = await self._session.fetch_of(server, metadata.FIND_RECOVERED, gid)
        return Outcome.COMMITTED if noted else Outcome.ABORTED

    def see_through(self, work: Coroutine[Any, Any, _T]) -> DirectFuture[_T]:
        """Run work to its end even if its caller is cancelled. The rules for handlers in `eager` hold for it, except
        that nothing cancels it."""
        self.seen_through += 1
        return see_through(work, self._one_less)

    def _one_less(self, _cancelled: bool) -> None:
        self.seen_through -= 1

    # -- prepared transactions ----------------------------------------------------------------------------------

    async def resolve(self, older_than_s: float) -> int:
        """Commit the prepared transactions of this installation; return their number."""
        server = await self._session.server()
        rows = await self._session.fetch_of(
            server,
            "SELECT gid, database FROM pg_prepared_xacts WHERE starts_with(gid, $1)"
            " AND prepared <= clock_timestamp() - $2::float8 * interval '1 second' ORDER BY prepared",
            self._prefix,
            str(older_than_s),
        )
        for gid, database in rows:
            if gid in self.in_hand:
                continue
            try:
                await self._note(server, str(gid))
                await self._commit_in_doubt(server, str(database), str(gid))
            except StatementFailed as exc:
                if exc.sqlstate not in _NOT_YET:
                    _log.error("a transaction in doubt could not be committed", gid=gid, reason=str(exc))
        if rows:
            await self._certain.fetch(metadata.EXPIRE_RECOVERED)
        return len(rows)

    async def _note(self, server: str, gid: str) -> None:
        """Note that recovery commits this transaction. A transaction that is later found neither prepared nor noted
        counts as one that never was."""
        await self._certain.fetch_of(server, metadata.NOTE_RECOVERED, gid)

    async def _commit_in_doubt(self, server: str, database: str, gid: str) -> None:
        """Commit it. A database that cannot be entered does not delay the transactions of others."""
        try:
            if await self._commit(server, database, gid):
                self.events["in_doubt_recovered_total"] += 1
        except EngineUnavailable as unavailable:
            _log.error("a transaction in doubt could not be committed", gid=gid, reason=str(unavailable))

    async def _resolve_first(self) -> None:
        """Return once everything that was prepared before now is committed, by its owner or by us. If commits wait for
        an absent standby, leave the rest to the watcher, so that reads can begin."""
        resolving = asyncio.get_running_loop().create_task(self._resolve_before())
        while not (await asyncio.wait([resolving], timeout=_SETTLE_PAUSE_S))[0]:
            if self._primary.replication.stands_still:
                _log.warning("transactions in doubt are left until a standby is there")
                resolving.cancel()
                return
        resolving.result()

    async def _resolve_before(self) -> None:
        started = (await self._session.fetch("SELECT clock_timestamp()"))[0][0]
        before = "SELECT 1 FROM pg_prepared_xacts WHERE starts_with(gid, $1) AND prepared <= $2::timestamptz"
        deadline = asyncio.get_running_loop().time() + _SETTLE_S
        while await self._session.fetch(before, self._prefix, started):
            await self.resolve(_AGE_S)
            if asyncio.get_running_loop().time() > deadline:
                return  # one that cannot be committed; the log has it
            await asyncio.sleep(_SETTLE_PAUSE_S)

    async def _commit(self, server: str, database: str, gid: str) -> bool:
        """Commit a noted transaction, as the role that prepared it, since no other may; return whether this call has
        done it."""
        async with TenantSession(self._connector, self._secret, database) as session:
            try:
                await session.fetch_of(server, f"COMMIT PREPARED {quote_text(gid)}")
            except StatementFailed as exc:
                if exc.sqlstate != "42704":  # somebody else was quicker
                    raise
                return False
        self.on_commit(database)
        _log.warning("a transaction in doubt was committed", gid=gid, database=database)
        return True

    async def look(self) -> None:
        """Commit transactions that were left behind, unless commits wait for an absent standby."""
        if self._primary.replication.stands_still:
            return
        try:
            await self.resolve(_AGE_S)
        except EngineFailure:
            pass  # it is asked again at the next look

    # -- outcomes -----------------------------------------------------------------------------------------------

    async def outcome(self, number: int, history: int = 0) -> Outcome | None:
        """Return the engine's own state of a transaction; None if it is too old for the engine. Raises OutcomeUnknown
        if another server gave the number, and this one may have reused it."""
        server = await self._session.server()
        is_own = self.histories.fits(history, server)
        try:
            rows = await self._session.fetch_of(server, _XACT_STATUS, str(number))
        except StatementFailed as exc:
            if exc.sqlstate != "22023":
                raise
            # It has lost the number, in a crash or because it never got it, and will give it out again.
            return None if is_own else Outcome.ABORTED
        state = _STATES.get(str(rows[0][0]))
        if state is Outcome.COMMITTED and is_own and must_be_confirmed(history):
            until = asyncio.get_running_loop().time() + _ASKED_S
            return state if await self.certainty.is_certain(server, until) else Outcome.IN_PROGRESS
        if is_own or state is Outcome.ABORTED or is_replicated(history):
            return state
        raise OutcomeUnknown(
            "another server is the primary since, and it cannot tell this transaction from one of its own: it may have"
            " been applied or not"
        )

    async def settle_prepared(
        self, database: str, member: Connection, gid: str, until: float, ticket: Ticket | None = None
    ) -> Settled:
        """Find out whether a transaction is committed whose connection was lost while it prepared, or after that; in
        the latter case `ticket` is given. If it is prepared, commit it."""
        seen: str | None = None

        async def look() -> Settled | None:
            nonlocal seen
            server = await self._session.server()
            gone = await self._is_gone(database, member)
            if await self._is_prepared(server, gid):
                seen = server  # also when the answer to the commit is lost, and the name with it
                if not await self.certainty.is_certain(server, until):
                    return None  # no standby has it: once it is shown, a failover must not take it back
                try:
                    await self._note(server, gid)
                    await self._commit(server, database, gid)
                except StatementFailed as failure:
                    # It is prepared, so this only means that it is not committed yet.
                    if failure.sqlstate not in _NOT_YET:
                        _log.error("a prepared transaction could not be committed", gid=gid, reason=str(failure))
                    return None
            elif seen != server and not await self._session.fetch_of(server, metadata.FIND_RECOVERED, gid):
                if ticket is None:
                    return Settled.ABORTED if gone else None
                if not self.histories.fits(ticket.history, server):
                    found = await _settle_number(self._session, server, ticket)
                    if found is not Settled.COMMITTED:
                        return found
            return Settled.COMMITTED if await self.certainty.is_certain(server, until) else None

        known = await self._until_known(look, until)
        if not self._primary.follows and (seen is not None or ticket is not None):
            # What is prepared is decided: its server will commit it, also where nobody can be asked any more.
            known = Settled.COMMITTED
        return self._settled(known)

    async def settle_recorded(
        self,
        database: str,
        member: Connection,
        find_record: Callable[[], Awaitable[tuple[bool, str]]],
        until: float,
    ) -> Settled:
        """Find out whether a transaction with a record is committed, after its connection was lost during the commit.
        `find_record` returns whether the record is there, and the server that has told it."""

        async def look() -> Settled | None:
            if not await self._is_gone(database, member):
                return None
            is_there, server = await find_record()
            if not is_there:
                return Settled.ABORTED
            return Settled.COMMITTED if await self.certainty.is_certain(server, until) else None

        return self._settled(await self._until_known(look, until))

    def _settled(self, found: Settled | None) -> Settled:
        settled = found or Settled.UNKNOWN
        self.events[f"in_doubt_settled_total {settled.value}"] += 1
        return settled

    async def _until_known(self, look: Callable[[], Awaitable[_T | None]], until: float) -> _T | None:
        """Wait for the result in a task of its own, as a time limit requires."""
        return await asyncio.get_running_loop().create_task(self._look_until_known(look, until))

    async def _look_until_known(self, look: Callable[[], Awaitable[_T | None]], until: float) -> _T | None:
        while asyncio.get_running_loop().time() < until:
            known: _T | None = None
            try:
                async with asyncio.timeout_at(until):
                    known = await look()
            except (EngineFailure, TimeoutError):
                pass  # it may be starting again, and whatever failed was a question of ours
            if known is not None:
                return known
            await asyncio.sleep(_SETTLE_PAUSE_S)
        return None

    async def _is_prepared(self, server: str, gid: str) -> bool:
        return bool(await self._session.fetch_of(server, "SELECT 1 FROM pg_prepared_xacts WHERE gid = $1", gid))

    async def _is_gone(self, database: str, member: Connection) -> bool:
        """Return whether the server process of a lost connection has ended; if it has not, ask it to."""
        if self._primary.has_left(member.server):
            return True
        return not await terminate(self._session, database, member.backend)


async def _look_for_asker(recovery: Recovery) -> None:
    """Look for left transactions on a server that nobody else uses, where no watcher looks. A commit can wait for an
    absent standby; the question does not wait for that."""
    try:
        await within(_ASKED_S, recovery.look())
    except TimeoutError:
        pass  # the watcher goes on, or the next who asks


async def _settle_number(session: AdminSession, server: str, ticket: Ticket) -> Settled:
    """Find the outcome of a transaction that was prepared on another server and is not prepared here.

    Either it arrived here and was committed, or it never arrived. In the first case its number is that of a committed
    transaction; but in the second case, too, if the number was reused. It has arrived if commits wait for a standby.
    """
    try:
        [(state,)] = await session.fetch_of(server, _XACT_STATUS, str(ticket.number))
    except StatementFailed as failure:
        if failure.sqlstate != "22023":
            raise
        return Settled.ABORTED  # the number is not given out here yet
    if state not in ("committed", None):
        return Settled.ABORTED
    return Settled.COMMITTED if is_replicated(ticket.history) else Settled.UNKNOWN
