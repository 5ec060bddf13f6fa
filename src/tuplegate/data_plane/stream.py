"""Answers a query as a stream of events: `columns`, a `row` each as they come, then exactly one `done` or `error`."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from time import perf_counter_ns

import msgspec

from tuplegate.admission.long_answers import LongAnswers
from tuplegate.data_plane.consistency import read_position, tell_newest, tell_position, tell_server
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.data_plane.timings import note_engine_time
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.metrics.sums import Counted
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.events import FRAMINGS, Framing
from tuplegate.protocol.messages import StreamFormat

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class QueryJob:
    """A query, read and checked, for every way to run it except the hot path."""

    target: port.Target
    statement: port.Statement
    bounds: port.Bounds


class StreamWriter:
    """Answers with streams. `begun` counts them, `open` are those that run now, and `rows` counts the rows of those
    that ended."""

    def __init__(self, queries: port.Queries, heartbeat_s: float, long_answers: LongAnswers) -> None:
        self._queries = queries
        self._heartbeat_s = heartbeat_s
        self._long_answers = long_answers
        self.begun = self.open = self.rows = 0

    def measure(self) -> Counted:
        """Return its counts, named as in the table of metrics."""
        return {"streams_total": self.begun, "stream_rows_total": self.rows}, {"streams_open": self.open}

    def end(self, exchange: Exchange, error: ServiceError) -> None:
        """End a stream that runs, with this error."""
        self._long_answers.end(exchange, error)

    async def answer(self, exchange: Exchange, format: StreamFormat, job: QueryJob, *, snapshot: bool) -> None:
        """Run the query and write its events. Raises a failure only while nothing was written."""
        opening = self._open(exchange, job, snapshot=snapshot)
        await self.write(exchange, format, job.statement, opening, snapshot=snapshot)

    async def write(
        self,
        exchange: Exchange,
        format: StreamFormat,
        statement: port.Statement,
        opening: AbstractAsyncContextManager[port.RowStream],
        tell: Callable[[], dict[str, object]] = dict,
        *,
        snapshot: bool = False,
    ) -> None:
        """Write the events of a stream; `tell` gives more fields for its last one."""
        framing = FRAMINGS[format]
        rows: port.RowStream | None = None
        try:
            with self._long_answers.running(exchange):
                async with opening as rows:
                    self.begun += 1
                    self.open += 1
                    if rows.reached is not None:
                        tell_position(exchange, rows.reached)
                    if snapshot:
                        tell_server(exchange, on_replica=rows.on_replica)
                    exchange.start(200, format.value.encode(), (("x-accel-buffering", "no"),))
                    exchange.sign_of_life = framing.silence
                    columns = b'{"columns":%b,"types":%b}' % (rows.columns, rows.types)
                    await exchange.write(framing.event("columns", columns))
                    await self._write_rows(exchange, framing, rows)
                position = rows.reached
                if position is not None and not rows.on_replica:
                    position = await self._queries.position()  # one that includes what the statement has written
            exchange.write_last(framing.event("done", _write_done(exchange, rows.sum_up(), position, tell())))
        except port.TransactionOver:
            raise  # the caller reports the end
        except port.EngineFailure as failure:
            exchange.failed = True
            if not exchange.answered:
                await self._tell_failed(exchange, failure, snapshot=snapshot and rows is None)
            # No local name may hold the raised error: the two would keep the statement alive until a garbage
            # collection.
            if not exchange.answered and to_service_error(failure, statement).status != 200:
                raise to_service_error(failure, statement) from failure
            if not exchange.answered:
                exchange.start(200, format.value.encode())
            _write_error(exchange, framing, rows, to_service_error(failure, statement), tell())
        except ServiceError as ended:
            if not exchange.answered:
                raise
            exchange.failed = True
            _write_error(exchange, framing, rows, ended, tell())
        except asyncio.CancelledError:
            if exchange.answered and not exchange.client_gone:
                stopping = ServiceError("outcome_unknown", "the service had to stop; it may have been applied")
                _write_error(exchange, framing, rows, stopping, tell())
            raise
        finally:
            if rows is not None:
                sums = rows.sum_up()
                exchange.row_count = sums.row_count
                self.rows += sums.row_count
                self.open -= 1
                if exchange.traced:
                    note_engine_time(exchange, sums.exec_us)

    async def _tell_failed(self, exchange: Exchange, failure: port.EngineFailure, *, snapshot: bool) -> None:
        """Add the headers of a failure that nothing was written before."""
        if snapshot:
            tell_server(exchange, on_replica=failure.on_replica)
        if isinstance(failure, port.StatementFailed):
            await tell_newest(exchange, self._queries)

    def _open(
        self, exchange: Exchange, job: QueryJob, *, snapshot: bool
    ) -> AbstractAsyncContextManager[port.RowStream]:
        if not snapshot:
            return self._queries.stream(job.target, job.statement, job.bounds)
        return self._queries.snapshots.stream(job.target, job.statement, job.bounds, read_position(exchange))

    async def _write_rows(self, exchange: Exchange, framing: Framing, rows: port.RowStream) -> None:
        """Write rows as they come, and a sign of life while none come."""
        async with aclosing(_fill_silences(rows.lines(), self._heartbeat_s)) as blocks:
            async for lines in blocks:
                await exchange.write(framing.rows(lines) if lines else framing.silence)


async def _fill_silences(source: AsyncGenerator[bytes, None], silence_s: float) -> AsyncGenerator[bytes, None]:
    """Yield the blocks of the source, and b"" after every `silence_s` without one. The source is not cancelled."""
    pending: asyncio.Future[bytes] | None = None
    try:
        while True:
            pending = asyncio.ensure_future(anext(source))
            while not (await asyncio.wait([pending], timeout=silence_s))[0]:
                yield b""
            try:
                yield pending.result()
            except StopAsyncIteration:
                return
    finally:
        if pending is not None and not pending.done():
            pending.cancel()
            await asyncio.wait([pending])
        pending = None  # a failure in it refers to this frame: the two would keep each other alive
        await source.aclose()


def _write_error(
    exchange: Exchange, framing: Framing, rows: port.RowStream | None, error: ServiceError, more: dict[str, object]
) -> None:
    """Write the last event of a stream that has failed, or was ended."""
    exchange.error_code = error.body.code
    told = {"success": False, "rows_sent": rows.sum_up().row_count if rows else 0, "error": error.body, **more}
    exchange.write_last(framing.event("error", _encode(told)))


def _write_done(exchange: Exchange, sums: port.StreamSums, position: bytes | None, more: dict[str, object]) -> bytes:
    total_us = (perf_counter_ns() - exchange.started_ns) // 1000
    summary: dict[str, object] = {
        "success": True,
        "row_count": sums.row_count,
        "affected_rows": sums.affected_rows,
        "timings": {"total_us": total_us, "exec_us": sums.exec_us},
    }
    if sums.notices:
        summary["notices"] = sums.notices
    if sums.truncated:
        summary["truncated"] = True
    if position is not None:
        summary["position"] = position.decode()
    return _encode(summary | more)
