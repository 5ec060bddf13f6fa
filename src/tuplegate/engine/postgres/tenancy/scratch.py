"""Schemas for the service's own trials in a tenant's database, which are dropped afterwards in any case.

A worker holds the name of every schema that it uses, by a lock that vanishes with the worker. So a schema whose name is
not held was left by a worker that died, and the next worker that finds it drops it: when it starts, or when it makes a
schema in the same database. A name carries a MAC: a schema of the tenant's own is never mistaken for one.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog

from tuplegate.engine.port import CommitsRefused, EngineFailure
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminConnector, AdminSession, TenantSession
from tuplegate.engine.postgres.transaction.recovery import Recovery

_log = structlog.get_logger()

PREFIX = "tuplegate_scratch_"

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
        name = _sign_name(self._secret, secrets.token_hex(8))
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
        # A statement of the tenant's own may be in the way; then this is tried again later.
        await session.fetch(f"DROP SCHEMA IF EXISTS {name} CASCADE")

    def _session(self, database: str) -> AdminSession:
        return TenantSession(self._connector, self._secret, database)


def _sign_name(secret: bytes, nonce: str) -> str:
    """Return the name with its MAC, the same in every database: a copy of one may hold its scratch schemas."""
    mac = hmac.new(secret, f"scratch/{nonce}".encode(), hashlib.sha256).hexdigest()
    return f"{PREFIX}{nonce}{mac[:16]}"


async def find_schemas(session: AdminSession, secret: bytes) -> list[str]:
    """Return the scratch schemas of a database. A schema of the tenant's own is never among them."""
    rows = await session.fetch("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, $1)", PREFIX)
    names = (str(name) for (name,) in rows)
    return [name for name in names if name == _sign_name(secret, name[len(PREFIX) :][:16])]
