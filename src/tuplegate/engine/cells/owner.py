"""The bundled engine as the supervisor prepares it: a server for the catalog, and a cell for each database."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.bundled.sandbox.walls import find_gaps
from tuplegate.engine.cells.databases import CellDatabases
from tuplegate.engine.cells.desk import Desk
from tuplegate.engine.cells.line import CellLine
from tuplegate.engine.postgres.preparation.installing import PostgresOwner, PostgresPreparation

_OURSELVES = -1
"""Stands for the supervisor among the numbers of workers."""
_TICK_S = 0.005

WITHOUT_SANDBOX: Final = (
    port.Weakness(
        "sandbox_incomplete",
        True,
        "The operating system does not keep the servers of databases apart, or not in full. A tenant can make every"
        " extension of the bundle, so it can have its server read files, run programs, or signal processes as far as"
        " the missing part of the sandbox lets it: those of other databases, too.",
        "`tuplegate doctor` says what is missing: as a rule a newer Linux.",
    ),
)


def find_weaknesses() -> tuple[port.Weakness, ...]:
    """Return the weaknesses of this system: openings between the servers of databases."""
    return WITHOUT_SANDBOX if find_gaps() else ()


class CellsOwner(PostgresOwner):
    """Prepares the bundled engine. `make_databases` returns the databases of an installation, given its secret and a
    line."""

    def __init__(
        self, conninfo: str, desk: Desk, wake_s_max: float, make_databases: Callable[[bytes, CellLine], CellDatabases]
    ) -> None:
        super().__init__(conninfo, is_bundled=True)
        self._desk = desk
        self._wake_s_max = wake_s_max
        self._make_databases = make_databases

    @asynccontextmanager
    async def prepare(self) -> AsyncIterator["CellsPreparation"]:  # type: ignore[override]
        async with super().prepare() as catalog, _serve_ourselves(self._desk, self._wake_s_max) as line:
            yield CellsPreparation(catalog, line, self._make_databases)


@asynccontextmanager
async def _serve_ourselves(desk: Desk, wake_s_max: float) -> AsyncIterator[CellLine]:
    """Open a line from this process to itself, and attend to it."""

    async def attend() -> None:
        while True:
            desk.attend(time.monotonic())
            await asyncio.sleep(_TICK_S)

    async with CellLine(desk.open_line(_OURSELVES, time.monotonic()), wake_s_max) as line:
        attending = asyncio.get_running_loop().create_task(attend())
        try:
            yield line
        finally:
            attending.cancel()
            desk.drop_line(_OURSELVES, time.monotonic())


@dataclass(frozen=True, slots=True)
class CellsPreparation:
    """Fills the port's `Preparation` for the catalog's server, which this process prepares."""

    catalog: PostgresPreparation
    line: CellLine
    make_databases: Callable[[bytes, CellLine], CellDatabases]

    @property
    def session(self) -> port.MetadataSession:
        return self.catalog.session

    async def claim(self, installation: str, name: str, *, is_used: bool) -> None:
        raise port.EngineRefused("\n- the bundled engine is always the first")

    async def make_ready(self, secret: bytes, sorting: str | None = None) -> "ReadyCells":
        ready = await self.catalog.make_ready(secret, sorting, has_databases=False)
        return ReadyCells(ready.login, self.make_databases(secret, self.line))


@dataclass(frozen=True, slots=True)
class ReadyCells:
    """Fills the port's `ReadyEngine`. A cell is brought up to date when it wakes."""

    login: port.ServiceLogin
    databases: CellDatabases

    @property
    def furnishing(self) -> str:
        return self.databases.furnishing_of("")

    async def refurnish(self, database: str) -> None:
        """Do nothing: the cell is refurnished when it wakes."""

    async def check_login(self, database: str) -> None:
        """Do nothing: the login is checked when the cell wakes."""

    async def find_weaknesses(self, database: str | None) -> tuple[port.Weakness, ...]:
        return find_weaknesses()

    async def note_identity(self, installation: str, name: str) -> None:
        """Do nothing: the catalog says which installation it belongs to."""
