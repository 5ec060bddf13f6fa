"""The service's own statements: sessions with the owner's rights, and the making of the metadata database.

These run with the rights of the installation's owner, so they carry no text of a tenant, and a search path that a
tenant cannot put anything into.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from psycopg.pq.abc import PGresult

from tuplegate.engine.port import Access, EngineLost, EngineUnavailable, StatementFailed
from tuplegate.engine.postgres import logins, metadata, roles
from tuplegate.engine.postgres.connection import Command, Connection, ConnectionLost, text_rows
from tuplegate.engine.postgres.failures import check
from tuplegate.engine.postgres.logins import named_database
from tuplegate.engine.postgres.probes import Capabilities, probe

METADATA_DATABASE = "tuplegate"
"""Stands for the metadata database, and is its name unless the engine's URL names another."""

_DATABASES_OF_EVERY_SERVER = ("postgres", "template1")

_SETTINGS = {
    "timezone": "UTC",
    # Tenants' transactions are serializable among themselves; the service's own would only take room in that check.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "synchronous_commit": "on",
}


class AdminConnector:
    """Opens connections as the owner of the installation. `conninfo` names the server, the user, and the metadata
    database where that is not the usual one; `METADATA_DATABASE` stands for it here. `statement_ms` is what a statement
    may take."""

    def __init__(self, conninfo: str, timeout_s: float = 10.0, statement_ms: int = 60_000) -> None:
        self.conninfo = conninfo
        self.metadata_database = named_database(conninfo) or METADATA_DATABASE
        self._timeout_s = timeout_s
        self._statement_ms = statement_ms

    async def connect(
        self, database: str, search_path: str = "pg_catalog", conninfo: str | None = None, *, patient: bool = False
    ) -> Connection:
        """`conninfo` is that of another role, where it is not the owner that is wanted. `patient` is without the limit
        of a statement."""
        name = self.metadata_database if database == METADATA_DATABASE else database
        limit = "0" if patient else str(self._statement_ms)
        settings = {**_SETTINGS, "statement_timeout": limit, "search_path": search_path}
        try:
            return await Connection.open(
                logins.with_settings(conninfo or self.conninfo, name, settings), self._timeout_s
            )
        except ConnectionLost as exc:
            raise EngineUnavailable(f"no connection to the engine: {exc}") from exc


class AdminSession:
    """One connection to one database, opened when it is needed and again when it was lost. Shared by all tasks.

    `patient` is for statements that take as long as there is data.
    """

    def __init__(
        self,
        connector: AdminConnector,
        database: str,
        search_path: str = "public",
        conninfo: str | None = None,
        *,
        patient: bool = False,
    ) -> None:
        self._connector = connector
        self._conninfo = conninfo
        self._database = database
        self._search_path = search_path
        self._patient = patient
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    async def fetch(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        results = await self._run([_command(sql, params)])
        return text_rows(results[-1])

    async def atomically(self, statements: Sequence[tuple[str, Sequence[str | None]]]) -> list[tuple[str | None, ...]]:
        """All statements in one implicit transaction: one segment, one commit. Gives the rows of the last."""
        results = await self._run([_command(sql, params) for sql, params in statements])
        return text_rows(results[-1]) if results else []

    async def _run(self, commands: Sequence[Command]) -> list[PGresult]:
        connection = await self._connected()
        try:
            results = await connection.run(*commands)
        except ConnectionLost as exc:
            raise EngineLost(f"the connection to the engine was lost: {exc}") from exc
        check(results)
        return results

    async def _connected(self) -> Connection:
        async with self._opening:
            if self._connection is None or self._connection.closed:
                self._connection = await self._connector.connect(
                    self._database, self._search_path, self._conninfo, patient=self._patient
                )
            return self._connection

    async def verifier(self, role: str, password: str) -> str:
        """What the engine stores of a password; the password itself is not sent, and so is in no log of the engine."""
        connection = await self._connected()
        return connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()

    async def __aenter__(self) -> "AdminSession":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _command(sql: str, params: Sequence[str | None]) -> Command:
    if any(param is not None and "\0" in param for param in params):
        raise ValueError("a parameter has a NUL, at which the engine would end it")
    return Command(sql.encode(), [None if p is None else p.encode() for p in params] or None)


@asynccontextmanager
async def _anywhere(connector: AdminConnector) -> AsyncIterator[AdminSession]:
    """A session on a database that is there before anything of the service is; raises EngineUnavailable."""
    failure: EngineUnavailable | None = None
    for database in (*_DATABASES_OF_EVERY_SERVER, METADATA_DATABASE):
        async with AdminSession(connector, database, "pg_catalog") as session:
            try:
                await session.fetch("SELECT 1")
            except EngineUnavailable as exc:
                failure = failure or exc
            else:
                yield session
                return
    assert failure is not None
    raise failure


async def find_capabilities(connector: AdminConnector) -> Capabilities:
    async with _anywhere(connector) as session:
        return await probe(session)


async def set_password(session: AdminSession, role: str, secret: bytes) -> None:
    """Gives a tenant's role the password that the service logs in with."""
    verifier = await session.verifier(role, logins.password_of(secret, role))
    await session.fetch(f"ALTER ROLE {role} PASSWORD '{verifier}'")


async def terminate(session: AdminSession, database: str, backend: int) -> bool:
    """Asks a server process of the database to end; whether there was one."""
    return bool(
        await session.fetch(
            "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity"
            " WHERE pid = $1::int AND datname = $2",
            str(backend),
            database,
        )
    )


async def make_metadata_database(connector: AdminConnector, *, exclusive: bool = True) -> None:
    """Makes the metadata database. May be repeated, and raced.

    `exclusive` says that the server is the installation's own: then the doors that a new server leaves open are closed.
    """
    name = connector.metadata_database
    async with _anywhere(connector) as session:
        if not await session.fetch("SELECT 1 FROM pg_database WHERE datname = $1", name):
            try:
                await session.fetch(f"CREATE DATABASE {quoted(name)} TEMPLATE template0 ENCODING 'UTF8'")
            except StatementFailed as exc:
                if exc.sqlstate not in ("42P04", "23505"):  # somebody else was quicker
                    raise
    async with AdminSession(connector, METADATA_DATABASE) as session:
        await session.fetch(metadata.LOCK)
        await session.fetch(f"REVOKE ALL ON DATABASE {quoted(name)} FROM PUBLIC")
        for statement in roles.LOCKDOWN if exclusive else ():
            await session.fetch(statement)
        for statement in metadata.SCHEMA:
            await session.fetch(statement)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def check_login(connector: AdminConnector, database: str, secret: bytes) -> None:
    """Raises EngineUnavailable where a tenant's roles cannot log in."""
    for access in Access:
        conninfo = logins.as_tenant(connector.conninfo, secret, database, access)
        async with AdminSession(connector, database, "pg_catalog", conninfo) as session:
            await session.fetch("SELECT 1")
