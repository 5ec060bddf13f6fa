"""What a data directory needs before it can serve: metadata, an organization, its database, a key. May be repeated.

Every step looks at what is there, so a start that was interrupted anywhere is finished by the next one.
"""

import secrets

from querygate.access.scopes import Scope
from querygate.access.tokens import RANDOM_BYTES, Key, make_id, make_key
from querygate.catalog.store import Catalog, Installation
from querygate.engine.postgres.admin import (
    METADATA_DATABASE,
    AdminConnector,
    AdminSession,
    make_database,
    make_metadata_database,
)

FIRST_ORGANIZATION = "default"
FIRST_DATABASE = "main"


async def install(conninfo: str) -> Key | None:
    """Brings the installation up to date; the first key, if this made it."""
    connector = AdminConnector(conninfo)
    await make_metadata_database(connector)
    async with AdminSession(connector, METADATA_DATABASE) as session:
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
        if await catalog.has_keys():
            return None
        key = make_key(secrets.token_bytes(RANDOM_BYTES))
        await catalog.add_key(key, organization, "first", [Scope.ADMIN, Scope.OPERATOR])
        return key


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
