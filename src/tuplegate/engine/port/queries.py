"""Queries: statements that run alone, and what an answer with rows needs of an engine."""

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from tuplegate.engine.port.results import RowStream, Tables
from tuplegate.engine.port.transactions import TransactionResult
from tuplegate.engine.port.work import Bounds, Result, Statement, Target


class Snapshots(Protocol):
    """Reads that need not be serializable: each shows one moment, at or behind the position `after`.

    A replica that has reached the position answers; without one, the primary. A text that is no position of the
    engine's raises BadPosition.
    """

    def check(self, position: bytes) -> None:
        """Raise BadPosition if the text is no position."""

    async def query(self, target: Target, statement: Statement, bounds: Bounds, after: bytes | None) -> Result: ...

    async def transaction(
        self, target: Target, statements: list[Statement], bounds: Bounds, after: bytes | None
    ) -> TransactionResult:
        """Run a read-only transaction."""

    def stream(
        self, target: Target, statement: Statement, bounds: Bounds, after: bytes | None
    ) -> AbstractAsyncContextManager[RowStream]: ...


class Answers(Protocol):
    """What an answer with rows needs, however they were asked for: positions, snapshots, memory."""

    @property
    def tells_positions(self) -> bool:
        """Return whether there are replicas, and so answers need positions."""

    async def position(self) -> bytes:
        """Return a position behind everything answered so far; if the engine tells none, one that no replica
        reaches."""

    @property
    def snapshots(self) -> Snapshots: ...

    def hold_answer(self, database: str, size: int) -> AbstractContextManager[None]:
        """Count an answer of this size against the memory for rows until the block is left, while its client takes
        it."""


class Queries(Answers, Protocol):
    """Runs statements, each of which commits by itself."""

    async def query(self, target: Target, statement: Statement, bounds: Bounds) -> Result: ...

    def stream(
        self, target: Target, statement: Statement, bounds: Bounds
    ) -> AbstractAsyncContextManager[RowStream]: ...

    async def tables(self, target: Target, bounds: Bounds) -> Tables:
        """Return the relations that the target's role may see."""
