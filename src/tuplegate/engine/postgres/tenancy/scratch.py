"""Schemas for the service's own trials in a tenant's database, which are gone afterwards whatever happens.

A worker holds the name of every schema that it uses, by a lock that vanishes with it. So a schema whose name nobody
holds was left by a worker that died, and whoever finds it drops it: a worker when it starts, and whoever next makes one
in the same database.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog

from tuplegate.engine.port import CommitsRefused, EngineFailure
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession, TenantSession
from tuplegate.engine.postgres.service.scratch_names import find_schemas, sign_name
from tuplegate.engine.postgres.transaction.recovery import Recovery

_log = structlog.get_logger()

LOOK_EVERY_S = 2.0


class Scratch:
    """Makes and drops scratch schemas. `hold` is the ledger's."""

    def __init__(
        self,
        connector: AdminConnector,
        hold: Callable[[str], AbstractAsyncContextManager[bool]],
        recovery: Recovery,
        secret: bytes,
    ) -> None:
        self._connector = connector
        self._hold = hold
        self._recovery = recovery
        self._secret = secret
        self._suspects: set[str] = set()
        self._everywhere = True

    @asynccontextmanager
    async def schema(self, database: str) -> AsyncIterator[str]:
        """Make a schema, and drop it when the block is left. Raises CommitsRefused while nothing may be written."""
        refusal = self._connector.primary.refuses
        if refusal is not None:
            raise CommitsRefused(refusal)
        name = sign_name(self._secret, secrets.token_hex(8))
        async with self._hold(f"scratch/{name}"):
            making = asyncio.get_running_loop().create_task(self._make(database, name))
            try:
                await asyncio.shield(making)
                yield name
            finally:
                await self._recovery.see_through(self._unmake(making, database, name))

    async def _make(self, database: str, name: str) -> None:
        async with self._session(database) as session:
            await self._sweep(session)
            await session.fetch(f"CREATE SCHEMA {name}")

    async def _unmake(self, making: "asyncio.Task[None]", database: str, name: str) -> None:
        """Drop a schema, even if its client left while it was being made."""
        await asyncio.wait([making])
        try:
            async with self._session(database) as session:
                await self._drop(session, name)
        except EngineFailure as failure:
            self._suspects.add(database)
            _log.warning("a scratch schema is left to be dropped later", schema=name, reason=str(failure))

    # -- what others have left ----------------------------------------------------------------------------------

    async def look(self) -> None:
        """Drop schemas that dead workers have left in any database, and later those that this worker could not drop
        itself."""
        try:
            if self._everywhere or self._suspects:
                there = await self._databases()
                self._suspects = there if self._everywhere else self._suspects & there
                self._everywhere = False
            for database in sorted(self._suspects):
                if await self._sweep_database(database):
                    self._suspects.discard(database)
        except EngineFailure as failure:
            _log.warning("scratch schemas could not be looked for", reason=str(failure))

    async def _databases(self) -> set[str]:
        async with AdminSession(self._connector, METADATA_DATABASE) as session:
            rows = await session.fetch(r"SELECT datname FROM pg_database WHERE datname LIKE 'tg\_%' AND datallowconn")
        return {str(row[0]) for row in rows}

    async def _sweep_database(self, database: str) -> bool:
        """Drop its scratch schemas; return whether none is left."""
        try:
            async with self._session(database) as session:
                return await self._sweep(session)
        except EngineFailure as failure:
            _log.warning("scratch schemas were not removed", database=database, reason=str(failure))
            return False

    async def _sweep(self, session: AdminSession) -> bool:
        clean = True
        for name in await find_schemas(session, self._secret):
            async with self._hold(f"scratch/{name}") as free:
                clean = free and await self._drop_left(session, name) and clean
        return clean

    async def _drop_left(self, session: AdminSession, name: str) -> bool:
        try:
            await self._drop(session, name)
        except EngineFailure as failure:
            _log.warning("a scratch schema is left to be dropped later", schema=name, reason=str(failure))
            return False
        _log.info("dropped a scratch schema that a worker had left", schema=name)
        return True

    async def _drop(self, session: AdminSession, name: str) -> None:
        # A statement of the tenant's own may be in the way; then it is tried again later.
        await session.fetch(f"DROP SCHEMA IF EXISTS {name} CASCADE")

    def _session(self, database: str) -> AdminSession:
        return TenantSession(self._connector, self._secret, database)
