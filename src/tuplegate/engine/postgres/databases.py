"""Databases of tenants in the engine: made, copied, measured and dropped. Every step may be repeated after a crash."""

import asyncio
import hashlib
from collections.abc import Sequence

from tuplegate.engine.port import Access, EngineBusy, EngineFailure, StatementFailed
from tuplegate.engine.postgres import records, roles
from tuplegate.engine.postgres.admin import METADATA_DATABASE, AdminConnector, AdminSession, set_password
from tuplegate.engine.postgres.metadata import NOTE_RECOVERED

_MISSING, _IN_USE = "3D000", "55006"
_EXISTS = ("42P04", "23505")
"""The second where somebody else is making it just now, such as a server process whose worker was killed."""

_WAITS = (_IN_USE, "2BP01", "XX000")
"""In use; something still depends on the role, as in a copy that is being made; changed by somebody else just now."""

_TRY_AGAIN_S = 0.1
_DROP_TRIES_S = 10.0
_COPY_TRIES_S = 4.0
"""The engine itself waits for 5 s. What wants to use the source meanwhile is turned away after 10 s."""

_PORTIONS = {"answer": 20, "begun": 1000, "verdict": 1000}
"""Rows of each table of records that are carried over at a time; an answer can have 1 MiB."""

_PATIENCE = 10

_REWRITE_ROLES = """
DO $$
DECLARE place record; former oid; later oid; former_name text; later_name text;
BEGIN
  FOR former_name, later_name IN SELECT * FROM (VALUES {pairs}) pair LOOP
    former := former_name::regrole;
    later := later_name::regrole;
    FOR place IN SELECT f.fktable, f.fkcols[1] AS name, f.is_array
                   FROM pg_get_catalog_foreign_keys() f JOIN pg_class c ON c.oid = f.fktable
                  WHERE f.pktable = 'pg_authid'::regclass AND NOT c.relisshared LOOP
      IF place.is_array THEN
        EXECUTE format('UPDATE %s SET %I = array_replace(%I, $1, $2) WHERE $1 = ANY (%I)',
                       place.fktable, place.name, place.name, place.name) USING former, later;
      ELSE
        EXECUTE format('UPDATE %s SET %I = $2 WHERE %I = $1', place.fktable, place.name, place.name)
          USING former, later;
      END IF;
    END LOOP;
    FOR place IN SELECT a.attrelid::regclass AS fktable, a.attname AS name
                   FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                  WHERE a.atttypid = 'aclitem[]'::regtype AND c.relkind = 'r' AND NOT c.relisshared
                    AND c.relnamespace = 'pg_catalog'::regnamespace LOOP
      EXECUTE format('UPDATE %s SET %I = replace(%I::text, $1, $2)::aclitem[] WHERE %I::text LIKE $3',
                     place.fktable, place.name, place.name, place.name)
        USING former_name, later_name, '%' || former_name || '%';
    END LOOP;
    UPDATE pg_shdepend SET refobjid = later
     WHERE refclassid = 'pg_authid'::regclass AND refobjid = former
       AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database());
  END LOOP;
END $$
"""
"""Owners, rights, default rights and policies of a copy, from the roles of the one it was made of to its own.

The engine itself says which columns of its catalog name a role, so none is forgotten.
"""


class PostgresDatabases:
    """See the module's text. `secret` is the installation's; `temp_mb` what a statement may write into temporary files,
    where the server is not told that itself."""

    def __init__(self, connector: AdminConnector, secret: bytes, temp_mb: int | None = None) -> None:
        self._connector = connector
        self._secret = secret
        self._temp_mb = temp_mb

    async def create(self, name: str) -> None:
        await self._make(name, "template0")
        await self._furnish(name, roles.grants(name, self._temp_mb))

    @property
    def furnishing(self) -> str:
        made = [*self._entry("database"), *roles.furnishing("database")]
        return hashlib.sha256("\n".join(made).encode()).hexdigest()[:16]

    def _entry(self, name: str) -> list[str]:
        return roles.entry(name, self._temp_mb)

    async def furnish(self, name: str) -> None:
        await self._furnish(name, [*self._entry(name), *roles.furnishing(name)])

    async def copy(self, source: str, name: str) -> None:
        """A copy with nothing in it that speaks of the source. Raises EngineBusy while the source is used.

        It waits for a while: whoever uses the source was asked to let go.
        """
        deadline = asyncio.get_running_loop().time() + _COPY_TRIES_S
        while True:
            try:
                await self._make(name, source)
                break
            except StatementFailed as failure:
                if failure.sqlstate == _MISSING:
                    raise EngineBusy("the source was deleted; nothing was copied") from failure
                if failure.sqlstate != _IN_USE:
                    raise
                if asyncio.get_running_loop().time() > deadline:
                    raise EngineBusy("statements on the source have not ended in time; nothing was copied") from failure
                await asyncio.sleep(_TRY_AGAIN_S)
        pairs = ", ".join(
            f"('{former}', '{later}')" for former, later in zip(_roles(source), _roles(name), strict=True)
        )
        async with self._session(name, patient=True) as session:
            await session.fetch(_REWRITE_ROLES.replace("{pairs}", pairs))
            await session.fetch(records.EMPTY)
        await self._furnish(name, self._entry(name))

    async def silence(self, name: str) -> None:
        """What runs is cancelled and gets its error; what then still holds a connection is cut off."""
        async with self._session(METADATA_DATABASE) as session:
            await session.fetch(f"REVOKE CONNECT ON DATABASE {name} FROM {', '.join(_roles(name))}")
            for end in ("pg_cancel_backend(pid)", *["NULL"] * _PATIENCE, "pg_terminate_backend(pid, 5000)"):
                if not await session.fetch(f"SELECT {end} FROM pg_stat_activity WHERE datname = $1", name):
                    break
                await asyncio.sleep(_TRY_AGAIN_S)
            await self._finish_prepared(session, name)

    async def reopen(self, name: str) -> None:
        await self._furnish(name, self._entry(name))

    async def keep_outcomes(self, source: str, name: str) -> None:
        """Copies what is on record of the transactions of one database to another."""
        async with self._session(source, patient=True) as old, self._session(name, patient=True) as new:
            for table, portion in _PORTIONS.items():
                await old.fetch(f"DECLARE {table} CURSOR WITH HOLD FOR SELECT row_to_json(t) FROM tuplegate.{table} t")
                while rows := await old.fetch(f"FETCH {portion} FROM {table}"):
                    await new.fetch(
                        f"INSERT INTO tuplegate.{table} SELECT * FROM"
                        f" json_populate_recordset(NULL::tuplegate.{table}, $1::json) ON CONFLICT DO NOTHING",
                        f"[{','.join(str(row[0]) for row in rows)}]",
                    )

    async def drop(self, name: str) -> None:
        """Ends whatever runs in it. What was prepared there is decided and so is committed first."""
        deadline = asyncio.get_running_loop().time() + _DROP_TRIES_S
        gone = (*_roles(name), roles.dump_role_of(name))
        statements = [f"DROP DATABASE {name} WITH (FORCE)", *(f"DROP ROLE IF EXISTS {role}" for role in gone)]
        async with self._session(METADATA_DATABASE, patient=True) as session:
            while statements:
                try:
                    await session.fetch(statements[0])
                except StatementFailed as failure:
                    if failure.sqlstate in _WAITS:
                        if asyncio.get_running_loop().time() > deadline:
                            raise EngineBusy("the database is still in use; it is removed later") from failure
                        await self._finish_prepared(session, name)
                        await asyncio.sleep(_TRY_AGAIN_S)
                        continue
                    if failure.sqlstate != _MISSING:
                        raise
                statements.pop(0)

    async def sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Bytes on disk of those that exist."""
        async with self._session(METADATA_DATABASE) as session:
            rows = await session.fetch(
                "SELECT datname, pg_database_size(oid) FROM pg_database WHERE datname = ANY (string_to_array($1, ','))",
                ",".join(names),
            )
        return {str(name): int(size) for name, size in rows if size is not None}  # none for one that is just dropped

    def _session(self, database: str, *, patient: bool = False) -> AdminSession:
        return AdminSession(self._connector, database, "pg_catalog", patient=patient)

    async def _make(self, name: str, template: str) -> None:
        async with self._session(METADATA_DATABASE, patient=True) as session:
            for statement in roles.creation(name, template):
                try:
                    await session.fetch(statement)
                except StatementFailed as failure:
                    if failure.sqlstate not in _EXISTS:
                        raise
            for role in _roles(name):
                await set_password(session, role, self._secret)

    async def _furnish(self, name: str, rights: Sequence[str]) -> None:
        """Rights, and what the service's own records need."""
        async with self._session(name, patient=True) as session:
            await session.atomically([(statement, ()) for statement in rights])
            await session.fetch(
                "INSERT INTO tuplegate.secret (value) VALUES (decode($1, 'hex'))"
                " ON CONFLICT (only_one) DO UPDATE SET value = excluded.value",
                records.database_secret(self._secret, name).hex(),
            )

    async def _finish_prepared(self, metadata: AdminSession, name: str) -> None:
        gids = await metadata.fetch("SELECT gid FROM pg_prepared_xacts WHERE database = $1", name)
        async with self._session(name) as session:
            for (gid,) in gids:
                try:
                    await metadata.fetch(NOTE_RECOVERED, gid)
                    await session.fetch("COMMIT PREPARED '" + str(gid).replace("'", "''") + "'")
                except EngineFailure:
                    continue  # somebody else was quicker, or it goes with the next try


def _roles(database: str) -> list[str]:
    return [roles.role_of(database, access) for access in Access]
