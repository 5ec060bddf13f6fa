"""Shares the look-ups of tokens that were not seen before: so many at a time, one of each address after the other.

Anybody can make up tokens, and each costs a question to the catalog. Whoever sends many waits for itself: a good token
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
        """By address; the one whose last turn is longest ago is the first."""

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
        """Give the turn to the next who waits, if anybody does."""
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
