"""Makes, copies, moves, measures and drops databases of tenants. Every step may be repeated after a crash.

The service's own role does it, since it owns them; the tenant's role changes the tenant's own objects in them.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tuplegate.engine import port
from tuplegate.engine.bundled.binaries import DumpTool
from tuplegate.engine.libpq.connections.logins import database_secret
from tuplegate.engine.libpq.values.quoting import quote_text
from tuplegate.engine.postgres.rights import roles
from tuplegate.engine.postgres.rights.roles import name_roles
from tuplegate.engine.postgres.rights.walls import FULL, Walls
from tuplegate.engine.postgres.safety.sizes import SIZES_SQL
from tuplegate.engine.postgres.service import records
from tuplegate.engine.postgres.service.admin import (
    LOCK_NOT_AVAILABLE,
    METADATA_DATABASE,
    AdminConnector,
    AdminSession,
    TenantSession,
    set_password,
)
from tuplegate.engine.postgres.service.metadata import NOTE_RECOVERED
from tuplegate.engine.postgres.tenancy import copies, template
from tuplegate.engine.postgres.tenancy.role_removal import BUSY, IN_USE, RoleRemover, end_holders
from tuplegate.engine.postgres.transfer.carrying import Side, allow_dump, check_fit, dump_and_restore
from tuplegate.engine.postgres.transfer.comparing import compare_sides
from tuplegate.engine.postgres.transfer.following import PUBLICATION, Follower, Limits, stop_following, try_to_stop
from tuplegate.engine.postgres.transfer.record_copies import bring_notes, carry_records

_MISSING, _NO_RIGHT = "3D000", "42501"
_EXISTS = ("42P04", "23505")
"""The second means that somebody else is making it just now, such as a server process whose worker was killed."""

_DROP_WAITS = (*BUSY, _NO_RIGHT)
"""Also retry if a session is in the database that the service may not end, such as an administrator's."""

_VANISHED = "42704"
"""A listed database was dropped before its size was read."""

_END_MAKERS = (
    "SELECT wait_event = 'SyncRep' OR pg_terminate_backend(pid, 1000) FROM pg_stat_activity"
    " WHERE state = 'active' AND starts_with(query, $1 || ' ')"
)
"""Ends server processes that make a database: the worker of one may have been killed."""

_TRY_AGAIN_S = 0.1
_DROP_TRIES_S = 10.0
_COPY_TRIES_S = 4.0
"""The engine itself waits for 5 s. Meanwhile, other work on the source is refused after 10 s."""

_PATIENCE = 10

_SILENCE_S = 10.0
"""How long what was prepared in a database may take to be committed, and what waits for a standby."""

_PREPARED = "SELECT gid, owner FROM pg_prepared_xacts WHERE database = $1"
_COMMITTING = """
SELECT gid FROM pg_prepared_xacts WHERE database = $1
UNION ALL SELECT 'in process ' || pid FROM pg_stat_activity WHERE datname = $1 AND wait_event = 'SyncRep' ORDER BY 1
"""

_USERS = f"SELECT 1 FROM pg_stat_activity WHERE datname = $1 AND usename ~ '{roles.TENANTS}' LIMIT 1"
_MAY_ENTER = (
    "SELECT 1 FROM pg_roles WHERE rolname IN ($1 || '_w', $1 || '_r')"
    " AND has_database_privilege(oid, $1::name, 'CONNECT') LIMIT 1"
)
_LET_END_TICK_S = 0.02
_LOAD = """
SELECT count(*), count(*) FILTER (WHERE state = 'active' AND pid <> pg_backend_pid()),
       current_setting('max_connections')
  FROM pg_stat_activity WHERE backend_type = 'client backend'
"""


class PostgresDatabases:
    """The databases of one server. `secret` is the installation's; `temp_mb` bounds the temporary files of a statement,
    unless the server has that bound in its own settings; `walls` describes how the template was made."""

    def __init__(
        self,
        connector: AdminConnector,
        secret: bytes,
        temp_mb: int | None = None,
        walls: Walls = FULL,
        tools: tuple[DumpTool, ...] = (),
        limits: Limits | None = None,
    ) -> None:
        self._connector = connector
        self._secret = secret
        self._temp_mb = temp_mb
        self._tools = tools
        self._limits = limits or Limits()
        self._walls = walls
        self._role_remover = RoleRemover(connector, secret)

    @asynccontextmanager
    async def reach(self, name: str) -> AsyncIterator["PostgresDatabases"]:
        yield self

    async def create(self, name: str, *, for_copy: bool = False) -> None:
        await self._make(name, self._connector.owners.template)
        await self.open(name)
        async with self._session(name) as session:
            await session.run_atomically([(statement, ()) for statement in roles.write_public_rights(name)])
        if for_copy:
            return
        async with TenantSession(self._connector, self._secret, name) as session:
            await session.run_atomically([(statement, ()) for statement in roles.write_default_rights(name)])

    @property
    def furnishing(self) -> str:
        entry = roles.write_entry("database", self._temp_mb, self._walls)
        return template.stamp_version([*entry, *template.write_furnishing(self._connector.owners, self._walls)])

    def furnishing_of(self, name: str) -> str:
        return self.furnishing

    async def open(self, name: str) -> None:
        """Let the tenant in, and give the records their secret and rights. May be repeated at any time."""
        async with self._session(METADATA_DATABASE) as session:
            for role in name_roles(name):
                await set_password(session, role, self._secret)
            await session.run_atomically(
                [(statement, ()) for statement in roles.write_entry(name, self._temp_mb, self._walls)]
            )
        async with self._session(name) as session:
            await session.fetch(records.SIGN_WITH, database_secret(self._secret, name).hex())
            await session.fetch(template.give_writing_functions(name_roles(name)[0]))

    async def copy(self, source: str, name: str) -> None:
        """Make a copy that names nothing of the source. Raises EngineBusy while the source is used.

        It waits for a while: users of the source were asked to leave.
        """
        deadline = asyncio.get_running_loop().time() + _COPY_TRIES_S
        while True:
            try:
                await self._make(name, source)
                break
            except port.StatementFailed as failure:
                if failure.sqlstate == _MISSING:
                    raise port.EngineBusy("the source was deleted; nothing was copied") from failure
                if failure.sqlstate not in (IN_USE, LOCK_NOT_AVAILABLE):
                    raise
                if asyncio.get_running_loop().time() > deadline:
                    raise port.EngineBusy(
                        "statements on the source have not ended in time; nothing was copied"
                    ) from failure
                await asyncio.sleep(_TRY_AGAIN_S)
        await self.open(name)
        async with self._session(name) as session:
            await session.fetch(records.EMPTY)
            await session.fetch(f"REVOKE ALL ON SCHEMA public FROM {', '.join(name_roles(source))}")
            await session.fetch(template.take_writing_functions(name_roles(source)[0]))
            await session.run_atomically([(statement, ()) for statement in roles.write_public_rights(name)])
        async with (
            self._make_copying_role(source, name) as role,
            TenantSession(self._connector, self._secret, name, role, patient=True) as session,
        ):
            await session.run_atomically([(statement, ()) for statement in copies.write_rewriting(source, name)])

    @asynccontextmanager
    async def _make_copying_role(self, source: str, name: str) -> AsyncIterator[str]:
        """Make a role for the duration of a copy. Meanwhile the new writing role has the source's rights: to own
        objects in a schema it needs rights to that schema, which may be granted later."""
        role, writer, former = roles.name_copy_role(name), name_roles(name)[0], name_roles(source)[0]
        async with self._session(METADATA_DATABASE) as session:
            await session.fetch(roles.make_role(role, "LOGIN INHERIT"))
            await session.fetch(roles.watch_over(role))
            await session.fetch(f"GRANT {', '.join((*name_roles(source), *name_roles(name)))} TO {role}")
            await session.fetch(f"GRANT {former} TO {writer}")
            await set_password(session, role, self._secret)
        try:
            yield role
        finally:
            async with self._session(METADATA_DATABASE) as session:
                await session.fetch(f"REVOKE {former} FROM {writer}")
                await session.fetch(f"REVOKE {', '.join((*name_roles(source), *name_roles(name)))} FROM {role}")
                await self._role_remover.remove(session, name, role)

    async def silence(self, name: str) -> None:
        """Cancel what runs, which gets its error; cut off what still holds a connection then. What is being committed
        is waited for."""
        deadline = asyncio.get_running_loop().time() + _SILENCE_S
        async with self._session(METADATA_DATABASE) as session:
            await self._end_all(session, name)
            while committing := await session.fetch(_COMMITTING, name):
                if asyncio.get_running_loop().time() > deadline:
                    names = ", ".join(str(each) for (each,) in committing)
                    raise port.EngineBusy(f"transactions that are being committed in the database do not end: {names}")
                await self.finish_prepared(name)
                await self._end_all(session, name)
                await asyncio.sleep(_TRY_AGAIN_S)

    async def _end_all(self, session: AdminSession, name: str) -> None:
        await session.fetch(f"REVOKE CONNECT ON DATABASE {name} FROM {', '.join(name_roles(name))}")
        for end in ("pg_cancel_backend(pid)", *["NULL"] * _PATIENCE, "pg_terminate_backend(pid, 5000)"):
            if not await session.fetch(
                f"SELECT {end} FROM pg_stat_activity WHERE datname = $1 AND {roles.MAY_END}", name
            ):
                break
            await asyncio.sleep(_TRY_AGAIN_S)

    async def finish_prepared(self, name: str) -> None:
        """Commit transactions that were prepared in the database, as the role that prepared them: no other may, and
        prepared means decided."""
        async with self._session(METADATA_DATABASE) as metadata:
            prepared = await metadata.fetch(_PREPARED, name)
            for owner in sorted({str(owner) for _, owner in prepared} & set(name_roles(name))):
                await metadata.fetch(f"GRANT CONNECT ON DATABASE {name} TO {owner}")
                async with TenantSession(self._connector, self._secret, name, owner) as session:
                    for gid in (str(gid) for gid, whose in prepared if whose == owner):
                        try:
                            await metadata.fetch(NOTE_RECOVERED, gid)
                            await session.fetch(f"COMMIT PREPARED {quote_text(gid)}")
                        except port.EngineFailure:
                            continue  # somebody else was quicker, or it goes with the next try

    async def keep_outcomes(self, source: str, name: str) -> None:
        """Copy the records of one database's transactions to another."""
        async with self._session(source, patient=True) as old, self._session(name, patient=True) as new:
            await carry_records(old, new)

    async def take_over(self, other: port.ServerDatabases, source: str, name: str) -> None:
        assert isinstance(other, PostgresDatabases), "engines of one kind"
        there, here = other.side(source), self.side(name)
        await check_fit(there, here)
        await self._make_source_roles(source)
        async with self._make_copying_role(source, name) as role:
            async with allow_dump(there):
                await dump_and_restore(there, here, role, self._limits.timeout_s)
                await compare_sides(there, here, role)
            await self._own_rights(source, name, role)
        await self.forget_source(source)
        await bring_notes(there, here)

    @asynccontextmanager
    async def follow(self, other: port.ServerDatabases, source: str, name: str) -> AsyncIterator[port.Following]:
        assert isinstance(other, PostgresDatabases), "engines of one kind"
        there, here = other.side(source), self.side(name)
        await check_fit(there, here)
        await self._make_source_roles(source)
        async with self._make_copying_role(source, name) as role, self._allow_applying(role), allow_dump(there):
            follower = Follower(there, here, role, self._limits)
            try:
                await follower.begin()
                await follower.copy()
                await self._own_rights(source, name, role)
                async with TenantSession(self._connector, self._secret, name) as session:
                    await session.fetch(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")
                await follower.bring_notes()
                yield follower
            finally:
                await try_to_stop(there)
        await self.forget_source(source)

    @asynccontextmanager
    async def _allow_applying(self, role: str) -> AsyncIterator[None]:
        """Let the role apply changes from the source without triggers and foreign keys, which have acted there
        already."""
        async with self._session(METADATA_DATABASE) as session:
            try:
                await session.fetch(f"GRANT SET ON PARAMETER session_replication_role TO {role}")
            except port.StatementFailed as failure:
                raise port.NotSupported(f"changes cannot be applied on the engine: {failure.message}") from failure
        try:
            yield
        finally:
            async with self._session(METADATA_DATABASE) as session:
                await session.fetch(f"REVOKE SET ON PARAMETER session_replication_role FROM {role}")

    async def stop_following(self, name: str, *, dumped: bool) -> None:
        if dumped:
            await stop_following(self.side(name))
        else:
            async with allow_dump(self.side(name)):
                await stop_following(self.side(name))
        async with self._session(METADATA_DATABASE) as session:
            await self._role_remover.remove(session, name, roles.name_copy_role(name))

    async def _own_rights(self, source: str, name: str, role: str) -> None:
        async with self.side(name).tenant(role) as session:
            await session.run_atomically([(statement, ()) for statement in copies.write_rewriting(source, name)])

    def side(self, database: str) -> Side:
        return Side(self._connector, self._secret, self._tools, database, self._limits.stall_s)

    async def _make_source_roles(self, source: str) -> None:
        """Make the roles of the source, which the rights in a dump name. Nobody logs in as these here."""
        async with self._session(METADATA_DATABASE) as session:
            for role in name_roles(source):
                await session.fetch(roles.make_role(role, "LOGIN INHERIT"))

    async def forget_source(self, source: str) -> None:
        async with self._session(METADATA_DATABASE) as session:
            if await session.fetch("SELECT FROM pg_database WHERE datname = $1", source):
                return  # it lives here
            for role in name_roles(source):
                await self._role_remover.remove(session, source, role)

    async def let_end(self, name: str, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        async with self._session(METADATA_DATABASE) as session:
            while await session.fetch(_USERS, name):
                if asyncio.get_running_loop().time() > deadline:
                    return
                await asyncio.sleep(_LET_END_TICK_S)

    async def check_silent(self, name: str) -> None:
        async with self._session(METADATA_DATABASE) as session:
            if await session.fetch(_USERS, name) or await session.fetch(_PREPARED, name):
                raise port.EngineBusy("a statement on the database does not end; nothing was changed")
            if await session.fetch(_MAY_ENTER, name):
                raise port.EngineBusy("the database was opened by somebody else meanwhile; nothing was changed")

    async def analyze(self, name: str) -> None:
        async with self.side(name).tenant() as session:
            await session.fetch("ANALYZE")

    async def drop(self, name: str) -> None:
        """Drop a database, ending all its sessions. Commit its prepared transactions first, since they are decided.

        A role that others still name cannot be dropped; it cannot log in, and the database is dropped all the same.
        """
        async with self._session(METADATA_DATABASE, patient=True) as session:
            deadline = asyncio.get_running_loop().time() + _DROP_TRIES_S
            while (failure := await _try_to_drop(session, name)) is not None:
                if asyncio.get_running_loop().time() > deadline:
                    raise port.EngineBusy("the database is still in use; it is removed later") from failure
                await end_holders(session, name)
                await self.finish_prepared(name)
                await asyncio.sleep(_TRY_AGAIN_S)
            for role in (*name_roles(name), roles.name_dump_role(name), roles.name_copy_role(name)):
                await self._role_remover.remove(session, name, role)

    async def drop_left_roles(self) -> None:
        await self._role_remover.remove_left()

    async def sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Return the sizes of the databases that exist, as their bounds count them."""
        async with self._session(METADATA_DATABASE) as session:
            while True:
                try:
                    rows = await session.fetch(SIZES_SQL, ",".join(names))
                    break
                except port.StatementFailed as failure:
                    if failure.sqlstate != _VANISHED:
                        raise  # otherwise there is one fewer the next time
        # None for one that is just dropped.
        return {str(name): int(files) + int(shared or 0) for name, files, shared in rows if files is not None}

    async def find_awake(self, names: Sequence[str]) -> set[str]:
        return set(names)

    async def load(self) -> port.Load:
        async with self._session(METADATA_DATABASE) as session:
            [row] = await session.fetch(_LOAD)
        return port.Load(*(int(str(value)) for value in row))

    def _session(self, database: str, *, patient: bool = False) -> AdminSession:
        return AdminSession(self._connector, database, patient=patient)

    async def _make(self, name: str, source: str) -> None:
        async with self._session(METADATA_DATABASE, patient=True) as session:
            for statement in roles.write_creation(name, source):
                try:
                    await session.fetch(statement)
                except port.StatementFailed as failure:
                    if failure.sqlstate not in _EXISTS:
                        raise


async def _try_to_drop(session: AdminSession, name: str) -> port.StatementFailed | None:
    """Drop a database. Return the failure if it is worth another try."""
    is_being_made = await session.fetch(_END_MAKERS, f"CREATE DATABASE {name}")
    try:
        await session.fetch(f"DROP DATABASE {name} WITH (FORCE)")
    except port.StatementFailed as failure:
        if failure.sqlstate == _MISSING:
            return failure if is_being_made else None
        if failure.sqlstate not in _DROP_WAITS:
            raise
        return failure
    return None
