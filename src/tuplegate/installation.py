"""What an engine needs before it can serve: metadata, an organization, its database; and then a key. May be repeated.

Every step looks at what is there, so a start that was interrupted anywhere is finished by the next one.
"""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from tuplegate.access.scopes import Scope
from tuplegate.access.tokens import RANDOM_BYTES, Kind, Token, make_id, make_token
from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.metadata import Actor
from tuplegate.catalog.schema import (
    Installation,
    add_installation,
    find_installation,
    find_unseen_key,
    has_old_secret,
    migrate,
    note_unseen_key,
    replace_secret,
)
from tuplegate.engine.port import FIRST_ENGINE, EngineUnavailable, StatementFailed, Weakness
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminConnector, AdminSession, check_login
from tuplegate.engine.postgres.own.foundation import (
    adopt,
    find_capabilities,
    furnish,
    hand_over,
    make_metadata_database,
    make_template,
)
from tuplegate.engine.postgres.own.logins import as_role
from tuplegate.engine.postgres.own.metadata import FIND_IDENTITY, HAS_CATALOG, LOCK, NOTE_IDENTITY
from tuplegate.engine.postgres.own.probes import Capabilities, problems
from tuplegate.engine.postgres.tenancy.carrying import sorting_of
from tuplegate.engine.postgres.tenancy.databases import PostgresDatabases
from tuplegate.engine.postgres.tenancy.walls import FULL, Walls
from tuplegate.engine.postgres.tenancy.weaknesses import WEAKNESSES, ForeignWords, find_weaknesses
from tuplegate.tenancy.lifecycle import make_database_id

_log = structlog.get_logger()

FIRST_ORGANIZATION = "default"
FIRST_DATABASE = "main"
FIRST_TIER = "unlimited"
_REQUEST = "install"
_NO_RIGHT = "42501"


class EngineRefused(Exception):
    """The engine cannot be used; the message names everything that is missing."""


async def examine(conninfo: str) -> Capabilities:
    """What an engine of the user's own can do; raises EngineRefused where that is not enough."""
    found = await find_capabilities(AdminConnector(conninfo))
    if missing := problems(found):
        raise EngineRefused("".join(f"\n- {problem}" for problem in missing))
    return found


@dataclass(frozen=True, slots=True)
class Installed:
    """`conninfo` is what workers log in with; `has_key` is false until the first key was shown. `walls` is how
    databases are furnished, `weaknesses` what was found open all the same."""

    conninfo: str
    has_key: bool
    installation: Installation
    walls: Walls = FULL
    weaknesses: tuple[Weakness, ...] = ()


async def install(
    conninfo: str, *, bundled: bool = True, temp_mb: int | None = None, accept_weaker_walls: bool = False
) -> Installed:
    """Brings the installation up to date, as the engine's owner that `conninfo` names: a superuser, or a role that
    makes databases and roles. One service process at a time."""
    try:
        return await _install(conninfo, bundled, temp_mb, accept_weaker_walls)
    except StatementFailed as failure:
        if bundled or failure.sqlstate != _NO_RIGHT:
            raise
        raise EngineRefused(
            f"\n- its role has no right to what is there already ({failure}): give the URL of the role that made it, or"
            " of a superuser, or name another database in the URL"
        ) from failure


async def _install(conninfo: str, bundled: bool, temp_mb: int | None, accept_weaker_walls: bool) -> Installed:
    owner = AdminConnector(conninfo)
    walls = await make_metadata_database(owner, exclusive=bundled)
    async with AdminSession(owner, METADATA_DATABASE, patient=True) as session:
        await session.fetch(LOCK)
        await migrate(session)
        installation = await find_installation(session)
        if installation is None:
            installation = Installation(make_id(secrets.token_bytes(RANDOM_BYTES)), secrets.token_bytes(32))
            await add_installation(session, installation)
        elif await has_old_secret(session):
            installation = Installation(installation.id, secrets.token_bytes(32))
            await replace_secret(session, installation.secret)
        await hand_over(session, owner.owners, installation.secret)
        await make_template(owner, walls)
        service = AdminConnector(as_role(conninfo, installation.secret, owner.owners.service))
        async with _login_checked(), AdminSession(service, METADATA_DATABASE) as trial:
            await trial.fetch("SELECT 1")
        databases = PostgresDatabases(service, installation.secret, temp_mb, walls)
        catalog = Catalog(session)
        await _bring_up_to_date(owner, catalog, databases, walls, FIRST_ENGINE)
        database = await _found(service, catalog, databases, installation.secret)
        weaknesses: tuple[Weakness, ...] = ()
        if not bundled:
            weaknesses = await _find_weaknesses(service, database, installation.secret, walls)
        if not accept_weaker_walls and await catalog.organizations.count() > 1:
            _refuse_several(weaknesses)
        return Installed(service.conninfo, await _has_key(session, catalog), installation, walls, weaknesses)


async def _find_weaknesses(
    service: AdminConnector, database: str | None, secret: bytes, walls: Walls
) -> tuple[Weakness, ...]:
    """What a tenant reaches that it should not; all that a superuser closes, where no database is there to try it."""
    if database is None:
        return () if walls.full else WEAKNESSES
    try:
        return await find_weaknesses(service, database, secret)
    except ForeignWords as exc:
        raise EngineRefused(
            f"\n- its messages are not in English ({exc}), by which the service tells some errors apart:"
            " set lc_messages to C for the server, or give the URL of a superuser"
        ) from exc


def _refuse_several(weaknesses: tuple[Weakness, ...]) -> None:
    names = [weakness.name for weakness in weaknesses if weakness.reaches_others]
    if names:
        raise EngineRefused(
            "\n- there are several organizations, and it does not keep them apart in full: no superuser has prepared it"
            f" ({', '.join(names)}). Read what that means in docs/walls.md, and start with --accept-weaker-walls,"
            " or with the URL of a superuser"
        )


def service_login(conninfo: str, installation: Installation) -> str:
    """What workers log in with at an engine, of what the supervisor does."""
    return as_role(conninfo, installation.secret, AdminConnector(conninfo).owners.service)


async def prepare_engine(name: str, conninfo: str, first: Installed, temp_mb: int) -> None:
    """Makes on an engine beside the first what the installation needs there: everything but the catalog.

    `conninfo` names its superuser. May be repeated; raises EngineRefused where the engine cannot be used at all.
    """
    await examine(conninfo)
    superuser, installation = AdminConnector(conninfo), first.installation
    walls = await make_metadata_database(superuser, exclusive=False)
    if not walls.full:
        raise EngineRefused("\n- its role is no superuser, which an engine beside the first needs: give the URL of one")
    async with (
        AdminSession(AdminConnector(first.conninfo), METADATA_DATABASE) as session,
        AdminSession(superuser, METADATA_DATABASE, patient=True) as own,
    ):
        catalog = Catalog(session)
        await own.fetch(LOCK)
        await _claim(own, superuser, installation.id, name, is_used=name in await catalog.engines.list_used())
        await hand_over(own, superuser.owners, installation.secret)
        await _make_template_like(superuser, session, AdminConnector(first.conninfo).owners.template)
        service = AdminConnector(service_login(conninfo, installation))
        async with _login_checked(), AdminSession(service, METADATA_DATABASE) as trial:
            await trial.fetch("SELECT 1")
        databases = PostgresDatabases(service, installation.secret, temp_mb)
        await catalog.engines.add(name)
        await _bring_up_to_date(superuser, catalog, databases, walls, name)
        await own.fetch(NOTE_IDENTITY, installation.id, name, databases.furnishing)


async def _make_template_like(superuser: AdminConnector, first: AdminSession, template: str) -> None:
    """A template whose databases sort texts as those of the first engine do, wherever the engine can."""
    sorting = await sorting_of(first, template)
    try:
        await make_template(superuser, FULL, sorting)
    except StatementFailed as failure:
        _log.warning(
            "an engine sorts texts otherwise than the first, so no database can move there",
            first=sorting,
            reason=failure.message,
        )
        await make_template(superuser, FULL)


async def _claim(
    session: AdminSession, superuser: AdminConnector, installation: str, name: str, *, is_used: bool
) -> None:
    """Raises EngineRefused where the metadata database of the engine is another's, or not the one that it was."""
    metadata = superuser.owners.metadata
    if (await session.fetch(HAS_CATALOG))[0][0] == "t":
        raise EngineRefused(
            f"\n- its database {metadata} has the catalog of an installation: give another engine, or another database"
            " in the URL"
        )
    found = await session.fetch(FIND_IDENTITY)
    if found and found[0][:2] != (installation, name):
        whose = f"under the name {found[0][1]}" if found[0][0] == installation else "by another installation"
        raise EngineRefused(
            f"\n- its database {metadata} is used {whose}: give each engine its own database in the URL"
        )
    if not found and is_used:
        raise EngineRefused(
            f"\n- it has nothing of this installation, but databases live on the engine {name}: check the URL"
        )


async def show_first_key(conninfo: str, show: Callable[[Token], bool]) -> bool:
    """Makes it when all else is ready, so that no failure can lose it; anew, if it was made and never shown.

    `show` says whether it was to be seen. False where there is one already.
    """
    async with AdminSession(AdminConnector(conninfo), METADATA_DATABASE, patient=True) as session:
        await session.fetch(LOCK)
        catalog = Catalog(session)
        if await _has_key(session, catalog):
            return False  # another service of this installation was faster
        unseen = await find_unseen_key(session)
        if unseen is not None:
            await catalog.keys.remove_unseen(unseen)
        token = make_token(Kind.KEY, secrets.token_bytes(RANDOM_BYTES))
        await note_unseen_key(session, token.id)
        await _add_key(catalog, token, "first", [Scope.ADMIN, Scope.OPERATOR])
        if show(token):
            await note_unseen_key(session, None)
        return True


async def _has_key(session: AdminSession, catalog: Catalog) -> bool:
    return await find_unseen_key(session) is None and await catalog.keys.has_any()


async def _bring_up_to_date(
    owner: AdminConnector, catalog: Catalog, databases: PostgresDatabases, walls: Walls, engine: str
) -> None:
    """Databases of the engine that another version has made; what was prepared there would be in the way.

    One that a tenant has made impossible to bring up to date does not keep the others from being served.
    """
    for place in await catalog.databases.list_furnished_otherwise(databases.furnishing, engine):
        try:
            if walls.full:  # before there was a role of the service's own, a superuser had made it
                await adopt(owner, place.engine_name)
            await databases.finish_prepared(place.engine_name)
            await furnish(owner, place.engine_name, walls)
            await databases.open(place.engine_name)
        except StatementFailed as failure:
            _log.error("a database was not brought up to date", database=place.engine_name, reason=str(failure))
            continue
        await catalog.databases.mark_furnished(place.id, databases.furnishing)


async def _found(service: AdminConnector, catalog: Catalog, databases: PostgresDatabases, secret: bytes) -> str | None:
    """The first organization with its database; that, where it can be entered."""
    organization = await catalog.organizations.find_first()
    if organization is None:
        organization = "org_" + make_id(secrets.token_bytes(RANDOM_BYTES))
        actor = Actor(organization, None, None, _REQUEST)
        database = (make_database_id(), FIRST_DATABASE)
        await catalog.organizations.add(actor, organization, FIRST_ORGANIZATION, FIRST_TIER, database)
    for place in await catalog.databases.list_unfinished(organization):
        if place.state == "creating" and place.clone_of is None and place.engine == FIRST_ENGINE:
            await databases.create(place.engine_name)
            await catalog.databases.mark_made(place.id, databases.furnishing)
    return await _check_login(service, catalog, organization, secret)


async def _check_login(connector: AdminConnector, catalog: Catalog, organization: str, secret: bytes) -> str | None:
    """Tenants' roles log in with passwords, and the engine's rules of access must let them. Gives the database that
    they were tried in.

    A database that is being reset lets nobody in, and stays so where a crash came between: workers open it again.
    """
    database = await catalog.databases.find_default(organization)
    if database is None or database in await catalog.databases.list_in_reset():
        return None
    async with _login_checked():
        await check_login(connector, database, secret)
    return database


@asynccontextmanager
async def _login_checked() -> AsyncIterator[None]:
    try:
        yield
    except EngineUnavailable as exc:
        raise EngineRefused(
            f"\n- it does not let the roles of the service and of tenants' databases log in ({exc}): allow all roles"
            " into all databases with scram-sha-256 in pg_hba.conf, from this machine's address, and reload it"
        ) from exc


async def create_key(conninfo: str, name: str, scopes: list[Scope]) -> Token:
    """A key of the installation's own organization, for whoever sits at the machine."""
    async with AdminSession(AdminConnector(conninfo), METADATA_DATABASE) as session:
        token = make_token(Kind.KEY, secrets.token_bytes(RANDOM_BYTES))
        await _add_key(Catalog(session), token, name, scopes)
        return token


async def _add_key(catalog: Catalog, token: Token, name: str, scopes: list[Scope]) -> None:
    organization = await catalog.organizations.find_first()
    assert organization is not None, "install has made it"
    actor = Actor(organization, None, None, _REQUEST)
    await catalog.keys.add(actor, token, organization, name, scopes, None, None)
