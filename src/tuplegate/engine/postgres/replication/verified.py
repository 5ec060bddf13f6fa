"""Verifies a connection with its first statement, before it is used.

The service sets everything that it relies on in the start-up packet, but something between it and the server may drop
that: a pooler that ignores options would run statements at the server's own isolation level, and let read keys write.
"""

from typing import Final, NamedTuple

from psycopg.pq.abc import PGresult

from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.server_errors import find_error
from tuplegate.engine.libpq.values.text_rows import read_text_rows

VERIFY: Final = Command(
    b"SELECT pg_catalog.pg_backend_pid(),"
    # A number, since the text of a time depends on settings of the server.
    b" pg_catalog.extract('epoch', pg_catalog.pg_postmaster_start_time()), pg_catalog.pg_is_in_recovery(),"
    b" pg_catalog.current_setting('default_transaction_isolation'),"
    b" pg_catalog.current_setting('default_transaction_read_only'), pg_catalog.current_setting('search_path'),"
    b" pg_catalog.current_setting('synchronous_commit')"
)


class Expected(NamedTuple):
    """The settings that a connection's server must report."""

    isolation: str
    read_only: str
    search_path: str
    commit: str = "on"
    is_standby: bool = False


class Unfit(ConnectionLost):
    """The connection is not as expected; the message describes it."""


def check_connection(connection: Connection, results: list[PGresult], expected: Expected) -> str:
    """Return the start time of the connection's server, from the answer to `VERIFY`. Raises Unfit, or ConnectionLost if
    the server did not answer."""
    error = find_error(results)
    if error is not None:
        raise ConnectionLost(error.get_error_message())
    try:
        [row] = read_text_rows(results[-1])
    except UnicodeDecodeError as exc:
        raise ConnectionLost("what it says of itself cannot be read in the encoding that was asked for") from exc
    process, started, standby, isolation, read_only, names, commit = map(str, row)
    found = Expected(isolation, read_only, names, commit, is_standby=standby == "t")
    if int(process) != connection.backend:
        raise Unfit(
            "a pooler stands between the service and the engine, so that one connection can be several sessions:"
            " give the address of PostgreSQL itself"
        )
    if found != expected._replace(is_standby=found.is_standby):
        raise Unfit(
            "something between the service and the engine keeps back what the service sets when it connects"
            f" (isolation is {found.isolation}, read-only is {found.read_only}, search_path is {found.search_path},"
            f" synchronous_commit is {found.commit}): give the address of PostgreSQL itself"
        )
    if found.is_standby != expected.is_standby:
        raise Unfit("it is no standby" if expected.is_standby else "it is a standby")
    return started
