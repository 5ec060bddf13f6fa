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
    def __init__(self, session: Session) -> None:
        self._session = session
        self.organizations = Organizations(session)
        self.databases = Databases(session)
        self.keys = Keys(session)
        self.sessions = Sessions(session)
        self.credentials = Credentials(session)
        self.permits = Permits(session)
        self.journal = Journal(session)

    async def pulse(self) -> tuple[int, frozenset[str]]:
        """The revision, which grows with every change, and the engine's names of the databases that are paused."""
        rows = await self._session.fetch(
            "SELECT number, (SELECT string_agg(engine_name, ',') FROM database"
            " WHERE paused_until > clock_timestamp()) FROM revision"
        )
        return int(str(rows[0][0])), frozenset(rows[0][1].split(",") if rows[0][1] else ())
