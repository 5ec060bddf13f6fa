"""Brings a tenant's database to another engine: PostgreSQL's pg_dump writes to its pg_restore.

Contract: both programs run with the rights of the tenant's roles and no others. Unlike a dump for people, this one
includes rights, which name the roles of the source; the caller replaces those by the new database's own. The source is
silent meanwhile. The restored data are durable once the next commit on that engine is. Neither program outlives this
process.
"""

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO

import msgspec

from tuplegate.engine.bundled.binaries import DumpTool
from tuplegate.engine.libpq.connections import logins
from tuplegate.engine.libpq.connections.commands import ConnectionLost
from tuplegate.engine.libpq.values.quoting import quote, quote_text
from tuplegate.engine.port import EngineUnavailable, MoveFailed, NoProgress, NotSupported
from tuplegate.engine.postgres.rights import roles
from tuplegate.engine.postgres.rights.owners import Owners
from tuplegate.engine.postgres.service.admin import (
    METADATA_DATABASE,
    AdminConnector,
    AdminSession,
    TenantSession,
    set_password,
)
from tuplegate.engine.postgres.service.scratch_names import find_schemas

_TICK_S = 0.01
_END_S = 5.0
_SAID_MAX = 1000
_LOOK_S = 1.0
NO_CONNECTION = "connection to server"

_SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "tuplegate")
"""The service has changed rights in these schemas, in the same way in every database of an installation."""

DUMP_SETTINGS = {"default_transaction_isolation": "repeatable read", "default_transaction_read_only": "on"}
_RESTORE_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    # The caller commits once more, and waits for the disk then.
    "synchronous_commit": "off",
    "statement_timeout": "0",
    "local_preload_libraries": "",
}

# The activity and progress of a role's sessions.
_PROGRESS = """
SELECT a.pid, a.query_start, a.state, c.bytes_processed, c.tuples_processed, i.phase, i.blocks_done, i.tuples_done,
       upper(substring(a.query FROM '^\\s*(\\w+(\\s+\\w+)?)'))
  FROM pg_stat_activity a LEFT JOIN pg_stat_progress_copy c ON c.pid = a.pid
       LEFT JOIN pg_stat_progress_create_index i ON i.pid = a.pid
 WHERE a.usename = $1 ORDER BY a.pid
"""
_END_SESSIONS = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1 AND {roles.MAY_END}"

_MAJOR = "SELECT current_setting('server_version_num')::int / 10000"
_SORTING = "SELECT row_to_json(d) FROM pg_database d WHERE datname = $1"
FORCED = """
SELECT c.oid::regclass FROM pg_class c WHERE c.relkind = 'r' AND c.relrowsecurity AND c.relforcerowsecurity
   AND c.relnamespace <> 'tuplegate'::regnamespace ORDER BY 1 LIMIT 1
"""


# Rights and policies that name another tenant's role. The catalog is shared by all databases, and names the object by
# numbers.
_NAMED = f"""
SELECT s.classid, s.objid, s.objsubid, r.rolname
  FROM pg_shdepend s JOIN pg_roles r ON r.oid = s.refobjid JOIN pg_database d ON d.oid = s.dbid
 WHERE s.refclassid = 'pg_authid'::regclass AND s.deptype IN ('a', 'r') AND d.datname = $1
   AND r.rolname ~ '{roles.TENANTS}' AND left(r.rolname, -2) <> $1 LIMIT 1
"""
_DESCRIBE = "SELECT pg_describe_object($1::oid, $2::oid, $3::int)"


@dataclass(frozen=True, slots=True)
class Side:
    """A database, its engine's connector, and the programs for that engine."""

    connector: AdminConnector
    secret: bytes
    tools: tuple[DumpTool, ...]
    database: str
    stall_s: float = 300.0
    """How long work there may make no progress."""

    def session(self) -> AdminSession:
        return AdminSession(self.connector, self.database)

    def patient(self) -> AdminSession:
        """Return a session for statements that take as long as there is data."""
        return AdminSession(self.connector, self.database, patient=True, limit_s=self.stall_s)

    def tenant(self, role: str | None = None) -> AdminSession:
        """Return a patient session with the tenant's rights, or those of another role."""
        return TenantSession(self.connector, self.secret, self.database, role, patient=True, limit_s=self.stall_s)

    def watcher(self) -> AdminSession:
        """Return a session that sees all sessions on the engine, and the log of changes."""
        return AdminSession(self.connector, METADATA_DATABASE, limit_s=self.stall_s)

    async def conninfo(self, role: str, settings: dict[str, str]) -> tuple[dict[str, str], str]:
        """Return variables for a program, and a conninfo for the rest."""
        login = logins.as_role(self.connector.conninfo, self.secret, role)
        try:
            reached = await self.connector.primary.reach(logins.add_settings(login, self.database, settings))
        except ConnectionLost as lost:
            raise EngineUnavailable("no connection to the engine", lost) from lost
        return logins.split_for_program(reached)


async def read_sorting(session: AdminSession, database: str) -> str:
    """Return a database's collation, as the end of a CREATE DATABASE."""
    [(row,)] = await session.fetch(_SORTING, database)
    found = msgspec.json.decode(str(row))
    match found["datlocprovider"]:
        case "b":
            return f"LOCALE_PROVIDER builtin BUILTIN_LOCALE {quote_text(found['datlocale'])}"
        case "i":
            return f"LOCALE_PROVIDER icu ICU_LOCALE {quote_text(found.get('datlocale') or found.get('daticulocale'))}"
        case _:
            collate, ctype = quote_text(found["datcollate"]), quote_text(found["datctype"])
            return f"LOCALE_PROVIDER libc LC_COLLATE {collate} LC_CTYPE {ctype}"


async def check_fit(source: Side, destination: Side) -> None:
    """Raise NotSupported if the destination could not hold the same."""
    async with source.session() as old, destination.session() as new:
        [(major,)], [(new_major,)] = await old.fetch(_MAJOR), await new.fetch(_MAJOR)
        if int(str(new_major)) < int(str(major)):
            raise NotSupported(f"the engine is PostgreSQL {new_major}, and the database comes from {major}")
        sorting = await read_sorting(old, source.database)
        if (new_sorting := await read_sorting(new, destination.database)) != sorting:
            raise NotSupported(f"the engine cannot sort texts as the database does: {new_sorting}, not {sorting}")
        if forced := await old.fetch(FORCED):
            raise NotSupported(
                f"the table {forced[0][0]} has FORCE ROW LEVEL SECURITY, so that rows could be left behind:"
                " ALTER TABLE … NO FORCE ROW LEVEL SECURITY, and force it again after the move"
            )

    await _check_names(source)


async def _check_names(source: Side) -> None:
    """Raise NotSupported if a right or a policy names a role of another database, which the other engine lacks."""
    async with source.watcher() as session:
        named = await session.fetch(_NAMED, source.database)
    for *numbers, role in named:
        async with source.session() as session:
            [(thing,)] = await session.fetch(_DESCRIBE, *numbers)
        raise NotSupported(
            f"the {thing} names {role}, the role of another database, in its rights or its policy: take it out there,"
            " as with REVOKE, and move then"
        )


async def make_dump_role(session: AdminSession, database: str, owners: Owners, secret: bytes) -> None:
    """Make the role that a database has while it is dumped. May be repeated."""
    for statement in roles.write_dumping(database, owners):
        await session.fetch(statement)
    await set_password(session, roles.name_dump_role(database), secret)


@asynccontextmanager
async def allow_dump(source: Side) -> AsyncIterator[None]:
    """Let the dumping role into a silent database, and nobody else."""
    owners, database = source.connector.owners, source.database
    async with AdminSession(source.connector, METADATA_DATABASE) as session:
        await make_dump_role(session, database, owners, source.secret)
        await session.fetch(f"GRANT CONNECT ON DATABASE {database} TO {quote(owners.dump)}")
    try:
        yield
    finally:
        await forbid_dump(source)


async def forbid_dump(source: Side) -> None:
    """Undo `allow_dump`. May be repeated."""
    async with AdminSession(source.connector, METADATA_DATABASE) as session:
        await session.fetch(f"REVOKE CONNECT ON DATABASE {source.database} FROM {quote(source.connector.owners.dump)}")
        await session.fetch(f"DROP ROLE IF EXISTS {roles.name_dump_role(source.database)}")


async def dump_and_restore(
    source: Side,
    destination: Side,
    role: str,
    timeout_s: float,
    *,
    snapshot: str | None = None,
    only: Sequence[str] = (),
    check: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Bring all data of the tenant over. `role` restores them, in the name of the new writing role.

    `snapshot` is the moment to copy, by default now; with `only`, copy only the rows of these existing tables. `check`
    is called every second, and its exceptions end the copy. Without progress for too long, raise NoProgress: the
    tenant's code runs in it.
    """
    async with source.session() as session:
        left_out = [*_SYSTEM_SCHEMAS, *await find_schemas(session, source.secret)]
        [(major,)] = await session.fetch(_MAJOR)
    dump = _tool(source.tools, int(str(major)), "pg_dump")
    restore = _tool((*destination.tools, *source.tools), dump.major, "pg_restore")
    variables, rest = await source.conninfo(roles.name_dump_role(source.database), DUMP_SETTINGS)
    dumping = [str(dump.program), "--format=custom", "--compress=0", "--no-owner", "--no-password"]
    dumping += [f"--exclude-schema={schema}" for schema in left_out]
    dumping += [f"--dbname={rest}", *([f"--snapshot={snapshot}"] if snapshot else [])]
    dumping += ["--data-only", "--strict-names", *(f"--table={name}" for name in only)] if only else []
    settings = {**_RESTORE_SETTINGS, **({"session_replication_role": "replica"} if only else {})}
    new_variables, new_rest = await destination.conninfo(role, settings)
    writer = roles.name_roles(destination.database)[0]
    restoring = [str(restore.program.with_name("pg_restore")), "--no-owner", f"--role={writer}", "--exit-on-error"]
    restoring += ["--no-password", f"--dbname={new_rest}"]
    with tempfile.TemporaryFile() as dump_said, tempfile.TemporaryFile() as restore_said:
        reading = dump.start(dumping, variables, stdout=subprocess.PIPE, stderr=dump_said)
        try:
            pipes = {"stdin": reading.stdout, "stdout": subprocess.DEVNULL, "stderr": restore_said}
            writing = restore.start(restoring, new_variables, **pipes)
        except BaseException:
            await end_program(reading)
            raise
        finally:
            assert reading.stdout is not None
            reading.stdout.close()
        ends = ((source, roles.name_dump_role(source.database)), (destination, role))
        try:
            async with asyncio.timeout(timeout_s):
                statuses = await _watch((reading, writing), ends, check)
        except TimeoutError:
            raise NoProgress(f"the copy took longer than {timeout_s:g} s, which is dump_timeout_s") from None
        finally:
            await end_program(reading)
            await end_program(writing)
        _check("pg_restore", statuses[1], restore_said)
        _check("pg_dump", statuses[0], dump_said)


async def _watch(
    programs: tuple["subprocess.Popen[bytes]", "subprocess.Popen[bytes]"],
    ends: tuple[tuple[Side, str], tuple[Side, str]],
    check: Callable[[], Awaitable[None]] | None,
) -> tuple[int, int]:
    """Wait until both have ended. If neither makes progress, end their sessions, too: a tenant's code in them would
    continue without the program."""
    clock = asyncio.get_running_loop().time
    seen: list[object] = []
    changed_at = look_at = clock() + _LOOK_S
    async with ends[0][0].watcher() as old, ends[1][0].watcher() as new:
        while None in (statuses := [program.poll() for program in programs]):
            await asyncio.sleep(_TICK_S)
            if clock() < look_at:
                continue
            look_at = clock() + _LOOK_S
            if check is not None:
                await check()
            now = [await session.fetch(_PROGRESS, role) for session, (_, role) in zip((old, new), ends, strict=True)]
            if now != seen:
                seen, changed_at = list(now), clock()
            elif clock() - changed_at > ends[1][0].stall_s:
                for session, (_, role) in zip((old, new), ends, strict=True):
                    await session.fetch(_END_SESSIONS, role)
                raise NoProgress(f"{_describe(now)} came no further for {ends[1][0].stall_s:g} s")
    return int(statuses[0] or 0), int(statuses[1] or 0)


def _describe(now: Sequence[Sequence[tuple[str | None, ...]]]) -> str:
    """Describe the activity of the programs' sessions, by the kind of their statement."""
    kinds = [str(row[-1]) for rows in reversed(now) for row in rows if row[2] == "active"]
    return f"the statement {kinds[0]} of the copy" if kinds else "the copy"


def _tool(tools: tuple[DumpTool, ...], major: int, program: str) -> DumpTool:
    for tool in tools:
        if tool.major >= major and tool.program.with_name(program).is_file():
            return tool
    raise NotSupported(f"a move needs PostgreSQL's program {program}, version {major} or newer, and none was found")


async def end_program(process: "subprocess.Popen[bytes]") -> None:
    """End the program if it has not ended by itself. A dumping one then cancels its statement in the engine."""
    if process.poll() is None:
        process.terminate()
        await wait_for_exit(process)


async def wait_for_exit(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the exit status of a program that is about to end; kill it if that takes too long."""
    deadline = asyncio.get_running_loop().time() + _END_S
    while (status := process.poll()) is None:
        if asyncio.get_running_loop().time() > deadline:
            process.kill()
        await asyncio.sleep(_TICK_S)
    return status


def _check(program: str, status: int, said: IO[bytes]) -> None:
    if status == 0:
        return
    said.seek(0)
    text = said.read().decode("utf-8", "replace")
    if NO_CONNECTION in text:
        raise EngineUnavailable(f"{program} got no connection to the engine", text.strip()[:_SAID_MAX])
    errors = [line for line in text.splitlines() if "error: " in line]
    said_first = (errors[0] if errors else text.strip() or "it said nothing")[:_SAID_MAX]
    raise MoveFailed(f"{program} could not {'read' if program == 'pg_dump' else 'write'} the copy", said_first)
