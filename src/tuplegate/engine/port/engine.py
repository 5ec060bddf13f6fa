"""The port itself: an engine as the planes use it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import StrEnum
from typing import Protocol

from tuplegate.engine.port.open_transactions import OpenTransaction
from tuplegate.engine.port.reports import Durability, EngineHealth, Headroom, Measured, Weakness
from tuplegate.engine.port.results import RowStream, SessionResult, Tables
from tuplegate.engine.port.transactions import (
    KeptAnswers,
    Outcome,
    Promise,
    Ticket,
    TransactionResult,
)
from tuplegate.engine.port.wire import WireSession
from tuplegate.engine.port.work import Bounds, Result, Statement, Target


class Lock(StrEnum):
    """The kinds of locks in a database: see `Engine.hold_in`."""

    TRANSACTION = "transaction"
    """An id that a client chose, while its transaction runs: the adapter takes an id that is not held for aborted."""
    IDEMPOTENCY = "idempotency"
    """An idempotency key, while its request runs."""
    DUMP = "dump"
    """The right to dump the database."""

    def name_in(self, database: str, key: str = "") -> str:
        """Return the name of this lock in a database. All who hold it or ask for it use this name."""
        return f"{self}/{database}/{key}" if key else f"{self}/{database}"


class EngineSession(Protocol):
    """One connection for the service's own use. Its user begins and ends transactions."""

    async def run(self, sql: str, *params: str | None) -> SessionResult:
        """Run one statement as it stands. Raises TimedOut once the session's time is over."""


class Snapshots(Protocol):
    """Reads that need not be serializable: each shows one moment, at or behind the position `after`.

    A replica that has reached the position answers; without one, the primary. A text that is no position of the
    engine's raises BadPosition.
    """

    def check(self, position: bytes) -> None:
        """Raise BadPosition if the text is no position."""

    def asked_of(self, engine: "Engine") -> "Snapshots":
        """Return reads that check positions like these, but that `engine` answers, without replicas."""

    async def query(self, target: Target, statement: Statement, bounds: Bounds, after: bytes | None) -> Result: ...

    async def transaction(
        self, target: Target, statements: list[Statement], bounds: Bounds, after: bytes | None
    ) -> TransactionResult:
        """Run a read-only transaction."""

    def stream(
        self, target: Target, statement: Statement, bounds: Bounds, after: bytes | None
    ) -> AbstractAsyncContextManager[RowStream]: ...


class Engine(Protocol):
    """An engine as the planes use it."""

    @property
    def weaknesses(self) -> tuple[Weakness, ...]:
        """Return the weaknesses that were found when the service started."""

    @property
    def snapshots(self) -> Snapshots: ...

    @property
    def tells_positions(self) -> bool:
        """Return whether there are replicas, and so answers need positions."""

    async def position(self) -> bytes:
        """Return a position behind everything answered so far; if the engine tells none, one that no replica
        reaches."""

    async def query(self, target: Target, statement: Statement, bounds: Bounds) -> Result: ...

    async def transaction(
        self,
        target: Target,
        statements: list[Statement],
        bounds: Bounds,
        *,
        read_only: bool = False,
        promise: Promise | None = None,
    ) -> TransactionResult:
        """Run all statements or none. A failure carries the index of the statement that failed."""

    async def begin(self, target: Target, id: str, timeout_ms: int, *, read_only: bool) -> OpenTransaction:
        """Begin a transaction that stays open. If it commits anything, `abort_id` can tell by its id.

        Raises EngineBusy if too many are open. `timeout_ms` bounds the wait for a connection.
        """

    async def begin_id(self, database: str, id: str) -> bool:
        """Record an id that a client chose; return False if it was used before."""

    async def abort_id(self, database: str, id: str, *, even_if_full: bool = False) -> Outcome:
        """Record the id as aborted for good, unless it is committed; return its final state."""

    async def find_id(self, database: str, id: str) -> Outcome | None:
        """Return the state of an id that a client chose, or None if it was never seen."""

    async def find_kept(self, database: str, route: str, key: str) -> KeptAnswers: ...

    def pause(self, databases: frozenset[str]) -> None:
        """Suspend these databases and no others: requests for them wait, or are refused as busy."""

    def bound_size(self, database: str, bytes_max: int | None) -> None:
        """Refuse statements that take more room once the database is larger than this; None allows any size."""

    def hold(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Hold a name for this installation until the block is left. Yields False if it is held already."""

    def hold_in(self, database: str, lock: Lock, key: str = "") -> AbstractAsyncContextManager[bool]:
        """Hold a lock of a database as `hold` does, on the engine that has the database."""

    async def outcome(self, target: Target, number: int, mark: str = "", history: int = 0) -> Outcome | None:
        """Return the outcome of the transaction, or None if the engine does not know it any more. Raises OutcomeUnknown
        if another server has replaced the one that gave the number, and cannot tell. `mark` and `history` came with its
        result. A client learns the number only of a transaction that is committed or decided, so a number that another
        engine has given is that of a committed one."""

    async def outcome_of_lost(self, target: Target, ticket: Ticket, mark: str = "") -> Outcome:
        """Return the outcome of the transaction by the ticket of its OutcomeUnknown."""

    def stream(
        self, target: Target, statement: Statement, bounds: Bounds
    ) -> AbstractAsyncContextManager[RowStream]: ...

    async def health(self) -> EngineHealth: ...

    async def tables(self, target: Target, bounds: Bounds) -> Tables:
        """Return the relations that the target's role may see."""

    def hold_answer(self, database: str, size: int) -> AbstractContextManager[None]:
        """Count an answer of this size against the memory for rows until the block is left, while its client takes
        it."""

    def session(self, target: Target, timeout_ms: int) -> AbstractAsyncContextManager[EngineSession]:
        """Open a connection of the target's role. Leaving the block closes it and rolls back what is not committed."""

    def wire(
        self, target: Target, settings: dict[str, str], application: str, bounds: Bounds
    ) -> AbstractAsyncContextManager[WireSession]:
        """Open a connection over which a client speaks to the engine itself; leaving the block ends it.

        `settings` are the client's own, `application` the name that it gives itself; statements have these bounds until
        they get others. Raises StatementFailed if the engine refuses the settings, EngineBusy if there are too many
        connections, and NotSupported.
        """

    def scratch(self, database: str) -> AbstractAsyncContextManager[str]:
        """Make a new, empty schema that the database's writing role owns, and yield its name.

        Leaving the block drops it with everything in it. If the worker dies first, the next one does.
        """

    def dump(
        self, database: str, timeout_s: float, organization: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Yield all of the tenant's data in the database at one moment, as a file in the engine's own format.

        An `organization` gets no more than its share of the places; None is the service itself.

        The block is entered when the first bytes are there, so most failures come before any. A dump that ends early
        raises: the bytes read so far are no file. Raises NotSupported, AlreadyRunning, EngineBusy, DumpFailed.
        """

    async def durability(self, target: Target) -> Durability: ...

    def serializable_headroom(self) -> Headroom: ...

    def measure(self) -> Measured: ...

    def stop_running(self) -> None:
        """Cancel running statements, but nothing that is being committed."""


class OpenEngine(Engine, Protocol):
    """One engine of possibly several."""

    def let_go(self, database: str) -> None:
        """Turn away requests that wait for the database: it has moved to another engine."""
