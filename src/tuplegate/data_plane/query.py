"""`POST /v1/query` and `POST /query`: run one statement, and answer with its rows at once or as a stream."""

from collections.abc import Awaitable
from typing import Final, get_args

import msgspec

from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.consistency import read_position, tell_newest, tell_position, tell_server, wants_snapshot
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.data_plane.idempotency import Answer, read_idempotency_key, run_alone, run_once
from tuplegate.data_plane.large_answers import LARGE_ANSWER
from tuplegate.data_plane.long_requests import read_long_query
from tuplegate.data_plane.stream import QueryJob, StreamWriter
from tuplegate.data_plane.timings import write_timings
from tuplegate.engine import port
from tuplegate.http.errors import respond_error
from tuplegate.http.exchange import Exchange
from tuplegate.http.requests import check_request, read_json
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.messages import BigNumbers, QueryRequest, RowMode, StreamFormat
from tuplegate.protocol.pieces import LARGE
from tuplegate.protocol.statements import is_streamed, keyword_of_one
from tuplegate.protocol.time_limits import WorkKind, find_kind, is_exported

_decode: Final = msgspec.json.Decoder(QueryRequest).decode
_encode: Final = msgspec.json.Encoder().encode

_JSON: Final = "application/json"
SHAPES: Final = {
    (row_mode, big_numbers): port.Shape(row_mode, big_numbers)
    for row_mode in get_args(RowMode)
    for big_numbers in get_args(BigNumbers)
}


class QueryRoutes:
    """`transactions` and `records` are for requests with an Idempotency-Key."""

    def __init__(
        self,
        queries: port.Queries,
        transactions: port.Transactions,
        records: port.Records,
        identities: IdentityCache,
        streams: StreamWriter,
    ) -> None:
        self._queries = queries
        self._transactions = transactions
        self._records = records
        self._tells_positions = queries.tells_positions
        self._identities = identities
        self._streams = streams

    def json(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        check_request(exchange, _JSON)
        body = exchange.body
        if len(body) > LARGE:
            return self._answer_long(exchange, identity, body)
        return self._answer(exchange, identity, read_json(_decode, body, QueryRequest))

    async def _answer_long(self, exchange: Exchange, identity: Identity, body: bytes) -> None:
        await self._answer(exchange, identity, await read_long_query(body, identity.allowance.statement.timeout_ms))

    def text(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        check_request(exchange, "text/plain")
        try:
            sql = exchange.body.decode()
        except UnicodeDecodeError as exc:
            raise ServiceError("malformed_request", f"the body is not UTF-8: byte {exc.start + 1} is wrong") from exc
        return self._answer(exchange, identity, QueryRequest(sql))

    async def _answer(self, exchange: Exchange, identity: Identity, request: QueryRequest) -> None:
        accept = exchange.headers.get(b"accept")
        format = None if accept is None or accept == b"*/*" else choose_format(accept.decode("latin-1"))
        if request.export or is_streamed(request.sql):
            format = StreamFormat.NDJSON if format is StreamFormat.NDJSON else StreamFormat.SSE
        shape = SHAPES[request.row_mode, request.big_numbers]
        statement = port.Statement(request.sql, keyword_of_one(request.sql), request.params, False, shape)
        target = identity.target
        if target is None or b"tuplegate-database" in exchange.headers:
            target = await self._identities.find_target(identity, exchange)
        bounds = identity.allowance.bounds[find_kind(statement.keyword, is_streamed=format is not None)]
        if request.export:
            bounds = identity.allowance.bounds[check_export(statement)]
        if request.timeout_ms is not None or request.max_rows is not None:
            bounds = bounds.narrow(request.timeout_ms, request.max_rows)
        key = read_idempotency_key(exchange)
        snapshot = False
        headers = exchange.headers
        if identity.reads_snapshots or b"tuplegate-consistency" in headers or b"tuplegate-position" in headers:
            snapshot = wants_snapshot(exchange, identity, self._queries)
        if format is not None:
            if key is not None:
                raise ServiceError("malformed_request", "an Idempotency-Key cannot be used with a stream")
            job = QueryJob(target, statement, bounds)
            await self._streams.answer(exchange, format, job, snapshot=snapshot)
            return
        try:
            if key is not None:
                if snapshot:
                    tell_server(exchange, on_replica=False)
                await self._answer_once(exchange, key, QueryJob(target, statement, bounds))
                return
            if snapshot:
                result = await self._read_snapshot(exchange, QueryJob(target, statement, bounds))
            else:
                result = await self._queries.query(target, statement, bounds)
        except port.EngineFailure as failure:
            if snapshot and key is None:
                tell_server(exchange, on_replica=failure.on_replica)
            if self._tells_positions and isinstance(failure, port.StatementFailed):
                await tell_newest(exchange, self._queries)
            error = to_service_error(failure, statement)
            if error.status == 200:
                exchange.respond(200, write_failure(exchange, failure, error))
            else:
                respond_error(exchange, error)
        else:
            if result.reached is not None:
                tell_position(exchange, result.reached)
            elif self._tells_positions:
                await tell_newest(exchange, self._queries)
            if len(result.rows) <= LARGE_ANSWER:
                exchange.respond(200, write_result(exchange, result))
                return
            parts = split_result(exchange, result)
            with self._queries.hold_answer(target.database, len(result.rows)):
                await exchange.respond_large(parts)

    async def _read_snapshot(self, exchange: Exchange, job: QueryJob) -> port.Result:
        """Read from a snapshot that is no older than the client's position."""
        result = await self._queries.snapshots.query(job.target, job.statement, job.bounds, read_position(exchange))
        tell_server(exchange, on_replica=result.on_replica)
        return result

    async def _answer_once(self, exchange: Exchange, key: str, job: QueryJob) -> None:
        """Run it as a transaction of one statement, which records the answer together with its changes."""

        def make(done: port.TransactionResult) -> Answer:
            [result] = done.results
            result.exec_us = done.exec_us
            result.notices += done.notices
            return Answer(write_result(exchange, result), lambda: write_result(exchange, result.bare()))

        def run(keep: port.Keep) -> Awaitable[None]:
            return run_alone(self._transactions, job.target, job.statement, job.bounds, keep)

        await run_once(self._queries, self._records, exchange, job.target, key, run, make)


def check_export(statement: port.Statement) -> WorkKind:
    """Make a statement read-only, since it is to be exported. Raises malformed_request if it cannot be a query."""
    if not is_exported(statement.keyword):
        raise ServiceError("malformed_request", "an export is a query: a SELECT, TABLE, VALUES or WITH that only reads")
    statement.only_reads = True
    return WorkKind.EXPORT


def choose_format(accept: str) -> StreamFormat | None:
    """Return the format that `Accept` prefers: a stream's, or None for the buffered answer. Raises not_acceptable."""
    best: tuple[float, StreamFormat | None] | None = None
    for entry in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in entry.split(";"))
        if kind in ("*/*", "application/*", _JSON):
            format = None
        elif kind in (StreamFormat.SSE.value, StreamFormat.NDJSON.value):
            format = StreamFormat(kind)
        else:
            continue
        quality = next((_quality(p[2:]) for p in parameters if p.startswith("q=")), 1.0)
        if quality > 0 and (best is None or quality > best[0]):
            best = quality, format
    if best is None:
        kinds = [_JSON, *(format.value for format in StreamFormat)]
        raise ServiceError("not_acceptable", f"the answer can be {', '.join(kinds)}; Accept asks for {accept!r}")
    return best[1]


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def write_result(exchange: Exchange, result: port.Result, more: bytes = b"") -> bytes:
    """Return the body of an answer; `more` are further fields, each behind a comma."""
    return b"%b%b%b" % split_result(exchange, result, more)


def split_result(exchange: Exchange, result: port.Result, more: bytes = b"") -> tuple[bytes, bytes, bytes]:
    """Return the body in three parts, of which the rows are the second."""
    exchange.row_count = result.row_count
    extra = more
    if result.notices:
        extra += b',"notices":' + _encode(result.notices)
    if result.truncated:
        extra += b',"truncated":true,"hint":"Rows were cut. Start the statement with /*+ STREAM */ to get all of them."'
    return (
        b'{"success":true,"columns":%b,"types":%b,"rows":' % (result.columns, result.types),
        result.rows,
        b',"affected_rows":%d,%b%b}' % (result.affected_rows, write_timings(exchange, result.exec_us), extra),
    )


def write_failure(exchange: Exchange, failure: port.EngineFailure, error: ServiceError, more: bytes = b"") -> bytes:
    """Return the body for the engine's error on a statement; `more` are further fields, each behind a comma."""
    exchange.failed = True
    exchange.error_code = error.body.code
    assert isinstance(failure, port.StatementFailed)
    extra = more + (b',"notices":' + _encode(failure.notices) if failure.notices else b"")
    return (
        b'{"success":false,"columns":[],"types":[],"rows":[],"affected_rows":0,%b,"error":%b,"request_id":"%b"%b}'
        % (
            write_timings(exchange, failure.exec_us),
            _encode(error.body),
            exchange.request_id.encode(),
            extra,
        )
    )
