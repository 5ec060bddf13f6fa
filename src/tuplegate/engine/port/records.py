"""What is held and recorded beside the data: names, ids that clients choose, answers that are kept."""

from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

from tuplegate.engine.port.transactions import KeptAnswers, Outcome


class Lock(StrEnum):
    """The names that can be held in a database: see `Locks.hold_in`."""

    TRANSACTION = "transaction"
    """An id that a client chose, while its transaction runs: the adapter takes one that nobody holds for aborted."""
    IDEMPOTENCY = "idempotency"
    """A key, while its request runs."""
    DUMP = "dump"
    """The right to dump the database."""

    def name_in(self, database: str, key: str = "") -> str:
        """Return its name in a database. Everybody who holds it, or asks for it, makes its name here."""
        return f"{self}/{database}/{key}" if key else f"{self}/{database}"


class Locks(Protocol):
    """Names that one worker at a time holds."""

    def hold(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Hold a name for this installation until the block is left. Gives False where somebody else holds it."""

    def hold_in(self, database: str, lock: Lock, key: str = "") -> AbstractAsyncContextManager[bool]:
        """Do the same with a lock of a database, on the engine that the database is on."""


class Records(Locks, Protocol):
    """What is recorded of transactions under ids and keys of clients, and the locks that guard it."""

    async def begin_id(self, database: str, id: str) -> bool:
        """Take an id that a client chose; return False where it was used before."""

    async def abort_id(self, database: str, id: str, *, even_if_full: bool = False) -> Outcome:
        """Make the id aborted for good, unless it is committed; return its final state. IN_PROGRESS is not final: the
        state is recorded, and could still be lost."""

    async def find_id(self, database: str, id: str) -> Outcome | None:
        """Return the state of an id that a client chose, or None where it was never seen."""

    async def find_kept(self, database: str, route: str, key: str) -> KeptAnswers: ...
