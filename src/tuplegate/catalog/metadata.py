"""The catalog's access to the metadata database: reads, and changes that are audited.

A change is one statement: the change itself, its entry in the audit and the new revision commit together or not at all.
Records come back as JSON, decoded into the types of `protocol.control`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

Row = tuple[str | None, ...]
SqlWithParams = tuple[str, Sequence[str | None]]
_T = TypeVar("_T")


class Metadata(Protocol):
    """The metadata database. Runs one statement, or several in one transaction."""

    async def fetch(self, sql: str, *params: str | None) -> list[Row]: ...

    async def run_atomically(self, statements: Sequence[SqlWithParams]) -> list[Row]:
        """Run the statements in one transaction, and return the rows of the last one."""

    async def change_definitions(self, statements: Sequence[SqlWithParams]) -> None:
        """Run statements that change definitions, of which each may be repeated."""


class Records:
    """Records of one subject."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a change: the key or session, the request, and its address; None on the machine itself."""

    organization: str
    key: str | None
    session: str | None
    request_id: str
    address: str | None = None


async def read(metadata: Metadata, kind: type[_T], sql: str, *params: str | None, order: str = "") -> list[_T]:
    """Run a query, and return its rows as records. `order` sorts them, by columns of `r`: not every engine keeps the
    order that the query itself has."""
    sorting = f" ORDER BY {order}" if order else ""
    rows = await metadata.fetch(f"SELECT row_to_json(r) FROM ({sql}) r{sorting}", *params)
    return [msgspec.json.decode(str(row[0]), type=kind) for row in rows]


async def change(
    metadata: Metadata,
    actor: Actor,
    action: str,
    subject: str,
    sql: str,
    *params: str | None,
    concerns: str = "NULL",
    also: str = "",
    quiet: bool = False,
    tallied: bool = False,
) -> bool:
    """Run a changing statement with RETURNING and record it in the audit; see `build_change`.

    Return whether it has changed anything.
    """
    statement, values = build_change(
        actor, action, subject, sql, *params, concerns=concerns, also=also, quiet=quiet, tallied=tallied
    )
    return bool(await metadata.fetch(statement, *values))


def build_change(
    actor: Actor,
    action: str,
    subject: str,
    sql: str,
    *params: str | None,
    concerns: str = "NULL",
    also: str = "",
    quiet: bool = False,
    tallied: bool = False,
) -> SqlWithParams:
    """Return one statement that runs a changing statement with RETURNING and records it in the audit.

    `subject` is an expression over the returned rows; without rows nothing has changed, and nothing is recorded.
    `concerns` is another such expression: the id of the database. `also` holds further parts of the statement, which
    can refer to the rows as `done`. `quiet` leaves the revision as it is, for changes that make no worker's cache
    outdated. Frequent actions are `tallied`: see `write_entry`.
    """
    first = len(params) + 1
    places = [f"${first + place}::text" for place in range(6)]
    counted = ", counted AS (UPDATE revision SET number = number + 1 WHERE EXISTS (SELECT 1 FROM done) RETURNING 1)"
    return (
        f"WITH done AS ({sql}), {also + ', ' if also else ''}"
        f" noted AS ({write_entry(places, subject, concerns, 'FROM done', tallied=tallied)} RETURNING 1)"
        f"{'' if quiet else counted} SELECT * FROM done",
        (*params, actor.organization, actor.key, actor.session, action, actor.request_id, actor.address),
    )


def write_entry(places: Sequence[str], subject: str, concerns: str, source: str = "", *, tallied: bool) -> str:
    """Return a statement that adds an entry to the audit. `places` are the values of an actor and its action.

    A tallied entry stands for all that the same key does to the same database from the same address within an hour: the
    first one is recorded, and the further ones are counted in it.
    """
    organization, key, _, action, _, address = places
    alike = ", ".join((organization, key, action, concerns, address))
    tally = f"concat_ws(' ', {alike}, date_trunc('hour', now())::text)" if tallied else "NULL"
    counting = (
        " ON CONFLICT (tally) WHERE tally IS NOT NULL"
        " DO UPDATE SET count = audit.count + 1, last_at = clock_timestamp()"
    )
    return (
        "INSERT INTO audit (organization, key, session, action, request_id, address, subject, database, tally)"
        f" SELECT {', '.join(places)}, {subject}, {concerns}, {tally} {source}{counting if tallied else ''}"
    )
