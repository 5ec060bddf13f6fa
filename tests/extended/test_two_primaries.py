"""A server is promoted while the former primary still answers: the newer one is used, and nothing else from then on."""

import asyncio
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from psycopg.pq.abc import PGresult

from tests.external import ExternalServer, Standby
from tests.servers import needs_linux
from tests.waiting import eventually_async
from tests.wire_proxy import PortProxy
from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.logins import read_url
from tuplegate.engine.port import EngineUnavailable
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.engine.postgres.replication.timelines import Timelines
from tuplegate.engine.postgres.replication.verified import Expected
from tuplegate.engine.postgres.service.admin import AdminConnector, AdminSession, make_primary
from tuplegate.engine.postgres.transaction.certainty import Certainty

pytestmark = needs_linux

_WAIT_S = 30.0
_PORT = "SELECT current_setting('port')"


class Pair:
    """Two servers, of which the second is promoted by the first test that wants it."""

    def __init__(self) -> None:
        self.former = ExternalServer()
        self.newer = Standby(self.former)
        self.timelines = Timelines()

    def url(self, *ports: int) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return read_url(self.former.url("postgres").replace(f"127.0.0.1:{self.former.port}", hosts))

    def promote(self) -> None:
        self.newer.execute("select pg_promote()")


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.newer.remove()
    made.former.remove()


async def follow(primary: Primary, conninfo: str, promote: Callable[[], None], newer: int) -> None:
    """A session that was open all the time leads to the newer server after the promotion, though the former answers."""
    watching = asyncio.create_task(primary.watch())
    try:
        async with AdminSession(AdminConnector(conninfo, primary=primary), "postgres") as session:
            await session.fetch(_PORT)
            before = primary.server
            await asyncio.to_thread(promote)
            await eventually_async(lambda: primary.server not in ("", before))
            assert primary.has_left(before)
            with_it = session._connection
            assert with_it is not None
            assert with_it.closed
            assert await session.fetch(_PORT) == [(str(newer),)]
            # What the former one has committed is not certain because the newer one can commit something.
            certainty = Certainty(primary, session, session)
            assert not await certainty.is_certain(before)
            assert await certainty.is_certain(primary.server)
    finally:
        watching.cancel()


def test_all_places_are_asked_again(pair: Pair) -> None:
    async def run() -> None:
        both = pair.url(pair.former.port, pair.newer.port)
        primary = make_primary(both, follows=True, timelines=pair.timelines)
        await follow(primary, both, pair.promote, pair.newer.port)
        # Another worker, or one that is started again, reaches the former primary alone.
        other = make_primary(pair.url(pair.former.port), follows=True, timelines=pair.timelines)
        async with AdminSession(AdminConnector(pair.url(pair.former.port), primary=other), "postgres") as session:
            with pytest.raises(EngineUnavailable, match="is a former primary: it is on timeline 1"):
                await session.fetch(_PORT)

    asyncio.run(run())


def test_a_name_that_leads_to_another_server(pair: Pair) -> None:
    """Its addresses do not change, and the watched session goes on answering."""
    with PortProxy(pair.former.url("postgres")) as name:

        def promote() -> None:
            pair.promote()
            name._engine = urlsplit(pair.newer.url("postgres"))

        conninfo = read_url(name.url)
        asyncio.run(follow(make_primary(conninfo, follows=True), conninfo, promote, pair.newer.port))


def test_a_connection_that_was_opened_while_the_primary_was_looked_for(pair: Pair) -> None:
    """It is used where it leads to the server that is found: a network that resets all connections costs one login."""
    conninfo = pair.url(pair.former.port)
    primary = make_primary(conninfo, follows=True)

    class Meanwhile(Connection):
        """Loses the watched session, as a reset does, when it has said what it is."""

        async def run(self, *commands: Command) -> list[PGresult]:
            results = await super().run(*commands)
            assert primary._session is not None
            primary._session.close("it was reset")
            primary._doubted.set()
            while primary.server:
                await asyncio.sleep(0)
            return results

    async def run() -> None:
        watching = asyncio.create_task(primary.watch())
        try:
            await eventually_async(lambda: bool(primary.server))
            as_the_server_is = Expected("read committed", "off", '"$user", public')
            opened = await primary.open(Meanwhile, conninfo, _WAIT_S, as_the_server_is)
            assert opened.server == primary.server != ""
            opened.close()
        finally:
            watching.cancel()

    asyncio.run(run())
