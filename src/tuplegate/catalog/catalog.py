"""The records of the installation, by subject. All SQL for the metadata database is in this package.

The catalog is given access to that database, and knows nothing else of the engine.
"""

from dataclasses import dataclass

from tuplegate.catalog.databases import DatabaseRecords
from tuplegate.catalog.engines import EngineRecords
from tuplegate.catalog.journal import Journal
from tuplegate.catalog.metadata import Metadata
from tuplegate.catalog.moves import MoveRecords
from tuplegate.catalog.nodes import NodeRecords
from tuplegate.catalog.organizations import OrganizationRecords
from tuplegate.catalog.permits import Permits
from tuplegate.catalog.retention import OldRecords
from tuplegate.catalog.tokens.console_codes import ConsoleCodeRecords
from tuplegate.catalog.tokens.credentials import Credentials
from tuplegate.catalog.tokens.keys import KeyRecords
from tuplegate.catalog.tokens.sessions import SessionRecords


@dataclass(frozen=True, slots=True)
class News:
    """News that every worker must learn quickly. Databases have their names in the engine.

    `revision` grows with every change. Workers must release the databases in `paused`. `moves` maps each moving
    database to its successor and that one's engine, or to None until the successor is in place.
    """

    revision: int
    paused: frozenset[str]
    moves: dict[str, tuple[str, str] | None]


class Catalog:
    """Access to all records. `metadata` runs changes; `lookups` identifies callers and `notes` records usage, so that
    neither waits behind a slow change."""

    def __init__(self, metadata: Metadata, lookups: Metadata | None = None, notes: Metadata | None = None) -> None:
        lookups, notes = lookups or metadata, notes or metadata
        self._lookups = lookups
        self.organizations = OrganizationRecords(metadata)
        self.databases = DatabaseRecords(metadata)
        self.engines = EngineRecords(metadata)
        self.moves = MoveRecords(metadata)
        self.keys = KeyRecords(metadata)
        self.sessions = SessionRecords(metadata)
        self.console_codes = ConsoleCodeRecords(metadata, lookups)
        self.credentials = Credentials(lookups, notes)
        self.permits = Permits(notes)
        self.nodes = NodeRecords(notes)
        self.journal = Journal(notes)
        self.old_records = OldRecords(notes)

    async def read_pulse(self) -> News:
        rows = await self._lookups.fetch(
            "SELECT number, (SELECT string_agg(engine_name, ',') FROM database WHERE paused_until > clock_timestamp()),"
            " (SELECT string_agg(concat_ws('=', former, CASE WHEN step IN ('switched', 'done')"
            " THEN successor || '=' || engine END), ',') FROM move) FROM revision"
        )
        number, paused, moves = rows[0]
        names = (move.split("=") for move in moves.split(",")) if moves else ()
        return News(
            int(str(number)),
            frozenset(paused.split(",") if paused else ()),
            {former: (successor[0], successor[1]) if successor else None for former, *successor in names},
        )
