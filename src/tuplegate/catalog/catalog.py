"""The records of the installation, by subject. All SQL for the metadata database is in this package.

The catalog is given a session on that database, and knows nothing else of the engine.
"""

from dataclasses import dataclass

from tuplegate.catalog.credentials import Credentials
from tuplegate.catalog.databases import Databases
from tuplegate.catalog.engines import Engines
from tuplegate.catalog.journal import Journal
from tuplegate.catalog.keys import Keys
from tuplegate.catalog.moves import Moves
from tuplegate.catalog.organizations import Organizations
from tuplegate.catalog.permits import Permits
from tuplegate.catalog.session import Session
from tuplegate.catalog.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Beat:
    """What every worker must learn quickly. Databases have their names in the engine.

    `revision` grows with every change. Workers must let go of the databases in `paused`. `moves` maps each moving
    database to its successor and that one's engine, or to None until the successor is in place.
    """

    revision: int
    paused: frozenset[str]
    moves: dict[str, tuple[str, str] | None]


class Catalog:
    """Access to all records. `session` runs changes; `lookups` identifies callers and `notes` records usage, so that
    neither waits behind a slow change."""

    def __init__(self, session: Session, lookups: Session | None = None, notes: Session | None = None) -> None:
        lookups, notes = lookups or session, notes or session
        self._lookups = lookups
        self.organizations = Organizations(session)
        self.databases = Databases(session)
        self.engines = Engines(session)
        self.moves = Moves(session)
        self.keys = Keys(session)
        self.sessions = Sessions(session)
        self.credentials = Credentials(lookups, notes)
        self.permits = Permits(notes)
        self.journal = Journal(notes)

    async def pulse(self) -> Beat:
        rows = await self._lookups.fetch(
            "SELECT number, (SELECT string_agg(engine_name, ',') FROM database WHERE paused_until > clock_timestamp()),"
            " (SELECT string_agg(concat_ws('=', former, CASE WHEN step IN ('switched', 'done')"
            " THEN successor || '=' || engine END), ',') FROM move) FROM revision"
        )
        number, paused, moves = rows[0]
        names = (move.split("=") for move in moves.split(",")) if moves else ()
        return Beat(
            int(str(number)),
            frozenset(paused.split(",") if paused else ()),
            {former: (successor[0], successor[1]) if successor else None for former, *successor in names},
        )
