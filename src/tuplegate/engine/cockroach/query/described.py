"""Sends a statement with the question for the types of its placeholders, where a number may be too large for one.

The engine answers both from one parse. So no change of definitions can come between them, through whichever worker or
node it is made, and the question takes no time of its own. A number that does not fit is found once the statement has
run: so this is for what is committed afterwards, and for what changes nothing. For the rest the question comes first.
"""

from collections.abc import Sequence

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.cockroach.dialect.narrow_numbers import check_numbers, may_be_cut
from tuplegate.engine.cockroach.query.run import NodeRun
from tuplegate.engine.libpq.connections.commands import DESCRIBE, Command
from tuplegate.engine.libpq.statements.parameters import describe_statement, read_placeholders

_DESCRIBED = int(pq.ExecStatus.COMMAND_OK)


def make_commands(
    statement: port.Statement,
    values: list[bytes | None] | None,
    rows_at_once: int,
    types: Sequence[int],
    *,
    asks: bool = True,
) -> list[Command]:
    """Return the commands that run the statement; the last one has its rows. `types` are those that the engine is told.
    Without `asks` it is sent alone."""
    sql = statement.sql.encode()
    if not (asks and values and may_be_cut(statement.params)):
        return [Command(sql, values or None, rows_at_once, types=types)]
    return [Command(sql, name=b"", types=types), DESCRIBE, Command(b"", values, rows_at_once, name=b"")]


def check_described(
    commands: Sequence[Command], results: Sequence[PGresult], owners: Sequence[int | None] | None = None
) -> None:
    """Raise where the engine has cut a number. `owners` tells to which statement each command belongs.

    Comes before any other look at the results: a statement that ran with another number may have failed for that.
    """
    for index, (command, result) in enumerate(zip(commands, results, strict=False)):
        if command is DESCRIBE and result.status == _DESCRIBED:
            try:
                check_numbers(read_placeholders(result), commands[index + 1].params or ())
            except port.StatementFailed as failure:
                failure.statement = None if owners is None else owners[index]
                raise


async def check_first(run: NodeRun, statement: port.Statement, values: Sequence[bytes | None] | None) -> None:
    """Ask for the types where a number may be too large, and raise where one is."""
    if values and may_be_cut(statement.params):
        check_numbers(await find_types(run, statement.sql), values)


async def find_types(run: NodeRun, sql: str) -> list[int]:
    """Return the types of the placeholders, as the engine takes them."""
    described = await describe_statement(run.member, sql.encode(), run.pool.state.untold.of(sql))
    run.check_ended()
    return read_placeholders(described)
