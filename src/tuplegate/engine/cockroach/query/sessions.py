"""Connections for the service's own use: statements one after the other, with a deadline over all of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tuplegate.engine import port
from tuplegate.engine.cockroach.failures import is_node_failure, refine
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.cockroach.query.run import UNREACHED, Run, Why
from tuplegate.engine.libpq.commands import ConnectionLost, CopyStarted, make_command
from tuplegate.engine.libpq.connection import read_text_rows
from tuplegate.engine.libpq.failures import check


class SessionRun(Run):
    """Fills the port's `EngineSession`. `under_way`: something was sent and is not answered yet."""

    under_way = False

    def end(self, why: Why) -> None:
        """Cancel what is under way; what is sent after it is refused."""
        if self.under_way:
            super().end(why)
        else:
            self.ended = why

    async def run(self, sql: str, *params: str | None) -> port.SessionResult:
        self.check_ended()
        self.under_way = True
        try:
            results = await self.member.run(make_command(sql, params))
            self.under_way = False
            check(results)
        except ConnectionLost as lost:
            raise port.EngineUnavailable("the connection to the engine was lost") from lost
        except CopyStarted as copied:
            raise port.CopyRefused from copied
        except port.StatementFailed as failure:
            refined = refine(failure)
            if is_node_failure(refined) and not self.was_cancelled(refined):
                raise port.EngineUnavailable(UNREACHED) from failure
            raise (self.explain_cancel(refined) if self.was_cancelled(refined) else refined) from failure
        return port.SessionResult(read_text_rows(results[-1]))


@asynccontextmanager
async def open_session(
    pool: Pool, target: port.Target, bounds: port.Bounds, deadline: float
) -> AsyncIterator[SessionRun]:
    """Open a session on a connection apart from the pool's own."""
    session = SessionRun(pool, target, bounds, deadline)
    session.begin(await pool.open_apart())
    try:
        yield session
    finally:
        session.close()
        if session.under_way and not session.member.closed:
            pool.abandon(session.member)
        else:
            session.member.close()
