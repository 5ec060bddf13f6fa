"""Prepares and opens an engine, before the planes use it.

The supervisor prepares the engine with the login of the engine's owner. Workers open it with the login of the service's
own role. Every step of a preparation may be repeated.
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
    """A connection to the metadata database, opened when it is first needed and again when it was lost."""

    async def fetch(self, sql: str, *params: str | None) -> list[Row]: ...

    async def run_atomically(self, statements: Sequence[tuple[str, Sequence[str | None]]]) -> list[Row]:
        """Run all statements in one transaction; return the rows of the last."""

    async def change_definitions(self, statements: Sequence[tuple[str, Sequence[str | None]]]) -> None:
        """Run statements that change definitions: in one transaction if the engine can, otherwise one after the other.
        Each may be repeated."""


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
    """Findings about an engine for its operator, and the number of connections that the service can open to it."""

    warnings: list[str]
    connections_free: int


class ServiceLogin(Protocol):
    """The login of the service's own role, without anything of the owner's."""

    def metadata(self) -> AbstractAsyncContextManager[MetadataSession]: ...

    async def find_sorting(self) -> str:
        """Return the collation of the engine's databases, in the engine's words."""


class EngineOwner(Protocol):
    """An engine, reached with the login of its owner."""

    @property
    def place(self) -> str:
        """Return the engine's address, for people."""

    async def examine(self, connections: int) -> Examined:
        """Examine the engine, for a service that wants this many connections.

        Raises EngineRefused if the engine does not suffice.
        """

    def metadata(self, *, locked: bool = False) -> AbstractAsyncContextManager[MetadataSession]:
        """Open the metadata database. `locked` keeps other service processes from preparing it meanwhile."""

    def prepare(self) -> AbstractAsyncContextManager["Preparation"]:
        """Make the metadata database and lock it: one service process at a time prepares an engine.

        Raises EngineRefused if the owner has too few rights to existing objects.
        """

    def login(self, secret: bytes) -> ServiceLogin:
        """Return the login of the service's own role, which works once the engine was made ready."""


class Preparation(Protocol):
    """An engine whose metadata database exists and is locked."""

    @property
    def session(self) -> MetadataSession: ...

    async def claim(self, installation: str, name: str, *, is_used: bool) -> None:
        """Check that an engine beside the first is free, or this installation's under this name.

        `is_used` says that databases live on the engine of that name. Raises EngineRefused.
        """

    async def make_ready(self, secret: bytes, sorting: str | None = None) -> "ReadyEngine":
        """Make everything that the service's own role needs, and try its login.

        New databases sort texts by `sorting` if the engine can. Raises EngineRefused.
        """


class ReadyEngine(Protocol):
    """An engine that the service's own role can use."""

    @property
    def login(self) -> ServiceLogin: ...

    @property
    def databases(self) -> Databases: ...

    @property
    def furnishing(self) -> str:
        """Return a text that identifies the service's own objects in a database, as this version makes them."""

    async def refurnish(self, database: str) -> None:
        """Update a database that another version has made. Raises StatementFailed."""

    async def check_login(self, database: str) -> None:
        """Log in as the roles of a tenant's database. Raises EngineRefused if the engine does not let them in."""

    async def find_weaknesses(self, database: str | None) -> tuple[Weakness, ...]:
        """Return the weaknesses that a tenant of the database can use. Raises EngineRefused.

        Without a database to try them in, return all that the preparation may have left open.
        """

    async def note_identity(self, installation: str, name: str) -> None:
        """Note on an engine beside the first that this version has prepared it."""


class ReachedEngine(Protocol):
    """An engine as a worker has it before it is opened."""

    def metadata(self) -> AbstractAsyncContextManager[Metadata]: ...

    def databases(self, secret: bytes) -> EngineDatabases: ...

    def open(self, installation: str, secret: bytes) -> AbstractAsyncContextManager[OpenEngine]:
        """Open the engine. Raises EngineUnavailable if it cannot be reached, or this version has not prepared it."""
