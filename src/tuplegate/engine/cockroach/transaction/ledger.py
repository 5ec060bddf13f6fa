"""Looks up and settles the rows that tell outcomes, outside of any tenant's transaction, as the service's own role."""

import asyncio
from collections import OrderedDict
from math import inf
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.cluster.connector import Connector, ServiceSession
from tuplegate.engine.cockroach.cluster.locks import Locks
from tuplegate.engine.cockroach.dialect.cluster_errors import DUPLICATE
from tuplegate.engine.cockroach.transaction.records import EXPIRE, Records, number_of
from tuplegate.engine.libpq.connections.logins import database_secret

_SESSIONS_MAX: Final = 8
"""The number of databases to which connections of the service's own stay open."""
_ANSWER_S: Final = 10.0
"""The time for an answer; the caller has a time limit of its own."""
_PAUSE_S: Final = 0.25
_COUNT_EVERY_S: Final = 5.0
_COUNTS_MAX: Final = 1000
_LEFT_OPEN_S: Final = 60.0
"""How long a session that is dropped stays open for the tasks that use it."""


class Ledger:
    def __init__(self, connector: Connector, locks: Locks, secret: bytes) -> None:
        self._connector = connector
        self._locks = locks
        self._secret = secret
        self._sessions: OrderedDict[str, ServiceSession] = OrderedDict()
        self._kept: dict[str, tuple[float, int]] = {}
        """The time at which the answers of a database were counted, and their bytes."""

    def records(self, database: str) -> Records:
        return Records(database_secret(self._secret, database))

    async def _former_records(self, database: str) -> list[Records]:
        """Return the signing records of the databases that this one has replaced: their rows keep the old
        signatures."""
        rows = await self._session(database).fetch("SELECT name FROM tuplegate.former")
        return [self.records(str(name)) for (name,) in rows]

    # -- ids ------------------------------------------------------------------------------------------------------

    async def begin_id(self, database: str, id: str) -> bool:
        sql = "INSERT INTO tuplegate.begun (id) VALUES ($1) ON CONFLICT DO NOTHING RETURNING id"
        return bool(await self._session(database).fetch(sql, id))

    async def abort_id(self, database: str, id: str) -> port.Outcome:
        await self.begin_id(database, id)
        return await self.abort(database, number_of(id))

    async def find_id(self, database: str, id: str) -> port.Outcome | None:
        outcome = await self.find(database, number_of(id))
        if outcome is not None:
            return outcome
        if not await self._session(database).fetch("SELECT 1 FROM tuplegate.begun WHERE id = $1", id):
            return None
        # The worker that runs it has held this lock since before it began.
        if await self._locks.is_held(port.Lock.TRANSACTION.name_in(database, id)):
            return port.Outcome.IN_PROGRESS
        return await self.abort(database, number_of(id))

    # -- numbers --------------------------------------------------------------------------------------------------

    async def find(self, database: str, number: int) -> port.Outcome | None:
        own = await self._find_as(database, self.records(database), number)
        if own is port.Outcome.COMMITTED:
            return own
        for records in await self._former_records(database):
            former = await self._find_as(database, records, number)
            if former is not None:
                return former  # it was decided before the reset
        return own

    async def _find_as(self, database: str, records: Records, number: int) -> port.Outcome | None:
        sql = "SELECT state FROM tuplegate.outcome WHERE key = $1"
        rows = await self._session(database).fetch(sql, records.key(number))
        return records.read_state(number, rows[0][0]) if rows else None

    async def abort(self, database: str, number: int) -> port.Outcome:
        """Record the number as aborted for good, unless it is committed; return its final state.

        Wait for a transaction that is being committed, since its row is there already.
        """
        records = self.records(database)
        sql, params = records.decide(number, port.Outcome.ABORTED)
        try:
            await self._session(database).fetch(sql, *params)
        except port.StatementFailed as failure:
            if failure.sqlstate != DUPLICATE:
                raise
        except port.EngineLost:
            pass  # it may be done
        found = await self.find(database, number)
        if found is None:
            raise port.EngineUnavailable("the engine does not tell what became of the transaction")
        return found

    async def settle(self, database: str, number: int, seconds: float) -> port.Outcome | None:
        """Find the outcome of a commit without an answer; None if the engine does not tell it in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            try:
                async with asyncio.timeout_at(until):
                    return await self.abort(database, number)
            except (port.EngineFailure, TimeoutError):
                await asyncio.sleep(_PAUSE_S)
        return None

    # -- answers --------------------------------------------------------------------------------------------------

    async def find_kept(self, database: str, route: str, key: str) -> port.KeptAnswers:
        found = await self._find_kept_as(database, self.records(database), route, key)
        for records in [] if found is not None else await self._former_records(database):
            found = found or await self._find_kept_as(database, records, route, key)
        total = await self._count_kept(database)
        return port.KeptAnswers(found, total if found is None else max(total, len(found.body)))

    async def _find_kept_as(self, database: str, records: Records, route: str, key: str) -> port.KeptAnswer | None:
        place = records.answer_key(route, key)
        sql = "SELECT mac, request, encode(body, 'hex') FROM tuplegate.answer WHERE key = $1"
        for mac, request, body in await self._session(database).fetch(sql, place):
            kept = bytes.fromhex(str(body))
            if mac == records.answer_mac(place, str(request), kept):
                return port.KeptAnswer(str(request), kept)
        return None

    async def _count_kept(self, database: str) -> int:
        """Return the bytes of all kept answers, as they were a few seconds ago: counting them takes time in
        proportion."""
        now = asyncio.get_running_loop().time()
        counted_at, total = self._kept.get(database, (-inf, 0))
        if now - counted_at > _COUNT_EVERY_S:
            sql = "SELECT coalesce(sum(200 + length(body)), 0) FROM tuplegate.answer"
            total = int(str((await self._session(database).fetch(sql))[0][0]))
            if len(self._kept) >= _COUNTS_MAX:
                self._kept.clear()
            self._kept[database] = now, total
        return total

    async def expire(self, database: str) -> None:
        """Remove records that nobody may ask for any more."""
        for statement in EXPIRE:
            await self._session(database).fetch(statement)

    async def keep_promise(self, database: str, promise: port.Promise, done: port.TransactionResult) -> None:
        """Record the promise of a transaction that could not write, in a transaction of its own. Raises OutcomeUnknown
        if the answer was lost: then it may be recorded."""
        records = self.records(database)
        questions = []
        if promise.id is not None:
            questions.append(records.decide(number_of(promise.id), port.Outcome.COMMITTED))
        if promise.keep is not None:
            questions.append(records.keep(promise.keep, done))
        try:
            await self._session(database).run_atomically(questions)
        except port.EngineLost as lost:
            message = "the engine was lost while the transaction, which has only read, was recorded under its id or key"
            raise port.OutcomeUnknown(message, promise.id) from lost
        except port.StatementFailed as failure:
            if failure.sqlstate != DUPLICATE:
                raise
            if promise.id is None or await self.find(database, number_of(promise.id)) is not port.Outcome.COMMITTED:
                raise port.Superseded("somebody else settled it first") from failure

    # -- sessions -------------------------------------------------------------------------------------------------

    def _session(self, database: str) -> ServiceSession:
        session = self._sessions.pop(database, None) or ServiceSession(self._connector, database, _ANSWER_S)
        self._sessions[database] = session
        if len(self._sessions) > _SESSIONS_MAX:
            _, oldest = self._sessions.popitem(last=False)
            asyncio.get_running_loop().call_later(_LEFT_OPEN_S, oldest.close)
        return session

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
