"""Reads at snapshot consistency. There are no replicas to read from: every node returns the newest data."""

from contextlib import AbstractAsyncContextManager
from typing import Final

from tuplegate.engine import port

POSITION: Final = b"cluster"
"""The only position: everything that was answered is before it."""


class SnapshotReads:
    """Fills the port's `Snapshots`."""

    def __init__(self, engine: port.Engine) -> None:
        self._engine = engine

    def check(self, position: bytes) -> None:
        if position != POSITION:
            raise port.BadPosition(
                "Tuplegate-Position is not one that this service has told: send back the value of an answer as it is,"
                " or leave the header out"
            )

    def asked_of(self, engine: port.Engine) -> "SnapshotReads":
        return SnapshotReads(engine)

    async def query(
        self, target: port.Target, statement: port.Statement, bounds: port.Bounds, after: bytes | None
    ) -> port.Result:
        return await self._engine.query(target, statement, bounds)

    async def transaction(
        self, target: port.Target, statements: list[port.Statement], bounds: port.Bounds, after: bytes | None
    ) -> port.TransactionResult:
        return await self._engine.transaction(target, statements, bounds, read_only=True)

    def stream(
        self, target: port.Target, statement: port.Statement, bounds: port.Bounds, after: bytes | None
    ) -> AbstractAsyncContextManager[port.RowStream]:
        return self._engine.stream(target, statement, bounds)
