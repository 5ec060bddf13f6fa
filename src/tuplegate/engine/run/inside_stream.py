"""A stream inside of an open transaction, which continues when the stream has ended or its reader has left.

The consequences for the transaction are carried out even if the reader leaves meanwhile: somebody may wait for its
rollback.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from tuplegate.engine import port
from tuplegate.engine.libpq.statements.arriving_rows import StreamedRows

if TYPE_CHECKING:
    from tuplegate.engine.run.open_transaction import OpenTransaction


@asynccontextmanager
async def stream_inside(
    transaction: "OpenTransaction[Any]", statement: port.Statement, bounds: port.Bounds
) -> AsyncIterator[port.RowStream]:
    started = transaction.start(bounds)
    stream: StreamedRows | None = None
    try:
        stream = await transaction.open_stream(statement)
        yield cast(port.RowStream, stream)
    except BaseException as exc:
        if stream is None or stream.finished or isinstance(exc, port.EngineFailure):
            raise await transaction.see_through(transaction.see_failure(exc, started)) from exc
        await transaction.see_through(transaction.end_stream(stream))
        raise
    await transaction.see_through(transaction.end_stream(stream))
