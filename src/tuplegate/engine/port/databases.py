"""The databases that an engine holds: made, copied, moved and dropped."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tuplegate.engine.port.reports import Load

FIRST_ENGINE = "first"
"""The name of the engine that holds the catalog: the bundled one, or that of the setting `engine`."""


class Databases(Protocol):
    """Databases by the names their engine knows them under. Every step may be repeated."""

    def furnishing_of(self, name: str) -> str:
        """Return a text that stands for the service's own objects in the database, as this version makes them."""

    async def create(self, name: str, *, for_copy: bool = False) -> None:
        """Make the database. `for_copy` leaves out what a copy brings with it."""

    async def copy(self, source: str, name: str) -> None:
        """Make a copy of a database. Raises EngineBusy where the source stays in use for too long."""

    async def keep_outcomes(self, source: str, name: str) -> None:
        """Copy what is known of the transactions of one database to another."""

    async def drop(self, name: str) -> None: ...

    async def drop_left_roles(self) -> None:
        """Remove the roles of dropped databases that could not be removed with them."""


class DatabaseSizes(Protocol):
    """Measures databases, of which none is waked for that."""

    async def sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Return the bytes on disk of those databases that can be measured."""

    async def find_awake(self, names: Sequence[str]) -> set[str]:
        """Return the databases whose server takes connections now. The others wake with the next request."""


class DoorKeeping(Protocol):
    """Steps inside of one database."""

    async def silence(self, name: str) -> None:
        """End every statement of the tenant's and let none begin: from now on nothing is committed there."""

    async def open(self, name: str) -> None:
        """Let the tenant in again."""

    async def stop_following(self, name: str, *, dumped: bool) -> None:
        """Remove what `follow` and `take_over` made for a database that is in place, as a source or as a copy.

        `dumped` says that a dump of it may be running. May be repeated.
        """

    async def let_end(self, name: str, seconds: float) -> None:
        """Wait until nobody uses the database, at most for so long. Its users were asked to let go."""

    async def check_silent(self, name: str) -> None:
        """Raise EngineBusy where the tenant could still commit something in a database that was silenced."""

    async def analyze(self, name: str) -> None:
        """Let the engine learn what is in a database that was filled all at once."""


class ServerDatabases(DoorKeeping, Protocol):
    """The databases of one server, which is awake."""

    async def take_over(self, other: "ServerDatabases", source: str, name: str) -> None:
        """Bring everything in `source`, a silent database of `other`, into `name`, which is new and empty.

        This includes the records of its transactions. Raises NotSupported where this engine cannot hold the same, and
        MoveFailed where not everything was brought over.
        """

    def follow(self, other: "ServerDatabases", source: str, name: str) -> AbstractAsyncContextManager["Following"]:
        """Bring over a source that is in use. The block is entered when everything of one moment is here.

        Raises NotSupported where that cannot be done with the source, and MoveFailed.
        """


class OneEngine(DatabaseSizes, Protocol):
    """The databases of one engine, which may have a server for each, as they are."""

    def reach(self, name: str) -> AbstractAsyncContextManager[ServerDatabases]:
        """Give the server of a database, which is awake until the block is left."""

    async def forget_source(self, source: str) -> None:
        """Remove what `take_over` made here for the time that it takes."""

    async def load(self) -> Load: ...


class EngineDatabases(Databases, OneEngine, Protocol):
    """Everything that is done with the databases of one engine."""


class AllDatabases(Databases, Protocol):
    """The databases of all engines. The engine that a name is on does each step."""

    def on(self, engine: str) -> OneEngine:
        """Return the databases of one engine. Raises EngineUnavailable where the service knows none of that name."""

    def reach(self, name: str) -> AbstractAsyncContextManager[ServerDatabases]:
        """Give the server of a database, which is awake until the block is left."""


class Following(Protocol):
    """A copy that is kept up to date."""

    async def catch_up(self) -> int:
        """Bring what was committed since the last time; return the number of changes."""

    async def finish(self) -> None:
        """Bring the rest from the silent source. Raises MoveFailed where the copy has come to differ."""
