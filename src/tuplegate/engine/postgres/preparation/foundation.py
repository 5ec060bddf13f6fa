"""Prepares an engine as its owner: the installation's own roles, its metadata database, the template of databases.

The supervisor does this when the service starts; workers have no such login. Every step first looks at what exists and
may be repeated, and two service processes on one engine take turns (`metadata.LOCK`). The owner is a superuser, or a
role with CREATEDB and CREATEROLE. The latter gives itself the rights of the roles that it makes, and does without the
rights that it is refused (`walls.py`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tuplegate.engine.libpq.connections.identity import FIND_IDENTITY
from tuplegate.engine.libpq.values.quoting import quote, quote_text
from tuplegate.engine.port import EngineFailure, EngineUnavailable, StatementFailed
from tuplegate.engine.postgres.rights import roles
from tuplegate.engine.postgres.rights.owners import NAME_LENGTH_MAX, Owners
from tuplegate.engine.postgres.rights.walls import FULL, Walls, tolerate
from tuplegate.engine.postgres.service import metadata
from tuplegate.engine.postgres.service.admin import (
    DATABASES_OF_EVERY_SERVER,
    METADATA_DATABASE,
    AdminConnector,
    AdminSession,
    set_password,
    write_membership,
)
from tuplegate.engine.postgres.service.probes import Capabilities, probe
from tuplegate.engine.postgres.tenancy import template

_EXISTS = ("42P04", "23505")
"""The second means that another process is making it just now."""

_OWNER_OF_OTHERS = """
SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = $1 AND NOT pg_has_role(current_user, datdba, 'USAGE')
"""

_GRANT_AUTOVACUUM = """
DO $$ BEGIN GRANT pg_signal_autovacuum_worker TO {service};
EXCEPTION WHEN undefined_object OR insufficient_privilege THEN NULL; END $$
"""
"""PostgreSQL 18 has that role; before, only a superuser can end autovacuum."""

_LOCKDOWN = (
    "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC",
    "REVOKE CONNECT ON DATABASE template1 FROM PUBLIC",
)
"""On a server of the installation's own: tenants' roles may not enter the databases that every server has."""

_HAND_OVER = """
DO $$
DECLARE item record;
BEGIN
  FOR item IN SELECT c.oid::regclass AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname IN ('public', 'engine') AND c.relkind IN ('r', 'p', 'v')
                 AND c.relowner <> {service}::regrole
  LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO %s', item.name, {service}::regrole);
  END LOOP;
END $$
"""


class NameTaken(EngineFailure):
    """The server already has a role or a database under a name that the installation needs."""


async def find_capabilities(connector: AdminConnector) -> Capabilities:
    async with _open_anywhere(connector) as session:
        return await probe(session)


@asynccontextmanager
async def _open_anywhere(connector: AdminConnector) -> AsyncIterator[AdminSession]:
    """Open a session on a database that exists before the service has made any. Raises EngineUnavailable."""
    failure: EngineUnavailable | None = None
    for database in (*DATABASES_OF_EVERY_SERVER, METADATA_DATABASE):
        async with AdminSession(connector, database) as session:
            try:
                await session.fetch("SELECT 1")
            except EngineUnavailable as exc:
                failure = failure or exc
            else:
                yield session
                return
    assert failure is not None
    raise failure


async def make_metadata_database(connector: AdminConnector, *, exclusive: bool = True) -> Walls:
    """Make the metadata database and the installation's roles, with as many rights as the owner can give. May be
    repeated, and run concurrently.

    `exclusive` says that the server is the installation's own: then the doors that a new server leaves open are closed.
    """
    owners = connector.owners
    if len(owners.metadata) > NAME_LENGTH_MAX:
        raise NameTaken(f"the name of the metadata database is longer than {NAME_LENGTH_MAX} characters: shorten it")
    name = quote(owners.metadata)
    async with _open_anywhere(connector) as session:
        await _make_database(session, owners.metadata)
        if foreign := await session.fetch(_OWNER_OF_OTHERS, owners.metadata):
            raise NameTaken(
                f"the database {owners.metadata} belongs to the role {foreign[0][0]}: give the URL of the role that"
                " made it, or of a superuser, or name another database in the URL"
            )
    async with AdminSession(connector, METADATA_DATABASE, patient=True) as session:
        await session.fetch(metadata.LOCK)
        [(is_superuser,)] = await session.fetch("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        await session.fetch(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
        for statement in _LOCKDOWN if exclusive else ():
            await session.fetch(statement)
        await _make_owners(session, owners, exclusive=exclusive)
        if is_superuser != "t":
            await _take_rights(session, owners)
        await _equip_owners(session, owners, full=is_superuser == "t")
        await session.fetch(f"ALTER DATABASE {name} OWNER TO {quote(owners.service)}")
        if exclusive:
            # Where the disk has little room: disk_watch.py.
            await session.fetch(f"GRANT pg_checkpoint TO {quote(owners.service)}")
            await session.fetch(f"GRANT EXECUTE ON FUNCTION pg_catalog.pg_ls_tmpdir() TO {quote(owners.service)}")
        for statement in metadata.SCHEMA:
            await session.fetch(statement)
        if is_superuser == "t":
            return FULL
        [(sees_memory,)] = await session.fetch(
            "SELECT has_function_privilege($1, 'pg_catalog.pg_get_backend_memory_contexts()', 'EXECUTE')", owners.warden
        )
        return Walls(full=False, sees_memory=sees_memory == "t")


async def _make_database(session: AdminSession, name: str, sorting: str = "") -> None:
    if await session.fetch("SELECT 1 FROM pg_database WHERE datname = $1", name):
        return
    try:
        await session.fetch(f"CREATE DATABASE {quote(name)} TEMPLATE template0 ENCODING 'UTF8' {sorting}")
    except StatementFailed as exc:
        if exc.sqlstate not in _EXISTS:  # somebody else was quicker
            raise


async def _make_owners(session: AdminSession, owners: Owners, *, exclusive: bool) -> None:
    for role, attributes in (
        (owners.service, "LOGIN INHERIT CREATEDB CREATEROLE"),
        (owners.records, "NOLOGIN"),
        (owners.warden, "NOLOGIN INHERIT"),
        (owners.dump, "NOLOGIN"),
    ):
        found = await session.fetch("SELECT shobj_description(oid, 'pg_authid') FROM pg_roles WHERE rolname = $1", role)
        if found and found[0][0] != owners.mark and not exclusive:
            raise NameTaken(
                f"it has a role {role} that this service did not make: rename that role, or name another database in"
                " the URL"
            )
        await session.fetch(roles.make_role(quote(role), attributes))
        await session.fetch(f"COMMENT ON ROLE {quote(role)} IS {quote_text(owners.mark)}")


async def _take_rights(session: AdminSession, owners: Owners) -> None:
    """Give the preparing role the rights of the roles that it has made: a superuser has them anyway."""
    names = ", ".join(quote(role) for role in (owners.service, owners.records, owners.warden, owners.dump))
    await session.fetch(f"GRANT {names} TO CURRENT_USER{await write_membership(session, may_switch=True)}")


async def _equip_owners(session: AdminSession, owners: Owners, *, full: bool) -> None:
    """Give the installation's roles the server's rights that they need; if not `full`, as many as the owner can
    give."""
    service, warden = quote(owners.service), quote(owners.warden)
    await session.fetch(_GRANT_AUTOVACUUM.replace("{service}", service))
    await session.fetch(f"GRANT {quote(owners.dump)} TO {service} WITH ADMIN OPTION")
    for statement in (
        *(f"GRANT {role} TO {service}" for role in ("pg_read_all_stats", "pg_read_all_settings", "pg_signal_backend")),
        f"GRANT pg_read_all_stats TO {warden}",
        *(f"GRANT SET ON PARAMETER {name} TO {service}" for name in roles.SETTINGS_OF_DATABASES),
    ):
        await session.fetch(statement if full else tolerate(statement))
    for statement in (
        # Databases that move are followed meanwhile: following.py. Where it may not be granted, they move all at once.
        f"ALTER ROLE {service} REPLICATION",
        f"GRANT SET ON PARAMETER session_replication_role TO {service} WITH GRANT OPTION",
    ):
        await session.fetch(statement if full else tolerate(statement))


async def hand_over(session: AdminSession, owners: Owners, secret: bytes) -> None:
    """Give the service's role the objects in the metadata database, and its password. The schema comes first: a new
    owner of a table must have the right to create in its schema."""
    await session.fetch(f"ALTER SCHEMA engine OWNER TO {quote(owners.service)}")
    await session.fetch(_HAND_OVER.replace("{service}", quote_text(quote(owners.service))))
    await set_password(session, owners.service, secret)


async def make_template(connector: AdminConnector, walls: Walls, sorting: str = "") -> None:
    """Make the template, anew if another version has made it. Nobody else can connect to it.

    `sorting` is the collation of its databases, if it differs from the server's default.
    """
    owners = connector.owners
    name, made_of = quote(owners.template), template.write_furnishing(owners, walls)
    version = f"{owners.mark} {template.stamp_version(made_of)}"
    async with AdminSession(connector, METADATA_DATABASE) as session:
        await _make_database(session, owners.template, sorting)
        found = await session.fetch(
            "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = $1", owners.template
        )
        if found[0][0] == version:
            return
        await session.fetch(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true IS_TEMPLATE true")
        await session.fetch(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
        try:
            await furnish(connector, owners.template, walls)
        finally:
            await session.fetch(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        await session.fetch(f"COMMENT ON DATABASE {name} IS {quote_text(version)}")


async def furnish(connector: AdminConnector, database: str, walls: Walls) -> None:
    """Make the service's own objects in a database; bring those of an older version up to date."""
    async with AdminSession(connector, database) as session:
        await session.run_atomically(
            [(statement, ()) for statement in template.write_furnishing(connector.owners, walls)]
        )


async def check_prepared(session: AdminSession, installation: str, name: str, furnishing: str) -> None:
    """Raise EngineUnavailable until the supervisor of a service of this version has prepared the engine."""
    try:
        found = await session.fetch(FIND_IDENTITY)
    except StatementFailed as failure:
        raise EngineUnavailable("it is not prepared yet", failure.message) from failure
    if found != [(installation, name, furnishing)]:
        raise EngineUnavailable("it is not prepared yet")
