"""Undoes settings that tenants' roles have stored at the server for their next connections, also in other databases.

A role may store settings for itself, for each database that it can name. They lie in a catalog that all databases
share, and count for no database's size. A new connection undoes those that concern it (`pool.py`); this undoes the
rest.
"""

import structlog

from tuplegate.background import tick
from tuplegate.engine.libpq.values.quoting import quote
from tuplegate.engine.port import EngineFailure
from tuplegate.engine.postgres.rights.roles import TENANTS
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession

_log = structlog.get_logger()

_EVERY_S = 2.0
_FIND = f"""
SELECT r.rolname, d.datname
  FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
 WHERE r.rolname ~ '{TENANTS}' AND pg_has_role(current_user, r.oid, 'MEMBER WITH ADMIN OPTION') LIMIT 100
"""


async def undo_settings(connector: AdminConnector) -> None:
    """Undo settings until cancelled, in a session of its own: a tenant's statement may hold the lock that this waits
    for."""
    async with AdminSession(connector, METADATA_DATABASE) as session:
        while True:
            await tick(_EVERY_S)
            try:
                for role, database in await session.fetch(_FIND):
                    await _undo(session, str(role), database)
            except EngineFailure:
                continue  # the engine is gone; it is asked again


async def _undo(session: AdminSession, role: str, database: str | None) -> None:
    place = "" if database is None else f" IN DATABASE {quote(database)}"
    try:
        await session.fetch(f"ALTER ROLE {role}{place} RESET ALL")
    except EngineFailure as failure:
        _log.warning("the settings of a role were not undone", role=role, reason=str(failure))
