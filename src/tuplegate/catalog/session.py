"""How the catalog speaks to the metadata database, which it knows only as a session.

A change is one statement: what it changes, the note of it in the audit and the new revision commit together or not at
all. Records come back as JSON, made into the types of `protocol.control`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

Row = tuple[str | None, ...]
Statement = tuple[str, Sequence[str | None]]
_T = TypeVar("_T")


class Session(Protocol):
    """What the catalog needs: one statement at a time, or several in one transaction."""

    async def fetch(self, sql: str, *params: str | None) -> list[Row]: ...

    async def atomically(self, statements: Sequence[Statement]) -> list[Row]:
        """The rows of the last."""
        ...


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changes something, with which request, and from which address: None on the machine itself."""

    organization: str
    key: str | None
    session: str | None
    request_id: str
    address: str | None = None


async def read(session: Session, kind: type[_T], sql: str, *params: str | None) -> list[_T]:
    """The rows of a query as records."""
    rows = await session.fetch(f"SELECT row_to_json(r) FROM ({sql}) r", *params)
    return [msgspec.json.decode(str(row[0]), type=kind) for row in rows]


async def change(
    session: Session,
    actor: Actor,
    action: str,
    subject: str,
    sql: str,
    *params: str | None,
    concerns: str = "NULL",
    also: str = "",
    quiet: bool = False,
) -> list[Row]:
    """Runs a changing statement with RETURNING and notes it; see `noted`."""
    statement, values = noted(actor, action, subject, sql, *params, concerns=concerns, also=also, quiet=quiet)
    return await session.fetch(statement, *values)


def noted(
    actor: Actor,
    action: str,
    subject: str,
    sql: str,
    *params: str | None,
    concerns: str = "NULL",
    also: str = "",
    quiet: bool = False,
) -> Statement:
    """A changing statement with RETURNING, and the note of it in the audit, as one statement.

    `subject` is an expression over the rows that it returns; one that returns none has changed nothing, and nothing is
    noted. `concerns` is such an expression too: the id of the database that it is about. `also` are further parts of
    the same statement, which may speak of those rows as `done`. `quiet` is for what no worker can hold anything
    outdated of, so that none has to forget what it knows.
    """
    first = len(params) + 1
    places = ", ".join(f"${first + place}::text" for place in range(6))
    counted = ", counted AS (UPDATE revision SET number = number + 1 WHERE EXISTS (SELECT FROM done))"
    return (
        f"WITH done AS ({sql}), {also + ', ' if also else ''}"
        " noted AS (INSERT INTO audit (organization, key, session, action, request_id, address, subject, database)"
        f" SELECT {places}, {subject}, {concerns} FROM done){'' if quiet else counted} SELECT * FROM done",
        (*params, actor.organization, actor.key, actor.session, action, actor.request_id, actor.address),
    )
