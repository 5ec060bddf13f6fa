"""The run of a stream inside of an open transaction."""

from typing import TYPE_CHECKING, Final

from tuplegate.engine import port
from tuplegate.engine.libpq.commands import ConnectionLost
from tuplegate.engine.postgres.query.run import Why
from tuplegate.engine.postgres.query.stream_run import StreamRun

if TYPE_CHECKING:
    from tuplegate.engine.postgres.transaction.open_statements import OpenStatements

LOST: Final = "the connection to the engine was lost; the transaction was rolled back"


class InsideRun(StreamRun):
    """A stream inside of an open transaction, which cancels for it."""

    __slots__ = ("_transaction",)

    def __init__(
        self, transaction: "OpenStatements", statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> None:
        super().__init__(transaction.pool, transaction.target, statement, shape, bounds)
        self._transaction = transaction
        self.begin(transaction.member)
        self.access = transaction.access
        self.is_inside = True

    def end(self, why: Why, full_at: int = 0) -> None:
        self._transaction.end(why, full_at)

    def explain_loss(self, lost: ConnectionLost) -> port.EngineFailure:
        return port.EngineUnavailable(LOST)
