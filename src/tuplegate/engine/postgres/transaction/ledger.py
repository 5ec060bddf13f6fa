"""Looks up and settles the service's records, outside of any tenant's transaction.

It uses the database's own pool, in transactions at READ COMMITTED that touch only the records. Locks on a worker's own
connection tell whether somebody still works on a record: they vanish with the worker.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.connections.logins import database_secret
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.service.admin import AdminSession
from tuplegate.engine.postgres.service.records import Records
from tuplegate.engine.run.ends import explain_full
from tuplegate.engine.sql.facts import Leftovers

_BEGIN = Command(b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", begins=False)
_COMMIT = Command(b"COMMIT", begins=False)
_WAIT_S = 30.0
_PAUSE_S = 0.1
_NOT_TOLD = "the engine was lost while the transaction, which has only read, was recorded under its id or key"


class Ledger:
    """The records of all databases, for one worker. `pool_of` returns the writing pool of a database; `session` is the
    worker's own, on the metadata database.

    `is_certain` tells whether all commits on a server up to now are final.
    """

    def __init__(
        self,
        pool_of: Callable[[str], Pool],
        session: AdminSession,
        secret: bytes,
        is_certain: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._pool_of = pool_of
        self._session = session
        self._secret = secret
        self._is_certain = is_certain
        self._held: set[str] = set()
        self._letting_go: set[asyncio.Task[None]] = set()

    def records(self, database: str) -> Records:
        return Records(database_secret(self._secret, database))

    async def begin_id(self, database: str, id: str, *, even_if_full: bool = False) -> bool:
        pool = self._pool_of(database)
        pool.check_commits()
        bound = pool.state.full_at
        if bound is not None and not even_if_full:
            raise explain_full(bound)
        return await self._call(database, self.records(database).begin(id)) == [b"t"]

    async def abort_id(self, database: str, id: str, *, even_if_full: bool = False) -> port.Outcome:
        if await self._is_new(database, id):
            await self.begin_id(database, id, even_if_full=even_if_full)
        # Waits for a transaction that is being committed, and then finds its verdict.
        self._pool_of(database).check_commits()
        await self._call(database, self.records(database).decide(id, port.Outcome.ABORTED.value))
        (state, _), server = await self._call_of(database, self.records(database).look(id))
        return await self._certain(port.Outcome((state or b"").decode()), server)

    async def _certain(self, outcome: port.Outcome, server: str) -> port.Outcome:
        """Return the outcome; IN_PROGRESS where its record on the server could still be lost. Without the record of an
        abort the original can commit on the next primary."""
        return outcome if await self._is_certain(server) else port.Outcome.IN_PROGRESS

    async def _is_new(self, database: str, id: str) -> bool:
        return await self._call(database, self.records(database).look(id)) == [None, None]

    async def find_id(self, database: str, id: str) -> port.Outcome | None:
        (state, age_s), server = await self._call_of(database, self.records(database).look(id))
        if state is not None:
            return await self._certain(port.Outcome(state.decode()), server)
        if age_s is None:
            return None
        # The worker that runs it has held this lock since before it began.
        if await self._is_held(port.Lock.TRANSACTION.name_in(database, id)):
            return port.Outcome.IN_PROGRESS
        return await self.abort_id(database, id)

    async def verdict(self, database: str, id: str) -> port.Outcome | None:
        return (await self.verdict_of(database, id))[0]

    async def verdict_of(self, database: str, id: str) -> tuple[port.Outcome | None, str]:
        """Return the verdict, and the server that has told it."""
        (state, _), server = await self._call_of(database, self.records(database).look(id))
        return None if state is None else port.Outcome(state.decode()), server

    async def is_settled(self, database: str, promise: port.Promise) -> bool:
        """Return whether somebody has already made a record of the promise: then no further attempt can succeed."""
        if promise.id is not None and await self.verdict(database, promise.id) is not None:
            return True
        keep = promise.keep
        return keep is not None and (await self.find_kept(database, keep.route, keep.key)).found is not None

    async def find_kept(self, database: str, route: str, key: str) -> port.KeptAnswers:
        records = self.records(database)
        # In this order: if a transaction is decided, its record is there.
        (decided, *kept), server = await self._call_of(
            database, records.is_decided(route, key), records.kept(route, key)
        )
        request, body, kept_bytes = kept
        found = None
        if request is not None and body is not None:
            if not await self._is_certain(server):
                raise port.EngineUnavailable("what was recorded could still be lost: a standby does not have it yet")
            found = port.KeptAnswer(request.decode(), bytes.fromhex(body.decode()))
        return port.KeptAnswers(found, int(kept_bytes or 0), undecided=decided != b"t")

    async def keep_promise(
        self, database: str, promise: port.Promise, done: port.TransactionResult, until: float
    ) -> None:
        """Record the promise of a transaction that could not write, in a transaction of its own. Raises OutcomeUnknown
        if an answer was lost and no later try succeeds by `until`: then it may be recorded."""
        is_lost = False
        while True:
            try:
                await self._record(database, promise, done)
                return
            except port.EngineUnavailable as failure:
                is_lost = is_lost or isinstance(failure, port.EngineLost)
                if not is_lost:
                    raise
                if asyncio.get_running_loop().time() > until:
                    raise port.OutcomeUnknown(_NOT_TOLD, promise.id) from failure
            await asyncio.sleep(_PAUSE_S)

    async def _record(self, database: str, promise: port.Promise, done: port.TransactionResult) -> None:
        for command in self.records(database).write(promise, done):
            if await self._call(database, command) != [b"t"] and not await self._is_kept(database, promise):
                raise port.Superseded("somebody else settled it first")

    async def _is_kept(self, database: str, promise: port.Promise) -> bool:
        """Return whether this promise was recorded, by a try whose answer was lost. Only this promise uses the id."""
        return promise.id is not None and await self.verdict(database, promise.id) is port.Outcome.COMMITTED

    async def _call(self, database: str, command: Command) -> list[bytes | None]:
        """Call a function of the records; return its one row."""
        return (await self._call_of(database, command))[0]

    async def _call_of(self, database: str, *commands: Command) -> tuple[list[bytes | None], str]:
        """Call functions of the records, each of which returns one row; return all values, and the server that
        answered."""
        pool = self._pool_of(database)
        member = pool.take() or await pool.wait(asyncio.get_running_loop().time() + _WAIT_S)
        results: list[PGresult] = []
        late = asyncio.get_running_loop().call_later(_WAIT_S, pool.leave, member)
        try:
            await pool.freshen(member)
            results = await member.run(_BEGIN, *commands, _COMMIT)
            check(results)
        except ConnectionLost as exc:
            raise port.EngineLost("the connection to the engine was lost") from exc
        except port.EngineFailure:
            pool.give_back_unclean(member)
            raise
        except BaseException:
            pool.abandon(member)
            raise
        finally:
            late.cancel()
        # It ran only functions of the service's own.
        pool.give_back(member, Leftovers.NOTHING)
        return [row.get_value(0, column) for row in results[1:-1] for column in range(row.nfields)], member.server

    # -- locks --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[bool]:
        free = name not in self._held
        if free:
            self._held.add(name)
            locking = asyncio.get_running_loop().create_task(self._try_lock(name))
            try:
                free = await asyncio.shield(locking)
            except BaseException:
                # The caller is gone, but the engine may still grant the lock.
                letting_go = asyncio.get_running_loop().create_task(self._let_go(locking, name))
                self._letting_go.add(letting_go)
                letting_go.add_done_callback(self._letting_go.discard)
                raise
            if not free:
                self._held.discard(name)
        try:
            yield free
        finally:
            if free:
                self._held.discard(name)
                await self._unlock(name)

    async def _let_go(self, locking: "asyncio.Task[bool]", name: str) -> None:
        try:
            if await locking:
                await self._unlock(name)
        except port.EngineFailure:
            pass  # it was not given
        finally:
            self._held.discard(name)

    async def _unlock(self, name: str) -> None:
        try:
            await self._session.fetch("SELECT pg_advisory_unlock($1)", number_lock(self._secret, name))
        except port.EngineUnavailable:
            pass  # the connection is gone, and the lock with it

    async def _try_lock(self, name: str) -> bool:
        rows = await self._session.fetch("SELECT pg_try_advisory_lock($1)", number_lock(self._secret, name))
        return rows[0][0] == "t"

    async def _is_held(self, name: str) -> bool:
        async with self.hold(name) as free:
            return not free


def number_lock(secret: bytes, name: str) -> str:
    """Return the number of a lock. Clients choose parts of its name, so the number depends on the installation's
    secret: nobody can find two names with one number."""
    return str(int.from_bytes(hmac.digest(secret, f"lock/{name}".encode(), "sha256")[:8], signed=True))
