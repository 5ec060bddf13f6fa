"""Moves databases between engines so that after any crash each is on one of the two, complete and in use.

A move works like a reset. The catalog first notes both names of the database; the successor is created and filled;
then, while all workers hold requests for the database and its source is silent, one row of the catalog changes to name
the successor. A worker that finds a move whose worker is gone looks at that row: the name in it is opened, the other
one is dropped. So an interrupted move is undone if that row has not changed, and complete if it has. The source is
silent from before its last changes are copied until it is dropped: the two can never both be written.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.databases import EngineDatabase
from tuplegate.catalog.metadata import Actor
from tuplegate.engine import port
from tuplegate.tenancy.lifecycle import Lifecycle, make_database_id

_log = structlog.get_logger()

_LET_END_S = 1.0
"""How long statements may take to end by themselves once the database is paused; then they are cancelled."""
_ROUNDS_MAX = 50
_FEW = 1000
"""Once fewer changes than this are left, the rest is copied while the database is paused."""
_ANSWERED_S, _ASK_AGAIN_S = 3.0, 0.5
"""While the database is paused its next engine is asked this often, and must answer within this time."""
_HEARD_S = 0.3
"""Within this time every worker has learned that the database is paused."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The way in which a database was moved, and the time for which its requests were held."""

    way: str
    held_ms: int
    reason: str | None
    """The reason why it could not be copied while it was in use; None if it was."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan of a move: its actor, the database, the new engine, and the name there."""

    actor: Actor
    database: EngineDatabase
    engine: str
    successor: str


@dataclass(slots=True)
class _LastStep:
    """Progress of the last step of a move. Once `is_tried`, the change may have been made, so nothing may be undone
    here. `held_ms` says how long the database was held, once the change is made."""

    began: float = 0.0
    is_tried: bool = False
    held_ms: int | None = None


class Mover:
    def __init__(self, catalog: Catalog, databases: port.AllDatabases, locks: port.Locks, lifecycle: Lifecycle) -> None:
        self._catalog = catalog
        self._databases = databases
        self._locks = locks
        self._lifecycle = lifecycle

    async def move(self, actor: Actor, organization: str, id: str, engine: str) -> Moved:
        """Move a database of the organization. The move continues even if the caller is cancelled."""
        try:
            return await self._lifecycle.see_through_move(organization, self._move(actor, id, engine))
        except port.NoProgress as failure:
            raise port.MoveFailed(f"the move came to a standstill: {failure}") from failure

    async def _move(self, actor: Actor, id: str, engine: str) -> Moved:
        async with self._locks.hold(f"database/{id}") as free:
            database = await self._catalog.databases.find_in_engine(id) if free else None
            if database is None or database.state != "active":
                raise port.EngineBusy("the database is being changed by somebody else")
            successor = make_database_id()
            if not await self._catalog.moves.begin(actor, database, successor, engine):
                raise port.EngineBusy("the database is being changed by somebody else")
            try:
                async with self._locks.hold_in(database.engine_name, port.Lock.DUMP) as is_free:
                    if not is_free:
                        raise port.EngineBusy("the database is being dumped; it can be moved afterwards")
                    return await self._bring(_Plan(actor, database, engine, successor))
            finally:
                await self._lifecycle.clear(id)  # the catalog now says whether it has moved

    async def _bring(self, plan: _Plan) -> Moved:
        """Copy the database while it is in use if its engine can report changes, otherwise all at once while it is
        paused."""
        await self._databases.create(plan.successor, for_copy=True)
        end = _LastStep()
        try:
            await self._bring_in_use(plan, end)
        except port.EngineFailure as failure:
            _check_is_settled(failure, end)
            reason, detail = _explain(failure), _find_detail(failure)
        if end.held_ms is not None:
            return Moved("replication", end.held_ms, None)
        _log.info("a database is moved at once", database=plan.database.id, reason=reason, detail=detail)
        await self._databases.drop(plan.successor)
        await self._databases.create(plan.successor, for_copy=True)
        end = _LastStep()
        try:
            await self._bring_at_once(plan, end)
        except port.EngineFailure as failure:
            _check_is_settled(failure, end)
            if end.held_ms is None:
                raise port.MoveFailed(_explain(failure), _find_detail(failure)) from failure
        assert end.held_ms is not None
        await self._analyze(plan)
        return Moved("dump", end.held_ms, reason)

    async def _bring_in_use(self, plan: _Plan, end: _LastStep) -> None:
        await self._catalog.moves.set_step(plan.database.engine_name, "copying")
        source, name = plan.database.engine_name, plan.successor
        async with (
            self._databases.reach(name) as here,
            self._databases.reach(source) as there,
            here.follow(there, source, name) as following,
        ):
            await self._analyze(plan)
            for _ in range(_ROUNDS_MAX):
                if await following.catch_up() < _FEW:
                    break
            await self._complete(plan, end, following.finish)

    async def _bring_at_once(self, plan: _Plan, end: _LastStep) -> None:
        source, name = plan.database.engine_name, plan.successor

        async def bring() -> None:
            async with self._databases.reach(name) as here, self._databases.reach(source) as there:
                await here.take_over(there, source, name)

        await self._complete(plan, end, bring)

    async def _complete(self, plan: _Plan, end: _LastStep, bring: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Bring the rest while requests are held, and make the change. If `bring` must clean up with an engine that
        does not answer, requests do not wait for that."""
        work: asyncio.Task[None] | None = None
        try:
            async with self._pause_and_silence(plan.database, end):
                work = asyncio.get_running_loop().create_task(bring())
                await self._wait_while_answered(plan.engine, work)
                await self._switch(plan, end)
        finally:
            if work is not None:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    async def _wait_while_answered(self, engine: str, work: "asyncio.Task[None]") -> None:
        """Wait for the work. Raise EngineUnavailable once the engine that it goes to stops answering."""
        asking = asyncio.get_running_loop().create_task(self._ask(engine))
        try:
            await asyncio.wait((work, asking), return_when=asyncio.FIRST_COMPLETED)
            await (work if work.done() else asking)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask(self, engine: str) -> None:
        """Ask the engine something again and again, until it does not answer."""
        while True:
            try:
                async with asyncio.timeout(_ANSWERED_S):
                    await self._databases.on(engine).load()
            except TimeoutError:
                raise port.EngineUnavailable(f"the engine {engine} gives no answer within {_ANSWERED_S:g} s") from None
            await asyncio.sleep(_ASK_AGAIN_S)

    @asynccontextmanager
    async def _pause_and_silence(self, database: EngineDatabase, end: _LastStep) -> AsyncIterator[None]:
        """Pause and silence the database. On a failure before the change, open it at once: clearing up may have to wait
        for an engine that is gone."""
        end.began = asyncio.get_running_loop().time()
        async with self._lifecycle.pause(database.id, database.engine_name):
            await self._catalog.moves.set_step(database.engine_name, "finishing")
            try:
                await asyncio.sleep(_HEARD_S)
                async with self._databases.reach(database.engine_name) as server:
                    await server.let_end(database.engine_name, _LET_END_S)
                    await server.silence(database.engine_name)
                yield
            except port.EngineFailure:
                if not end.is_tried:
                    await self._open_again(database)
                raise

    async def _open_again(self, database: EngineDatabase) -> None:
        try:
            async with self._databases.reach(database.engine_name) as server:
                await server.open(database.engine_name)
        except port.EngineFailure as failure:
            _log.warning("a database is opened again later", database=database.id, reason=str(failure))

    async def _analyze(self, plan: _Plan) -> None:
        try:
            async with self._databases.reach(plan.successor) as server:
                await server.analyze(plan.successor)
        except port.EngineFailure as failure:
            _log.warning("a database that moves was not analyzed", database=plan.database.id, reason=str(failure))

    async def _switch(self, plan: _Plan, end: _LastStep) -> None:
        """Make the successor the database, in the catalog."""
        async with self._databases.reach(plan.database.engine_name) as server:
            await server.check_silent(plan.database.engine_name)
        furnishing = self._databases.furnishing_of(plan.successor)
        end.is_tried = True
        if not await self._catalog.moves.switch(plan.actor, plan.database, plan.successor, plan.engine, furnishing):
            raise port.EngineBusy("the database was changed by somebody else meanwhile; it was not moved")
        end.held_ms = round((asyncio.get_running_loop().time() - end.began) * 1000)


def _check_is_settled(failure: port.EngineFailure, end: _LastStep) -> None:
    """Raise the failure unless the change was made, or it was not tried and copying all at once may still succeed."""
    if end.held_ms is not None:
        _log.warning("a move was not cleared up after", reason=str(failure))
    elif end.is_tried or not isinstance(failure, port.NotSupported | port.MoveFailed | port.StatementFailed):
        raise failure


def _explain(failure: port.EngineFailure) -> str:
    """Return the reason of a failure, without the words of the engine."""
    if isinstance(failure, port.NotInTime):
        return "a statement of the service's own had to wait too long for a lock of somebody else's"
    return "a statement of the service's own was refused" if isinstance(failure, port.StatementFailed) else str(failure)


def _find_detail(failure: port.EngineFailure) -> str | None:
    """Return the words of the engine."""
    return failure.detail if isinstance(failure, port.MoveFailed) else str(failure)
