"""The pools of all databases: makes them on demand, bounds them together, and drops unused ones."""

import asyncio
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.connector import SESSION_SETTINGS
from tuplegate.engine.cockroach.nodes import Nodes
from tuplegate.engine.cockroach.own.probes import Functions
from tuplegate.engine.cockroach.own.settings import EngineSettings
from tuplegate.engine.cockroach.pool import DatabaseState, Pool, Server
from tuplegate.engine.libpq.definitions import Definitions
from tuplegate.engine.libpq.logins import add_settings, as_tenant
from tuplegate.engine.libpq.places import Places
from tuplegate.engine.libpq.pool import close_longest_idle
from tuplegate.engine.libpq.row_encoder import EncoderCache
from tuplegate.engine.libpq.stocks import Stocks
from tuplegate.engine.libpq.types import TypeInfo, TypeRegistry

TYPES_SQL: Final = """
SELECT t.oid, n.nspname, t.typname, coalesce(e.oid, 0), coalesce(e.typname, ''), coalesce(en.nspname, ''),
       t.typdelim, t.typbasetype
  FROM pg_catalog.pg_type t
  JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_catalog.pg_type e ON e.typarray = t.oid AND e.oid = t.typelem
  LEFT JOIN pg_catalog.pg_namespace en ON en.oid = e.typnamespace
"""
_SOME_TYPES_SQL: Final = f"""{TYPES_SQL}
 WHERE t.oid = ANY ($1::oid[]) OR t.oid IN (SELECT typelem FROM pg_catalog.pg_type WHERE oid = ANY ($1::oid[]))
 LIMIT $2::int8"""


class Pools:
    def __init__(
        self, settings: EngineSettings, nodes: Nodes, built_in: dict[int, TypeInfo], functions: Functions
    ) -> None:
        self._settings = settings
        self._functions = functions
        self._built_in = built_in
        self._server = Server(
            Places(settings.connections_max, settings.connections_per_owner_max, self._make_room),
            settings.stocks or Stocks(settings.rows_bytes_max),
            settings.connections_per_target_max,
            settings.queue_max,
            settings.connect_timeout_s,
            nodes,
        )
        self._pools: dict[tuple[str, port.Access], Pool] = {}
        self._states: dict[str, DatabaseState] = {}
        self._paused: frozenset[str] = frozenset()

    @property
    def stocks(self) -> Stocks:
        return self._server.stocks

    def find_pool(self, target: port.Target) -> Pool:
        key = target.database, target.login
        return self._pools.get(key) or self._new(target)

    def all(self) -> list[Pool]:
        return list(self._pools.values())

    def state_of(self, database: str) -> DatabaseState:
        state = self._states.get(database)
        if state is None:
            encoders = EncoderCache(TypeRegistry(self._built_in, _SOME_TYPES_SQL))
            definitions = Definitions(self._settings.versions, self._settings.worker, database)
            state = self._states[database] = DatabaseState(
                encoders, self._functions.changing, definitions, functions_write=self._functions.write
            )
        return state

    @property
    def databases(self) -> list[str]:
        """Return the databases that were used recently."""
        return list(self._states)

    def pause(self, databases: frozenset[str]) -> None:
        for (database, _), pool in self._pools.items():
            if database in databases - self._paused:
                pool.suspend()
            elif database in self._paused - databases:
                pool.resume()
        self._paused = databases

    def let_go(self, database: str) -> None:
        for (name, _), pool in self._pools.items():
            if name == database:
                pool.turn_away("the database is elsewhere now")

    def tick(self, now: float) -> None:
        """Turn away requests that have waited too long; close connections that stay unused, and drop pools that have
        none left."""
        for key, pool in list(self._pools.items()):
            pool.end_waiting(now)
            pool.leave_nodes()
            pool.close_idle(now - self._settings.idle_close_s)
            if pool.is_unused:
                del self._pools[key]
        for database in self._states.keys() - {database for database, _ in self._pools}:
            if self._states[database].full_at is None:
                del self._states[database]

    async def close(self) -> None:
        for pool in self.all():
            await pool.close()

    def _new(self, target: port.Target) -> Pool:
        state = self.state_of(target.database)
        pool = self._pools[target.database, target.login] = Pool(self._server, target, self._conninfo(target), state)
        if target.database in self._paused:
            pool.suspend()
        return pool

    def _conninfo(self, target: port.Target) -> str:
        settings = {**SESSION_SETTINGS, "default_transaction_read_only": "off" if target.may_write else "on"}
        given = self._settings
        tenant = as_tenant(given.conninfo, given.secret, target.database, target.login)
        return add_settings(tenant, target.database, settings)

    def _make_room(self, idle_since: float, owner: str | None) -> None:
        """Close the connection that has been idle the longest, if it was idle since before `idle_since`. With an owner,
        only look at that owner's connections."""
        close_longest_idle((pool for pool in self.all() if owner is None or pool.owner == owner), idle_since)


async def tick(pools: Pools, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        pools.tick(asyncio.get_running_loop().time())
