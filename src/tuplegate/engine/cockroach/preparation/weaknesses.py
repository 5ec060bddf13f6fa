"""The table of what tenants of a cluster can learn of each other, with a trial for each entry.

The engine shows these things to everybody, and the service can revoke no right that hides them. For each weakness there
is a question that runs as a tenant, in a tenant's own database: so a weakness that a later version has closed is not
listed. If a question fails for any reason but a lack of rights, the weakness counts as open.
"""

from dataclasses import dataclass
from typing import Final

from tuplegate.engine.cockroach.cluster.connector import Connector, ServiceSession
from tuplegate.engine.cockroach.tenancy.scratch import make_scratch
from tuplegate.engine.libpq.connections.logins import as_tenant
from tuplegate.engine.libpq.values.quoting import quote_text
from tuplegate.engine.port import Access, StatementFailed, Weakness

_NO_RIGHT: Final = "42501"
_APART: Final = "Give each organization a cluster of its own, or let only those share one that trust each other."
_COMMENT: Final = "names that one process of the service holds at a time"

PREPARE: Final = f"COMMENT ON TABLE engine.lock IS {quote_text(_COMMENT)}"
"""Makes an object in the metadata database that a tenant must not see."""
_ROW_TYPE: Final = "SELECT typname, oid FROM pg_catalog.pg_type WHERE typname = 'lock'"


@dataclass(frozen=True, slots=True)
class _Trial:
    """`question` returns true if the weakness is there. Any failure but a lack of rights counts as true. `{row_type}`
    in it stands for the oid of a type in the metadata database."""

    weakness: Weakness
    question: str


_TRIALS: Final = (
    _Trial(
        Weakness(
            "values_of_others",
            True,
            "`SHOW HISTOGRAM` with a number shows up to 200 values of a column of any database. Numbers can be guessed:"
            " they are made of the time at which the engine looked at a table.",
            _APART,
        ),
        "SHOW HISTOGRAM 1",
    ),
    _Trial(
        Weakness(
            "keys_of_others",
            True,
            "`crdb_internal.ranges_no_leases` shows where the tables of all databases are split: names of databases,"
            " tables and indexes, and values of keys.",
            _APART,
        ),
        "SELECT EXISTS (SELECT 1 FROM crdb_internal.ranges_no_leases WHERE database_name <> current_database())",
    ),
    _Trial(
        Weakness(
            "statements_of_others",
            True,
            "`crdb_internal.statement_statistics` shows the statements of all databases, with `_` for literals in"
            " queries, how often each ran and how long it took. Names and definitions are in them.",
            _APART,
        ),
        "SELECT EXISTS (SELECT 1 FROM crdb_internal.statement_statistics WHERE metadata->>'db' <> current_database())",
    ),
    _Trial(
        Weakness(
            "comments_of_others",
            True,
            "`pg_description` and `obj_description` show the comments on tables and columns of all databases.",
            f"{_APART} Tell tenants to put nothing secret into COMMENT ON.",
        ),
        f"SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_description WHERE description = {quote_text(_COMMENT)})",
    ),
    _Trial(
        Weakness(
            "names_of_others",
            True,
            "Functions that turn numbers into names, as `format_type` and `::regtype`, do so for tables and types of"
            " all databases.",
            _APART,
        ),
        "SELECT format_type({row_type}, NULL) = 'lock'",
    ),
    _Trial(
        Weakness(
            "contention_of_others",
            True,
            "`crdb_internal.cluster_contention_events` shows on which keys of any database transactions waited for each"
            " other, and how long.",
            _APART,
        ),
        "SELECT count(*) >= 0 FROM crdb_internal.cluster_contention_events",
    ),
    _Trial(
        Weakness(
            "names",
            False,
            "Tenants see that other databases exist, by names that mean nothing, and how large parts of them are.",
            "None: the engine shows this to everybody.",
        ),
        "SELECT count(*) > 0 FROM pg_catalog.pg_database WHERE datname <> current_database()",
    ),
)

WEAKNESSES: Final = tuple(trial.weakness for trial in _TRIALS)


async def find_weaknesses(
    connector: Connector, metadata: ServiceSession, database: str, secret: bytes
) -> tuple[Weakness, ...]:
    """Try all of them as a tenant that writes and owns a table: some rights come with a table."""
    await metadata.fetch(PREPARE)
    [(_, row_type)] = await metadata.fetch(_ROW_TYPE)
    tenant = Connector(as_tenant(connector.conninfo, secret, database, Access.WRITE))
    async with make_scratch(connector, database) as schema, ServiceSession(tenant, database) as session:
        await session.fetch(f"CREATE TABLE {schema}.own (a int PRIMARY KEY)")
        return tuple(
            [trial.weakness for trial in _TRIALS if await _is_open(session, trial.question.format(row_type=row_type))]
        )


async def _is_open(session: ServiceSession, question: str) -> bool:
    try:
        return (await session.fetch(question))[0][0] != "f"
    except StatementFailed as failure:
        return failure.sqlstate != _NO_RIGHT
