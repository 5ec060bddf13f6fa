"""Removes the roles of a dropped database, including their rights in other tenants' databases.

A role with rights anywhere cannot be dropped. A tenant can name the roles of others, and so give them rights in its own
database: these are revoked first. DROP OWNED BY would do that, but this engine has it in the simple protocol only.
"""

from typing import Final

import structlog

from tuplegate.engine import port
from tuplegate.engine.cockroach.cluster.connector import Connector, ServiceSession
from tuplegate.engine.libpq.connections.logins import name_role
from tuplegate.engine.libpq.values.quoting import quote

_log: Final = structlog.get_logger()

_DEPENDED_ON: Final = "2BP01"
_LEFT_ROLES: Final = """
SELECT r.rolname FROM pg_catalog.pg_roles r
  JOIN pg_catalog.pg_auth_members m ON m.roleid = r.oid
  JOIN pg_catalog.pg_roles u ON u.oid = m.member AND u.rolname = current_user
 WHERE r.rolname ~ '^tg_[a-z0-9]+_[rw]$' AND NOT r.rolcanlogin
   AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_database d WHERE d.datname = left(r.rolname, -2))
"""
"""Roles of this installation that were left when their database was dropped."""
_TABLES: Final = """
SELECT DISTINCT table_catalog, table_schema, table_name FROM "".information_schema.table_privileges WHERE grantee = $1
"""
_DATABASES: Final = 'SELECT DISTINCT database_name FROM "".crdb_internal.cluster_database_privileges WHERE grantee = $1'
_ALL_DATABASES: Final = "SELECT datname FROM pg_catalog.pg_database WHERE datname <> 'system'"
_IN_ADVANCE: Final = """
SELECT DISTINCT database_name, role, for_all_roles, schema_name, object_type FROM crdb_internal.default_privileges
 WHERE grantee = $1 AND role IS DISTINCT FROM grantee
"""
_FUNCTIONS: Final = """
SELECT DISTINCT specific_catalog, specific_schema, routine_name, regexp_extract(specific_name, '[0-9]+$')
  FROM "".information_schema.role_routine_grants WHERE grantee = $1
"""


async def drop_role(connector: Connector, session: ServiceSession, role: str) -> None:
    """Drop a role. If it cannot be dropped yet, a later call tries again: its database is gone, and it cannot log
    in."""
    steps = (_take_rights_back, _give_away)
    for step in (*steps, None):
        try:
            await session.fetch(f"DROP ROLE IF EXISTS {quote(role)}")
            return
        except port.StatementFailed as failure:
            if failure.sqlstate != _DEPENDED_ON or step is None:
                _log.warning("a role is left to be removed later", role=role, reason=str(failure))
                return
        await step(connector, session, role)


async def drop_left_roles(connector: Connector, session: ServiceSession) -> None:
    """Try again to drop the roles that were left."""
    for (role,) in await session.fetch(_LEFT_ROLES):
        await drop_role(connector, session, str(role))


async def _take_rights_back(connector: Connector, session: ServiceSession, role: str) -> None:
    """Revoke the rights that others have given to the role, and default privileges for objects that they make later."""
    name = quote(role)
    for database, schema, table in await session.fetch(_TABLES, role):
        place = f"{quote(str(database))}.{quote(str(schema))}.{quote(str(table))}"
        await session.fetch(f"REVOKE ALL ON TABLE {place} FROM {name}")
    for (database,) in await session.fetch(_DATABASES, role):
        await session.fetch(f"REVOKE ALL ON DATABASE {quote(str(database))} FROM {name}")
    for database, giver, for_all, schema, kind in await session.fetch(_IN_ADVANCE, role):
        whose = "FOR ALL ROLES" if for_all == "t" else f"FOR ROLE {quote(str(giver))}"
        where = f" IN SCHEMA {quote(schema)}" if schema else ""
        async with ServiceSession(connector, str(database)) as there:
            await there.fetch(f"ALTER DEFAULT PRIVILEGES {whose}{where} REVOKE ALL ON {kind} FROM {name}")
    for database, schema, function, oid in await session.fetch(_FUNCTIONS, role):
        async with ServiceSession(connector, str(database)) as there:
            [(arguments,)] = await there.fetch("SELECT pg_get_function_identity_arguments($1::oid)", oid)
            place = f"{quote(str(schema))}.{quote(str(function))}({arguments or ''})"
            await there.fetch(f"REVOKE ALL ON FUNCTION {place} FROM {name}")


async def _give_away(connector: Connector, session: ServiceSession, role: str) -> None:
    """Give objects that the role has made in other tenants' databases to these tenants."""
    for (database,) in await session.fetch(_ALL_DATABASES):
        owner = name_role(str(database), port.Access.WRITE)
        if await session.fetch("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1", owner):
            async with ServiceSession(connector, str(database)) as there:
                await there.fetch(f"REASSIGN OWNED BY {quote(role)} TO {quote(owner)}")
