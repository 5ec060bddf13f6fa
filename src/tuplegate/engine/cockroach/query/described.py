"""Sends a statement together with a question for its placeholders' types, if a number may be too large for one.

The engine answers both from one parse. So no change of definitions can come between them, whichever worker or node
makes it, and the question costs no extra round trip. A number that does not fit is found after the statement has run.
So this is for statements that are committed afterwards, or change nothing. For others `check_first` asks before.
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
    """Return the commands that run the statement; the rows belong to the last one. `types` are the types to tell the
    engine. Without `asks`, the statement is sent alone."""
    sql = statement.sql.encode()
    if not (asks and values and may_be_cut(statement.params)):
        return [Command(sql, values or None, rows_at_once, types=types)]
    return [Command(sql, name=b"", types=types), DESCRIBE, Command(b"", values, rows_at_once, name=b"")]


def check_described(
    commands: Sequence[Command], results: Sequence[PGresult], owners: Sequence[int | None] | None = None
) -> None:
    """Raise if the engine has cut a number. `owners` gives the statement of each command.

    Call it before any other look at the results: a statement that ran with another number may have failed for that.
    """
    for index, (command, result) in enumerate(zip(commands, results, strict=False)):
        if command is DESCRIBE and result.status == _DESCRIBED:
            try:
                check_numbers(read_placeholders(result), commands[index + 1].params or ())
            except port.StatementFailed as failure:
                failure.statement = None if owners is None else owners[index]
                raise


async def check_first(run: NodeRun, statement: port.Statement, values: Sequence[bytes | None] | None) -> None:
    """Ask for the types if a number may be too large, and raise if one is."""
    if values and may_be_cut(statement.params):
        check_numbers(await find_types(run, statement.sql), values)


async def find_types(run: NodeRun, sql: str) -> list[int]:
    """Return the types of the placeholders, as the engine infers them."""
    described = await describe_statement(run.member, sql.encode(), run.pool.state.untold.of(sql))
    run.check_ended()
    return read_placeholders(described)
