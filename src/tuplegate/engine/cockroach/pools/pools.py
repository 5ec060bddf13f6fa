"""The pools of all databases of a cluster, and what their connections start with."""

import asyncio
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.cluster.connector import SESSION_SETTINGS
from tuplegate.engine.cockroach.cluster.nodes import Nodes
from tuplegate.engine.cockroach.cluster.probes import Functions
from tuplegate.engine.cockroach.cluster.settings import EngineSettings
from tuplegate.engine.cockroach.pools.pool import DatabaseState, Pool, Server
from tuplegate.engine.libpq.connections.logins import add_settings, as_tenant
from tuplegate.engine.libpq.connections.unread_rows import Stocks
from tuplegate.engine.libpq.pools.crowd import Crowd
from tuplegate.engine.libpq.pools.definitions import Definitions
from tuplegate.engine.libpq.pools.target_pools import TargetPools
from tuplegate.engine.libpq.values.row_encoder import EncoderCache
from tuplegate.engine.libpq.values.types import TYPES_SQL, TypeInfo, TypeRegistry

_TICK_S: Final = 0.1
_SOME_TYPES_SQL: Final = f"""{TYPES_SQL}
 WHERE t.oid = ANY ($1::oid[]) OR t.oid IN (SELECT typelem FROM pg_catalog.pg_type WHERE oid = ANY ($1::oid[]))
 LIMIT $2::int8"""


class Pools(TargetPools[Pool]):
    def __init__(
        self, settings: EngineSettings, nodes: Nodes, built_in: dict[int, TypeInfo], functions: Functions
    ) -> None:
        crowd = Crowd(settings.connections_max, settings.connections_per_owner_max)
        super().__init__(crowd)
        self._settings = settings
        self._functions = functions
        self._built_in = built_in
        self.stocks = settings.stocks or Stocks(settings.rows_bytes_max)
        self._server = Server(
            crowd.places,
            self.stocks,
            settings.connections_per_target_max,
            settings.queue_max,
            settings.connect_timeout_s,
            nodes,
        )
        self._states: dict[str, DatabaseState] = {}

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

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._tick(asyncio.get_running_loop().time())

    def _tick(self, now: float) -> None:
        """Turn away requests that have waited too long; close connections that stay unused, and drop pools that have
        none left."""
        for pool in self.all():
            pool.end_waiting(now)
            pool.leave_nodes()
        self.close_idle(now - self._settings.idle_close_s)
        for database in self._states.keys() - self.writing.keys() - self.reading.keys():
            if self._states[database].full_at is None:
                del self._states[database]

    def _make(self, target: port.Target) -> Pool:
        return Pool(self._server, target, self._conninfo(target), self.state_of(target.database))

    def _conninfo(self, target: port.Target) -> str:
        settings = {**SESSION_SETTINGS, "default_transaction_read_only": "off" if target.may_write else "on"}
        tenant = as_tenant(self._settings.conninfo, self._settings.secret, target.database, target.login)
        return add_settings(tenant, target.database, settings)
