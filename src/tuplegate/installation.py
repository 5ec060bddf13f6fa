"""Makes everything that the service needs before it can serve: the catalog, an organization, its database, and then a
key.

Every step first looks at what exists, so a start that was interrupted anywhere is finished by the next one.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from tuplegate.access.scopes import Scope
from tuplegate.access.tokens import RANDOM_BYTES, Token, TokenKind, make_id, make_token
from tuplegate.catalog import schema
from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.metadata import Actor
from tuplegate.engine import port
from tuplegate.tenancy.lifecycle import make_database_id

_log = structlog.get_logger()

FIRST_ORGANIZATION = "default"
FIRST_DATABASE = "main"
FIRST_TIER = "unlimited"
_REQUEST = "install"


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation. `login` is the workers' login, and `weaknesses` are those of all engines.
    `has_key` is false until the first key was shown."""

    login: port.ServiceLogin
    has_key: bool
    installation: schema.Installation
    weaknesses: tuple[port.Weakness, ...] = ()


async def install(
    owner: port.EngineOwner, beside: tuple[port.Weakness, ...] = (), *, accept_weaker_walls: bool = False
) -> Installed:
    """Bring the installation on the first engine up to date. One service process at a time. `beside` are the weaknesses
    of other engines."""
    async with owner.prepare() as preparation:
        session = preparation.session
        await schema.migrate(session)
        installation = await _find_or_make(session)
        ready = await preparation.make_ready(installation.secret)
        catalog = Catalog(session)
        await _bring_up_to_date(catalog, ready, port.FIRST_ENGINE)
        database = await _make_first_database(catalog, ready)
        weaknesses = tuple(dict.fromkeys((*await ready.find_weaknesses(database), *beside)))
        if not accept_weaker_walls and await catalog.organizations.count() > 1:
            _refuse_several(weaknesses)
        return Installed(ready.login, await _has_key(session, catalog), installation, weaknesses)


async def _find_or_make(session: port.MetadataSession) -> schema.Installation:
    installation = await schema.find_installation(session)
    if installation is None:
        installation = schema.Installation(make_id(secrets.token_bytes(RANDOM_BYTES)), secrets.token_bytes(32))
        await schema.add_installation(session, installation)
    elif await schema.has_old_secret(session):
        installation = schema.Installation(installation.id, secrets.token_bytes(32))
        await schema.replace_secret(session, installation.secret)
    return installation


def _refuse_several(weaknesses: tuple[port.Weakness, ...]) -> None:
    names = [weakness.name for weakness in weaknesses if weakness.reaches_others]
    if names:
        raise port.EngineRefused(
            "\n- there are several organizations, which are not kept apart in full"
            f" ({', '.join(names)}). Read in docs/walls.md what that means and what closes it; or accept it, and start"
            " with --accept-weaker-walls"
        )


async def prepare_engine(name: str, owner: port.EngineOwner, first: Installed) -> None:
    """Make everything on an engine beside the first that the installation needs there, except the catalog. May be
    repeated. Raises EngineRefused if the engine cannot be used at all."""
    await owner.examine(0)
    installation = first.installation
    async with owner.prepare() as preparation, first.login.metadata() as session:
        catalog = Catalog(session)
        await preparation.claim(installation.id, name, is_used=name in await catalog.engines.list_used())
        ready = await preparation.make_ready(installation.secret, await first.login.find_sorting())
        await catalog.engines.add(name)
        await _bring_up_to_date(catalog, ready, name)
        await ready.note_identity(installation.id, name)


async def show_first_key(owner: port.EngineOwner, show: Callable[[Token], bool]) -> bool:
    """Make the first key when everything else is ready, so that no failure can lose it; make it again if nobody saw it.

    `show` returns whether somebody could see it. Returns False if there is a key already.
    """
    async with owner.metadata(locked=True) as session:
        catalog = Catalog(session)
        if await _has_key(session, catalog):
            return False  # another service of this installation was faster
        unseen = await schema.find_unseen_key(session)
        if unseen is not None:
            await catalog.keys.remove_unseen(unseen)
        token = make_token(TokenKind.KEY, secrets.token_bytes(RANDOM_BYTES))
        await schema.note_unseen_key(session, token.id)
        await _add_key(catalog, token, "first", [Scope.ADMIN, Scope.OPERATOR])
        if show(token):
            await schema.note_unseen_key(session, None)
        return True


async def _has_key(session: port.MetadataSession, catalog: Catalog) -> bool:
    return await schema.find_unseen_key(session) is None and await catalog.keys.has_any()


async def _bring_up_to_date(catalog: Catalog, ready: port.ReadyEngine, engine: str) -> None:
    """Bring databases of the engine that another version has made up to date. If a tenant has made that impossible for
    one, the others are still served."""
    for place in await catalog.databases.list_furnished_otherwise(ready.furnishing, engine):
        try:
            await ready.refurnish(place.engine_name)
        except port.StatementFailed as failure:
            _log.error("a database was not brought up to date", database=place.engine_name, reason=str(failure))
            continue
        await catalog.databases.mark_furnished(place.id, ready.furnishing)


async def _make_first_database(catalog: Catalog, ready: port.ReadyEngine) -> str | None:
    """Make the first organization with its database; return the database's name if tenants can log in to it.

    A database that is being reset lets nobody in, and stays so if a crash came between: workers open it again.
    """
    organization = await catalog.organizations.find_first()
    if organization is None:
        organization = "org_" + make_id(secrets.token_bytes(RANDOM_BYTES))
        actor = Actor(organization, None, None, _REQUEST)
        database = (make_database_id(), FIRST_DATABASE)
        await catalog.organizations.add(actor, organization, FIRST_ORGANIZATION, FIRST_TIER, database)
    for place in await catalog.databases.list_unfinished(organization):
        if place.state == "creating" and place.clone_of is None and place.engine == port.FIRST_ENGINE:
            await ready.databases.create(place.engine_name)
            await catalog.databases.mark_made(place.id, ready.furnishing)
    name = await catalog.databases.find_default(organization)
    if name is None or name in await catalog.databases.list_in_reset():
        return None
    await ready.check_login(name)
    return name


async def create_key(owner: port.EngineOwner, name: str, scopes: list[Scope]) -> Token:
    """Make a key of the installation's own organization, for a user of the machine."""
    async with owner.metadata() as session:
        token = make_token(TokenKind.KEY, secrets.token_bytes(RANDOM_BYTES))
        await _add_key(Catalog(session), token, name, scopes)
        return token


async def _add_key(catalog: Catalog, token: Token, name: str, scopes: list[Scope]) -> None:
    organization = await catalog.organizations.find_first()
    assert organization is not None, "install has made it"
    actor = Actor(organization, None, None, _REQUEST)
    await catalog.keys.add(actor, token, organization, name, scopes, None, None)
