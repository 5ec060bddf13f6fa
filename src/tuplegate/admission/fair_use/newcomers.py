"""Limits concurrent look-ups of tokens that were not seen before, and serves addresses in turn.

Anybody can invent tokens, and each costs a question to the catalog. A sender of many delays only itself: a good token
from another address is looked up next.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Newcomers:
    def __init__(self, at_once_max: int) -> None:
        self._free = at_once_max
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The waiting look-ups by address; the address whose last turn was the longest ago is first."""

    @asynccontextmanager
    async def take_turn(self, address: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(address)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, address: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()  # it was given the turn, and does not take it
            turn.cancel()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the next that waits, if any does."""
        while self._waiting:
            address = next(iter(self._waiting))
            turns = self._waiting.pop(address)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
