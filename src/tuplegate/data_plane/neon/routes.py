"""`POST /sql`: runs one statement, or several as one transaction, for clients that speak Neon's protocol.

The engine is asked as `/v1/query` and `/v1/transaction` ask it: the same retries, isolation, bounds and commits. Only
the form of the request, the rows and the errors differs.
"""

from collections.abc import Awaitable
from typing import Final

import msgspec

from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.consistency import read_position, tell_newest, tell_position, tell_server, wants_snapshot
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.data_plane.idempotency import Answer, read_idempotency_key, run_alone, run_once
from tuplegate.data_plane.large_answers import respond_whole
from tuplegate.data_plane.long_requests import read_long_sql, wrong_number_of_statements
from tuplegate.data_plane.neon.connection_string import find_options
from tuplegate.data_plane.neon.options import SqlOptions
from tuplegate.data_plane.timings import note_engine_time
from tuplegate.data_plane.transaction import TransactionRoutes, bound_transaction
from tuplegate.direct_future import yield_to_loop
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.http.requests import read_json
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.neon import SqlRequest
from tuplegate.protocol.pieces import LARGE
from tuplegate.protocol.statements import keyword_of_one
from tuplegate.protocol.time_limits import WorkKind, find_kind

_decode: Final = msgspec.json.Decoder(SqlRequest).decode

_OBJECTS, _ARRAYS = port.Shape("objects", style="mixed"), port.Shape("arrays", style="mixed")
_TEXT_OBJECTS, _TEXT_ARRAYS = port.Shape("objects", style="text"), port.Shape("arrays", style="text")
_AS_ARRAY: Final = {"arrays": b"true", "objects": b"false"}
_SEVERAL: Final = "Send several statements as the list `queries`, or with the driver as sql.transaction([…])."


class SqlRoutes:
    """`others` gives the ids by which an outcome that was lost can be asked for."""

    def __init__(
        self,
        queries: port.Queries,
        transactions: port.Transactions,
        records: port.Records,
        identities: IdentityCache,
        statements_max: int,
        answer_bytes_max: int,
        others: TransactionRoutes,
    ) -> None:
        self._queries = queries
        self._transactions = transactions
        self._records = records
        self._tells_positions = queries.tells_positions
        self._identities = identities
        self._statements_max = statements_max
        self._answer_bytes_max = answer_bytes_max
        self._others = others

    def run(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        if exchange.query:
            read_query(exchange)
        body = exchange.body
        if len(body) > LARGE:
            return self._answer_long(exchange, identity, body)
        return self._answer(exchange, identity, read_json(_decode, body, SqlRequest))

    async def _answer_long(self, exchange: Exchange, identity: Identity, body: bytes) -> None:
        limit_ms = identity.allowance.bounds[WorkKind.TRANSACTION].timeout_ms
        request = await read_long_sql(body, self._statements_max, limit_ms)
        await self._answer(exchange, identity, request)

    async def _answer(self, exchange: Exchange, identity: Identity, request: SqlRequest) -> None:
        options = find_options(exchange)
        target = await self._identities.find_target(identity, exchange)
        key: str | None = None
        snapshot = False
        if identity.reads_snapshots or not options.is_plain:
            key = read_idempotency_key(exchange)
            snapshot = wants_snapshot(exchange, identity, self._queries)
            if snapshot and key is not None:
                snapshot = False
                tell_server(exchange, on_replica=False)
        if request.queries is not None:
            statements = await self._read_statements(request, options)
            bounds = bound_transaction(identity, statements)
            await self._answer_batch(exchange, target, statements, bounds, options, key, snapshot=snapshot)
            return
        if request.query is None:
            raise _lacks_query()
        statement = _read_statement(request.query, request.params, request.array_mode, options)
        bounds = identity.allowance.bounds[find_kind(statement.keyword)]
        try:
            if key is not None:
                await self._run_once(exchange, key, target, [statement], bounds, is_batch=False)
                return
            if snapshot:
                position = read_position(exchange)
                result = await self._queries.snapshots.query(target, statement, bounds, position)
                tell_server(exchange, on_replica=result.on_replica)
            else:
                result = await self._queries.query(target, statement, bounds)
        except port.EngineFailure as failure:
            if snapshot:
                tell_server(exchange, on_replica=failure.on_replica)
            raise await self._explain(exchange, target, failure, [statement], is_batch=False) from failure
        if result.reached is not None:
            tell_position(exchange, result.reached)
        elif self._tells_positions:
            await tell_newest(exchange, self._queries)
        if exchange.traced:
            note_engine_time(exchange, result.exec_us)
        exchange.row_count = result.row_count
        await respond_whole(exchange, self._queries, target.database, self._write_result(result, statement))

    async def _answer_batch(
        self,
        exchange: Exchange,
        target: port.Target,
        statements: list[port.Statement],
        bounds: port.Bounds,
        options: SqlOptions,
        key: str | None,
        *,
        snapshot: bool,
    ) -> None:
        """Run several statements as one transaction."""
        read_only = options.is_read_only
        if snapshot and not (read_only or not target.may_write):
            snapshot = False
            tell_server(exchange, on_replica=False)
        try:
            if not statements:
                done = port.TransactionResult([], port.Commit.READ_ONLY, None, 1, 0, [])
            elif key is not None:
                exchange.extra_headers += options.echo(on_replica=False)
                await self._run_once(exchange, key, target, statements, bounds, read_only, is_batch=True)
                return
            elif snapshot:
                position = read_position(exchange)
                done = await self._queries.snapshots.transaction(target, statements, bounds, position)
                tell_server(exchange, on_replica=done.on_replica)
            else:
                done = await self._transactions.transaction(target, statements, bounds, read_only=read_only)
        except port.EngineFailure as failure:
            if snapshot:
                tell_server(exchange, on_replica=failure.on_replica)
            raise await self._explain(exchange, target, failure, statements, is_batch=True) from failure
        if done.reached is not None:
            tell_position(exchange, done.reached)
        else:
            await tell_newest(exchange, self._queries)
        exchange.extra_headers += options.echo(on_replica=done.on_replica)
        await respond_whole(exchange, self._queries, target.database, self._write_batch(exchange, done, statements))

    async def _run_once(
        self,
        exchange: Exchange,
        key: str,
        target: port.Target,
        statements: list[port.Statement],
        bounds: port.Bounds,
        read_only: bool = False,
        *,
        is_batch: bool,
    ) -> None:
        """Run the request as a transaction that records the answer together with its changes."""

        def write(done: port.TransactionResult) -> bytes:
            if is_batch:
                return self._write_batch(exchange, done, statements, applied=False)
            exchange.row_count = done.results[0].row_count
            return self._write_result(done.results[0], statements[0], applied=False)

        def make(done: port.TransactionResult) -> Answer:
            body = write(done)
            has_rows = any(result.row_count for result in done.results)
            return Answer(body, _refuse_to_keep if has_rows else lambda: body)

        def run(keep: port.Keep) -> Awaitable[object]:
            if not is_batch:
                return run_alone(self._transactions, target, statements[0], bounds, keep)
            promise = port.Promise(keep=keep)
            return self._transactions.transaction(target, statements, bounds, read_only=read_only, promise=promise)

        await run_once(self._queries, self._records, exchange, target, key, run, make)

    # -- requests -----------------------------------------------------------------------------------------------

    async def _read_statements(self, request: SqlRequest, options: SqlOptions) -> list[port.Statement]:
        queries = request.queries or []
        if request.query is not None or request.params is not None or request.array_mode is not None:
            raise ServiceError(
                "malformed_request",
                "`queries` stands alone in the body: each entry has its own `query`, `params` and `arrayMode`",
            )
        if len(queries) > self._statements_max:
            raise wrong_number_of_statements(self._statements_max, str(len(queries)))
        statements = []
        length = 0
        for index, item in enumerate(queries):
            length += len(item.query)
            if length > LARGE:  # skipping the comments before a statement takes long
                length = 0
                await yield_to_loop()
            try:
                statements.append(_read_statement(item.query, item.params, item.array_mode, options))
            except ServiceError as exc:
                raise exc.at_statement(index) from exc
        return statements

    # -- answers ------------------------------------------------------------------------------------------------

    def _write_batch(
        self,
        exchange: Exchange,
        done: port.TransactionResult,
        statements: list[port.Statement],
        *,
        applied: bool = True,
    ) -> bytes:
        if exchange.traced:
            note_engine_time(exchange, done.exec_us)
        exchange.row_count = sum(result.row_count for result in done.results)
        results = [
            self._write_result(result, statement, applied=applied)
            for result, statement in zip(done.results, statements, strict=True)
        ]
        return b'{"results":[%b]}' % b",".join(results)

    def _write_result(self, result: port.Result, statement: port.Statement, *, applied: bool = True) -> bytes:
        if result.truncated:
            raise self._cut(result, applied=applied)
        command, _, rest = result.tag.partition(b" ")
        count = rest[rest.rfind(b" ") + 1 :]  # behind an object id, which INSERT has
        return b'{"fields":%b,"rows":%b,"command":"%b","rowCount":%b,"rowAsArray":%b}' % (
            result.columns,
            result.rows,
            command,
            count if count.isdigit() else b"null",
            _AS_ARRAY[statement.shape.row_mode],
        )

    def _cut(self, result: port.Result, *, applied: bool) -> ServiceError:
        """Return an error in place of incomplete rows: these clients have no field for that."""
        why = next((notice.message for notice in result.notices if notice.sqlstate == "22021"), None)
        outcome = "what the request wrote, if anything, is applied" if applied else "nothing was applied"
        return ServiceError(
            "sql_error",
            f"{why or f'the rows take more than {self._answer_bytes_max:,} bytes, the limit of an answer'}; {outcome}",
            sqlstate="54000",
            hint="Ask for fewer rows at a time, with LIMIT, or stream them with POST /v1/query.",
        )

    async def _explain(
        self,
        exchange: Exchange,
        target: port.Target,
        failure: port.EngineFailure,
        statements: list[port.Statement],
        *,
        is_batch: bool,
    ) -> ServiceError:
        """Return the error for the client."""
        index = 0
        if isinstance(failure, port.StatementFailed):
            if self._tells_positions:
                await tell_newest(exchange, self._queries)
            index = failure.statement or 0
            failure.statement = failure.statement if is_batch else None
        error = to_service_error(failure, statements[index])
        if isinstance(failure, port.MultipleStatements):
            return error.with_hint(_SEVERAL)
        if isinstance(failure, port.OutcomeUnknown) and is_batch:
            id = self._others.find_lost_id(failure, target)
            return error if id is None else error.with_hint(f"Ask GET /v1/transaction/{id}")
        return error


def _read_statement(
    sql: str, params: list[msgspec.Raw] | None, as_array: bool | None, options: SqlOptions
) -> port.Statement:
    shape = _find_shape(options.as_text, options.as_array if as_array is None else as_array)
    try:
        return port.Statement(sql, keyword_of_one(sql), params, True, shape)
    except ServiceError as exc:
        if exc.body.code == "transaction_control":
            raise exc.with_hint(_SEVERAL) from exc
        raise


def _find_shape(as_text: bool, as_array: bool) -> port.Shape:
    if as_text:
        return _TEXT_ARRAYS if as_array else _TEXT_OBJECTS
    return _ARRAYS if as_array else _OBJECTS


def _refuse_to_keep() -> bytes:
    """Refuse to record an answer without its rows: these clients would not see that they are missing."""
    raise ServiceError(
        "answers_full",
        "the rows of this answer are too many to be kept for its Idempotency-Key; nothing was applied",
        hint="Send it without an Idempotency-Key, or ask for fewer rows.",
    )


def _lacks_query() -> ServiceError:
    return ServiceError(
        "malformed_request",
        "the body has neither a `query` nor `queries`",
        hint='It is {"query": "select $1", "params": [1]}, or {"queries": […]} with several of these.',
    )
