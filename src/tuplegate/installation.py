"""What an engine needs before it can serve: metadata, an organization, its database, a key. May be repeated.

Every step looks at what is there, so a start that was interrupted anywhere is finished by the next one.
"""

import secrets

from tuplegate.access.scopes import Scope
from tuplegate.access.tokens import RANDOM_BYTES, Kind, Token, make_id, make_token
from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.schema import Installation, add_installation, find_installation, migrate
from tuplegate.catalog.session import Actor
from tuplegate.engine.port import EngineUnavailable
from tuplegate.engine.postgres.admin import (
    METADATA_DATABASE,
    AdminConnector,
    AdminSession,
    check_login,
    find_capabilities,
    make_metadata_database,
)
from tuplegate.engine.postgres.databases import PostgresDatabases
from tuplegate.engine.postgres.metadata import LOCK
from tuplegate.engine.postgres.probes import Capabilities, problems
from tuplegate.tenancy.lifecycle import new_database_id

FIRST_ORGANIZATION = "default"
FIRST_DATABASE = "main"
FIRST_TIER = "unlimited"
_REQUEST = "install"


class EngineRefused(Exception):
    """The engine cannot be used; the message names everything that is missing."""


async def examine(conninfo: str) -> Capabilities:
    """What an engine of the user's own can do; raises EngineRefused where that is not enough."""
    found = await find_capabilities(AdminConnector(conninfo))
    if missing := problems(found):
        raise EngineRefused("".join(f"\n- {problem}" for problem in missing))
    return found


async def install(conninfo: str, *, bundled: bool = True, temp_mb: int | None = None) -> Token | None:
    """Brings the installation up to date; the first key, if this made it. One service process at a time."""
    connector = AdminConnector(conninfo)
    await make_metadata_database(connector, exclusive=bundled)
    async with AdminSession(connector, METADATA_DATABASE) as session:
        await session.fetch(LOCK)
        await migrate(session)
        installation = await find_installation(session)
        if installation is None:
            installation = Installation(make_id(secrets.token_bytes(RANDOM_BYTES)), secrets.token_bytes(32))
            await add_installation(session, installation)
        catalog = Catalog(session)
        organization = await catalog.organizations.first()
        if organization is None:
            organization = "org_" + make_id(secrets.token_bytes(RANDOM_BYTES))
            actor = Actor(organization, None, None, _REQUEST)
            database = (new_database_id(), FIRST_DATABASE)
            await catalog.organizations.add(actor, organization, FIRST_ORGANIZATION, FIRST_TIER, database)
        databases = PostgresDatabases(connector, installation.secret, temp_mb)
        for place in await catalog.databases.unfinished(organization):
            if place.state == "creating" and place.clone_of is None:
                await databases.create(place.engine_name)
                await catalog.databases.was_made(place.id, databases.furnishing)
        for place in await catalog.databases.furnished_otherwise(databases.furnishing):
            await databases.furnish(place.engine_name)
            await catalog.databases.was_furnished(place.id, databases.furnishing)
        await _check_login(connector, catalog, organization, installation.secret)
        if await catalog.keys.exist():
            return None
        return await _add_key(catalog, organization, "first", [Scope.ADMIN, Scope.OPERATOR])


async def _check_login(connector: AdminConnector, catalog: Catalog, organization: str, secret: bytes) -> None:
    """Tenants' roles log in with passwords, and the engine's rules of access must let them.

    A database that is being reset lets nobody in, and stays so where a crash came between: workers open it again.
    """
    database = await catalog.databases.default_of(organization)
    if database is None or database in await catalog.databases.in_reset():
        return
    try:
        await check_login(connector, database, secret)
    except EngineUnavailable as exc:
        raise EngineRefused(
            f"\n- it does not let the roles of tenants' databases log in ({exc}): allow all roles into all databases"
            " with scram-sha-256 in pg_hba.conf, from this machine's address, and reload it"
        ) from exc


async def create_key(conninfo: str, name: str, scopes: list[Scope]) -> Token:
    """A key of the installation's own organization, for whoever sits at the machine."""
    async with AdminSession(AdminConnector(conninfo), METADATA_DATABASE) as session:
        catalog = Catalog(session)
        organization = await catalog.organizations.first()
        assert organization is not None, "install has made it"
        return await _add_key(catalog, organization, name, scopes)


async def _add_key(catalog: Catalog, organization: str, name: str, scopes: list[Scope]) -> Token:
    token = make_token(Kind.KEY, secrets.token_bytes(RANDOM_BYTES))
    actor = Actor(organization, None, None, _REQUEST)
    await catalog.keys.add(actor, token, organization, name, scopes, None, None)
    return token
