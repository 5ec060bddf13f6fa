"""What a data directory needs before it can serve: metadata, an organization, its database, a key. May be repeated.

Every step looks at what is there, so a start that was interrupted anywhere is finished by the next one.
"""

import secrets

from querygate.access.scopes import Scope
from querygate.access.tokens import RANDOM_BYTES, Key, make_id, make_key
from querygate.catalog.store import Catalog, Installation
from querygate.engine.port import EngineUnavailable
from querygate.engine.postgres.admin import (
    METADATA_DATABASE,
    AdminConnector,
    AdminSession,
    check_login,
    find_capabilities,
    make_database,
    make_metadata_database,
)
from querygate.engine.postgres.metadata import LOCK
from querygate.engine.postgres.probes import Capabilities, problems

FIRST_ORGANIZATION = "default"
FIRST_DATABASE = "main"


class EngineRefused(Exception):
    """The engine cannot be used; the message names everything that is missing."""


async def examine(conninfo: str) -> Capabilities:
    """What an engine of the user's own can do; raises EngineRefused where that is not enough."""
    found = await find_capabilities(AdminConnector(conninfo))
    if missing := problems(found):
        raise EngineRefused("".join(f"\n- {problem}" for problem in missing))
    return found


async def install(conninfo: str, *, bundled: bool = True) -> Key | None:
    """Brings the installation up to date; the first key, if this made it. One service process at a time."""
    connector = AdminConnector(conninfo)
    await make_metadata_database(connector, exclusive=bundled)
    async with AdminSession(connector, METADATA_DATABASE) as session:
        await session.fetch(LOCK)
        catalog = Catalog(session)
        await catalog.migrate()
        installation = await catalog.installation()
        if installation is None:
            installation = Installation(_random_id(), secrets.token_bytes(32))
            await catalog.add_installation(installation)
        organization = await catalog.first_organization()
        if organization is None:
            organization = "org_" + _random_id()
            await catalog.add_organization(
                organization, FIRST_ORGANIZATION, "unlimited", "qg_" + _random_id(), FIRST_DATABASE
            )
        for database in await catalog.unfinished_databases():
            await make_database(connector, database, installation.secret)
            await catalog.database_is_active(database)
        await _check_login(connector, catalog, organization, installation.secret)
        if await catalog.has_keys():
            return None
        key = make_key(secrets.token_bytes(RANDOM_BYTES))
        await catalog.add_key(key, organization, "first", [Scope.ADMIN, Scope.OPERATOR])
        return key


async def _check_login(connector: AdminConnector, catalog: Catalog, organization: str, secret: bytes) -> None:
    """Tenants' roles log in with passwords, and the engine's rules of access must let them."""
    database = await catalog.find_database(organization, id=None, name=None)
    if database is None:
        return
    try:
        await check_login(connector, database.id, secret)
    except EngineUnavailable as exc:
        raise EngineRefused(
            f"\n- it does not let the roles of tenants' databases log in ({exc}): allow all roles into all databases"
            " with scram-sha-256 in pg_hba.conf, from this machine's address, and reload it"
        ) from exc


async def create_key(conninfo: str, name: str, scopes: list[Scope]) -> Key:
    """A key of the installation's own organization, for whoever sits at the machine."""
    async with AdminSession(AdminConnector(conninfo), METADATA_DATABASE) as session:
        catalog = Catalog(session)
        organization = await catalog.first_organization()
        assert organization is not None, "install has made it"
        key = make_key(secrets.token_bytes(RANDOM_BYTES))
        await catalog.add_key(key, organization, name, scopes)
        return key


def _random_id() -> str:
    return make_id(secrets.token_bytes(RANDOM_BYTES))
