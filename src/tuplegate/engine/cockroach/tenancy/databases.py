"""Makes and drops the databases of tenants, each with a role that writes and one that only reads.

The engine enforces no right to connect, and a statement can name any database. So the role `public`, which is
everybody, loses all rights in every database, and each role gets its rights by name. This is checked again each time a
database is made. Tenants can still see the names of databases, which mean nothing: see SECURITY.md.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.cluster.connector import Connector, ServiceSession
from tuplegate.engine.cockroach.tenancy import role_removal
from tuplegate.engine.cockroach.transaction import records
from tuplegate.engine.libpq.connections.commands import ConnectionLost
from tuplegate.engine.libpq.connections.logins import as_tenant, derive_password, name_role
from tuplegate.engine.libpq.values.quoting import quote, quote_text

_SILENCE_S: Final = 15.0
_LOOK_S: Final = 0.1

_OPEN_TO_ALL: Final = """
SELECT database_name, privilege_type FROM "".crdb_internal.cluster_database_privileges
 WHERE grantee = 'public' AND database_name NOT IN ('system')
"""
_SESSIONS: Final = (
    "SELECT session_id FROM crdb_internal.cluster_sessions WHERE user_name IN ($1, $2) AND status <> 'CLOSED'"
)
_SIZE: Final = """
SELECT coalesce(sum((s.stats->>'key_bytes')::int8 + (s.stats->>'val_bytes')::int8), 0)
  FROM (SELECT crdb_internal.range_stats(start_key) AS stats FROM crdb_internal.ranges_no_leases
         WHERE database_name = $1) s
"""
_EMPTY_BYTES: Final = 1
"""The size of a database whose tables have no ranges of their own yet."""


def write_furnishing(database: str) -> list[str]:
    """Return the statements that make the service's own objects in a database, and give its roles their rights. Each
    may be repeated."""
    name, writer, reader = quote(database), *(quote(name_role(database, access)) for access in _BOTH)
    return [
        f"REVOKE ALL ON DATABASE {name} FROM public",
        "REVOKE ALL ON SCHEMA public FROM public",
        *records.SCHEMA,
        f"GRANT CONNECT, CREATE ON DATABASE {name} TO {writer}",
        f"GRANT CONNECT ON DATABASE {name} TO {reader}",
        f"GRANT CREATE, USAGE ON SCHEMA public TO {writer}",
        f"GRANT USAGE ON SCHEMA public TO {reader}",
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {writer} GRANT SELECT ON TABLES TO {reader}",
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {writer} GRANT SELECT ON SEQUENCES TO {reader}",
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {writer} GRANT USAGE ON SCHEMAS TO {reader}",
        f"GRANT USAGE ON SCHEMA tuplegate TO {writer}",
        f"GRANT INSERT ON tuplegate.outcome, tuplegate.answer TO {writer}",
    ]


_NO_MOVES: Final = (
    "databases cannot be moved to this engine: create an empty one on it, and bring everything over with `tuplegate"
    " database send`"
)
_BOTH: Final = (port.Access.WRITE, port.Access.READ)


class CockroachDatabases:
    """Fills the port's `EngineDatabases`. `has_passwords`: the cluster asks its roles for passwords."""

    def __init__(self, connector: Connector, secret: bytes, *, has_passwords: bool) -> None:
        self._connector = connector
        self._secret = secret
        self._has_passwords = has_passwords

    @property
    def furnishing(self) -> str:
        return hashlib.sha256("\n".join(write_furnishing("tg")).encode()).hexdigest()[:16]

    def furnishing_of(self, name: str) -> str:
        return self.furnishing

    # -- making and dropping --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def reach(self, name: str) -> AsyncIterator["CockroachDatabases"]:
        yield self

    async def create(self, name: str, *, for_copy: bool = False) -> None:
        async with self._open() as session:
            await session.fetch(f"CREATE DATABASE IF NOT EXISTS {quote(name)}")
            for access in _BOTH:
                role = name_role(name, access)
                await session.fetch(f"CREATE ROLE IF NOT EXISTS {quote(role)} WITH LOGIN")
                if self._has_passwords:
                    password = quote_text(derive_password(self._secret, role))
                    await session.fetch(f"ALTER ROLE {quote(role)} WITH PASSWORD {password}")
                await session.fetch(f"GRANT {quote(role)} TO CURRENT_USER")
        await self.furnish(name)
        await self.check_walls()

    async def furnish(self, name: str) -> None:
        async with self._open(name) as session:
            for statement in write_furnishing(name):
                await session.fetch(statement)

    async def check_walls(self) -> None:
        """Take the rights of `public` in every database away: other users of the cluster may have made one
        meanwhile."""
        async with self._open() as session:
            rows = await session.fetch(_OPEN_TO_ALL)
            for database in {str(database) for database, _ in rows}:
                await session.fetch(f"REVOKE ALL ON DATABASE {quote(database)} FROM public")
                await session.fetch(f"REVOKE ALL ON SCHEMA {quote(database)}.public FROM public")

    async def drop(self, name: str) -> None:
        async with self._open() as session:
            # A connection to a database that is gone, of a role that is gone, would still be answered.
            if await session.fetch("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1", name_role(name, _BOTH[0])):
                await self.silence(name)
            await session.fetch(f"DROP DATABASE IF EXISTS {quote(name)} CASCADE")
            for access in _BOTH:
                await role_removal.drop_role(self._connector, session, name_role(name, access))

    async def drop_left_roles(self) -> None:
        async with self._open() as session:
            await role_removal.drop_left_roles(self._connector, session)

    # -- silence --------------------------------------------------------------------------------------------------

    async def silence(self, name: str) -> None:
        roles = [name_role(name, access) for access in _BOTH]
        async with self._open() as session:
            for role in roles:
                await session.fetch(f"ALTER ROLE IF EXISTS {quote(role)} WITH NOLOGIN")
            loop = asyncio.get_running_loop()
            until = loop.time() + _SILENCE_S
            while rows := await session.fetch(_SESSIONS, *roles):
                if loop.time() > until:
                    raise port.EngineBusy("the database's sessions did not end in time")
                for (id,) in rows:
                    await session.fetch(f"CANCEL SESSION IF EXISTS {quote_text(str(id))}")
                await asyncio.sleep(_LOOK_S)

    async def open(self, name: str) -> None:
        async with self._open() as session:
            for access in _BOTH:
                await session.fetch(f"ALTER ROLE {quote(name_role(name, access))} WITH LOGIN")

    async def check_silent(self, name: str) -> None:
        roles = [name_role(name, access) for access in _BOTH]
        async with self._open() as session:
            may_enter = await session.fetch(
                "SELECT 1 FROM pg_catalog.pg_roles WHERE rolname IN ($1, $2) AND rolcanlogin", *roles
            )
            if may_enter or await session.fetch(_SESSIONS, *roles):
                raise port.EngineBusy("the database's roles can still log in, or are")

    async def let_end(self, name: str, seconds: float) -> None:
        roles = [name_role(name, access) for access in _BOTH]
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        async with self._open() as session:
            # The engine tells nobody when a session ends.
            while loop.time() < until and await session.fetch(_SESSIONS, *roles):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)

    # -- the rest ---------------------------------------------------------------------------------------------------

    async def keep_outcomes(self, source: str, name: str) -> None:
        async with self._open(name) as session:
            for table in records.TABLES:
                await session.fetch(
                    f"INSERT INTO tuplegate.{table} SELECT * FROM {quote(source)}.tuplegate.{table}"
                    " ON CONFLICT DO NOTHING"
                )
            await session.fetch("INSERT INTO tuplegate.former (name) VALUES ($1) ON CONFLICT DO NOTHING", source)

    async def sizes(self, names: Sequence[str]) -> dict[str, int]:
        async with self._open() as session:
            listed = ", ".join(map(quote_text, names)) or "NULL"
            rows = await session.fetch(f"SELECT datname FROM pg_catalog.pg_database WHERE datname IN ({listed})")
            found = {}
            for (name,) in rows:
                [(size,)] = await session.fetch(_SIZE, str(name))
                found[str(name)] = max(int(str(size)), _EMPTY_BYTES)
            return found

    async def analyze(self, name: str) -> None:
        """Do nothing: the engine collects statistics by itself."""

    async def find_awake(self, names: Sequence[str]) -> set[str]:
        return set(names)

    async def load(self) -> port.Load:
        async with self._open() as session:
            [(open_now, running)] = await session.fetch(
                "SELECT count(*), count(active_queries) FROM crdb_internal.cluster_sessions WHERE status <> 'CLOSED'"
            )
            return port.Load(int(str(open_now)), int(str(running)), _CONNECTIONS_MAX)

    # -- what this engine cannot do -----------------------------------------------------------------------------------

    async def copy(self, source: str, name: str) -> None:
        raise port.NotSupported(
            "this engine cannot copy a database: create an empty one, and bring everything over with"
            " `tuplegate database send`"
        )

    async def take_over(self, other: port.ServerDatabases, source: str, name: str) -> None:
        raise port.NotSupported(_NO_MOVES)

    def follow(
        self, other: port.ServerDatabases, source: str, name: str
    ) -> AbstractAsyncContextManager[port.Following]:
        raise port.NotSupported(_NO_MOVES)

    async def stop_following(self, name: str, *, dumped: bool) -> None:
        """Do nothing: nothing follows a database of this engine."""

    async def forget_source(self, source: str) -> None:
        """Do nothing: no database is moved to this engine."""

    # -- sessions ---------------------------------------------------------------------------------------------------

    def _open(self, database: str | None = None) -> ServiceSession:
        return ServiceSession(self._connector) if database is None else ServiceSession(self._connector, database)

    async def check_login(self, database: str) -> None:
        """Log in as the roles of a database. Raises EngineUnavailable."""
        for access in _BOTH:
            conninfo = as_tenant(self._connector.conninfo, self._secret, database, access)
            try:
                connection = await self._connector.connect(database, conninfo)
            except ConnectionLost as exc:
                raise port.EngineUnavailable("no connection to the engine", exc) from exc
            connection.close()


_CONNECTIONS_MAX: Final = 10_000
"""The engine has no bound of its own; this one keeps figures finite."""
