"""Probes a PostgreSQL server's abilities at the start, into one record; assumes nothing.

Problems (`find_problems`) keep the service from starting on the server, warnings (`find_warnings`) do not. Both say
what to do.
"""

from dataclasses import dataclass

from tuplegate.engine.bundled.binaries import MAJOR_MIN, MINIMUM_MINOR
from tuplegate.engine.libpq.values.types import BUILT_IN_TYPES_SQL, TypeInfo, read_types
from tuplegate.engine.port import MetadataSession, StatementFailed

VERSION_TESTED = 18

_SLOTS_SMALL = 5000
CHECK_INTERVAL = "1000"
"""How often, in milliseconds, a server process checks that its client is still there."""

_SQL = """
SELECT current_setting('server_version_num'), current_setting('server_version'), current_user,
       r.rolsuper, pg_is_in_recovery(), current_setting('max_prepared_transactions'),
       current_setting('max_connections'), current_setting('superuser_reserved_connections'),
       current_setting('fsync'), current_setting('full_page_writes'), current_setting('work_mem'),
       (SELECT 10 * (sum(s.setting::int) + 2) FROM pg_settings s WHERE s.name IN
         ('max_connections', 'max_prepared_transactions', 'max_worker_processes', 'max_wal_senders',
          CASE WHEN current_setting('server_version_num')::int >= 180000
               THEN 'autovacuum_worker_slots' ELSE 'autovacuum_max_workers' END)),
       r.rolcreatedb AND r.rolcreaterole
  FROM pg_roles r WHERE r.rolname = current_user
"""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`slots` is the size of the pool of serializable transactions, by the engine's own formula; before version 18 a
    little less, which is on the safe side."""

    version_number: int
    version: str
    user: str
    superuser: bool
    standby: bool
    prepared_max: int
    connections_max: int
    connections_reserved: int
    fsync: bool
    full_page_writes: bool
    work_mem: str
    slots: int
    notices_leaving: bool
    """Whether the server can check, while it runs a statement, that the client is still there."""
    makes_databases: bool
    """Whether the role has CREATEDB and CREATEROLE."""

    @property
    def major(self) -> int:
        return self.version_number // 10_000

    @property
    def minor(self) -> int:
        return self.version_number % 10_000

    @property
    def connections_free(self) -> int:
        return self.connections_max - self.connections_reserved

    @property
    def two_phase(self) -> bool:
        return self.prepared_max > 0


@dataclass(frozen=True, slots=True)
class Probed:
    """A server's answers, asked for before anything is built for it."""

    can: Capabilities
    built_in: dict[int, TypeInfo]


async def probe_all(session: MetadataSession) -> Probed:
    """Ask for everything that the adapter is built with."""
    built_in = read_types(await session.fetch(BUILT_IN_TYPES_SQL))
    return Probed(await probe(session), built_in)


async def probe(session: MetadataSession) -> Capabilities:
    row = [str(value) for value in (await session.fetch(_SQL))[0]]
    return Capabilities(
        version_number=int(row[0]),
        version=row[1],
        user=row[2],
        superuser=row[3] == "t",
        standby=row[4] == "t",
        prepared_max=int(row[5]),
        connections_max=int(row[6]),
        connections_reserved=int(row[7]),
        fsync=row[8] == "on",
        full_page_writes=row[9] == "on",
        work_mem=row[10],
        slots=int(row[11]),
        notices_leaving=await _takes(session, "client_connection_check_interval", CHECK_INTERVAL),
        makes_databases=row[12] == "t",
    )


async def _takes(session: MetadataSession, setting: str, value: str) -> bool:
    try:
        await session.fetch("SELECT set_config($1, $2, true)", setting, value)
    except StatementFailed:
        return False
    return True


def find_problems(found: Capabilities) -> list[str]:
    """Return the reasons why the service cannot use the server."""
    missing = []
    if found.major < MAJOR_MIN:
        missing.append(f"it is PostgreSQL {found.version}; {MAJOR_MIN} is the oldest that will do")
    if found.standby:
        missing.append("it is a standby, which cannot write: give the address of the primary")
    if not found.superuser and not found.makes_databases:
        missing.append(
            f"the role {found.user} is no superuser and lacks CREATEDB or CREATEROLE, so it can make neither databases"
            f" for tenants nor roles that keep them apart: ALTER ROLE {found.user} CREATEDB CREATEROLE, or give another"
            " in the URL"
        )
    if not found.fsync or not found.full_page_writes:
        missing.append("it may lose what it has committed: set fsync and full_page_writes on")
    return missing


def find_warnings(found: Capabilities, connections: int) -> list[str]:
    """Return warnings for the operator. `connections` is the number that the service wants to open."""
    said = []
    if connections > found.connections_free:
        said.append(
            f"the engine accepts {found.connections_free} connections, so the service opens no more than these;"
            " with --engine-connections-max give every service process its part of them"
        )
    if found.minor < MINIMUM_MINOR.get(found.major, 0):
        said.append(
            f"PostgreSQL {found.version} has known security holes: update it to"
            f" {found.major}.{MINIMUM_MINOR[found.major]} or newer"
        )
    if found.major > VERSION_TESTED:
        said.append(f"PostgreSQL {found.version} is newer than what this version was tested with")
    if not found.two_phase:
        said.append(
            "the engine's max_prepared_transactions is 0: transactions are committed in one phase;"
            " set it to 1000 for two"
        )
    if found.slots < _SLOTS_SMALL:
        said.append(
            f"the engine remembers {found.slots} serializable transactions, so only short transactions get through"
            " while many others run: set max_prepared_transactions to 1000"
        )
    return said
