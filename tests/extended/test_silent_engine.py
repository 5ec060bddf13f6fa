"""An engine that takes what is sent and answers nothing: nobody waits for it for ever."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.external import ExternalServer
from tests.servers import needs_linux
from tuplegate.engine.libpq.connections.logins import read_url
from tuplegate.engine.port import EngineUnavailable
from tuplegate.engine.postgres.replication import primary
from tuplegate.engine.postgres.service import admin

pytestmark = needs_linux

_WAIT_S = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    made = ExternalServer()
    yield made
    made.remove()


@asynccontextmanager
async def silent(server: ExternalServer) -> AsyncIterator[None]:
    await asyncio.to_thread(server.freeze)
    try:
        async with asyncio.timeout(_WAIT_S):
            yield
    finally:
        await asyncio.to_thread(server.thaw)


def test_an_answer_that_does_not_come(server: ExternalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that is always the same, and so is not watched."""
    monkeypatch.setattr(admin, "_LATE_S", 0.4)
    conninfo = read_url(server.url("postgres"))

    async def run() -> None:
        always = admin.make_primary(conninfo, follows=False)
        connector = admin.AdminConnector(conninfo, statement_ms=100, primary=always)
        async with admin.AdminSession(connector, "postgres") as session:
            await session.fetch("SELECT 1")
            async with silent(server):
                with pytest.raises(EngineUnavailable, match=r"no answer within 0\.5 s"):
                    await session.fetch("SELECT 1")
            assert await session.fetch("SELECT 1") == [("1",)]

    asyncio.run(run())


def test_a_primary_that_falls_silent(server: ExternalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever waits for it is told, also what may take as long as it wants; and it is used again when it answers."""
    monkeypatch.setattr(primary, "_SILENT_S", 0.5)
    conninfo = read_url(server.url("postgres"))

    async def run() -> None:
        followed = admin.make_primary(conninfo, follows=True)
        watching = asyncio.create_task(followed.watch())
        connector = admin.AdminConnector(conninfo, primary=followed)
        async with admin.AdminSession(connector, "postgres", patient=True) as session:
            await session.fetch("SELECT 1")
            async with silent(server):
                with pytest.raises(EngineUnavailable, match="the engine gives no answer"):
                    await session.fetch("SELECT 1")
                with pytest.raises(EngineUnavailable, match="there is no primary"):
                    await session.fetch("SELECT 1")
            assert await session.fetch("SELECT 1") == [("1",)]
        watching.cancel()

    asyncio.run(run())
