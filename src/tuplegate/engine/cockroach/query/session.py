"""A connection for the service's own use: runs statements one after the other, with one deadline for all."""

from tuplegate.engine import port
from tuplegate.engine.cockroach.failures import is_node_failure, refine
from tuplegate.engine.cockroach.pool import Pool
from tuplegate.engine.cockroach.query.run import UNREACHED
from tuplegate.engine.libpq.commands import ConnectionLost, CopyStarted, make_command
from tuplegate.engine.libpq.connection import read_text_rows
from tuplegate.engine.libpq.failures import check
from tuplegate.engine.run.ends import Why
from tuplegate.engine.run.run import Run


class SessionRun(Run[Pool]):
    """Fills the port's `EngineSession`. `under_way`: a statement was sent and is not answered yet."""

    under_way = False

    def end(self, why: Why, full_at: int = 0) -> None:
        """Cancel the statement under way, if any, and refuse later ones."""
        if self.under_way:
            super().end(why, full_at)
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
