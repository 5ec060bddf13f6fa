"""How long a transaction stays open between requests."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.waiting import eventually_async
from tuplegate.data_plane.interactive.held import Beginner, Held
from tuplegate.engine import port

IDLE_S = 0.2


def hold() -> tuple[Held, list[port.EndReason]]:
    """A transaction that stays open, and the reasons for which it is ended."""
    ended: list[port.EndReason] = []
    transaction = SimpleNamespace(abort=ended.append, state=port.OpenState.WAITING, over=None)
    held = Held("txn_1", cast(Beginner, None), cast(Any, transaction), IDLE_S, 60)
    held.end_request(None)
    return held, ended


def test_a_transaction_that_nobody_uses_ends() -> None:
    async def run() -> None:
        _, ended = hold()
        await eventually_async(lambda: bool(ended))
        assert ended == [port.EndReason.IDLE]

    asyncio.run(run())


@pytest.mark.parametrize("standstill_s", [0.4, 1.0])
def test_time_in_which_the_process_stood_still_is_nobodys_idleness(standstill_s: float) -> None:
    """A request that came meanwhile is still to be read when the timers fire."""

    async def run() -> None:
        held, ended = hold()
        time.sleep(standstill_s)  # the fault itself
        for _ in range(3):
            await asyncio.sleep(0)
        assert held.begin_request(None) is None
        held.end_request(None)
        assert ended == []
        await eventually_async(lambda: bool(ended))
        assert ended == [port.EndReason.IDLE]

    asyncio.run(run())
