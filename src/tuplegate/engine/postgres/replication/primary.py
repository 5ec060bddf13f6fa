"""Which server is the primary: found among the places that the engine's URL names, and followed when it moves.

A URL names several hosts, of which one is the primary at a time, or one that leads to whichever is: a name that is
changed, a proxy. All places are asked at once, so one that is frozen holds up nothing; of those that say they are the
primary, the one on the newest timeline is. Servers are told from each other by the moment at which they were started.
Every connection tells it with its first answer (see `verified`), and as soon as another server is the primary, all
connections to the former one are closed: it may not know yet that it is none.

A server that was promoted beside a primary that still answers is found, too: all places are asked again every few
seconds, and at once when a connection leads to another server. The newest timeline that any worker has seen counts for
all of them (`timelines`): a primary on an older one is left, also where the newer one cannot be reached.

Names are looked up here, off the event loop, as libpq would stand still for it.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final, TypeVar

import structlog

from tuplegate.engine.libpq.connection import Command, Connection, ConnectionLost, Meter, read_text_rows
from tuplegate.engine.libpq.failures import find_error
from tuplegate.engine.postgres.own.logins import Place, add_settings, list_places
from tuplegate.engine.postgres.replication.found_server import FoundServer, Replication
from tuplegate.engine.postgres.replication.positions import read_lsn
from tuplegate.engine.postgres.replication.timelines import Timelines
from tuplegate.engine.postgres.replication.verified import VERIFY, Expected, Unfit, check_connection

_log: Final = structlog.get_logger()
_C = TypeVar("_C", bound=Connection)

_LOOK_EVERY_S: Final = 1.0
_LOOK_AROUND_EVERY_S: Final = 3.0
"""How long a server that was promoted beside the primary may go unnoticed, where no new connection leads to it."""
_SEEK_PAUSE_S: Final = 0.1
_ANSWER_S: Final = 2.0
"""What a server may take to say what it is, connecting included."""
_ROUND_S: Final = 0.25
"""How long all are waited for, also when one has said that it is the primary: of two, the newer one counts."""
_PATIENCE_S: Final = 2.0
"""How long whoever wants a connection waits for a primary."""
_STANDS_STILL_S: Final = 2.0
"""Commits that wait for a standby for so long wait for one that is away."""
_SILENT_S: Final = 10.0
"""After this time without a word from the primary nobody waits for its answers any more."""

ANOTHER_SERVER: Final = (
    "it was started again, or its address leads to several servers: then name each of them, and not what distributes"
    " connections among them"
)
_SILENT: Final = f"gives no answer within {_ANSWER_S:g} s"
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


class Primary:
    """See the module's text. `conninfo` is that of a role that may ask, in the first of `databases` that lets it in.

    `follows` is false for a server that is always the same: nothing is looked for then, nor watched. `demands`: no
    commit is acknowledged that no standby has. `timelines` is what the workers share. `pins`: the first connection says
    which server it is, and one that leads to another is refused; `strays` tells that there was one.
    """

    def __init__(
        self,
        conninfo: str,
        databases: Sequence[str],
        *,
        follows: bool | None = None,
        demands: bool = False,
        timelines: Timelines | None = None,
        pins: bool = False,
    ) -> None:
        self._conninfo = conninfo
        self._databases = databases
        self._places = list_places(conninfo)
        self.follows = follows if follows is not None else not all(place.is_socket for place in self._places)
        self.demands = demands
        self._pins = pins
        self._pinned = ""
        self.strays = False
        self.replication = Replication()
        self.refuses: str | None = None
        """Why nothing may be written just now."""
        self._server: FoundServer | None = None
        self._timelines = timelines or Timelines()
        self._timeline_of: dict[str, int] = {}
        self._said: dict[Place, str] = {}
        self._is_watched = False
        self._present = asyncio.Event()
        self._doubted = asyncio.Event()
        self._suspects = False
        """A connection could not be had, or led elsewhere, since all places were asked."""
        self._round: asyncio.Task[list[tuple[FoundServer, Connection]]] | None = None
        self._round_at = 0.0
        self._session: Connection | None = None
        self._connections: set[Connection] = set()
        self._asked: dict[Place, asyncio.Task[list[tuple[FoundServer, Connection]]]] = {}
        """Places that have not said yet what they are."""
        self._lookups: dict[str, asyncio.Future[list[str]]] = {}
        self._addresses: dict[str, list[str]] = {}
        self._waiting_since: dict[str, tuple[float, int]] = {}
        """When each commit was first seen to wait, and how far the log was on disk then."""

    @property
    def lost(self) -> str | None:
        """Why there is no primary just now; None where there is one, or where nobody looks."""
        if not self._is_watched or self._server is not None:
            return None
        return self._reasons()

    @property
    def server(self) -> str:
        """The name that tells it from others; empty where it is always the same, or is being looked for."""
        return self._server.started if self._server is not None else ""

    def timeline_of(self, server: str) -> int:
        """Return the timeline of a server that is the primary, or was it; 0 where it is always the same server."""
        return self._timeline_of.get(server, 0)

    def has_left(self, server: str) -> bool:
        """Return whether that server is the primary no more: nothing that runs there counts."""
        return bool(server) and self._server is not None and self._server.started != server

    def waits_in_vain(self, process: int) -> bool:
        """Return whether the commit of a server process waits for a standby that is away."""
        if not self.replication.stands_still:
            return False
        return any(commit.startswith(f"{process}/") for commit in self._waiting_since)

    def _reasons(self) -> str:
        said = [f"{place} {self._said[place]}" for place in self._places if place in self._said]
        return "there is no primary" + (": " if said else "") + "; ".join(said)

    # -- connections --------------------------------------------------------------------------------------------

    async def open(
        self, kind: type[_C], conninfo: str, timeout_s: float, expected: Expected, meter: Meter | None = None,
        *, doubts: bool = True,
    ) -> _C:  # fmt: skip
        """A connection to the primary that is what it must be. Raises ConnectionLost, which says something of the
        primary unless `doubts` is false: as for a login with a client's own settings."""
        # In a task of its own, which a time limit needs.
        opening = self._open(kind, conninfo, timeout_s, expected, meter, doubts)
        return await asyncio.get_running_loop().create_task(opening)

    async def _open(
        self, kind: type[_C], conninfo: str, timeout_s: float, expected: Expected, meter: Meter | None, doubts: bool
    ) -> _C:
        try:
            connection = await kind.open(await self.reach(conninfo), timeout_s)
            try:
                if meter is not None:
                    connection.meter = meter
                async with asyncio.timeout(timeout_s):
                    self._admit(connection, check_connection(connection, await connection.run(VERIFY), expected))
            except TimeoutError:
                connection.close("the engine did not say what it is")
                raise ConnectionLost(f"no answer from the engine within {timeout_s:g} s") from None
            except BaseException:
                connection.close("it is not what it must be")
                raise
        except ConnectionLost:
            if doubts:
                self._doubt()
            raise
        return connection

    async def reach(self, conninfo: str) -> str:
        """The conninfo, to the primary alone. Raises ConnectionLost where there is none."""
        if not self.follows:
            return conninfo
        if self._server is None:
            if self._is_watched:
                await self._wait_for_it()
            else:
                await self._find()
        if self._server is None:
            raise ConnectionLost(self._reasons())
        return f"{conninfo} {self._server.address}"

    async def _wait_for_it(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._present.wait()
        except TimeoutError:
            pass

    async def _find(self) -> None:
        """Where nobody watches, and so nobody else may have found it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _ANSWER_S + _ROUND_S
        found = await self._ask_all()
        while found is None and self._asked and loop.time() < until:
            found = await self._ask_all()
        if found is not None:
            self._take(*found)
            self._close_session()

    def _admit(self, connection: Connection, started: str) -> None:
        if self._pins:
            self._pinned = self._pinned or started
            if started != self._pinned:
                self.strays = True
                raise Unfit(ANOTHER_SERVER)
        if not self.follows:
            return
        if self._server is None or started != self._server.started:
            raise Unfit("it leads to another server than the primary")
        connection.server = started
        self._connections.add(connection)

    def _doubt(self) -> None:
        """A connection could not be had, or was not what it must be: it is time to look again."""
        self._suspects = True
        self._doubted.set()
        if not self._is_watched:
            self._server = None

    # -- watching -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Goes on for ever."""
        self._is_watched = True
        try:
            while True:
                await self._look_or_seek()
                self._look_around()
                self._doubted.clear()
                try:
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        await self._doubted.wait()
                except TimeoutError:
                    pass
                self._connections = {connection for connection in self._connections if not connection.closed}
        finally:
            self._is_watched = False
            if self._round is not None:
                self._round.cancel()
                self._round = None
            self._close_session()

    async def _look_or_seek(self) -> None:
        session, former = self._session, self._server
        if session is not None and former is not None:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    looked = await self._ask(session, former.place, former.address)
                self._timelines.note(looked.system, looked.timeline)
                self._note(looked)
                return
            except TimeoutError:
                reason = _SILENT
            except ConnectionLost as lost:
                reason = str(lost)
            _log.warning("the primary was lost", place=str(former.place), reason=reason)
            self._said = {former.place: reason}
            self._server = None
            self._present.clear()
            self._close_session()
            if former.timeline < self._timelines.newest:
                self._close_connections("it leads to a former primary")
        self._take(*await self._seek(former))
        if former is not None:
            server = self._server
            assert server is not None
            _log.warning("the primary was found", place=str(server.place), moved=server.started != former.started)

    async def _seek(self, former: FoundServer | None) -> tuple[FoundServer, Connection]:
        """Ask until there is a primary. Where the former one is silent, nobody waits for it for ever."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while (found := await self._ask_all()) is None:
            is_silent = former is not None and self._said.get(former.place) == _SILENT
            if is_silent and loop.time() - since > _SILENT_S:
                self._close_connections(f"the engine gives no answer for {_SILENT_S:g} s")
            await asyncio.sleep(_SEEK_PAUSE_S)
        return found

    def _look_around(self) -> None:
        """Ask all places again when it is time: the watched session does not tell that another was promoted."""
        loop = asyncio.get_running_loop()
        if self._round is not None and self._round.done():
            found, self._round = self._round.result(), None
            self._take_newer(found)
        if self._round is None and (self._suspects or loop.time() >= self._round_at):
            self._suspects = False
            self._round_at = loop.time() + _LOOK_AROUND_EVERY_S
            self._round = loop.create_task(self._ask_everyone())
            self._round.add_done_callback(lambda _: self._doubted.set())

    async def _ask_everyone(self) -> list[tuple[FoundServer, Connection]]:
        """Return those that say that they are the primary. Who is silent is waited for up to its own bound."""
        answers = await asyncio.gather(*(self._ask_place(place) for place in self._places))
        return [answer for found in answers for answer in found]

    def _take_newer(self, found: list[tuple[FoundServer, Connection]]) -> None:
        newest = _newest(found)
        if newest is None:
            return
        server, session = newest
        former = self._server
        if former is not None and server.timeline <= former.timeline:
            session.close()
            return
        _log.warning("another server was promoted", place=str(server.place), timeline=server.timeline)
        self._close_session()
        self._take(server, session)

    def _take(self, server: FoundServer, session: Connection) -> None:
        self._server, self._session = server, session
        self._timeline_of[server.started] = server.timeline
        self._timelines.note(server.system, server.timeline)
        self._note(server)
        self._present.set()
        self._close_connections("another server is the primary", but=server.started)

    def _close_connections(self, reason: str, but: str = "") -> None:
        for connection in list(self._connections):
            if connection.server != but:
                connection.close(reason)

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _note(self, server: FoundServer) -> None:
        """Note what its commits wait for, and for how long."""
        now = asyncio.get_running_loop().time()
        seen = (now, server.written)
        self._waiting_since = {commit: self._waiting_since.get(commit, seen) for commit in server.waiting}
        # A commit that standbys have on disk was told to wait for more, by a tenant: no standby is away.
        stand_still = any(
            now - since >= _STANDS_STILL_S and server.confirmed < written
            for since, written in self._waiting_since.values()
        )
        if stand_still != self.replication.stands_still:
            _log.warning("commits wait for a standby" if stand_still else "commits wait for no standby any more")
        self.replication = Replication(server.waits, server.standbys, stand_still)
        if stand_still:
            self.refuses = "commits wait for a standby that is away, so nothing can be written; nothing was applied"
        elif self.demands and not (server.waits and server.standbys):
            self.refuses = "no standby confirms commits, and the service is to acknowledge none without"
        else:
            self.refuses = None

    # -- seeking ------------------------------------------------------------------------------------------------

    async def _ask_all(self) -> tuple[FoundServer, Connection] | None:
        """Asks every place that has answered the last time, and gives all a moment; the primary, if one says so.

        Who is silent is left to its own bound meanwhile, and holds up nothing.
        """
        loop = asyncio.get_running_loop()
        for place in self._places:
            if place not in self._asked:
                self._asked[place] = loop.create_task(self._ask_place(place))
        await asyncio.wait(self._asked.values(), timeout=_ROUND_S)
        answered = [place for place, task in self._asked.items() if task.done()]
        found = [answer for place in answered for answer in self._asked.pop(place).result()]
        if not found:
            return None
        for late in self._asked.values():
            late.add_done_callback(_close_found)
        self._asked.clear()
        return _newest(found)

    async def _ask_place(self, place: Place) -> list[tuple[FoundServer, Connection]]:
        """Those of its addresses that are the primary: one, as a rule. What it says otherwise is kept."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                addresses = await self._look_up(place)
            answers = await asyncio.gather(*(self._ask_address(place, address) for address in addresses))
        except TimeoutError:
            self._said[place] = f"could not be looked up within {_ANSWER_S:g} s"
            return []
        except OSError as failure:
            self._said[place] = f"could not be looked up: {failure.strerror or failure}"
            return []
        return [answer for answer in answers if answer is not None]

    async def _ask_address(self, place: Place, address: str) -> tuple[FoundServer, Connection] | None:
        session: Connection | None = None
        try:
            async with asyncio.timeout(_ANSWER_S):
                session = await self._connect(f"{self._conninfo} {place.at(address)}")
                server = await self._ask(session, place, place.at(address))
        except TimeoutError:
            self._said[place] = _SILENT
        except ConnectionLost as lost:
            self._said[place] = str(lost)
        else:
            return server, session
        if session is not None:
            session.close()
        return None

    async def _connect(self, conninfo: str) -> Connection:
        """In the first of the databases that is there."""
        for database in self._databases[:-1]:
            try:
                return await Connection.open(add_settings(conninfo, database, _SETTINGS, _APPLICATION), _ANSWER_S)
            except ConnectionLost:
                continue
        return await Connection.open(add_settings(conninfo, self._databases[-1], _SETTINGS, _APPLICATION), _ANSWER_S)

    async def _ask(self, session: Connection, place: Place, address: str) -> FoundServer:
        """Ask the server at the other end what it is. Raises ConnectionLost where it is not the primary, or was it."""
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
        """Its addresses. One look-up of a name at a time: it may take long, and nothing ends it."""
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


def _newest(found: list[tuple[FoundServer, Connection]]) -> tuple[FoundServer, Connection] | None:
    """Return the one on the newest timeline; the sessions of others are closed."""
    if not found:
        return None
    found.sort(key=lambda answer: answer[0].timeline)
    for _, session in found[:-1]:
        session.close()
    return found[-1]


def _close_found(late: "asyncio.Task[list[tuple[FoundServer, Connection]]]") -> None:
    if not late.cancelled() and late.exception() is None:
        for _, session in late.result():
            session.close()


async def addresses_of(host: str) -> list[str]:
    """Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))
