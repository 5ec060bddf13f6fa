"""Runs the service's own statements, in sessions of its roles, or of a tenant's roles for objects of the tenant.

They carry no text of a tenant. Their search path holds no object that a tenant can define, and is part of the start-up,
so no role or database overrides it. Every wait has a bound: for a statement, a lock, an answer of the engine, and for a
standby at a commit. While commits cannot be confirmed by a standby, statements that would wait, too, are refused.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from math import inf

from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.connections import logins
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost, LoginRefused, make_command
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.logins import find_database_name, name_role
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.values.quoting import quote
from tuplegate.engine.libpq.values.text_rows import read_text_rows
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.engine.postgres.replication.timelines import Timelines
from tuplegate.engine.postgres.replication.verified import Expected
from tuplegate.engine.postgres.rights.owners import Owners

DATABASES_OF_EVERY_SERVER = ("postgres", "template1")
METADATA_DATABASE = "tuplegate"
"""The default name of the metadata database; it is another if the engine's URL names another."""

_APPLICATION = "tuplegate-service"
"""Distinguishes these sessions from those that run tenants' statements."""
_VERSION_WITH_MEMBERSHIP_OPTIONS = 16
_LOCK_MS = 2_000
_LATE_S = 5.0
"""An engine that is late by this much, after the limit of a statement, counts as not answering."""
_LOOK_EVERY_S = 0.5
_END_S = 2.0
LOCK_NOT_AVAILABLE, CANCELED = "55P03", "57014"
NO_SUCH_ROLE = "42704"
VALUES_AS_TEXT = {
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmloption": "content",
    "quote_all_identifiers": "off",
}
"""The settings on which the text of a value, or of a name, depends."""
_SETTINGS = {
    "row_security": "on",
    # A role's own settings could keep it from logging in.
    "local_preload_libraries": "",
    # Values go from one engine to another as text.
    **VALUES_AS_TEXT,
}
_OWN_NAMES = "pg_catalog, pg_temp"
"""A search path. The temporary schema is last: unnamed it would come first when names of types are looked up."""
_METADATA_NAMES = "public, pg_temp"
"""Tenants cannot enter the metadata database."""


class AdminConnector:
    """Opens connections as a role of the service's. `conninfo` names the server, the user, and the metadata database if
    it has another name; `METADATA_DATABASE` stands for it here. `statement_ms` is the time limit of a statement.
    `primary` is shared by all connectors to the same engine. `to_standby`: the conninfo leads to one of its
    standbys."""

    def __init__(
        self,
        conninfo: str,
        timeout_s: float = 10.0,
        statement_ms: int = 60_000,
        primary: Primary | None = None,
        *,
        to_standby: bool = False,
    ) -> None:
        self.conninfo = conninfo
        self.owners = Owners(find_database_name(conninfo) or METADATA_DATABASE)
        self.primary = primary or make_primary(conninfo)
        self._timeout_s = timeout_s
        self._statement_ms = statement_ms
        self.answer_s = statement_ms / 1000 + _LATE_S
        self._to_standby = to_standby

    async def connect(
        self, database: str, conninfo: str | None = None, *, patient: bool = False, local: bool = False
    ) -> Connection:
        """Open a connection. `conninfo` is another role's. `patient`: a statement has no time limit; a wait for a lock
        is bounded in any case. `local`: its commits wait for no standby."""
        is_metadata = database == METADATA_DATABASE
        # Tenants' transactions are serializable among themselves; the service's own would only take room in that check.
        names = _METADATA_NAMES if is_metadata else _OWN_NAMES
        expected = Expected("read committed", "off", names, "local" if local else "on", self._to_standby)
        settings = {
            **_SETTINGS,
            "default_transaction_isolation": expected.isolation,
            "default_transaction_read_only": expected.read_only,
            "synchronous_commit": expected.commit,
            "statement_timeout": "0" if patient else str(self._statement_ms),
            "lock_timeout": str(_LOCK_MS),
            "search_path": expected.search_path,
        }
        name = self.owners.metadata if is_metadata else database
        made = logins.add_settings(conninfo or self.conninfo, name, settings, _APPLICATION)
        return await self.primary.open(Connection, made, self._timeout_s, expected)


def make_primary(
    conninfo: str, *, follows: bool | None = None, demands_standby: bool = False, timelines: Timelines | None = None
) -> Primary:
    """Return the primary of a conninfo. `follows` is whether another server can replace it; by default, a server over a
    socket cannot be replaced. `demands_standby`: a commit is acknowledged only once a standby has it. The workers share
    `timelines`."""
    return Primary(
        conninfo, _databases_of(conninfo), follows=follows, demands_standby=demands_standby, timelines=timelines
    )


def only_server_of(conninfo: str) -> Primary:
    """Return a primary that only opens connections to one server, until that server is restarted."""
    return Primary(conninfo, _databases_of(conninfo), follows=False, pins=True)


def _databases_of(conninfo: str) -> tuple[str, ...]:
    return (find_database_name(conninfo) or METADATA_DATABASE, *DATABASES_OF_EVERY_SERVER)


class AdminSession:
    """One connection to one database, shared by all tasks. It is opened when first needed, and again when it was lost.

    `patient` is for statements that take as long as there is data. `local` is for changes that may be lost with the
    primary: its commits wait for no standby. `waits` is for changes that must be confirmed: its commits wait as long as
    a standby is away, where those of other sessions are abandoned or refused. `limit_s` is for statements that can run
    a tenant's code, and for engines that may stand still: after this time without an answer, end the server process and
    raise NoProgress.
    """

    def __init__(
        self,
        connector: AdminConnector,
        database: str,
        *,
        patient: bool = False,
        local: bool = False,
        waits: bool = False,
        limit_s: float | None = None,
    ) -> None:
        self._connector = connector
        self._database = database
        self._patient = patient
        self._local = local
        self._waits = waits
        self._limit_s = limit_s
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    async def fetch(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        results = await self._run([make_command(sql, params)])
        return read_text_rows(results[-1])

    async def fetch_of(self, server: str, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        """Fetch as `fetch` does, but only from that server. Raises EngineUnavailable if another server is the primary
        by now."""
        results = await self._run([make_command(sql, params)], server)
        return read_text_rows(results[-1])

    async def server(self) -> str:
        """Return the server that it leads to, in the form of `Primary.server`."""
        return (await self._connected()).server

    async def run_atomically(
        self, statements: Sequence[tuple[str, Sequence[str | None]]]
    ) -> list[tuple[str | None, ...]]:
        """Run all statements in one implicit transaction: one segment, one commit. Return the rows of the last."""
        results = await self._run([make_command(sql, params) for sql, params in statements])
        return read_text_rows(results[-1]) if results else []

    async def change_definitions(self, statements: Sequence[tuple[str, Sequence[str | None]]]) -> None:
        """Run all statements in one transaction, since definitions are transactional here."""
        await self.run_atomically(statements)

    async def _run(self, commands: Sequence[Command], server: str | None = None) -> list[PGresult]:
        primary = self._connector.primary
        if primary.replication.stands_still and not self._local and not self._waits and any(map(_writes, commands)):
            raise port.CommitsRefused(primary.refuses or "")
        connection = await self._connected()
        if server is not None and connection.server != server:
            raise port.EngineUnavailable("another server is the primary by now")
        loop = asyncio.get_running_loop()
        late_at = inf if self._patient else loop.time() + self._connector.answer_s
        looking: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal looking, late_at
            if primary.waits_in_vain(connection.backend):
                if not self._waits:
                    connection.close("its commit waits for a standby that is away")
                    return
                # Its server process would go on to wait, beside that of the next session.
                late_at = max(late_at, loop.time() + self._connector.answer_s)
            if loop.time() > late_at:
                connection.close(f"it gave no answer within {self._connector.answer_s:g} s")
            else:
                looking = loop.call_later(_LOOK_EVERY_S, look)

        looking = loop.call_later(_LOOK_EVERY_S, look)
        try:
            if self._limit_s is None:
                results = await connection.run(*commands)
            else:
                results = await self._run_within(self._limit_s, connection, commands)
        except ConnectionLost as exc:
            raise port.EngineLost("the connection to the engine was lost", exc) from exc
        finally:
            looking.cancel()
        try:
            check(results)
        except port.StatementFailed as failure:
            if failure.sqlstate not in (LOCK_NOT_AVAILABLE, CANCELED):
                raise
            raise port.NotInTime(failure.message, sqlstate=failure.sqlstate) from failure
        return results

    async def _run_within(self, limit_s: float, connection: Connection, commands: Sequence[Command]) -> list[PGresult]:
        try:
            async with asyncio.timeout(limit_s):
                return await connection.run(*commands)
        except TimeoutError:
            connection.close("it gave no answer")
            await self._end_process(connection.backend)
            raise port.NoProgress(f"a statement was not answered within {limit_s:g} s") from None

    async def _end_process(self, backend: int) -> None:
        """End a server process. A cancel is not enough: code can swallow it, and does not notice that the client is
        gone."""
        with contextlib.suppress(port.EngineFailure, TimeoutError):
            async with asyncio.timeout(_END_S), AdminSession(self._connector, METADATA_DATABASE) as session:
                await terminate(session, self._database, backend)

    async def _connected(self) -> Connection:
        async with self._opening:
            if self._connection is None or self._connection.closed:
                try:
                    self._connection = await self._connect()
                except ConnectionLost as exc:
                    raise port.EngineUnavailable("no connection to the engine", exc) from exc
            return self._connection

    async def _connect(self) -> Connection:
        return await self._connector.connect(self._database, patient=self._patient, local=self._local)

    async def __aenter__(self) -> "AdminSession":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class TenantSession(AdminSession):
    """A session with no more rights than a tenant has: as a role of its database. A statement can give its own role
    another password; then this session restores the service's."""

    def __init__(
        self,
        connector: AdminConnector,
        secret: bytes,
        database: str,
        role: str | None = None,
        *,
        patient: bool = False,
        limit_s: float | None = None,
    ) -> None:
        super().__init__(connector, database, patient=patient, limit_s=limit_s)
        self._secret = secret
        self._role = role or name_role(database, port.Access.WRITE)

    async def _connect(self) -> Connection:
        conninfo = logins.as_role(self._connector.conninfo, self._secret, self._role)
        try:
            return await self._connector.connect(self._database, conninfo, patient=self._patient)
        except LoginRefused:
            await restore_password(self._connector, self._role, self._secret)
            return await self._connector.connect(self._database, conninfo, patient=self._patient)


def _writes(command: Command) -> bool:
    return not command.sql.lstrip().upper().startswith((b"SELECT", b"SHOW"))


async def set_password(session: AdminSession, role: str, secret: bytes) -> None:
    """Give a role the password that the service logs in with. The password itself is not sent, so it is in no log of
    the engine."""
    verifier = logins.derive_keys(secret, role).verifier
    await session.fetch(f"ALTER ROLE {quote(role)} PASSWORD '{verifier}'")


async def restore_password(connector: AdminConnector, role: str, secret: bytes) -> None:
    """Restore a role's password, in a session of its own: a tenant's statement may hold the lock that this waits for.

    Raises EngineUnavailable if there is no such role; a server does not say so when a login fails.
    """
    async with AdminSession(connector, METADATA_DATABASE) as session:
        try:
            await set_password(session, role, secret)
        except port.StatementFailed as failure:
            if failure.sqlstate != NO_SUCH_ROLE:
                raise
            raise port.EngineUnavailable("the database is not there", failure) from failure


async def write_membership(session: AdminSession, *, may_switch: bool) -> str:
    """Return the end of a GRANT of a role's rights, with those to switch to it or not, where the engine tells them
    apart."""
    [(version,)] = await session.fetch("SELECT current_setting('server_version_num')::int / 10000")
    return f" WITH INHERIT TRUE, SET {may_switch}" if int(str(version)) >= _VERSION_WITH_MEMBERSHIP_OPTIONS else ""


async def terminate(session: AdminSession, database: str, backend: int) -> bool:
    """Ask a server process of the database to end; return whether there was one.

    A process that waits for a standby is not asked: its commit would then be done without a standby, and could be lost.
    """
    return bool(
        await session.fetch(
            "SELECT wait_event = 'SyncRep' OR pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity"
            " WHERE pid = $1::int AND datname = $2",
            str(backend),
            database,
        )
    )


async def check_login(connector: AdminConnector, database: str, secret: bytes) -> None:
    """Raise EngineUnavailable if a tenant's roles cannot log in."""
    for access in port.Access:
        async with TenantSession(connector, secret, database, name_role(database, access)) as session:
            await session.fetch("SELECT 1")
