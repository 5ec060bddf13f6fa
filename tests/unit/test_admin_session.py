"""How long sessions of the service's own wait for an answer, by what the engine waits for."""

import asyncio
from typing import Any, cast

import pytest

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import ConnectionLost
from tuplegate.engine.postgres.service import admin
from tuplegate.engine.postgres.service.admin import AdminConnector, AdminSession

LIMIT_S = 0.05
LOOK_S = 0.01


class Engine:
    """Stands for the engine, who connects to it, and the one connection; it answers nothing."""

    def __init__(self) -> None:
        self.primary = self.replication = self
        self.stands_still = self.is_away = False
        self.answer_s = LIMIT_S
        self.backend = 1
        self.server = ""
        self.closed = False
        self.looked = asyncio.Event()
        self._gone = asyncio.Event()

    def waits_in_vain(self, _process: int) -> bool:
        self.looked.set()
        return self.is_away

    async def connect(self, *_: Any, **__: Any) -> "Engine":
        return self

    async def run(self, *_: Any) -> Any:
        await self._gone.wait()
        raise ConnectionLost("it was closed")

    def close(self, _reason: str = "") -> None:
        self.closed = True
        self._gone.set()


async def _look_beyond(engine: Engine) -> None:
    """Return when somebody has looked after the time limit has passed."""
    await asyncio.sleep(2 * LIMIT_S)
    engine.looked.clear()
    async with asyncio.timeout(5):
        await engine.looked.wait()
    await asyncio.sleep(0)


@pytest.mark.parametrize("waits", [True, False])
def test_a_session_whose_commit_waits_for_a_standby(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is to wait stays open however long that takes: its server process would go on, beside the next one. It
    is closed when the engine gives no answer for another reason. One that is not to wait is closed."""
    monkeypatch.setattr(admin, "_LOOK_EVERY_S", LOOK_S)

    async def run() -> None:
        engine = Engine()
        engine.is_away = True
        session = AdminSession(cast(AdminConnector, engine), "tuplegate", waits=waits)
        asking = asyncio.create_task(session.fetch("SELECT 1"))
        if waits:
            await _look_beyond(engine)
            assert not engine.closed
            engine.is_away = False
        with pytest.raises(port.EngineLost):
            await asyncio.wait_for(asking, 5)
        assert engine.closed

    asyncio.run(run())
