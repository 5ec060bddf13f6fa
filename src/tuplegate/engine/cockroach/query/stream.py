"""Runs one statement for the port's `stream`: sends rows on as the engine makes them, in constant memory.

If its reader is too slow, the connection is not read any further, and so the engine waits. That time does not count as
the engine's. The time limit is checked before each portion of rows leaves: a cancel that reaches the engine between the
statements of a stream, or after its last row, ends nothing.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.cockroach.dialect.cluster_errors import is_node_failure, refine
from tuplegate.engine.cockroach.dialect.narrow_numbers import check_numbers
from tuplegate.engine.cockroach.query import rules
from tuplegate.engine.cockroach.query.committing import commit, may_be_applied
from tuplegate.engine.cockroach.query.described import check_described, make_commands
from tuplegate.engine.cockroach.query.refusals import check_statement
from tuplegate.engine.cockroach.query.run import UNKNOWN, UNREACHED, explain_loss, give_up
from tuplegate.engine.cockroach.query.stream_run import StreamRun
from tuplegate.engine.libpq.connections.commands import ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.connections.server_errors import STREAM_APART, explain_width
from tuplegate.engine.libpq.statements.arriving_rows import ArrivingRows, StreamedRows
from tuplegate.engine.libpq.statements.parameters import describe_statement, read_placeholders, write_params
from tuplegate.engine.libpq.statements.rows import find_encoder
from tuplegate.engine.libpq.values.row_encoder import RowEncoder
from tuplegate.engine.sql.facts import Leftovers, refuse_copy

_CHUNK_ROWS: Final = 64


@asynccontextmanager
async def open_stream(run: StreamRun) -> AsyncIterator["Stream"]:
    """Parse and describe the statement. Give the connection back when the block is left."""
    answered = False
    try:
        stream = await prepare_stream(run)
        yield stream
        answered = stream.finished
    except port.StatementFailed:
        answered = True
        raise
    finally:
        if answered and run.ended is None:
            run.pool.give_back(run.member, Leftovers.ANYTHING)
        else:
            give_up(run)
        if rules.changes_types(run.statement):
            run.pool.state.note_change()


async def prepare_stream(run: StreamRun) -> "Stream":
    """Parse and describe the statement."""
    encoders, member, statement = run.pool.state.encoders, run.member, run.statement
    try:
        with run:
            check_statement(run.pool.state, run.target, statement)
            refuse_copy(statement)
            params, described = await _describe(run)
            encoder = await find_encoder(encoders, member, described, statement.shape)
        run.check_ended()
    except ConnectionLost as lost:
        raise explain_loss(run) from lost
    except port.StatementFailed as failure:
        raise _explain(run, failure) from failure
    return Stream(run, params, encoder)


def _explain(
    run: StreamRun, exc: port.StatementFailed, answers: Sequence[PGresult] | None = None
) -> port.EngineFailure:
    """Return the failure to raise. `answers` are the answers to the statement; None if it was not sent."""
    failure = refine(exc, run.statement.sql)
    failure.exec_us = run.elapsed_us
    if answers is not None and run.is_indefinite and may_be_applied(run, run.statement, failure, answers):
        return port.OutcomeUnknown(UNKNOWN)
    if run.was_cancelled(failure):
        return run.explain_cancel(failure)
    return port.EngineUnavailable(UNREACHED) if is_node_failure(failure) else failure


async def _describe(run: StreamRun) -> tuple[list[bytes | None] | None, PGresult]:
    """Return the parameters as text, and the description of the columns."""
    state, member, statement = run.pool.state, run.member, run.statement
    while True:
        types = state.untold.of(statement.sql)
        try:
            params = await write_params(state.encoders, member, statement, run, describe=True, types=types)
            run.check_ended()
            described = await describe_statement(member, statement.sql.encode(), types)
            check_numbers(read_placeholders(described), params or [])
            return params, described
        except port.StatementFailed as failure:
            if not state.untold.learn(statement.sql, failure):
                raise


class Stream(StreamedRows):
    """Fills the port's `RowStream`."""

    def __init__(self, run: StreamRun, params: list[bytes | None] | None, encoder: RowEncoder) -> None:
        super().__init__(encoder, run.bounds.rows_max)
        self._run = run
        self._params = params
        self._arriving = ArrivingRows(run.member)

    @property
    def exec_us(self) -> int:
        return self._run.elapsed_us

    async def lines(self) -> AsyncGenerator[bytes, None]:
        run = self._run
        try:
            async for block in self._blocks():
                yield block
            if run.in_block:
                with run:
                    run.check_ended()
                    await commit(run)
        except RowsTooWide as wide:
            raise explain_width(STREAM_APART, self.exec_us) from wide
        except ConnectionLost as exc:
            if run.is_indefinite:
                raise port.OutcomeUnknown(UNKNOWN) from exc
            raise explain_loss(run) from exc
        except CopyStarted as exc:
            raise port.CopyRefused from exc
        except port.StatementFailed as exc:
            self.leave()
            raise _explain(run, exc, self._arriving.results) from exc
        self.finished = True

    async def _blocks(self) -> AsyncIterator[bytes]:
        run = self._run
        rows_at_once = 1 if run.kind is rules.Kind.WRITES else _CHUNK_ROWS
        types = run.pool.state.untold.of_each(run.statement.sql, self._params)
        commands = [rules.BEGIN_WRITING] if run.in_block else []
        commands += make_commands(run.statement, self._params, rows_at_once, types, asks=not run.is_indefinite)
        async for chunks in self._arriving.read(commands, run):
            if not run.is_indefinite:
                run.check_ended()
            if block := b"".join([await self._writer.write(chunk) for chunk in chunks]):
                yield block
        check_described(commands, self._arriving.results)
        self.affected_rows = self._arriving.affected_rows
        self.notices += run.member.take_notices()

    def leave(self) -> None:
        """Take no more rows, since nobody reads them."""
        self._arriving.leave()
