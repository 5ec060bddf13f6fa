"""Creates, copies, resets and deletes databases so that catalog and engine agree after any crash.

The catalog first records the intention (`creating`, `deleting`), then the engine carries it out, then the catalog
records that it is done. Work that a crash interrupts is found in the catalog and finished by the next worker to look:
at start, and every few seconds. A name held in the engine keeps two workers from doing the same work.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog

from tuplegate.access.tokens import RANDOM_BYTES, Token, make_id
from tuplegate.background import keep, tick
from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.databases import EngineDatabase, Leftover
from tuplegate.catalog.metadata import Actor
from tuplegate.engine import port

_log = structlog.get_logger()
_T = TypeVar("_T")

_SWEEP_S = 5.0
_LOOK_AGAIN_S = 0.1
_PATIENCE_S = 60.0
_AT_ONCE_MAX, _OF_ONE_MAX = 4, 2
"""Operations on databases that a worker runs at once, in all and for one organization. Each takes some of the engine's
connections, which other requests need too."""
_MOVES_MAX, _MOVES_OF_ONE_MAX = 2, 1
"""The same for moves, which have places of their own: the time of a move grows with the data."""
_PAUSE_S = 4.0
"""How long workers release a database before they must be asked again. The source of a copy stays paused by asking."""


class Lifecycle:
    """Operations on databases. `engines` returns the names of the engines that can be used now; None if there is only
    one."""

    def __init__(
        self,
        catalog: Catalog,
        databases: port.AllDatabases,
        locks: port.Locks,
        engines: Callable[[], Awaitable[list[str]]] | None = None,
    ) -> None:
        self._engines = engines
        self._catalog = catalog
        self._databases = databases
        self._locks = locks
        self._tasks: set[asyncio.Task[Any]] = set()
        self._places = _Places(_AT_ONCE_MAX, _OF_ONE_MAX)
        self._places_of_moves = _Places(_MOVES_MAX, _MOVES_OF_ONE_MAX)

    async def create(self, actor: Actor, name: str, clone_of: str | None) -> str:
        """Create a database and return its id. It is empty, or a copy of the database with the id `clone_of`."""
        return await self.see_through(actor, self._create(actor, name, clone_of))

    async def create_organization(self, actor: Actor, id: str, name: str, tier: str, database: str, key: Token) -> None:
        """Create an organization with its first database, of that name, and a key that manages it."""
        making = self._create_organization(actor, id, name, tier, (make_database_id(), database), key)
        await self.see_through(actor, making)

    async def delete(self, actor: Actor, id: str) -> bool:
        """Delete a database. Return False if the catalog does not allow it."""
        return await self.see_through(actor, self._delete(actor, id))

    async def delete_organization(self, actor: Actor, id: str) -> bool:
        """Delete an organization and everything in it. Return False if there is none."""
        return await self.see_through(actor, self._delete_organization(actor, id))

    async def reset(self, actor: Actor, id: str) -> bool:
        """Replace the database with an empty one, for all readers at once, and drop the old one afterwards.

        Return False if it is protected.
        """
        if await self._catalog.databases.is_protected(id):
            return False
        return await self.see_through(actor, self._reset(actor, id))

    async def finish_all(self) -> None:
        """Finish everything that was left half done."""
        await self._catalog.organizations.finish_deleting()
        for database in await self._catalog.databases.list_unfinished():
            try:
                await self._finish(database.id, patient=False)
            except port.EngineFailure as failure:
                _log.error(
                    "a database could not be finished", database=database.id, state=database.state, reason=str(failure)
                )
        await self._clear_interrupted()
        await self._databases.drop_left_roles()
        await self._catalog.organizations.finish_deleting()

    async def watch(self) -> None:
        """Finish interrupted work and remove old sessions, for as long as the process lives."""
        while True:
            try:
                await self.finish_all()
                await self._catalog.sessions.remove_old()
                await self._catalog.console_codes.remove_old()
            except port.CommitsRefused:
                pass  # the health of the service tells
            except port.EngineFailure as failure:
                _log.warning("databases could not be looked after", reason=str(failure))
            await tick(_SWEEP_S)

    # -- whole tenants ------------------------------------------------------------------------------------------

    async def _create(self, actor: Actor, name: str, clone_of: str | None) -> str:
        id = make_database_id()
        engine = await self._choose(clone_of)
        await self._catalog.databases.add(actor, id, id, actor.organization, name, clone_of, engine)
        try:
            await self._finish_made(id)
        except (port.StatementFailed, port.EngineBusy, port.NotSupported):
            await self._catalog.databases.discard(actor, id)
            raise
        return id

    async def _create_organization(
        self, actor: Actor, id: str, name: str, tier: str, database: tuple[str, str], key: Token
    ) -> None:
        await self._catalog.organizations.add(actor, id, name, tier, database, key, await self._choose(None))
        try:
            await self._finish_made(database[0])
        except (port.StatementFailed, port.EngineBusy):
            await self._catalog.organizations.start_deleting(actor, id)
            raise

    async def _choose(self, clone_of: str | None) -> str:
        """Return the engine for a new database: the one with the fewest for its weight. A copy stays with its
        source."""
        if clone_of is not None:
            source = await self._catalog.databases.find_in_engine(clone_of)
            return port.FIRST_ENGINE if source is None else source.engine
        if self._engines is None:
            return port.FIRST_ENGINE
        chosen = await self._catalog.engines.choose(await self._engines())
        if chosen is None:
            raise port.EngineBusy("no engine takes new databases: those that answer are draining, or have no weight")
        return chosen

    async def _delete(self, actor: Actor, id: str) -> bool:
        if not await self._catalog.databases.start_deleting(actor, id):
            return False
        await self._finish(id)
        return True

    async def _delete_organization(self, actor: Actor, id: str) -> bool:
        if not await self._catalog.organizations.start_deleting(actor, id):
            return False
        while id in await self._catalog.organizations.finish_deleting():
            for database in await self._catalog.databases.list_unfinished(id):
                await self._finish(database.id)
        return True

    # -- one database -------------------------------------------------------------------------------------------

    async def _finish_made(self, id: str) -> None:
        """Create the database, or wait for the worker that does. Raise if it does not exist afterwards."""
        await self._finish(id)
        database = await self._catalog.databases.find_in_engine(id)
        if database is None or database.state == "failed":
            raise port.EngineBusy("the database could not be made")

    async def _finish(self, id: str, *, patient: bool = True) -> None:
        """Create or remove the database. If another worker is at it, wait for that one, or leave it alone unless
        `patient`."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            async with self._locks.hold(f"database/{id}") as free:
                database = await self._catalog.databases.find_in_engine(id)
                if database is None or database.state not in ("creating", "deleting"):
                    return
                if free:
                    await self._bring_about(database)
                    return
            if not patient:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise port.EngineBusy(f"the database is still {database.state}")
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _bring_about(self, database: EngineDatabase) -> None:
        """Carry out what the catalog has recorded. If the engine is lost, a later sweep does it."""
        try:
            await (self._make(database) if database.state == "creating" else self._remove(database))
        except port.EngineUnavailable as gone:
            raise port.OutcomeUnknown(f"the engine was lost while the database was {database.state}") from gone

    async def _make(self, database: EngineDatabase) -> None:
        """Create it in the engine. If the engine refuses, nothing of it remains there; if the engine is lost, a later
        sweep tries again."""
        try:
            if database.clone_of is None:
                await self._databases.create(database.engine_name)
            else:
                await self._copy(database, database.clone_of)
        except (port.StatementFailed, port.EngineBusy, port.NotSupported):
            await self._take_back(database)
            raise
        await self._catalog.databases.mark_made(database.id, self._databases.furnishing_of(database.engine_name))

    async def _take_back(self, database: EngineDatabase) -> None:
        """Remove what exists of it. If that fails, the next sweep finds it as `creating` and creates it."""
        try:
            await self._databases.drop(database.engine_name)
            await self._catalog.databases.mark_failed(database.id)
        except (port.StatementFailed, port.EngineBusy) as failure:
            raise port.OutcomeUnknown("the database was not made, and is tried again later") from failure

    async def _copy(self, database: EngineDatabase, source_id: str) -> None:
        source = await self._catalog.databases.find_in_engine(source_id)
        if source is None or source.state != "active":
            raise port.EngineBusy("the database to copy is gone")
        async with self.pause(source_id):
            await self._databases.copy(source.engine_name, database.engine_name)

    async def _remove(self, database: EngineDatabase) -> None:
        await self._databases.drop(database.engine_name)
        await self._catalog.databases.remove(database.id)

    async def _reset(self, actor: Actor, id: str) -> bool:
        async with self._locks.hold(f"database/{id}") as free:
            database = await self._catalog.databases.find_in_engine(id) if free else None
            if database is None or database.state != "active":
                raise port.EngineBusy("the database is being changed by somebody else")
            fresh = make_database_id()
            await self._catalog.databases.note_leftovers(id, [database.engine_name, fresh], database.engine)
            try:
                await self._databases.create(fresh)
                async with self.pause(id):
                    async with self._databases.reach(database.engine_name) as server:
                        await server.silence(database.engine_name)
                    await self._databases.keep_outcomes(database.engine_name, fresh)
                    return await self._catalog.databases.replace(actor, id, fresh)
            finally:
                await self.clear(id)  # the catalog now says whether it was reset

    async def _clear_interrupted(self) -> None:
        """Clear up after resets and moves that were interrupted."""
        ids = {*(await self._catalog.databases.list_in_reset()).values(), *await self._catalog.moves.list_unfinished()}
        for id in ids:
            async with self._locks.hold(f"database/{id}") as free:
                if free:
                    await self.clear(id)
        await self._catalog.moves.forget_old()

    async def clear(self, id: str) -> None:
        """Clear up after a reset or move, whether it succeeded or not: open the database in use, which may be silenced,
        and drop the other one. The next sweep repeats steps that fail."""
        try:
            leftovers = await self._catalog.databases.doom_leftovers(id)
            # The database in use comes first, so that it does not wait for an engine that is gone.
            for leftover in sorted(leftovers, key=lambda leftover: leftover.doomed):
                await self._clear_leftover(id, leftover)
            await self._catalog.moves.end(id)
        except port.EngineFailure as failure:
            _log.warning("a reset or a move could not be cleared up after", database=id, reason=str(failure))

    async def _clear_leftover(self, id: str, leftover: Leftover) -> None:
        try:
            if leftover.doomed:
                await self._databases.drop(leftover.engine_name)
            else:
                await self._open_again(leftover.engine_name)
            if leftover.source is not None:
                await self._databases.on(leftover.engine).forget_source(leftover.source)
        except port.EngineFailure as failure:
            _log.warning("a reset or a move could not be cleared up after", database=id, reason=str(failure))
        else:
            await self._catalog.databases.forget_leftover(leftover.engine_name)

    async def _open_again(self, name: str) -> None:
        async with self._databases.reach(name) as server:
            await server.open(name)
        async with self._locks.hold_in(name, port.Lock.DUMP) as is_free, self._databases.reach(name) as server:
            await server.stop_following(name, dumped=not is_free)

    @asynccontextmanager
    async def pause(self, id: str, engine_name: str | None = None) -> AsyncIterator[None]:
        """Ask all workers to release the database, repeatedly until the block ends. With `engine_name`, only while the
        database has that name in the engine."""
        await self._catalog.databases.pause(id, _PAUSE_S, engine_name)
        keeper = keep("pauses", partial(self._keep_paused, id, engine_name))
        try:
            yield
        finally:
            keeper.cancel()
            await self._catalog.databases.pause(id, 0)

    async def _keep_paused(self, id: str, engine_name: str | None) -> None:
        while True:
            await asyncio.sleep(_PAUSE_S / 4)
            try:
                await self._catalog.databases.pause(id, _PAUSE_S, engine_name)
            except port.EngineFailure:
                continue  # the next try comes before the pause ends

    async def see_through(self, actor: Actor, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for work that continues even if the caller is cancelled."""
        return await self._see_through(self._places.run(actor.organization, work))

    async def see_through_move(self, organization: str, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for a move of a database of the organization. It takes the organization's place, whoever asked for it:
        the tenant's code runs in it."""
        return await self._see_through(self._places_of_moves.run(organization, work))

    async def _see_through(self, work: Coroutine[Any, Any, _T]) -> _T:
        task: asyncio.Task[_T] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)


class _Places:
    """Bounds concurrent work, in all and for one organization."""

    def __init__(self, at_once_max: int, of_one_max: int) -> None:
        self._at_once = asyncio.Semaphore(at_once_max)
        self._of_one_max = of_one_max
        self._of_one: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """One for each organization that has work running."""

    async def run(self, organization: str, work: Coroutine[Any, Any, _T]) -> _T:
        of_one = self._of_one.setdefault(organization, asyncio.Semaphore(self._of_one_max))
        try:
            async with of_one, self._at_once:
                return await work
        finally:
            work.close()  # if its turn never came


def make_database_id() -> str:
    return "tg_" + make_id(secrets.token_bytes(RANDOM_BYTES))
