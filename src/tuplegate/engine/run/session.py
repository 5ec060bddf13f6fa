"""A connection for the service's own use: statements one after the other, with a deadline over all of them.

It carries statements that the service has written itself, so that they may open and end transactions, which no text of
a tenant may. It is watched like any other: what writes and has outlived the engine's memory ends as a conflict.
"""

from typing import TypeVar

from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import IDLE, Command, ConnectionLost, CopyStarted, OnRows, make_command
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.pools.pool import ConnectionPool, Member
from tuplegate.engine.libpq.values.text_rows import read_text_rows
from tuplegate.engine.run.ends import Why, explain_age
from tuplegate.engine.run.run import Run

_P = TypeVar("_P", bound=ConnectionPool)


class SessionRun(Run[_P]):
    """Fills the port's `EngineSession`. `under_way`: a statement was sent and is not answered yet."""

    def __init__(
        self, pool: _P, target: port.Target, member: Member, bounds: port.Bounds, deadline: float, writes: bool = True
    ) -> None:
        super().__init__(pool, target, bounds, deadline)
        self.begin(member)
        self._writes = writes
        self.under_way = False

    @property
    def is_own(self) -> bool:
        return True

    @property
    def writes(self) -> bool:
        return self._writes

    def end(self, why: Why, full_at: int = 0) -> None:
        """Cancel the segment under way, if any, and refuse later ones."""
        if self.under_way:
            super().end(why, full_at)
        else:
            self.ended = why

    async def run(self, sql: str, *params: str | None) -> port.SessionResult:
        return port.SessionResult(read_text_rows((await self.send([make_command(sql, params)]))[-1]))

    async def send(self, commands: list[Command], on_rows: OnRows | None = None) -> list[PGresult]:
        """Send one segment; return its results if all commands succeeded."""
        self.check_ended()
        if self.member.pgconn.transaction_status == IDLE:
            self.begun = self.member.meter.begun
        self.under_way = True
        try:
            answer = self.member.send(commands, on_rows)
            self.member.flush()
            results = await answer
            self.under_way = False
            check(results)
        except ConnectionLost as lost:
            raise port.EngineUnavailable("the connection to the engine was lost") from lost
        except CopyStarted as copied:
            raise port.CopyRefused from copied
        except port.StatementFailed as failure:
            raise self.explain_failure(failure) from failure
        return results

    def explain_failure(self, failure: port.StatementFailed) -> port.EngineFailure:
        """Return the failure as it is told."""
        if self.ended is Why.OUTLIVED:
            return explain_age()
        return self.explain_cancel(failure) if self.was_cancelled(failure) else failure
