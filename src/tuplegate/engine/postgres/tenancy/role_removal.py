"""Removes the roles of a dropped database, including roles that other tenants have granted rights to."""

import asyncio
import math
from contextlib import suppress

import structlog

from tuplegate.engine.port import EngineBusy, EngineFailure, StatementFailed
from tuplegate.engine.postgres.rights import roles
from tuplegate.engine.postgres.rights.roles import name_roles
from tuplegate.engine.postgres.service.admin import (
    LOCK_NOT_AVAILABLE,
    METADATA_DATABASE,
    NO_SUCH_ROLE,
    AdminConnector,
    AdminSession,
    TenantSession,
    write_membership,
)

_log = structlog.get_logger()

IN_USE, _DEPENDED_ON = "55006", "2BP01"
BUSY = (IN_USE, LOCK_NOT_AVAILABLE, "XX000")
"""In use; locked; changed by another session just now."""

# Tenants can name the databases and roles of others, and so hold a lock on them; but they have no business there.
_END_HOLDERS = f"""
SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'object' AND l.granted AND a.usename ~ '{roles.TENANTS}' AND {roles.MAY_END}
   AND (l.classid = 'pg_database'::regclass AND l.objid IN (SELECT oid FROM pg_database WHERE datname = $1)
     OR l.classid = 'pg_authid'::regclass
        AND l.objid IN (SELECT oid FROM pg_roles WHERE rolname ~ ('^' || $1 || '_.$')))
"""
_NAMED_IN = """
SELECT DISTINCT d.datname FROM pg_shdepend s JOIN pg_database d ON d.oid = s.dbid
 WHERE s.refclassid = 'pg_authid'::regclass AND s.refobjid = (SELECT oid FROM pg_roles WHERE rolname = $1)
"""
_LEFT_ROLES = """
SELECT rolname FROM pg_roles r WHERE rolname ~ '^tg_[a-z0-9]+_[rwdc]$' AND NOT rolcanlogin
   AND NOT EXISTS (SELECT FROM pg_database WHERE datname = left(rolname, -2))
   AND EXISTS (SELECT FROM pg_auth_members m WHERE m.roleid = r.oid AND m.admin_option
                  AND m.member = (SELECT oid FROM pg_roles WHERE rolname = current_user))
"""
"""Roles of this installation that were left when their database was dropped."""
_LEFT_EVERY_S = 60.0


async def end_holders(session: AdminSession, database: str) -> None:
    """End sessions of tenants that hold a lock on this database or its roles."""
    await session.fetch(_END_HOLDERS, database)


class RoleRemover:
    """Removes roles, and remembers when to look for those that are left."""

    def __init__(self, connector: AdminConnector, secret: bytes) -> None:
        self._connector = connector
        self._secret = secret
        self._look_at = -math.inf

    async def remove(self, session: AdminSession, database: str, role: str) -> None:
        """Remove a role. If others still name it, prevent its login, and try again later. Raises EngineBusy if its
        login cannot be prevented."""
        try:
            try:
                await session.fetch(f"DROP ROLE IF EXISTS {role}")
            except StatementFailed as failure:
                if failure.sqlstate not in (*BUSY, _DEPENDED_ON):
                    raise
                await end_holders(session, database)
                await self._take_back_rights(session, role)
                await session.fetch(f"DROP ROLE IF EXISTS {role}")
        except EngineFailure as failure:
            _log.warning("a role is left to be removed later", role=role, reason=str(failure))
            self._look_at = -math.inf
            try:
                await session.fetch(f"ALTER ROLE {role} NOLOGIN")
            except StatementFailed as refused:
                if refused.sqlstate != NO_SUCH_ROLE:
                    raise EngineBusy("a role can still log in; it is removed later") from refused

    async def _take_back_rights(self, session: AdminSession, role: str) -> None:
        """Revoke the rights that other tenants have granted to the role, as they may, since they can name it. Only they
        can revoke them: so make each, for a moment, a member of the role."""
        if roles.is_copying(role):  # it may have been left in the middle of a move
            await session.fetch(f"REVOKE SET ON PARAMETER session_replication_role FROM {role}")
        options = await write_membership(session, may_switch=False)
        for (database,) in await session.fetch(_NAMED_IN, role):
            writer = name_roles(str(database))[0]
            await session.fetch(f"GRANT {role} TO {writer}{options}")
            async with TenantSession(self._connector, self._secret, str(database)) as there:
                await there.fetch(f"DROP OWNED BY {role}")
            await session.fetch(f"REVOKE {role} FROM {writer}")

    async def remove_left(self) -> None:
        """Try again to remove roles that were left; look less often for those that another process has left."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return
        self._look_at = now + _LEFT_EVERY_S
        async with AdminSession(self._connector, METADATA_DATABASE) as session:
            for (role,) in await session.fetch(_LEFT_ROLES):
                with suppress(EngineBusy):
                    await self.remove(session, str(role)[:-2], str(role))
