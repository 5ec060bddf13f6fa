"""Finds the abilities of a cluster by trial: assumes nothing from its version."""

import ipaddress
from dataclasses import dataclass
from typing import Final

from tuplegate.engine.cockroach.cluster.connector import ServiceSession
from tuplegate.engine.libpq.connections.logins import list_places
from tuplegate.engine.port import StatementFailed

_IS_ADMIN: Final = "SELECT crdb_internal.is_admin()"
_VERSION: Final = "SELECT regexp_extract(version(), 'v[0-9][0-9.]*')"

_ISOLATION: Final = "SHOW transaction_isolation"

_WRITING_FUNCTION: Final = (
    "CREATE FUNCTION engine.writes() RETURNS BOOL LANGUAGE SQL AS"
    " 'DELETE FROM engine.identity WHERE false RETURNING true'"
)
_NO_SUCH_FUNCTIONS: Final = ("0A000", "42601")

_VOLATILE: Final = "SELECT DISTINCT proname FROM pg_catalog.pg_proc WHERE provolatile = 'v'"
"""The engine calls a function volatile if it has an effect, or if its result depends on more than arguments and
data."""
_CHANGING: Final = frozenset({"set_config", "crdb_internal"})
_HARMLESS: Final = frozenset(
    {
        "clock_timestamp",
        "cluster_logical_timestamp",
        "cluster_name",
        "currval",
        "gen_random_ulid",
        "gen_random_uuid",
        "gen_salt",
        "lastval",
        "nextval",
        "notice",
        "pg_sleep",
        "random",
        "setval",
        "statement_timestamp",
        "trace_id",
        "unique_rowid",
        "unordered_unique_rowid",
        "uuid_generate_v1",
        "uuid_generate_v1mc",
        "uuid_generate_v4",
        "uuid_v4",
        "version",
    }
)
"""Volatile functions that leave nothing in a session, except for the last numbers of sequences."""

_NEEDED: Final = (
    ("SHOW default_int_size", "columns of the type int with 4 bytes (default_int_size)"),
    ("SHOW serial_normalization", "numbers from sequences for the type serial (serial_normalization)"),
    ("SELECT unique_rowid()", "numbers that grow (unique_rowid)"),
    (
        "SELECT 1 FROM crdb_internal.cluster_sessions WHERE false",
        "a list of the sessions of all nodes (crdb_internal.cluster_sessions)",
    ),
    (
        'SELECT 1 FROM "".crdb_internal.cluster_database_privileges WHERE false',
        "a list of the rights in all databases (crdb_internal.cluster_database_privileges)",
    ),
)
"""The abilities that the adapter needs, each with its name."""


async def find_problems(session: ServiceSession, conninfo: str, *, is_secure: bool) -> list[str]:
    """Return the reasons why the service cannot use the cluster, each with its remedy."""
    problems = []
    if not is_secure and not all(is_here(place.address or place.host) for place in list_places(conninfo)):
        problems.append(
            "it runs without encryption and passwords (--insecure) on another machine, so that anybody on the network"
            " could read and change everything: start it with certificates, and give a URL with sslmode=verify-full"
        )
    try:
        [(is_admin,)] = await session.fetch(_IS_ADMIN)
    except StatementFailed:
        is_admin = "t"  # what is missing shows when the cluster is prepared
    if is_admin != "t":
        problems.append(
            "its role may not make databases and roles, nor see all sessions: let the cluster's owner run GRANT admin"
            " TO that role, or give the URL of a role that is a member of admin"
        )
        return problems
    for sql, meaning in _NEEDED:
        try:
            await session.fetch(sql)
        except StatementFailed:
            problems.append(f"its version lacks {meaning}: use a newer one")
    [(isolation,)] = await session.fetch(_ISOLATION)
    if isolation != "serializable":
        problems.append(
            f"its transactions are {isolation}, although serializable ones were asked for: its version lacks these, use"
            " a newer one"
        )
    return problems


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of a cluster. `write`: functions may write rows, so a SELECT may, too. `changing`: names of
    functions that may change their session, or the engine."""

    write: bool
    changing: frozenset[str]


async def find_functions(session: ServiceSession) -> Functions:
    names = frozenset(str(name).rpartition(".")[2] for (name,) in await session.fetch(_VOLATILE))
    return Functions(await find_functions_write(session), (names - _HARMLESS) | _CHANGING)


async def find_functions_write(session: ServiceSession) -> bool:
    """Return whether the engine can have functions that write, so that a SELECT may write.

    It is assumed unless the engine refuses such a function. A function that was created is rolled back.
    """
    try:
        await session.run_atomically([(_WRITING_FUNCTION, ()), ("SELECT 1 / 0", ())])
    except StatementFailed as failure:
        return failure.sqlstate not in _NO_SUCH_FUNCTIONS
    return True


async def find_version(session: ServiceSession) -> str:
    [(version,)] = await session.fetch(_VERSION)
    return str(version or "unknown").removeprefix("v")


def is_here(host: str) -> bool:
    if not host or host == "localhost" or host[0] in "/@":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
