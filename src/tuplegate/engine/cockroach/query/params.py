"""Writes parameters as text. Where the engine cannot tell the type of a placeholder, it is told that it is a text."""

from tuplegate.engine import port
from tuplegate.engine.cockroach.query.run import Run
from tuplegate.engine.libpq.parameters import write_params, write_texts


async def write_values(run: Run, statement: port.Statement, *, describe: bool) -> list[bytes | None] | None:
    encoders = run.pool.state.encoders
    if not describe:
        values = write_texts(statement, encoders.types)
        if values is not None:
            return values
    types = run.pool.state.untold.of(statement.sql)
    values = await write_params(encoders, run.member, statement, run, describe=describe, types=types)
    run.check_ended()
    return values
