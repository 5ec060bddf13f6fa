"""What is held and recorded beside the data: names, ids that clients choose, answers that are kept."""

from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

from tuplegate.engine.port.transactions import KeptAnswers, Outcome


class Lock(StrEnum):
    """The names that can be held in a database: see `Locks.hold_in`."""

    TRANSACTION = "transaction"
    """An id that a client chose, while its transaction runs: the adapter takes an id that is not held for aborted."""
    IDEMPOTENCY = "idempotency"
    """An idempotency key, while its request runs."""
    DUMP = "dump"
    """The right to dump the database."""

    def name_in(self, database: str, key: str = "") -> str:
        """Return the name of this lock in a database. All who hold it or ask for it use this name."""
        return f"{self}/{database}/{key}" if key else f"{self}/{database}"


class Locks(Protocol):
    """Names that one worker at a time holds."""

    def hold(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Hold a name for this installation until the block is left. Yields False if it is held already."""

    def hold_in(self, database: str, lock: Lock, key: str = "") -> AbstractAsyncContextManager[bool]:
        """Hold a lock of a database as `hold` does, on the engine that has the database."""


class Records(Locks, Protocol):
    """What is recorded of transactions under ids and keys of clients, and the locks that guard it."""

    async def begin_id(self, database: str, id: str) -> bool:
        """Record an id that a client chose; return False if it was used before."""

    async def abort_id(self, database: str, id: str, *, even_if_full: bool = False) -> Outcome:
        """Make the id aborted for good, unless it is committed; return its final state. IN_PROGRESS is not final: the
        state is recorded, and could still be lost."""

    async def find_id(self, database: str, id: str) -> Outcome | None:
        """Return the state of an id that a client chose, or None if it was never seen."""

    async def find_kept(self, database: str, route: str, key: str) -> KeptAnswers: ...
