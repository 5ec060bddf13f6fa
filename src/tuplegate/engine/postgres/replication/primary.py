"""Finds the primary among the places that the engine's URL names, and follows it when it moves.

A URL names several hosts, one of which is the primary at a time, or one name or proxy that leads to the current
primary. All places are asked at once, so a frozen one delays nothing; of the servers that claim to be the primary, the
one on the newest timeline is. A server is identified by its start time. Every connection reports it with its first
answer (see `verified`). As soon as another server is the primary, all connections to the former one are closed: it may
not know yet that it was replaced.

A server that was promoted beside a primary that still answers is found, too: all places are asked again every few
seconds, and at once when a connection leads to another server. The newest timeline that any worker has seen counts for
all of them (`timelines`): a primary on an older one is left, even if the newer one cannot be reached.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar

import structlog

from tuplegate.background import compute_pause_s
from tuplegate.engine.libpq.connections.commands import ConnectionLost, Meter
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.postgres.replication.found_server import FoundServer, Replication
from tuplegate.engine.postgres.replication.seeker import ANSWER_S, ROUND_S, SILENT, Answer, Seeker, choose_newest
from tuplegate.engine.postgres.replication.timelines import Timelines
from tuplegate.engine.postgres.replication.verified import VERIFY, Expected, Unfit, check_connection

_log: Final = structlog.get_logger()
_C = TypeVar("_C", bound=Connection)

_LOOK_EVERY_S: Final = 1.0
_LOOK_AROUND_EVERY_S: Final = 3.0
"""How long a server that was promoted beside the primary may go unnoticed, if no new connection leads to it."""
_LOOK_BEHIND_EVERY_S: Final = 15.0
"""The same if all servers have one address, as behind a proxy: a look is a login, and there a change is nearly always
noticed by other means."""
_SEEK_PAUSE_S: Final = 0.1
_PATIENCE_S: Final = 2.0
"""How long a caller waits for a primary before its connection fails."""
_STANDS_STILL_S: Final = 2.0
"""Commits that have waited for a standby for this long wait for one that is away."""
_SILENT_S: Final = 10.0
"""After this time without an answer from the primary, its connections are closed."""

ANOTHER_SERVER: Final = (
    "it was started again, or its address leads to several servers: then name each of them, and not what distributes"
    " connections among them"
)


# size: the findings of the watch are here, where every new connection asks for them.
class Primary:
    """The primary of one engine, as one worker knows it. See the module's text. `conninfo` is a role's that may ask, in
    the first of `databases` that lets it in.

    `follows` is false for a server that cannot be replaced: then nothing is looked for or watched. `demands_standby`: a
    commit is acknowledged only once a standby has it. The workers share `timelines`. `pins`: the first connection
    decides the server, and one that leads to another is refused; `strays` tells that there was one.
    """

    def __init__(
        self,
        conninfo: str,
        databases: Sequence[str],
        *,
        follows: bool | None = None,
        demands_standby: bool = False,
        timelines: Timelines | None = None,
        pins: bool = False,
    ) -> None:
        self._timelines = timelines or Timelines()
        self._seeker = Seeker(conninfo, databases, self._timelines)
        self.follows = follows if follows is not None else not self._seeker.is_local
        self.demands_standby = demands_standby
        self._pins = pins
        self._pinned = ""
        self.strays = False
        self.replication = Replication()
        self.refuses: str | None = None
        """The reason why nothing may be written just now."""
        self._server: FoundServer | None = None
        self._timeline_of: dict[str, int] = {}
        self._is_watched = False
        self._present = asyncio.Event()
        self._doubted = asyncio.Event()
        self._suspects = False
        """Since all places were last asked, a connection failed or led elsewhere."""
        self._round: asyncio.Task[list[Answer]] | None = None
        self._round_at = 0.0
        self._session: Connection | None = None
        self._connections: set[Connection] = set()
        self._waiting_since: dict[str, tuple[float, int]] = {}
        """The time at which each commit was first seen to wait, and the LSN of the log on disk at that time."""

    @property
    def lost(self) -> str | None:
        """The reason why there is no primary just now; None if there is one, or nothing is watched."""
        if not self._is_watched or self._server is not None:
            return None
        return self._seeker.explain()

    @property
    def server(self) -> str:
        """The primary's start time, which identifies it; empty if it cannot be replaced, or is being looked for."""
        return self._server.started if self._server is not None else ""

    def timeline_of(self, server: str) -> int:
        """Return the timeline of a server that is or was the primary; 0 if the primary cannot be replaced."""
        return self._timeline_of.get(server, 0)

    def has_left(self, server: str) -> bool:
        """Return whether that server is no longer the primary: nothing that runs there counts."""
        return bool(server) and self._server is not None and self._server.started != server

    def waits_in_vain(self, process: int) -> bool:
        """Return whether the commit of a server process waits for a standby that is away."""
        if not self.replication.stands_still:
            return False
        return any(commit.startswith(f"{process}/") for commit in self._waiting_since)

    # -- connections --------------------------------------------------------------------------------------------

    async def open(
        self, kind: type[_C], conninfo: str, timeout_s: float, expected: Expected, meter: Meter | None = None,
        *, doubts: bool = True,
    ) -> _C:  # fmt: skip
        """Open a connection to the primary and verify it. Raises ConnectionLost. A failure makes the primary suspect
        unless `doubts` is false: as for a login with a client's own settings."""
        # In a task of its own, as a time limit requires.
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
                    started = check_connection(connection, await connection.run(VERIFY), expected)
                if self._server is None and self._is_watched:
                    await self._wait_for_it()  # as a rule the same is found again
                if connection.closed:
                    raise ConnectionLost("the engine closed the connection")
                self._admit(connection, started)
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
        """Return the conninfo, extended so that it leads only to the primary. Raises ConnectionLost if there is
        none."""
        if not self.follows:
            return conninfo
        if self._server is None:
            if self._is_watched:
                await self._wait_for_it()
            else:
                await self._find()
        if self._server is None:
            raise ConnectionLost(self._seeker.explain())
        return f"{conninfo} {self._server.address}"

    async def _wait_for_it(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._present.wait()
        except TimeoutError:
            pass

    async def _find(self) -> None:
        """Find the primary when no watch runs that could have found it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + ANSWER_S + ROUND_S
        found = await self._seeker.ask()
        while found is None and self._seeker.is_asking and loop.time() < until:
            found = await self._seeker.ask()
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
        """Note that a connection failed or was not as expected, and look for the primary again."""
        self._suspects = True
        self._doubted.set()
        if not self._is_watched:
            self._server = None

    # -- watching -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Watch the primary until cancelled."""
        self._is_watched = True
        try:
            while True:
                await self._look_or_seek()
                self._look_around()
                self._doubted.clear()
                try:
                    async with asyncio.timeout(compute_pause_s(_LOOK_EVERY_S)):
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
                async with asyncio.timeout(ANSWER_S):
                    looked = await self._seeker.ask_server(session, former.place, former.address)
                self._timelines.note(looked.system, looked.timeline)
                self._note(looked)
                return
            except TimeoutError:
                reason = SILENT
            except ConnectionLost as lost:
                reason = str(lost)
            _log.warning("the primary was lost", place=str(former.place), reason=reason)
            self._seeker.note(former.place, reason)
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

    async def _seek(self, former: FoundServer | None) -> Answer:
        """Ask until there is a primary. If the former one stays silent, close its connections."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while (found := await self._seeker.ask()) is None:
            is_silent = former is not None and self._seeker.is_silent(former.place)
            if is_silent and loop.time() - since > _SILENT_S:
                self._close_connections(f"the engine gives no answer for {_SILENT_S:g} s")
            await asyncio.sleep(_SEEK_PAUSE_S)
        return found

    def _look_around(self) -> None:
        """Ask all places again when it is time: the watched session does not tell that another server was promoted."""
        loop = asyncio.get_running_loop()
        if self._round is not None and self._round.done():
            found, self._round = self._round.result(), None
            self._take_newer(found)
        if self._round is None and (self._suspects or loop.time() >= self._round_at):
            self._suspects = False
            every_s = _LOOK_AROUND_EVERY_S if self._seeker.knows_others else _LOOK_BEHIND_EVERY_S
            self._round_at = loop.time() + every_s
            self._round = loop.create_task(self._seeker.ask_everyone())
            self._round.add_done_callback(lambda _: self._doubted.set())

    def _take_newer(self, found: list[Answer]) -> None:
        newest = choose_newest(found)
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
        """Note the primary's replication, and whether commits wait for a standby that is away."""
        now = asyncio.get_running_loop().time()
        seen = (now, server.written)
        self._waiting_since = {commit: self._waiting_since.get(commit, seen) for commit in server.waiting}
        # If standbys have a waiting commit on disk, no standby is away: a tenant has set it to wait for more.
        stand_still = any(
            now - since >= _STANDS_STILL_S and server.confirmed < written
            for since, written in self._waiting_since.values()
        )
        if stand_still != self.replication.stands_still:
            _log.warning("commits wait for a standby" if stand_still else "commits wait for no standby any more")
        self.replication = Replication(server.waits, server.standbys, stand_still)
        if stand_still:
            self.refuses = "commits wait for a standby that is away, so nothing can be written; nothing was applied"
        elif self.demands_standby and not (server.waits and server.standbys):
            self.refuses = "no standby confirms commits, and the service is to acknowledge none without"
        else:
            self.refuses = None
