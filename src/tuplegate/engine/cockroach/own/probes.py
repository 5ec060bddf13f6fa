"""Finds out what a cluster can do: nothing is assumed from its version."""

import ipaddress
from typing import Final

from tuplegate.engine.cockroach.connector import ServiceSession
from tuplegate.engine.libpq.logins import list_places
from tuplegate.engine.port import StatementFailed

_IS_ADMIN: Final = "SELECT crdb_internal.is_admin()"
_VERSION: Final = "SELECT regexp_extract(version(), 'v[0-9][0-9.]*')"

_NEEDED: Final = (
    ("SHOW default_int_size", "columns of the type int with 4 bytes (default_int_size)"),
    ("SHOW serial_normalization", "numbers from sequences for the type serial (serial_normalization)"),
    ("SHOW transaction_isolation", "serializable transactions"),
)


async def find_problems(session: ServiceSession, conninfo: str, *, is_secure: bool) -> list[str]:
    """Return what keeps the service from using the cluster, each with how to mend it."""
    problems = []
    if not is_secure and not all(is_here(place.host or place.address) for place in list_places(conninfo)):
        problems.append(
            "it runs without encryption and passwords (--insecure) on another machine, so that anybody on the network"
            " could read and change everything: start it with certificates, and give a URL with sslmode=verify-full"
        )
    for sql, meaning in _NEEDED:
        try:
            await session.fetch(sql)
        except StatementFailed:
            problems.append(f"its version lacks {meaning}: use a newer one")
    try:
        [(is_admin,)] = await session.fetch(_IS_ADMIN)
    except StatementFailed:
        is_admin = "t"  # what is missing shows when the cluster is prepared
    if is_admin != "t":
        problems.append("its role may not make databases and roles: give the URL of a member of the role admin")
    return problems


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
