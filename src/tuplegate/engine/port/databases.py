"""The databases that an engine holds: made, copied, moved, dumped and dropped."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tuplegate.engine.port.reports import Load

FIRST_ENGINE = "first"
"""The name of the engine that holds the catalog: the bundled one, or that of the setting `engine`."""


class Databases(Protocol):
    """Databases by their names in the engine. Every step may be repeated."""

    def furnishing_of(self, name: str) -> str:
        """Return a text that identifies the service's own objects in the database, as this version makes them."""

    async def create(self, name: str, *, for_copy: bool = False) -> None:
        """Make the database. `for_copy` leaves out objects that a copy brings with it."""

    async def copy(self, source: str, name: str) -> None:
        """Make a copy of a database. Raises EngineBusy if the source stays in use for too long."""

    async def keep_outcomes(self, source: str, name: str) -> None:
        """Copy the records of one database's transactions to another."""

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
    """Steps that close, open or clean up one database."""

    async def silence(self, name: str) -> None:
        """End every statement of the tenant's and let none begin: from now on nothing is committed there."""

    async def open(self, name: str) -> None:
        """Let the tenant in again."""

    async def stop_following(self, name: str, *, dumped: bool) -> None:
        """Remove the objects that `follow` and `take_over` made for a database that is in place, as a source or as a
        copy.

        `dumped` says that a dump of it may be running. May be repeated.
        """

    async def let_end(self, name: str, seconds: float) -> None:
        """Wait until no session uses the database, at most this long. Its users were asked to leave."""

    async def check_silent(self, name: str) -> None:
        """Raise EngineBusy if the tenant could still commit something in a database that was silenced."""

    async def analyze(self, name: str) -> None:
        """Let the engine collect statistics on a database that was filled all at once."""


class ServerDatabases(DoorKeeping, Protocol):
    """The databases of one server, which is awake."""

    async def take_over(self, other: "ServerDatabases", source: str, name: str) -> None:
        """Bring everything in `source`, a silent database of `other`, into `name`, which is new and empty.

        This includes the records of its transactions. Raises NotSupported if this engine cannot hold the same, and
        MoveFailed if not everything was brought over.
        """

    def follow(self, other: "ServerDatabases", source: str, name: str) -> AbstractAsyncContextManager["Following"]:
        """Bring over a source that is in use. The block is entered when all data of one moment are here.

        Raises NotSupported if that cannot be done with the source, and MoveFailed.
        """


class OneEngine(DatabaseSizes, Protocol):
    """The databases of one engine, which may have a server for each, as they are."""

    def reach(self, name: str) -> AbstractAsyncContextManager[ServerDatabases]:
        """Give the server of a database, which stays awake until the block is left."""

    async def forget_source(self, source: str) -> None:
        """Remove the objects that `take_over` made here for its own duration."""

    async def load(self) -> Load: ...


class EngineDatabases(Databases, OneEngine, Protocol):
    """Everything that is done with the databases of one engine."""


class AllDatabases(Databases, Protocol):
    """The databases of all engines. Each step is done by the engine that has the database."""

    def on(self, engine: str) -> OneEngine:
        """Return the databases of one engine. Raises EngineUnavailable if the service knows no engine of that name."""

    def reach(self, name: str) -> AbstractAsyncContextManager[ServerDatabases]:
        """Give the server of a database, which stays awake until the block is left."""


class Following(Protocol):
    """A copy that is kept up to date."""

    async def catch_up(self) -> int:
        """Bring over the changes committed since the last call; return their number."""

    async def finish(self) -> None:
        """Bring the rest from the silent source. Raises MoveFailed if the copy differs from the source."""


class Dumps(Protocol):
    """Dumps databases."""

    def dump(
        self, database: str, timeout_s: float, organization: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Yield all of the tenant's data in the database at one moment, as a file in the engine's own format.

        An `organization` gets no more than its share of the places; None is the service itself.

        The block is entered when the first bytes are there, so most failures come before any. A dump that ends early
        raises: the bytes read so far are no file. Raises NotSupported, AlreadyRunning, EngineBusy, DumpFailed.
        """
