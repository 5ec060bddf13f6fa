"""The databases of several engines: each step is done by the engine that has the database."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from tuplegate.engine import port

Locate = Callable[[Sequence[str]], Awaitable[dict[str, str]]]
"""Returns the engine of each name that is on one."""


class SeveralDatabases:
    """Fills the port's `AllDatabases`. `engines` includes the first."""

    def __init__(self, engines: Mapping[str, port.EngineDatabases], locate: Locate) -> None:
        self._engines = engines
        self._locate = locate
        self._of: dict[str, str] = {}

    def on(self, engine: str) -> port.EngineDatabases:
        """Return the databases of one engine. Raises EngineUnavailable if the service has no such engine."""
        try:
            return self._engines[engine]
        except KeyError:
            raise port.EngineUnavailable(f"the engine {engine} is not in the settings of this service") from None

    async def _on(self, name: str) -> port.EngineDatabases:
        await self._learn([name])
        if name not in self._of:
            raise port.EngineUnavailable(f"the database {name} is on no engine")
        return self.on(self._of[name])

    async def _learn(self, names: Sequence[str]) -> None:
        if new := [name for name in names if name not in self._of]:
            self._of |= await self._locate(new)

    def furnishing_of(self, name: str) -> str:
        return self.on(self._of[name]).furnishing_of(name)

    async def create(self, name: str, *, for_copy: bool = False) -> None:
        await (await self._on(name)).create(name, for_copy=for_copy)

    async def copy(self, source: str, name: str) -> None:
        await (await self._on(name)).copy(source, name)

    @asynccontextmanager
    async def reach(self, name: str) -> AsyncIterator[port.ServerDatabases]:
        async with (await self._on(name)).reach(name) as server:
            yield server

    async def keep_outcomes(self, source: str, name: str) -> None:
        await (await self._on(name)).keep_outcomes(source, name)

    async def drop(self, name: str) -> None:
        await (await self._on(name)).drop(name)
        self._of.pop(name, None)

    async def drop_left_roles(self) -> None:
        for engine, databases in self._engines.items():
            try:
                await databases.drop_left_roles()
            except port.EngineFailure:
                if engine == port.FIRST_ENGINE:
                    raise

    async def sizes(self, names: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for engine, of_one in (await self._group(names)).items():
            try:
                found |= await self.on(engine).sizes(of_one)
            except port.EngineUnavailable:
                continue  # an engine that is down keeps nobody from seeing the others
        return found

    async def find_awake(self, names: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for engine, of_one in (await self._group(names)).items():
            if engine in self._engines:
                found |= await self._engines[engine].find_awake(of_one)
        return found

    async def _group(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the names on each engine."""
        await self._learn(names)
        by_engine: dict[str, list[str]] = {}
        for name in names:
            if name in self._of:
                by_engine.setdefault(self._of[name], []).append(name)
        return by_engine
