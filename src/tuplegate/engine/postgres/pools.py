"""The pools of all databases: makes them on demand, bounds them together, and drops unused ones."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.libpq.commands import Command, Meter
from tuplegate.engine.libpq.crowd import Crowd
from tuplegate.engine.libpq.definitions import Definitions
from tuplegate.engine.libpq.logins import add_settings, as_tenant, database_secret, name_role
from tuplegate.engine.libpq.stocks import Stocks
from tuplegate.engine.libpq.types import TypeRegistry
from tuplegate.engine.postgres.ending_pool import HeldCounts, Server
from tuplegate.engine.postgres.own.admin import (
    METADATA_DATABASE,
    AdminConnector,
    AdminSession,
    restore_password,
    terminate,
)
from tuplegate.engine.postgres.own.probes import CHECK_INTERVAL, Probed
from tuplegate.engine.postgres.own.settings import EngineSettings
from tuplegate.engine.postgres.pool import Login, Pool
from tuplegate.engine.postgres.replication.positions import ask_after_commit
from tuplegate.engine.postgres.replication.verified import Expected
from tuplegate.engine.postgres.safety.database_state import DatabaseState
from tuplegate.engine.postgres.safety.sizes import SizeWatch
from tuplegate.engine.postgres.safety.stubborn import STUCK_MAX, Stubborn
from tuplegate.engine.postgres.tenancy.roles import forget_settings
from tuplegate.engine.postgres.transaction.records import Records

# Options of the start-up packet override ALTER … SET for a role or a database, so a tenant cannot change the settings
# that its next connection starts with.
SESSION_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "off",
    "client_min_messages": "notice",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "synchronous_commit": "on",
    "row_security": "on",
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "search_path": '"$user",public',
    "local_preload_libraries": "",
    "exit_on_error": "off",
    "array_nulls": "on",
}
_SINCE_17: Final = {"transaction_timeout": "0"}

_WAITS_FOR_STANDBY: Final = (
    "SELECT 1 FROM pg_catalog.pg_stat_activity WHERE pid = $1::pg_catalog.int4 AND wait_event = 'SyncRep'"
)

_AT_ONCE: Final = "XX000"
"""The engine's error when another session changes the same role at the same moment, as `role_settings` may."""

_CODE_CHECK_S, _CODE_CHECK_ALONE_S = 1.0, 60.0
"""How often to look for code that others have stored. With one worker, only code stored at the engine itself can be
missed."""


def _isolation(target: port.Target) -> str:
    """Return the isolation of a target: a standby cannot be serializable."""
    return "repeatable read" if target.on_replica else SESSION_SETTINGS["default_transaction_isolation"]


def _read_only(target: port.Target) -> str:
    return "off" if target.may_write else "on"


class Pools:
    """One write pool and one read pool per database; `states` holds the parts that both share."""

    def __init__(
        self,
        settings: EngineSettings,
        connector: AdminConnector,
        session: AdminSession,
        sizes: SizeWatch,
        is_certain: Callable[[str, float], Awaitable[bool]],
        is_confirmed: Callable[[str, float], Awaitable[bool]],
        probed: Probed,
        meter: Meter,
        stocks: Stocks | None = None,
    ) -> None:
        """Make no pool yet. `meter` counts the transactions that begin. `stocks` are shared with other pools, if they
        hold their rows within the same bound."""
        self._settings = settings
        self._connector = connector
        self.primary = connector.primary
        self._session = session
        self._sizes = sizes
        self.stubborn = Stubborn(
            session.fetch,
            partial(terminate, session),
            kill=settings.kill,
            stuck_max=1 if settings.is_replica else STUCK_MAX,
        )
        crowd = self._crowd = settings.crowd or Crowd(settings.connections_max, settings.connections_per_owner_max)
        self._paused: frozenset[str] = frozenset()
        self.can = probed.can
        self._built_in = probed.built_in
        self.stocks = stocks or settings.stocks or Stocks(settings.rows_bytes_max)
        # A replica learns of changes on the primary by replication, not through this service.
        is_alone = settings.tally.workers == 1 and not settings.tally.shared and not settings.is_replica
        self._server = Server(
            self.primary,
            crowd.places,
            self.stocks,
            meter,
            self.stubborn,
            HeldCounts(),
            size_max=settings.connections_per_target_max,
            queue_max=settings.queue_max,
            connect_timeout_s=settings.connect_timeout_s,
            code_check_s=_CODE_CHECK_ALONE_S if is_alone else _CODE_CHECK_S,
            is_certain=is_certain,
            is_confirmed=is_confirmed,
            waits_for_standby=self._waits_for_standby,
        )
        self.writing: dict[str, Pool] = {}
        self.reading: dict[str, Pool] = {}
        self.states: dict[str, DatabaseState] = {}
        crowd.join(self)

    @property
    def held(self) -> HeldCounts:
        """Return the number of connections that open transactions keep."""
        return self._server.held

    def find_pool(self, target: port.Target) -> Pool:
        """Return the pool of the target; make it if it is missing."""
        pools = self.writing if target.as_writer else self.reading
        return pools.get(target.database) or self._new(pools, target)

    def to_write(self, database: str) -> Pool:
        return self.find_pool(port.Target(database, port.Access.WRITE))

    def all(self) -> list[Pool]:
        return [*self.writing.values(), *self.reading.values()]

    def pause(self, databases: frozenset[str]) -> None:
        for pools in (self.writing, self.reading):
            for database, pool in pools.items():
                if database in databases - self._paused:
                    pool.suspend()
                elif database in self._paused - databases:
                    pool.resume()
        self._paused = databases

    def let_go(self, database: str) -> None:
        for pools in (self.writing, self.reading):
            if (pool := pools.get(database)) is not None:
                pool.turn_away("the database is elsewhere now")

    def is_paused(self, database: str) -> bool:
        return database in self._paused

    def close_idle(self, since: float) -> None:
        """Close connections that nobody has used since then, and pools that have none left."""
        for pools in (self.writing, self.reading):
            for database, pool in list(pools.items()):
                pool.close_idle(since)
                if pool.is_unused:
                    del pools[database]
        served = self.writing.keys() | self.reading.keys()
        for database in self.states.keys() - served:
            del self.states[database]

    def note_change(self, database: str) -> None:
        """Note that something was committed in the database other than through the pools: it can have made code."""
        self._find_definitions(database).note_change()

    async def close(self) -> None:
        for pool in self.all():
            await pool.close()
        self._crowd.leave(self)
        await self.stubborn.close()

    def _new(self, pools: dict[str, Pool], target: port.Target) -> Pool:
        login = Login(
            target.database,
            target.bounded_with,
            self._conninfo(target),
            Expected(
                _isolation(target), _read_only(target), SESSION_SETTINGS["search_path"], is_standby=target.on_replica
            ),
            forget_settings=partial(self._forget_settings, target),
            restore_password=partial(self._restore_password, target),
            position=self._position(target.database),
        )
        state = self.states.get(target.database)
        if state is None:
            definitions = self._find_definitions(target.database)
            state = self.states[target.database] = DatabaseState(TypeRegistry(self._built_in), definitions)
        pool = pools[target.database] = Pool(self._server, login, state)
        pool.state.full_at = self._sizes.find_full_at(target.database)
        if target.database in self._paused:
            pool.suspend()
        return pool

    def _find_definitions(self, database: str) -> Definitions:
        settings = self._settings
        return Definitions(settings.tally.versions, settings.worker, database, are_replayed=settings.is_replica)

    async def _waits_for_standby(self, process: int) -> bool:
        try:
            return bool(await self._session.fetch(_WAITS_FOR_STANDBY, str(process)))
        except port.EngineFailure:
            return False

    async def _restore_password(self, target: port.Target) -> None:
        await restore_password(self._connector, name_role(target.database, target.login), self._settings.secret)

    async def _forget_settings(self, target: port.Target) -> None:
        """Undo a role's settings, in a session of its own: a tenant's statement may hold the lock that this needs. Not
        as the role itself: its settings may keep it from logging in."""
        role = name_role(target.database, target.login)
        async with AdminSession(self._connector, METADATA_DATABASE) as session:
            for statement in forget_settings(target.database, role):
                try:
                    try:
                        await session.fetch(statement)
                    except port.StatementFailed as failure:
                        if failure.sqlstate != _AT_ONCE:
                            raise
                        await session.fetch(statement)
                except port.StatementFailed as failure:
                    raise port.EngineBusy(
                        "a transaction that changes the role's own settings is in the way"
                    ) from failure

    def _position(self, database: str) -> list[Command] | None:
        settings = self._settings
        if not settings.replicas and not settings.is_replica:
            return None
        return ask_after_commit(Records(database_secret(settings.secret, database)).reached())

    def make_login(self, target: port.Target, settings: dict[str, str], application: str) -> Login:
        """Return a login of the target's role for one client, which starts with the client's settings."""
        expected = Expected(
            _isolation(target), _read_only(target), settings.get("search_path", SESSION_SETTINGS["search_path"])
        )
        return Login(
            target.database,
            target.bounded_with,
            self._conninfo(target, settings, application),
            expected,
            forget_settings=partial(self._forget_settings, target),
            restore_password=partial(self._restore_password, target),
            position=None,
        )

    def _conninfo(
        self, target: port.Target, further: dict[str, str] | None = None, application: str = "tuplegate"
    ) -> str:
        options = {
            **SESSION_SETTINGS,
            "default_transaction_isolation": _isolation(target),
            "default_transaction_read_only": _read_only(target),
            "work_mem": self.can.work_mem,
        }
        if self.can.major >= 17:
            options |= _SINCE_17
        if self.can.notices_leaving:
            options["client_connection_check_interval"] = CHECK_INTERVAL
        settings = self._settings
        tenant = as_tenant(settings.conninfo, settings.secret, target.database, target.login)
        return add_settings(tenant, target.database, {**options, **(further or {})}, application)
