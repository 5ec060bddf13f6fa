"""Questions whether commits are final: one commit answers all that were asked before it began."""

import asyncio
from typing import Any, cast

from tuplegate.engine import port
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.engine.postgres.service.admin import AdminSession
from tuplegate.engine.postgres.transaction.certainty import Certainty


class Server:
    """Stands for the primary and a session on it. Each commit is answered, or fails, when the test says so."""

    demands_standby = False

    def __init__(self) -> None:
        self.commits: list[asyncio.Future[None]] = []

    async def fetch_of(self, _server: str, _sql: str, *_params: str | None) -> list[tuple[str | None, ...]]:
        self.commits.append(asyncio.get_running_loop().create_future())
        await self.commits[-1]
        return []


async def _turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def _ask(certainty: Certainty, times: int) -> "asyncio.Future[list[bool]]":
    asked = asyncio.gather(*(certainty.is_certain("server", 1e9) for _ in range(times)))
    await _turn()
    return asked


def make() -> tuple[Server, Certainty]:
    server = Server()
    session = cast(AdminSession, server)
    return server, Certainty(cast(Primary, server), session, session)


def test_those_who_ask_while_a_commit_is_under_way_share_the_next() -> None:
    async def run() -> None:
        server, certainty = make()
        first, others = await _ask(certainty, 1), await _ask(certainty, 20)
        assert len(server.commits) == 1
        server.commits[0].set_result(None)
        assert await first == [True]
        await _turn()
        assert len(server.commits) == 2
        assert not others.done()
        server.commits[1].set_result(None)
        assert await others == [True] * 20
        assert len(server.commits) == 2

    asyncio.run(run())


def test_a_commit_that_fails_says_nothing() -> None:
    """Neither of what was asked, nor of the next question."""

    async def run() -> None:
        server, certainty = make()
        failures: list[Any] = [
            port.StatementFailed("there is no room", sqlstate="53100"),
            port.EngineLost("it is gone"),
        ]
        for failure in failures:
            asked = await _ask(certainty, 3)
            server.commits[-1].set_exception(failure)
            assert await asked == [False] * 3
        asked = await _ask(certainty, 1)
        server.commits[-1].set_result(None)
        assert await asked == [True]

    asyncio.run(run())
