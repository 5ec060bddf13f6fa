"""Names that one process holds at a time, as rows with a lease: the engine has no locks that end with a connection.

A row belongs to its holder until a time by the engine's clock. The holder extends that time while it lives; if it dies,
the name is free when the time is over. A holder that stood still for longer has lost the name without noticing. So a
name alone never guards work that must not be done twice: a row that two cannot both write decides that.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from tuplegate.engine import port
from tuplegate.engine.cockroach.cluster.connector import ServiceSession

_log: Final = structlog.get_logger()

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS engine.lock"
    " (name text PRIMARY KEY, holder text NOT NULL, number int8 NOT NULL, until timestamptz NOT NULL)",
    "CREATE INDEX IF NOT EXISTS lock_holder ON engine.lock (holder)",
)

LEASE_S: Final = 8
_RENEW_EVERY_S: Final = 2.0

_TAKE: Final = f"""
INSERT INTO engine.lock (name, holder, number, until)
VALUES ($1, $2, unique_rowid(), clock_timestamp() + interval '{LEASE_S} seconds')
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, number = excluded.number, until = excluded.until
 WHERE engine.lock.until < clock_timestamp()
RETURNING number
"""
_RENEW: Final = f"UPDATE engine.lock SET until = clock_timestamp() + interval '{LEASE_S} seconds' WHERE holder = $1"
_LEAVE: Final = "DELETE FROM engine.lock WHERE name = $1 AND holder = $2 AND number = $3::int8"
_IS_HELD: Final = "SELECT 1 FROM engine.lock WHERE name = $1 AND until >= clock_timestamp()"
_EXPIRE: Final = "DELETE FROM engine.lock WHERE until < clock_timestamp() - interval '1 hour'"


class Locks:
    """The names that this process holds. `number` differs for each holding of a name."""

    def __init__(self, session: ServiceSession) -> None:
        self._session = session
        self._holder = secrets.token_hex(16)
        self._held: dict[str, str] = {}
        self._taking: set[str] = set()
        self._letting_go: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[bool]:
        """Hold a name until the block is left; yield False if it is already held."""
        if name in self._held or name in self._taking:
            yield False
            return
        self._taking.add(name)
        taking = asyncio.get_running_loop().create_task(self._take(name))
        try:
            free = await asyncio.shield(taking)
        except BaseException:
            # The caller is gone, but the engine may still grant the name.
            self._let_go_later(name, taking)
            raise
        try:
            yield free
        finally:
            if free:
                await asyncio.shield(self._let_go_later(name, None))

    async def _take(self, name: str) -> bool:
        try:
            rows = await self._session.fetch(_TAKE, name, self._holder)
            if rows:
                self._held[name] = str(rows[0][0])
            return bool(rows)
        finally:
            self._taking.discard(name)

    def _let_go_later(self, name: str, taking: "asyncio.Task[bool] | None") -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._let_go(name, taking))
        self._letting_go.add(task)
        task.add_done_callback(self._letting_go.discard)
        return task

    async def _let_go(self, name: str, taking: "asyncio.Task[bool] | None") -> None:
        try:
            if taking is not None and not await taking:
                return
            number = self._held.pop(name, None)
            if number is not None:
                await self._session.fetch(_LEAVE, name, self._holder, number)
        except port.EngineFailure:
            pass  # it is free when its lease is over

    async def is_held(self, name: str) -> bool:
        return name in self._held or bool(await self._session.fetch(_IS_HELD, name))

    async def renew(self) -> None:
        """Extend the leases of all held names, again and again."""
        expired = 0.0
        while True:
            await asyncio.sleep(_RENEW_EVERY_S)
            try:
                if self._held:
                    await self._session.fetch(_RENEW, self._holder)
                now = asyncio.get_running_loop().time()
                if now - expired > 3600:
                    expired = now
                    await self._session.fetch(_EXPIRE)
            except port.EngineFailure as failure:
                _log.warning("names that this worker holds were not renewed", reason=str(failure))
