"""Watches the sizes of databases that have a bound."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.pools.pool import DatabaseState

_EVERY_S: Final = 2.0


class SizeWatch:
    def __init__(
        self,
        measure: Callable[[Sequence[str]], Awaitable[dict[str, int]]],
        state_of: Callable[[str], DatabaseState],
    ) -> None:
        self._measure = measure
        self._state_of = state_of
        self._bounds: dict[str, int] = {}
        self._changed = asyncio.Event()

    def bound(self, database: str, bytes_max: int | None) -> None:
        if bytes_max is None:
            if self._bounds.pop(database, None) is not None:
                self._state_of(database).full_at = None
        elif self._bounds.get(database) != bytes_max:
            self._bounds[database] = bytes_max
            self._changed.set()

    async def watch(self) -> None:
        while True:
            if not self._bounds:
                await self._changed.wait()
            self._changed.clear()
            try:
                sizes = await self._measure(list(self._bounds))
            except port.EngineFailure:
                sizes = {}
            for database, size in sizes.items():
                bytes_max = self._bounds.get(database)
                full = bytes_max is not None and size >= bytes_max
                self._state_of(database).full_at = bytes_max if full else None
            await asyncio.sleep(_EVERY_S)
