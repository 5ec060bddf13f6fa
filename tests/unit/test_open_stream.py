"""A stream inside of an open transaction: its reader may leave at any moment, and the transaction learns its end."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from tuplegate.eager import EagerRun, see_through
from tuplegate.engine import port
from tuplegate.engine.run.inside_stream import stream_inside
from tuplegate.engine.run.open_transaction import OpenTransaction


class Transaction:
    """One whose statement fails. What that means for it takes until `cancelled` is set, as a cancel under way does."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.is_rolled_back = False

    def start(self, _bounds: port.Bounds) -> int:
        return 0

    async def open_stream(self, _statement: port.Statement) -> None:
        raise port.StatementFailed("canceling statement due to user request", sqlstate="57014")

    async def see_failure(self, exc: BaseException, _started: int) -> BaseException:
        await self.cancelled.wait()
        self.is_rolled_back = True
        return exc

    def see_through(self, work: Coroutine[Any, Any, Any]) -> Any:
        return see_through(work, lambda _cancelled: None)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_rollback_that_was_wished_for_is_seen_through(leaves: bool) -> None:
    """Also where the reader leaves while a cancel of its statement is under way."""

    async def read(transaction: Transaction, ended: list[str]) -> None:
        statement, bounds = port.Statement("select 1", "select"), port.Bounds(1000, None, 1000)
        try:
            async with stream_inside(cast("OpenTransaction[Any]", transaction), statement, bounds):
                pass
        except BaseException as exc:
            ended.append(type(exc).__name__)
            raise

    async def test() -> None:
        transaction, ended = Transaction(), list[str]()
        done = asyncio.Event()
        run = EagerRun(read(transaction, ended), lambda _cancelled: done.set())
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        run.resume()
        await asyncio.sleep(0)
        if leaves:
            run.cancel()
            await done.wait()
        transaction.cancelled.set()
        while not transaction.is_rolled_back:
            await asyncio.sleep(0)
        await done.wait()
        assert ended == ["CancelledError" if leaves else "StatementFailed"]

    asyncio.run(asyncio.wait_for(test(), 20))
