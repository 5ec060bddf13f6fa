"""The pools of all databases of a server, and what their connections start with."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command, Meter
from tuplegate.engine.libpq.connections.logins import add_settings, as_tenant, database_secret, name_role
from tuplegate.engine.libpq.connections.unread_rows import Stocks
from tuplegate.engine.libpq.pools.crowd import Crowd
from tuplegate.engine.libpq.pools.definitions import Definitions
from tuplegate.engine.libpq.pools.target_pools import TargetPools
from tuplegate.engine.libpq.values.types import TypeRegistry
from tuplegate.engine.postgres.pools.ending_pool import HeldCounts, Server
from tuplegate.engine.postgres.pools.pool import Login, Pool
from tuplegate.engine.postgres.replication.positions import ask_after_commit
from tuplegate.engine.postgres.replication.verified import Expected
from tuplegate.engine.postgres.rights.roles import forget_settings
from tuplegate.engine.postgres.safety.database_state import DatabaseState
from tuplegate.engine.postgres.safety.sizes import SizeWatch
from tuplegate.engine.postgres.safety.stubborn import STUCK_MAX, Stubborn
from tuplegate.engine.postgres.service.admin import (
    METADATA_DATABASE,
    AdminConnector,
    AdminSession,
    restore_password,
    terminate,
)
from tuplegate.engine.postgres.service.probes import CHECK_INTERVAL, Probed
from tuplegate.engine.postgres.service.records import Records
from tuplegate.engine.postgres.service.settings import EngineSettings

# Options of the start-up packet win over what a role or a database was given with ALTER … SET, so a tenant cannot
# change what its next connection starts with.
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


class Pools(TargetPools[Pool]):
    """The pools of all databases; `states` is what the two of one have in common."""

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
        """`meter` counts the transactions that begin. `stocks` are those of other pools, which hold their rows within
        the same bound."""
        crowd = settings.crowd or Crowd(settings.connections_max, settings.connections_per_owner_max)
        super().__init__(crowd)
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
        self.can = probed.can
        self._built_in = probed.built_in
        self.stocks = stocks or settings.stocks or Stocks(settings.rows_bytes_max)
        self.held = HeldCounts()
        # What is changed on the primary comes to a replica by itself.
        is_alone = settings.tally.workers == 1 and not settings.tally.shared and not settings.is_replica
        self._server = Server(
            self.primary,
            crowd.places,
            self.stocks,
            meter,
            self.stubborn,
            self.held,
            size_max=settings.connections_per_target_max,
            queue_max=settings.queue_max,
            connect_timeout_s=settings.connect_timeout_s,
            code_check_s=_CODE_CHECK_ALONE_S if is_alone else _CODE_CHECK_S,
            is_certain=is_certain,
            is_confirmed=is_confirmed,
            waits_for_standby=self._waits_for_standby,
        )
        self.states: dict[str, DatabaseState] = {}

    def to_write(self, database: str) -> Pool:
        return self.find_pool(port.Target(database, port.Access.WRITE))

    def close_idle(self, since: float) -> None:
        super().close_idle(since)
        for database in self.states.keys() - self.writing.keys() - self.reading.keys():
            del self.states[database]

    def note_change(self, database: str) -> None:
        """Note that something was committed in the database other than through the pools: it can have made code."""
        self._find_definitions(database).note_change()

    async def close(self) -> None:
        await super().close()
        await self.stubborn.close()

    def _make(self, target: port.Target) -> Pool:
        state = self.states.get(target.database)
        if state is None:
            definitions = self._find_definitions(target.database)
            state = self.states[target.database] = DatabaseState(TypeRegistry(self._built_in), definitions)
        state.full_at = self._sizes.find_full_at(target.database)
        return Pool(self._server, self.make_login(target), state)

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

    def make_login(
        self, target: port.Target, settings: dict[str, str] | None = None, application: str = "tuplegate"
    ) -> Login:
        """Return a login of the target's role; with settings for a client of its own, which starts with them."""
        given = settings or {}
        search_path = given.get("search_path", SESSION_SETTINGS["search_path"])
        return Login(
            target.database,
            target.bounded_with,
            self._conninfo(target, given, application),
            Expected(_isolation(target), _read_only(target), search_path, is_standby=target.on_replica),
            forget_settings=partial(self._forget_settings, target),
            restore_password=partial(self._restore_password, target),
            position=self._position(target.database) if settings is None else None,
        )

    def _conninfo(self, target: port.Target, further: dict[str, str], application: str) -> str:
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
        return add_settings(tenant, target.database, {**options, **further}, application)
