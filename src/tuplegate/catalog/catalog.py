"""The records of the installation, by subject. SQL of the metadata database lives in this package and nowhere else.

It is given a session on that database and knows nothing of the engine beyond it.
"""

from tuplegate.catalog.credentials import Credentials
from tuplegate.catalog.databases import Databases
from tuplegate.catalog.journal import Journal
from tuplegate.catalog.keys import Keys
from tuplegate.catalog.organizations import Organizations
from tuplegate.catalog.permits import Permits
from tuplegate.catalog.session import Session
from tuplegate.catalog.sessions import Sessions


class Catalog:
    """`session` is for changes. Who asks is looked up on `lookups`, and what is counted is noted on `notes`: where
    changes have to wait, neither waits behind them."""

    def __init__(self, session: Session, lookups: Session | None = None, notes: Session | None = None) -> None:
        lookups, notes = lookups or session, notes or session
        self._lookups = lookups
        self.organizations = Organizations(session)
        self.databases = Databases(session)
        self.keys = Keys(session)
        self.sessions = Sessions(session)
        self.credentials = Credentials(lookups, notes)
        self.permits = Permits(notes)
        self.journal = Journal(notes)

    async def pulse(self) -> tuple[int, frozenset[str]]:
        """The revision, which grows with every change, and the engine's names of the databases that are paused."""
        rows = await self._lookups.fetch(
            "SELECT number, (SELECT string_agg(engine_name, ',') FROM database"
            " WHERE paused_until > clock_timestamp()) FROM revision"
        )
        return int(str(rows[0][0])), frozenset(rows[0][1].split(",") if rows[0][1] else ())
