"""Prepares and opens an engine, before the planes use it.

The supervisor has the login of the engine's owner and prepares the engine with it. Workers get the login of the
service's own role and open the engine with that. Every step of a preparation may be repeated.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tuplegate.engine.port.databases import Databases, EngineDatabases
from tuplegate.engine.port.engine import OpenEngine
from tuplegate.engine.port.reports import Weakness

Row = tuple[str | None, ...]


class MetadataSession(Protocol):
    """A connection to the metadata database, opened when it is needed and again when it was lost."""

    async def fetch(self, sql: str, *params: str | None) -> list[Row]: ...

    async def run_atomically(self, statements: Sequence[tuple[str, Sequence[str | None]]]) -> list[Row]:
        """Run all statements in one transaction; return the rows of the last."""

    async def change_definitions(self, statements: Sequence[tuple[str, Sequence[str | None]]]) -> None:
        """Run statements that change definitions: in one transaction where the engine can, and otherwise one after the
        other. Each may be repeated."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """A worker's sessions on the metadata database.

    `lookups` never wait behind a commit of `session`. Commits of `notes` may be lost together with the primary.
    """

    session: MetadataSession
    lookups: MetadataSession
    notes: MetadataSession


@dataclass(frozen=True, slots=True)
class Examined:
    """The findings about an engine for its operator, and how many connections the service can open to it."""

    warnings: list[str]
    connections_free: int


class ServiceLogin(Protocol):
    """The login of the service's own role. It holds nothing of the owner's."""

    def metadata(self) -> AbstractAsyncContextManager[MetadataSession]: ...

    async def find_sorting(self) -> str:
        """Return how the databases of the engine sort texts, in the engine's words."""


class EngineOwner(Protocol):
    """An engine as its owner sees it."""

    @property
    def place(self) -> str:
        """Return the engine's address, for people."""

    async def examine(self, connections: int) -> Examined:
        """Find out what the engine can do; the service wants so many connections.

        Raises EngineRefused where that is not enough.
        """

    def metadata(self, *, locked: bool = False) -> AbstractAsyncContextManager[MetadataSession]:
        """Open the metadata database. `locked` keeps other service processes from preparing meanwhile."""

    def prepare(self) -> AbstractAsyncContextManager["Preparation"]:
        """Make the metadata database and lock it: one service process at a time prepares an engine.

        Raises EngineRefused where the owner has too few rights to what is there.
        """

    def login(self, secret: bytes) -> ServiceLogin:
        """Return the login of an engine that `prepare` has made ready, or will."""


class Preparation(Protocol):
    """An engine whose metadata database is there and locked."""

    @property
    def session(self) -> MetadataSession: ...

    async def claim(self, installation: str, name: str, *, is_used: bool) -> None:
        """Check that an engine beside the first is free, or this installation's under this name.

        `is_used` says that databases live on the engine of that name. Raises EngineRefused.
        """

    async def make_ready(self, secret: bytes, sorting: str | None = None) -> "ReadyEngine":
        """Make what the service's own role needs, and try its login.

        New databases sort texts by `sorting` where the engine can. Raises EngineRefused.
        """


class ReadyEngine(Protocol):
    """An engine that the service's own role can use."""

    @property
    def login(self) -> ServiceLogin: ...

    @property
    def databases(self) -> Databases: ...

    @property
    def furnishing(self) -> str:
        """Return a text that stands for the service's own objects in a database, as this version makes them."""

    async def refurnish(self, database: str) -> None:
        """Bring a database that another version has made up to date. Raises StatementFailed."""

    async def check_login(self, database: str) -> None:
        """Log in as the roles of a tenant's database. Raises EngineRefused where the engine does not let them in."""

    async def find_weaknesses(self, database: str | None) -> tuple[Weakness, ...]:
        """Return what a tenant of the database reaches that it should not. Raises EngineRefused.

        Without a database to try it in, return everything that the preparation may have left open.
        """

    async def note_identity(self, installation: str, name: str) -> None:
        """Note on an engine beside the first that this version has prepared it."""


class ReachedEngine(Protocol):
    """An engine as a worker sees it before it is opened."""

    def metadata(self) -> AbstractAsyncContextManager[Metadata]: ...

    def databases(self, secret: bytes) -> EngineDatabases: ...

    def open(self, installation: str, secret: bytes) -> AbstractAsyncContextManager[OpenEngine]:
        """Open the engine. Raises EngineUnavailable where it is not there, or not prepared by this version."""
