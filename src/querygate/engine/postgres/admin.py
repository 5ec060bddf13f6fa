"""The service's own statements: a session on the metadata database, and the making of tenants' databases.

These run with the rights of the installation's owner, so they carry no text of a tenant, and a search path that a
tenant cannot put anything into.
"""

import asyncio
from collections.abc import Sequence

from psycopg.pq.abc import PGresult

from querygate.engine.port import EngineUnavailable, StatementFailed
from querygate.engine.postgres import metadata, records, roles
from querygate.engine.postgres.connection import Command, Connection, ConnectionLost, text_rows
from querygate.engine.postgres.failures import check

METADATA_DATABASE = "querygate"


class AdminConnector:
    """Opens connections as the owner of the installation. `conninfo` names the server and the user."""

    def __init__(self, conninfo: str, timeout_s: float = 10.0) -> None:
        self._conninfo = conninfo
        self._timeout_s = timeout_s

    async def connect(self, database: str, search_path: str = "pg_catalog") -> Connection:
        options = f"-c search_path={search_path} -c timezone=UTC -c lc_messages=C -c statement_timeout=60000"
        # Tenants' transactions are serializable among themselves; the service's own would only take room in that check.
        options += " -c default_transaction_isolation=read\\\\ committed"
        conninfo = (
            f"{self._conninfo} dbname={database} client_encoding=UTF8 application_name=querygate options='{options}'"
        )
        try:
            return await Connection.open(conninfo, self._timeout_s)
        except ConnectionLost as exc:
            raise EngineUnavailable(f"no connection to the engine: {exc}") from exc


class AdminSession:
    """One connection to one database, opened when it is needed and again when it was lost. Shared by all tasks."""

    def __init__(self, connector: AdminConnector, database: str, search_path: str = "public") -> None:
        self._connector = connector
        self._database = database
        self._search_path = search_path
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    async def fetch(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        results = await self._run([_command(sql, params)])
        return text_rows(results[-1])

    async def atomically(self, statements: Sequence[tuple[str, Sequence[str | None]]]) -> None:
        """All statements in one implicit transaction: one segment, one commit."""
        await self._run([_command(sql, params) for sql, params in statements])

    async def _run(self, commands: Sequence[Command]) -> list[PGresult]:
        connection = await self._connected()
        try:
            results = await connection.run(*commands)
        except ConnectionLost as exc:
            raise EngineUnavailable(f"the connection to the engine was lost: {exc}") from exc
        check(results)
        return results

    async def _connected(self) -> Connection:
        async with self._opening:
            if self._connection is None or self._connection.closed:
                self._connection = await self._connector.connect(self._database, self._search_path)
            return self._connection

    async def __aenter__(self) -> "AdminSession":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _command(sql: str, params: Sequence[str | None]) -> Command:
    return Command(sql.encode(), [None if p is None else p.encode() for p in params] or None)


async def make_metadata_database(connector: AdminConnector) -> None:
    """Makes the metadata database and closes the doors that a new server leaves open. May be repeated."""
    async with AdminSession(connector, "postgres", "pg_catalog") as session:
        if not await session.fetch("SELECT 1 FROM pg_database WHERE datname = $1", METADATA_DATABASE):
            await session.fetch(f"CREATE DATABASE {METADATA_DATABASE} TEMPLATE template0 ENCODING 'UTF8'")
            await session.fetch(f"REVOKE ALL ON DATABASE {METADATA_DATABASE} FROM PUBLIC")
        for statement in roles.LOCKDOWN:
            await session.fetch(statement)
    async with AdminSession(connector, METADATA_DATABASE) as session:
        for statement in metadata.SCHEMA:
            await session.fetch(statement)


async def make_database(connector: AdminConnector, database: str, secret: bytes) -> None:
    """Makes a tenant's database with its roles and rights. May be repeated after a crash at any point."""
    async with AdminSession(connector, METADATA_DATABASE) as session:
        for statement in roles.creation(database):
            try:
                await session.fetch(statement)
            except StatementFailed as exc:
                if exc.sqlstate != "42P04":  # it is there already
                    raise
    async with AdminSession(connector, database, "pg_catalog") as session:
        for statement in roles.grants(database):
            await session.fetch(statement)
        await session.fetch(
            "INSERT INTO querygate.secret (value) VALUES (decode($1, 'hex'))"
            " ON CONFLICT (only_one) DO UPDATE SET value = excluded.value",
            records.database_secret(secret, database).hex(),
        )
