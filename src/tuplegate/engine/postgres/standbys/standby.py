"""One standby, as the service's own session sees it: whether it can be trusted, and its position.

All connections lead to this session's server: a server with another start time is refused when its connection is opened
(`only_server_of`). So the findings here hold for all of them.

The known position of a standby is never too high: it only grows, and it is forgotten when the standby restarts, which
ends our connection to it.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.logins import list_places
from tuplegate.engine.postgres.replication.positions import Position, read_lsn
from tuplegate.engine.postgres.replication.primary import ANOTHER_SERVER
from tuplegate.engine.postgres.replication.seeker import addresses_of
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession, only_server_of
from tuplegate.engine.postgres.standbys.progress import ANSWER_S, Progress, in_time

# The timeline is that of the log's stream. No other function returns it: the control file has the timeline of the last
# checkpoint, which a standby may have left since.
_LOOK_SQL: Final = """
SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn(), (SELECT system_identifier FROM pg_control_system()),
       (SELECT received_tli FROM pg_stat_wal_receiver), pg_has_role('pg_read_all_stats', 'USAGE'),
       current_setting('max_standby_streaming_delay')
"""
_UNBOUNDED: Final = "-1"


class NoStandby(port.EngineUnavailable):
    """The server must not be read from; the message says why."""


class Astray(NoStandby):
    """Its address leads to several servers."""


class _StandbySession(AdminSession):
    """A session that calls `on_lost` when its connection is lost, as by a restart of the standby."""

    def __init__(self, connector: AdminConnector, on_lost: Callable[[], None]) -> None:
        super().__init__(connector, METADATA_DATABASE)
        self.connector = connector
        self._on_lost = on_lost

    async def _connect(self) -> Connection:
        connection = await super()._connect()
        connection.on_lost = self._on_lost
        return connection


class Standby:
    """One standby. See the module's text. `timeline` and `replayed` are 0 while they are unknown."""

    def __init__(self, conninfo: str, progress: Progress) -> None:
        self._conninfo = conninfo
        self.place = list_places(conninfo)[0]
        self._progress = progress
        self.session: _StandbySession | None = None
        self._lookup: asyncio.Task[list[str]] | None = None
        self.timeline = 0
        self.replayed = 0

    def has_reached(self, position: Position | None) -> bool:
        """Return whether it has replayed past the position. A position of another timeline may not be part of its
        history."""
        if not self.timeline:
            return False
        return position is None or (position.timeline == self.timeline and position.lsn <= self.replayed)

    async def reach(self) -> None:
        """Open a session with the server that its name leads to just now. Raises EngineFailure."""
        connector = await in_time(self._find_address())
        self.session = _StandbySession(connector, self.forget)

    async def _find_address(self) -> AdminConnector:
        """Return a connector to the standby's first address. Look the name up once at a time: it may take long, and
        nothing can end it."""
        place, conninfo = self.place, self._conninfo
        if not place.is_socket and not place.address:
            if self._lookup is None or self._lookup.done():
                self._lookup = asyncio.get_running_loop().create_task(addresses_of(place.host))
            try:
                conninfo = f"{conninfo} {place.at((await asyncio.shield(self._lookup))[0])}"
            except OSError as failure:
                raise port.EngineUnavailable(f"its name cannot be looked up: {failure.strerror}") from failure
        return AdminConnector(conninfo, ANSWER_S, primary=only_server_of(conninfo), to_standby=True)

    async def look(self, deadline: float = inf) -> None:
        """Ask for its identity and position. Raises NoStandby if it must not be read from, and another EngineFailure if
        it does not answer."""
        session = self.session
        if session is None:
            raise port.EngineUnavailable("the replica went away")
        [row] = await in_time(session.fetch(_LOOK_SQL), deadline)
        if session is not self.session:
            raise port.EngineUnavailable("the replica went away")
        if session.connector.primary.strays:
            raise Astray(ANOTHER_SERVER)
        role = session.connector.owners.service
        self._judge(role, *row)

    def _judge(
        self,
        role: str,
        standby: str | None,
        replayed: str | None,
        system: str | None,
        timeline: str | None,
        sees: str | None,
        delay: str | None,
    ) -> None:
        progress, lsn = self._progress, 0 if replayed is None else read_lsn(replayed)
        if standby != "t":
            raise NoStandby("it is no standby")
        if not progress.timeline:
            raise NoStandby(f"the engine does not say how far it is: {progress.trouble}")
        if system != progress.system:
            raise NoStandby("it is the standby of another server")
        if timeline is None:
            # If it has not moved since its timeline was seen, it still shows the same.
            if (self.timeline, self.replayed) != (progress.timeline, lsn):
                raise NoStandby(_explain_unknown_timeline(None if sees == "t" else role))
        elif int(timeline) != progress.timeline:
            raise NoStandby(f"it follows timeline {timeline}, and the engine is on {progress.timeline}")
        if delay == _UNBOUNDED:
            raise NoStandby(
                "its max_standby_streaming_delay is -1, so that a read could hold up its replay for ever: set it to a"
                " few seconds"
            )
        # Answers come in the order of the questions.
        self.timeline, self.replayed = progress.timeline, lsn

    def forget(self) -> None:
        """Forget the position: after a restart the standby may show less than before."""
        self.timeline = self.replayed = 0

    async def close(self) -> None:
        self.forget()
        session, self.session = self.session, None
        if session is not None:
            await session.close()


def _explain_unknown_timeline(blind: str | None) -> str:
    """Return the reason for people. `blind` is the service's role, if its rights do not suffice."""
    why = "it streams no log just now" if blind is None else f"GRANT pg_read_all_stats TO {blind} on the primary"
    return f"the timeline that it follows is not known: {why}"
