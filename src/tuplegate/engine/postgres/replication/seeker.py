"""Asks the places that the engine's URL names which of them is the primary.

Names are looked up here, in a thread, since libpq would block the event loop for that.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.logins import Place, add_settings, list_places
from tuplegate.engine.libpq.connections.server_errors import find_error
from tuplegate.engine.libpq.values.text_rows import read_text_rows
from tuplegate.engine.postgres.replication.found_server import FoundServer
from tuplegate.engine.postgres.replication.positions import read_lsn
from tuplegate.engine.postgres.replication.timelines import Timelines

ANSWER_S: Final = 2.0
"""The time for a server to identify itself, connecting included."""
ROUND_S: Final = 0.25
"""How long to wait for all servers, even if one claims to be the primary: of two, the newer one counts."""

SILENT: Final = f"gives no answer within {ANSWER_S:g} s"
_APPLICATION: Final = "tuplegate-service"
_SETTINGS: Final = {"search_path": "pg_catalog, pg_temp", "default_transaction_isolation": "read committed"}
_LOOK: Final = Command(
    b"""
SELECT extract(epoch FROM pg_postmaster_start_time()), pg_is_in_recovery(),
       (SELECT system_identifier FROM pg_control_system()),
       CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
       current_setting('synchronous_standby_names') <> '',
       (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum') AND state = 'streaming'),
       (SELECT string_agg(pid || '/' || query_start, ',') FROM pg_stat_activity WHERE wait_event = 'SyncRep'),
       CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn() END,
       (SELECT flush_lsn FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum') AND flush_lsn IS NOT NULL
         ORDER BY flush_lsn DESC LIMIT 1
        OFFSET coalesce(substring(current_setting('synchronous_standby_names') FROM '([0-9]+) *[(]')::int, 1) - 1)
""",
    begins=False,
)

Answer = tuple[FoundServer, Connection]
"""A server that claims to be the primary, and the connection to it."""


class Seeker:
    """Asks all places at once, each with its own timeout, and keeps the reasons why they are not the primary.
    `conninfo` is a role's that may ask, in the first of `databases` that lets it in."""

    def __init__(self, conninfo: str, databases: Sequence[str], timelines: Timelines) -> None:
        self._conninfo = conninfo
        self._databases = databases
        self._timelines = timelines
        self._places = list_places(conninfo)
        self._said: dict[Place, str] = {}
        self._asked: dict[Place, asyncio.Task[list[Answer]]] = {}
        """Places that have not answered yet."""
        self._lookups: dict[str, asyncio.Future[list[str]]] = {}
        self._addresses: dict[str, list[str]] = {}

    @property
    def is_local(self) -> bool:
        """Return whether every place is a socket of this machine."""
        return all(place.is_socket for place in self._places)

    @property
    def knows_others(self) -> bool:
        """Return whether the places have more than one address: then another server may be promoted beside the
        primary."""
        return len(self._places) > 1 or any(len(addresses) > 1 for addresses in self._addresses.values())

    @property
    def is_asking(self) -> bool:
        """Return whether some place has not answered yet."""
        return bool(self._asked)

    def note(self, place: Place, reason: str) -> None:
        """Forget earlier reasons; this place is no longer the primary, for this one."""
        self._said = {place: reason}

    def is_silent(self, place: Place) -> bool:
        return self._said.get(place) == SILENT

    def explain(self) -> str:
        """Return the reasons why there is no primary."""
        said = [f"{place} {self._said[place]}" for place in self._places if place in self._said]
        return "there is no primary" + (": " if said else "") + "; ".join(said)

    async def ask_everyone(self) -> list[Answer]:
        """Return every server that claims to be the primary. Each place gets its own timeout."""
        answers = await asyncio.gather(*(self._ask_place(place) for place in self._places))
        return [answer for found in answers for answer in found]

    async def ask(self) -> Answer | None:
        """Ask every place that has answered the last time, and wait a moment; return the primary, if one was found.

        A silent place keeps its own timeout meanwhile, and delays nothing.
        """
        loop = asyncio.get_running_loop()
        for place in self._places:
            if place not in self._asked:
                self._asked[place] = loop.create_task(self._ask_place(place))
        await asyncio.wait(self._asked.values(), timeout=ROUND_S)
        answered = [place for place, task in self._asked.items() if task.done()]
        found = [answer for place in answered for answer in self._asked.pop(place).result()]
        if not found:
            return None
        for late in self._asked.values():
            late.add_done_callback(_close_found)
        self._asked.clear()
        return choose_newest(found)

    async def _ask_place(self, place: Place) -> list[Answer]:
        """Return those addresses of a place that claim to be the primary: usually one. Keep other answers as
        reasons."""
        try:
            async with asyncio.timeout(ANSWER_S):
                addresses = await self._look_up(place)
            answers = await asyncio.gather(*(self._ask_address(place, address) for address in addresses))
        except TimeoutError:
            self._said[place] = f"could not be looked up within {ANSWER_S:g} s"
            return []
        except OSError as failure:
            self._said[place] = f"could not be looked up: {failure.strerror or failure}"
            return []
        return [answer for answer in answers if answer is not None]

    async def _ask_address(self, place: Place, address: str) -> Answer | None:
        session: Connection | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                session = await self._connect(f"{self._conninfo} {place.at(address)}")
                server = await self.ask_server(session, place, place.at(address))
        except TimeoutError:
            self._said[place] = SILENT
        except ConnectionLost as lost:
            self._said[place] = str(lost)
        else:
            return server, session
        if session is not None:
            session.close()
        return None

    async def _connect(self, conninfo: str) -> Connection:
        """Connect to the first of the databases that exists."""
        for database in self._databases[:-1]:
            try:
                return await Connection.open(add_settings(conninfo, database, _SETTINGS, _APPLICATION), ANSWER_S)
            except ConnectionLost:
                continue
        return await Connection.open(add_settings(conninfo, self._databases[-1], _SETTINGS, _APPLICATION), ANSWER_S)

    async def ask_server(self, session: Connection, place: Place, address: str) -> FoundServer:
        """Ask the connected server to identify itself. Raises ConnectionLost if it is not the primary, or no longer."""
        results = await session.run(_LOOK)
        error = find_error(results)
        if error is not None:
            raise ConnectionLost(error.get_error_message())
        [row] = read_text_rows(results[-1])
        started, standby, system, timeline, waits, standbys, waiting, written, confirmed = row
        if standby == "t":
            raise ConnectionLost("is a standby, which cannot write")
        commits = frozenset((waiting or "").split(",")) - {""}
        server = FoundServer(
            place,
            address,
            str(started),
            int(str(system)),
            int(str(timeline), 16),
            waits == "t",
            int(str(standbys)),
            commits,
            read_lsn(str(written)),
            read_lsn(confirmed) if confirmed else 0,
        )
        former = self._timelines.why_former(server.system, server.timeline)
        if former is not None:
            raise ConnectionLost(former)
        return server

    async def _look_up(self, place: Place) -> list[str]:
        """Return its addresses. Look each name up once at a time: it may take long, and nothing can end it."""
        if place.is_socket or place.address:
            return [place.address]
        loop = asyncio.get_running_loop()
        lookup = self._lookups.get(place.host)
        if lookup is None or lookup.done():
            lookup = self._lookups[place.host] = loop.create_task(addresses_of(place.host))
        try:
            self._addresses[place.host] = await asyncio.shield(lookup)
        except OSError:
            if place.host not in self._addresses:
                raise
        return self._addresses[place.host]


def choose_newest(found: list[Answer]) -> Answer | None:
    """Return the server on the newest timeline; close the sessions of the others."""
    if not found:
        return None
    found.sort(key=lambda answer: answer[0].timeline)
    for _, session in found[:-1]:
        session.close()
    return found[-1]


def _close_found(late: "asyncio.Task[list[Answer]]") -> None:
    if not late.cancelled() and late.exception() is None:
        for _, session in late.result():
            session.close()


async def addresses_of(host: str) -> list[str]:
    """Look a name up. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))
