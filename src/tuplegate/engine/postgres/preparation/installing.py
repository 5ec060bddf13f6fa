"""Prepares a PostgreSQL server for the service: makes its roles, metadata database and template, and finds
weaknesses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from tuplegate.engine.libpq.connections.identity import NOTE_IDENTITY, check_free
from tuplegate.engine.libpq.connections.logins import as_role, where
from tuplegate.engine.port import EngineRefused, EngineUnavailable, Examined, StatementFailed, Weakness
from tuplegate.engine.postgres.preparation import foundation
from tuplegate.engine.postgres.preparation.weaknesses import SHARED, TRIED, ForeignWords, find_weaknesses
from tuplegate.engine.postgres.rights.walls import FULL, Walls
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession, check_login
from tuplegate.engine.postgres.service.metadata import LOCK
from tuplegate.engine.postgres.service.probes import find_problems, find_warnings
from tuplegate.engine.postgres.tenancy.databases import PostgresDatabases
from tuplegate.engine.postgres.transfer.carrying import read_sorting

_log = structlog.get_logger()

_NO_RIGHT = "42501"


@dataclass(frozen=True, slots=True)
class PostgresLogin:
    """The login of workers, and the walls in the databases of the server."""

    conninfo: str
    walls: Walls

    @asynccontextmanager
    async def metadata(self) -> AsyncIterator[AdminSession]:
        async with AdminSession(AdminConnector(self.conninfo), METADATA_DATABASE) as session:
            yield session

    async def find_sorting(self) -> str:
        async with self.metadata() as session:
            return await read_sorting(session, AdminConnector(self.conninfo).owners.metadata)


class PostgresOwner:
    """A server, reached as its owner: a superuser, or a role that makes databases and roles.

    `is_bundled` says that nobody else uses the server. `temp_mb` bounds the temporary files of a statement, unless the
    server has that bound in its own settings.
    """

    def __init__(self, conninfo: str, *, is_bundled: bool = False, temp_mb: int | None = None) -> None:
        self._connector = AdminConnector(conninfo)
        self._is_bundled = is_bundled
        self._temp_mb = temp_mb

    @property
    def place(self) -> str:
        return where(self._connector.conninfo)

    def login(self, secret: bytes) -> PostgresLogin:
        return _login(self._connector, secret, FULL)

    async def examine(self, connections: int) -> Examined:
        found = await foundation.find_capabilities(self._connector)
        if missing := find_problems(found):
            raise EngineRefused("".join(f"\n- {problem}" for problem in missing))
        return Examined(find_warnings(found, connections), found.connections_free)

    @asynccontextmanager
    async def metadata(self, *, locked: bool = False) -> AsyncIterator[AdminSession]:
        async with AdminSession(self._connector, METADATA_DATABASE, patient=locked) as session:
            if locked:
                await session.fetch(LOCK)
            yield session

    @asynccontextmanager
    async def prepare(self) -> AsyncIterator["PostgresPreparation"]:
        try:
            walls = await foundation.make_metadata_database(self._connector, exclusive=self._is_bundled)
            async with self.metadata(locked=True) as session:
                yield PostgresPreparation(session, self._connector, walls, self._temp_mb)
        except StatementFailed as failure:
            if self._is_bundled or failure.sqlstate != _NO_RIGHT:
                raise
            raise EngineRefused(
                f"\n- its role has no right to what is there already ({failure}): give the URL of the role that made"
                " it, or of a superuser, or name another database in the URL"
            ) from failure


def _login(owner: AdminConnector, secret: bytes, walls: Walls) -> PostgresLogin:
    return PostgresLogin(as_role(owner.conninfo, secret, owner.owners.service), walls)


class PostgresPreparation:
    """A server with its metadata database, while this process prepares it."""

    def __init__(self, session: AdminSession, owner: AdminConnector, walls: Walls, temp_mb: int | None) -> None:
        self.session = session
        self._owner = owner
        self._walls = walls
        self._temp_mb = temp_mb

    async def claim(self, installation: str, name: str, *, is_used: bool) -> None:
        if not self._walls.full:
            raise EngineRefused(
                "\n- its role is no superuser, which an engine beside the first needs: give the URL of one"
            )
        await check_free(self.session, self._owner.owners.metadata, installation, name, is_used=is_used)

    async def make_ready(
        self, secret: bytes, sorting: str | None = None, *, has_databases: bool = True
    ) -> "ReadyPostgres":
        """Make everything that the service's own role needs. `has_databases`: databases of tenants are made on this
        server."""
        await foundation.hand_over(self.session, self._owner.owners, secret)
        if has_databases:
            await self._make_template(sorting)
        login = _login(self._owner, secret, self._walls)
        service = AdminConnector(login.conninfo)
        async with _login_checked(), AdminSession(service, METADATA_DATABASE) as trial:
            await trial.fetch("SELECT 1")
        databases = PostgresDatabases(service, secret, self._temp_mb, self._walls)
        return ReadyPostgres(self.session, self._owner, service, login, databases, secret)

    async def _make_template(self, sorting: str | None) -> None:
        try:
            await foundation.make_template(self._owner, self._walls, sorting or "")
        except StatementFailed as failure:
            if sorting is None:
                raise
            _log.warning(
                "an engine sorts texts otherwise than the first, so no database can move there",
                first=sorting,
                reason=failure.message,
            )
            await foundation.make_template(self._owner, self._walls)


@dataclass(frozen=True, slots=True)
class ReadyPostgres:
    """A server that the service's own role can use. `session` is the owner's."""

    session: AdminSession
    owner: AdminConnector
    service: AdminConnector
    login: PostgresLogin
    databases: PostgresDatabases
    secret: bytes

    @property
    def furnishing(self) -> str:
        return self.databases.furnishing

    async def refurnish(self, database: str) -> None:
        """Furnish a database anew. Finish prepared transactions first, which would be in the way."""
        await self.databases.finish_prepared(database)
        await foundation.furnish(self.owner, database, self.login.walls)
        await self.databases.open(database)

    async def check_login(self, database: str) -> None:
        """Check that the server's rules of access let tenants' roles log in with passwords."""
        async with _login_checked():
            await check_login(self.service, database, self.secret)

    async def find_weaknesses(self, database: str | None) -> tuple[Weakness, ...]:
        if database is None:
            return SHARED if self.login.walls.full else (*SHARED, *TRIED)
        try:
            return await find_weaknesses(self.service, database, self.secret)
        except ForeignWords as exc:
            raise EngineRefused(
                f"\n- its messages are not in English ({exc}), by which the service tells some errors apart:"
                " set lc_messages to C for the server, or give the URL of a superuser"
            ) from exc

    async def note_identity(self, installation: str, name: str) -> None:
        await self.session.fetch(NOTE_IDENTITY, installation, name, self.furnishing)


@asynccontextmanager
async def _login_checked() -> AsyncIterator[None]:
    try:
        yield
    except EngineUnavailable as exc:
        raise EngineRefused(
            f"\n- it does not let the roles of the service and of tenants' databases log in ({exc}): allow all roles"
            " into all databases with scram-sha-256 in pg_hba.conf, from this machine's address, and reload it"
        ) from exc
