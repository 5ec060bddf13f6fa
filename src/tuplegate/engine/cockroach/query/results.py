"""Makes the result of a statement of what came for it."""

from typing import Final

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.libpq.rows import RowCollector, make_bare_result

_TUPLES: Final = int(pq.ExecStatus.TUPLES_OK)


async def finish_result(member: Member, rows: RowCollector, last: PGresult) -> port.Result:
    """Return the result. Asks the engine for types of its rows that are not known yet. `last` closes the result."""
    if not last.nfields and last.status != _TUPLES:
        return make_bare_result(last)
    result = rows.finish(last)
    if result is None:
        await rows.learn(member, last)
        result = rows.finish(last)
    assert result is not None, "the types were asked for"
    return result


def explain_width(wide: Exception) -> port.StatementFailed:
    """Say that rows were too wide; the connection they came over is closed, and nothing was committed."""
    return port.StatementFailed(
        f"{wide}; nothing was applied", sqlstate="54000", hint="Ask for fewer rows at a time, or stream them."
    )
