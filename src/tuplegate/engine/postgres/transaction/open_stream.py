"""A stream inside of an open transaction, which goes on when the stream has ended or its reader has left.

What the end of the stream means for the transaction is seen through even if the reader leaves meanwhile: somebody may
wait for its rollback.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING

from tuplegate.engine import port
from tuplegate.engine.libpq.measures import Measures
from tuplegate.engine.postgres.query.stream import Stream, begin_stream

if TYPE_CHECKING:
    from tuplegate.engine.postgres.transaction.open_statements import OpenStatements


@asynccontextmanager
async def stream_inside(
    transaction: "OpenStatements", statement: port.Statement, bounds: port.Bounds
) -> AsyncIterator[port.RowStream]:
    started = perf_counter_ns()
    run = transaction.start_stream(statement, bounds)
    stream: Stream | None = None
    try:
        await transaction.send_ahead(statement)
        stream = await begin_stream(run)
        stream.measures = Measures("stream")
        yield stream
    except BaseException as exc:
        if stream is None or stream.finished or isinstance(exc, port.EngineFailure):
            raise await transaction.see_through(transaction.see_failure(exc, started)) from exc
        await transaction.leave_stream(stream.close)
        raise
    if stream.finished:
        await transaction.see_through(transaction.finish_stream())
    else:
        await transaction.leave_stream(stream.close)
