"""Prepares a cluster for the service: makes its role and the metadata database, and closes what a cluster leaves
open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tuplegate.engine.cockroach.cluster import locks
from tuplegate.engine.cockroach.cluster.connector import Connector, ServiceSession
from tuplegate.engine.cockroach.cluster.nodes import Nodes
from tuplegate.engine.cockroach.cluster.probes import find_problems
from tuplegate.engine.cockroach.preparation.weaknesses import WEAKNESSES, find_weaknesses
from tuplegate.engine.cockroach.tenancy.databases import CockroachDatabases
from tuplegate.engine.libpq.connections import identity
from tuplegate.engine.libpq.connections.commands import ConnectionLost
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.logins import add_settings, as_role, derive_password, where
from tuplegate.engine.libpq.values.quoting import quote, quote_text
from tuplegate.engine.port import EngineRefused, EngineUnavailable, Examined, NotInTime, StatementFailed, Weakness

_NO_RIGHT: Final = "42501"
_CONNECTIONS_FREE: Final = 1_000
_WAIT_S: Final = 60.0
_LOOK_S: Final = 0.2
_CONNECT_S: Final = 10.0
_FIRST_DATABASE: Final = "defaultdb"
_PREPARING: Final = "installation"

_SCHEMA: Final = (
    "CREATE SCHEMA IF NOT EXISTS engine",
    identity.TABLE,
    *locks.SCHEMA,
)


@dataclass(frozen=True, slots=True)
class CockroachLogin:
    """The login of workers. `has_passwords`: the cluster asks its roles for passwords."""

    conninfo: str
    has_passwords: bool

    @asynccontextmanager
    async def metadata(self) -> AsyncIterator[ServiceSession]:
        async with ServiceSession(Connector(self.conninfo)) as session:
            yield session

    async def find_sorting(self) -> str:
        return "C"


class CockroachOwner:
    """A cluster, reached as its owner: a member of the role `admin`."""

    def __init__(self, conninfo: str, *, has_passwords: bool) -> None:
        self._connector = Connector(conninfo)
        self._has_passwords = has_passwords

    @property
    def place(self) -> str:
        return where(self._connector.conninfo)

    def login(self, secret: bytes) -> CockroachLogin:
        role = _service_role(self._connector)
        return CockroachLogin(as_role(self._connector.conninfo, secret, role), self._has_passwords)

    async def examine(self, connections: int) -> Examined:
        async with ServiceSession(self._connector, _FIRST_DATABASE) as session:
            problems = await find_problems(session, self._connector.conninfo, is_secure=self._has_passwords)
        if problems:
            raise EngineRefused("".join(f"\n- {problem}" for problem in problems))
        return Examined([], _CONNECTIONS_FREE)

    @asynccontextmanager
    async def metadata(self, *, locked: bool = False) -> AsyncIterator[ServiceSession]:
        async with ServiceSession(self._connector) as session:
            if not locked:
                yield session
                return
            async with hold_installation(session):
                yield session

    @asynccontextmanager
    async def prepare(self) -> AsyncIterator["CockroachPreparation"]:
        try:
            await self._make_metadata_database()
            async with self.metadata(locked=True) as session:
                yield CockroachPreparation(self, session)
        except StatementFailed as failure:
            if failure.sqlstate != _NO_RIGHT:
                raise
            raise EngineRefused(
                f"\n- its role has too few rights ({failure}): give the URL of a member of the role admin"
            ) from failure

    async def _make_metadata_database(self) -> None:
        name = quote(self._connector.metadata)
        async with ServiceSession(self._connector, _FIRST_DATABASE) as session:
            await session.fetch(f"CREATE DATABASE IF NOT EXISTS {name}")
        async with ServiceSession(self._connector) as session:
            await session.fetch(f"REVOKE ALL ON DATABASE {name} FROM public")
            await session.fetch("REVOKE ALL ON SCHEMA public FROM public")
            for statement in _SCHEMA:
                await session.fetch(statement)

    async def make_service_role(self, session: ServiceSession, secret: bytes) -> None:
        """Make the role that workers log in with. Only a member of `admin` may give rights in others' databases."""
        role = _service_role(self._connector)
        await session.fetch(f"CREATE ROLE IF NOT EXISTS {quote(role)} WITH LOGIN")
        if self._has_passwords:
            password = quote_text(derive_password(secret, role))
            await session.fetch(f"ALTER ROLE {quote(role)} WITH PASSWORD {password}")
        await session.fetch(f"GRANT admin TO {quote(role)}")

    @property
    def metadata_name(self) -> str:
        return self._connector.metadata


@asynccontextmanager
async def hold_installation(session: ServiceSession) -> AsyncIterator[None]:
    """Keep other service processes from preparing the cluster meanwhile. Wait for another one for at most a minute:
    raises NotInTime. The preparation itself may take as long as it needs."""
    names = locks.Locks(session)
    loop = asyncio.get_running_loop()
    renewing = loop.create_task(names.renew())
    until = loop.time() + _WAIT_S
    try:
        while True:
            async with names.hold(_PREPARING) as free:
                if free:
                    yield
                    return
            if loop.time() > until:
                raise NotInTime(f"another service process prepares it, for longer than {_WAIT_S:g} s", sqlstate=None)
            await asyncio.sleep(_LOOK_S)
    finally:
        renewing.cancel()


def _service_role(connector: Connector) -> str:
    return f"{connector.metadata}_service"


class CockroachPreparation:
    """A cluster with its metadata database, while this process prepares it."""

    def __init__(self, owner: CockroachOwner, session: ServiceSession) -> None:
        self.session = session
        self._owner = owner

    async def claim(self, installation: str, name: str, *, is_used: bool) -> None:
        await identity.check_free(self.session, self._owner.metadata_name, installation, name, is_used=is_used)

    async def make_ready(self, secret: bytes, sorting: str | None = None) -> "ReadyCockroach":
        await self._owner.make_service_role(self.session, secret)
        login = self._owner.login(secret)
        connector = Connector(login.conninfo)
        try:
            (await connector.connect(connector.metadata)).close()
        except ConnectionLost as exc:
            raise EngineRefused(f"\n- it does not let the service's own role log in ({exc})") from exc
        databases = CockroachDatabases(connector, secret, has_passwords=login.has_passwords)
        await databases.check_walls()
        return ReadyCockroach(self.session, login, databases, secret)


@dataclass(frozen=True, slots=True)
class ReadyCockroach:
    """A cluster that the service's own role can use. `session` is the owner's."""

    session: ServiceSession
    login: CockroachLogin
    databases: CockroachDatabases
    secret: bytes

    @property
    def furnishing(self) -> str:
        return self.databases.furnishing

    async def refurnish(self, database: str) -> None:
        await self.databases.create(database)

    async def check_login(self, database: str) -> None:
        try:
            await self.databases.check_login(database)
        except EngineUnavailable as exc:
            raise EngineRefused(f"\n- it does not let the roles of tenants' databases log in ({exc})") from exc

    async def find_weaknesses(self, database: str | None) -> tuple[Weakness, ...]:
        if database is None:
            return WEAKNESSES
        return await find_weaknesses(Connector(self.login.conninfo), self.session, database, self.secret)

    async def note_identity(self, installation: str, name: str) -> None:
        await self.session.fetch(identity.NOTE_IDENTITY, installation, name, self.furnishing)


async def find_cluster(conninfo: str) -> "CockroachOwner | None":
    """Return the cluster at the address; None if another program answers there, or nothing accepts a login."""
    nodes = Nodes(conninfo)
    for database in ("postgres", "template1", Connector(conninfo).metadata):
        made = add_settings(conninfo, database, {}, "tuplegate-service")
        try:
            connection = await nodes.open(Connection, made, _CONNECT_S)
        except ConnectionLost:
            continue
        try:
            if connection.pgconn.parameter_status(b"crdb_version") is None:
                return None
            return CockroachOwner(conninfo, has_passwords=bool(connection.pgconn.ssl_in_use))
        finally:
            connection.close()
    return None
