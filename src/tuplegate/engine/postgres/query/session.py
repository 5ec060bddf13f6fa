"""A connection for the service's own use: runs statements one after the other, with one deadline for all.

It carries only statements that the service has written itself. So they may open and end transactions, which a tenant's
text may not. It is guarded like any other run: a writing transaction that has outlived the engine's memory ends as a
conflict.
"""

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.commands import Command, ConnectionLost, CopyStarted, OnRows, make_command
from tuplegate.engine.libpq.connection import read_text_rows
from tuplegate.engine.libpq.failures import check
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.run.ends import Why, explain_age
from tuplegate.engine.run.run import Run

_IDLE = pq.TransactionStatus.IDLE


class SessionRun(Run[Pool]):
    """Fills the port's `EngineSession`. `under_way`: a segment was sent and is not answered yet."""

    def __init__(
        self, pool: Pool, target: port.Target, member: Member, bounds: port.Bounds, deadline: float, *, writes: bool
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
        if self.member.pgconn.transaction_status == _IDLE:
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
            if self.ended is Why.OUTLIVED:
                raise explain_age() from failure
            if self.was_cancelled(failure):
                raise self.explain_cancel(failure) from failure
            raise
        return results
